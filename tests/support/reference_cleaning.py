"""The reference cleaner in the shape of a call of the engine: same arguments, same document."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from keeplast.format.checkpoint import decode_offsets, encode_offsets
from keeplast.format.filename import CLEANER_CHECKPOINT, LOG_START_CHECKPOINT
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import CleanerConfig
from tests.support.cases import Json, RoundSettings, topic_config
from tests.support.reference_cleaner import Round, clean, write_outcome


def reference_cleaning(
    data_directory: Path,
    partition: TopicPartition,
    settings: RoundSettings,
    passed_to: int | None = None,
) -> Json:
    """Clean ``partition`` of ``data_directory`` in place, once.

    Readers have read to ``passed_to``, exclusive; None waits for none.
    """
    checkpoint = _stored(data_directory / CLEANER_CHECKPOINT, partition)
    log_start = _stored(data_directory / LOG_START_CHECKPOINT, partition) or 0
    outcome = clean(
        data_directory / str(partition),
        Round(
            now_ms=settings.now_ms,
            topic=topic_config(settings.config),
            cleaner=CleanerConfig(
                settings.key_map_bytes,
                settings.load_factor,
                settings.producer_id_expiration_ms,
            ),
            checkpoint=checkpoint,
            log_start=log_start,
            high_watermark=settings.high_watermark,
            first_dirty=settings.first_dirty,
            uncleanable=settings.uncleanable,
            force=settings.force,
            passed_to=passed_to,
        ),
    )
    end_offset = outcome.end_offset
    if end_offset is None and checkpoint is not None:
        # A checkpoint outside the log is repaired even when nothing is cleaned (1.2).
        is_outside = not log_start <= checkpoint <= outcome.log_end
        end_offset = outcome.first_dirty if is_outside else None
    write_outcome(data_directory / str(partition), outcome)
    if end_offset is not None:
        offsets = {partition: end_offset}
        (data_directory / CLEANER_CHECKPOINT).write_bytes(encode_offsets(offsets))
    is_skipped = outcome.end_offset is None
    return {
        "log_start": log_start,
        "log_end": outcome.log_end,
        "last_stable": outcome.last_stable,
        "first_dirty": outcome.first_dirty,
        "uncleanable": outcome.uncleanable,
        "bound": outcome.bound,
        "clean_bytes": outcome.clean_bytes,
        "cleanable_bytes": outcome.cleanable_bytes,
        "ratio": outcome.ratio,
        "compaction_delay_ms": outcome.compaction_delay_ms,
        "end_offset": end_offset,
        "skipped": is_skipped,
        "stats": None if is_skipped else asdict(outcome.counts),
    }


def _stored(path: Path, partition: TopicPartition) -> int | None:
    return decode_offsets(path.read_bytes()).get(partition) if path.exists() else None
