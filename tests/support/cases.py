"""A log before Kafka's cleaner, how it was cleaned, and what Kafka's cleaner made of it.

A case is a directory with ``before/``, ``after/``, ``case.json`` and dumps; README.md in
``tests/golden`` says what is in them. Here one is read, laid out as a data directory, and taken
apart into the single rounds that a caller has to run.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from keeplast.format.checkpoint import encode_offsets
from keeplast.format.filename import (
    CLEANER_CHECKPOINT,
    LOG_START_CHECKPOINT,
    parse_partition_directory,
)
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import Strategy, TopicConfig

Json = dict[str, Any]

KEY_MAP_BYTES = 4 << 20
LOAD_FACTOR = 0.9
PRODUCER_ID_EXPIRATION_MS = 86_400_000
ROUNDS_MAX = 10_000


class RoundSettings(Struct, frozen=True):
    """What one round is called with; ``config`` has Kafka's topic spelling and text values."""

    now_ms: int
    config: dict[str, str]
    key_map_bytes: int
    load_factor: float
    producer_id_expiration_ms: int
    first_dirty: int | None
    uncleanable: int | None
    high_watermark: int | None
    force: bool


class Case(Struct, frozen=True):
    """One case; ``expected`` are the oracle's results round by round, repeats unrolled.

    ``is_after_expected`` is false where another Kafka version than the judging one left ``after/``.
    """

    name: str
    directory: Path
    partition: TopicPartition
    params: Json
    expected: tuple[Json, ...]
    is_after_expected: bool

    @property
    def before(self) -> Path:
        """The partition directory as it was."""
        return self.directory / "before" / str(self.partition)

    @property
    def after(self) -> Path:
        """The partition directory as Kafka's cleaner left it after the last round."""
        return self.directory / "after" / str(self.partition)

    def dump_after(self, number: int) -> str | None:
        """Return the dump after round ``number`` (from 1), or None when it was not stored."""
        if not self.is_after_expected:
            return None
        last = number == len(self.expected)
        path = self.directory / ("after.jsonl" if last else f"after.{number}.jsonl")
        return path.read_text() if path.exists() else None


def load_case(directory: Path) -> Case:
    """Return the case stored in ``directory``."""
    document = json.loads((directory / "case.json").read_text())
    parsed = parse_partition_directory(document["partition"])
    assert parsed is not None
    return Case(
        document["name"],
        directory,
        parsed.partition,
        document["params"],
        tuple(document["expect"]["rounds"]),
        document["expect"].get("oracle_equals_broker", True),
    )


def lay_out(case: Case, data_directory: Path) -> Path:
    """Make ``data_directory`` hold the log before cleaning; return the partition directory."""
    partition = data_directory / str(case.partition)
    shutil.copytree(case.before, partition)
    for name, mtime_ms in case.params.get("mtimes", {}).items():
        if (partition / name).exists():
            os.utime(partition / name, ns=(mtime_ms * 10**6, mtime_ms * 10**6))
    for key, name in (("checkpoint", CLEANER_CHECKPOINT), ("log_start", LOG_START_CHECKPOINT)):
        offset = case.params.get(key)
        if offset is not None:
            (data_directory / name).write_bytes(encode_offsets({case.partition: offset}))
    return partition


def rounds(case: Case, expected: tuple[Json, ...]) -> Iterator[tuple[RoundSettings, Json]]:
    """Yield settings and expected result of every round, repeats unrolled as the oracle does."""
    results = iter(expected)
    for asked in case.params["rounds"]:
        for _ in range(ROUNDS_MAX if asked.get("until_done") else asked.get("repeat", 1)):
            result = next(results, None)
            if result is None:
                return
            yield _settings(case.params, asked), result
            is_done = "error" in result or result.get("skipped") or "end_offset" not in result
            if is_done or result["end_offset"] >= result["bound"]:
                break


def _settings(params: Json, asked: Json) -> RoundSettings:
    config = {"cleanup.policy": "compact", **params.get("config", {}), **asked.get("config", {})}
    both = {**params, **asked}
    return RoundSettings(
        now_ms=both["now"],
        config={key: str(value) for key, value in config.items()},
        key_map_bytes=both.get("map_bytes", KEY_MAP_BYTES),
        load_factor=both.get("load_factor", LOAD_FACTOR),
        producer_id_expiration_ms=params.get(
            "producer_id_expiration_ms", PRODUCER_ID_EXPIRATION_MS
        ),
        first_dirty=asked.get("first_dirty"),
        uncleanable=asked.get("uncleanable"),
        high_watermark=asked.get("high_watermark"),
        force=not asked.get("honour_ratio", False),
    )


def topic_config(config: dict[str, str]) -> TopicConfig:
    """Return the settings that ``config`` spells; keys that cleaning does not read are left out."""
    values: dict[str, object] = {}
    for key, text in config.items():
        field = key.replace(".", "_")
        if key == "cleanup.policy":
            values[field] = frozenset(text.split(","))
        elif key == "min.cleanable.dirty.ratio":
            values[field] = float(text)
        elif key == "compaction.strategy":
            values["strategy"] = Strategy(text)
        elif key == "compaction.strategy.header":
            values["strategy_header"] = text
        elif key == "keep.versioned.tombstones":
            values[field] = text == "true"
        elif key == "tombstones.wait.for.groups":
            values[field] = tuple(text.split(","))
        elif field in TopicConfig.__struct_fields__:
            values[field] = int(text)
    return TopicConfig(**values)  # type: ignore[arg-type]
