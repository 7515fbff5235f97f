"""``keeplast.exported_state``: a live consumer's state that begins with an export.

What a reader must not break: whatever may win against a later record is in the state before that
record comes. By offset these are the export's rows. By version a tombstone may win, too, so that
the export must have those; one that has none is refused, not believed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from keeplast.api.live_state import LiveRecord, LiveState
from keeplast.errors import InvalidError, RefusedError
from keeplast.log.paths import place_path
from keeplast.model.topic_config import Strategy, TopicConfig
from keeplast.pipeline.export_files import ranked_by
from keeplast.pipeline.exported_rows import ExportedRow, ExportedTopic, open_export


def exported_state(
    directory: str | Path,
    name: str,
    topic: TopicConfig,
    *,
    partitions: Collection[int] = (),
    object_options: Mapping[str, str] | None = None,
) -> LiveState:
    """Return the state of topic ``name`` as an export has it, to go on from.

    ``directory`` is what ``keeplast export --to`` made; of ``--incremental`` its newest version.
    ``object_options`` are those of the object store that it is in. ``topic`` says how records rank.
    ``partitions`` empty means all that are in the export.
    The consumer goes on at :attr:`LiveState.positions`, within the topic's
    ``delete.retention.ms`` of the export: a tombstone that came and was cleaned away in between
    leaves its key.

    RefusedError where the export cannot be gone on from: its records ranked otherwise, or they rank
    by version and it was made without ``--tombstones``. InvalidError for what is not in it,
    CorruptError for what is damaged.
    """
    export = open_export(place_path(str(directory)), name, object_options or {})
    _require_fit(export, topic)
    missing = sorted(set(partitions) - export.offsets.keys())
    if missing:
        raise InvalidError(
            f"the export has no such partitions; leave them out. topic={name} partitions={missing} "
            f"path={export.place}",
            code="K115",
        )
    state = LiveState(topic)
    for partition in sorted(partitions or export.offsets):
        state.begin(
            partition,
            export.offsets[partition],
            (_received(state, partition, row, export, topic) for row in export.rows(partition)),
        )
    return state


def _received(
    state: LiveState, partition: int, row: ExportedRow, export: ExportedTopic, topic: TopicConfig
) -> LiveRecord:
    if row.is_time_cut and topic.strategy is Strategy.TIMESTAMP:
        raise RefusedError(
            "a record ranks by a timestamp that no Parquet file holds; begin with the log's first "
            f"record instead. topic={export.name} partition={partition} offset={row.offset}",
            code="K148",
        )
    return state.record(
        partition=partition, offset=row.offset, timestamp_ms=row.timestamp_ms, key=row.key,
        value=row.value, headers=row.headers,
    )  # fmt: skip


def _require_fit(export: ExportedTopic, topic: TopicConfig) -> None:
    """Raise RefusedError for an export that what comes later cannot be held against."""
    where = f"topic={export.name} path={export.place}"
    if export.facts is None:
        raise RefusedError(
            "this export was made by an earlier version, and does not say how its records ranked; "
            f"export again. {where}",
            code="K148",
        )
    was, now = export.facts.topics.get(export.name), ranked_by(topic)
    if was != now:
        raise RefusedError(
            "the records of this export ranked otherwise; export again by the topic's settings, or "
            f"give those. exported={_shown(was)} wanted={_shown(now)} {where}",
            code="K148",
        )
    if topic.strategy is not Strategy.OFFSET and not export.facts.tombstones:
        raise RefusedError(
            "this export has no tombstones: by version, a later record that is older would bring "
            "a deleted key back; export with --tombstones. Or begin with the log's first record. "
            f"{where}",
            code="K148",
        )


def _shown(ranked: tuple[Strategy, str | None] | None) -> str:
    if ranked is None:
        return "unknown"
    strategy, header = ranked
    return strategy.value if header is None else f"{strategy.value}:{header}"
