"""Cleans a case round by round and says where the outcome is not Kafka's.

Compared are bounds, statistics, the canonical dump after every round, segment sizes, file times,
the files themselves after the last round (``.log``, indexes, producer snapshots), and the cleaner
checkpoint. A failed round must leave the partition directory exactly as it was.

Two compressors may give other bytes than Kafka's: snappy always (no library equals it), gzip where
Python was built against zlib-ng. From the first such batch on, sizes and what follows from sizes
(index positions, later grouping) are not compared; the records still are.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from keeplast.format.checkpoint import decode_offsets
from keeplast.format.filename import CLEANED_FOR, CLEANER_CHECKPOINT
from keeplast.model.partition import TopicPartition
from tests.support.cases import Case, Json, RoundSettings, lay_out, rounds
from tests.support.dump import dump_partition

BOUNDS = (
    "log_start",
    "log_end",
    "first_dirty",
    "uncleanable",
    "bound",
    "clean_bytes",
    "cleanable_bytes",
    "ratio",
    "end_offset",
)
RENAMED = {"compaction_delay": "compaction_delay_ms"}
SIZES = frozenset({"clean_bytes", "cleanable_bytes", "ratio"})
READ_STATS = ("map_messages_read", "messages_read", "messages_written", "invalid_messages_read")
SIZE_STATS = ("bytes_read", "bytes_written")
OTHER_BYTES = ('"c":"snappy"',) + (('"c":"gzip"',) if "ng" in zlib.ZLIB_RUNTIME_VERSION else ())


class Cleaning(Protocol):
    """Runs one round of one partition and returns its part of the JSON document."""

    def __call__(
        self, data_directory: Path, partition: TopicPartition, settings: RoundSettings
    ) -> Json:
        """Clean ``partition`` of ``data_directory`` in place, once."""


def tree(directory: Path) -> dict[str, tuple[str, int]]:
    """Return digest and modification time of every file of ``directory``, by name.

    Not the time of the note of a round that left the checkpoint: it is of the round's own clock.
    """
    return {
        path.name: (
            hashlib.sha256(path.read_bytes()).hexdigest(),
            0 if path.name == CLEANED_FOR else path.stat().st_mtime_ns,
        )
        for path in sorted(directory.iterdir())
        if path.is_file()
    }


def replay(
    case: Case,
    data_directory: Path,
    clean: Cleaning,
    *,
    expected: tuple[Json, ...] | None = None,
    between: Callable[[int, Path], None] | None = None,
) -> list[str]:
    """Clean ``case`` below ``data_directory`` and return every difference, in words.

    ``expected`` replaces what Kafka did where keeplast differs on purpose. ``between`` is called
    with number and directory after every round.
    """
    is_kafkas = expected is None
    expected = case.expected if expected is None else expected
    partition = lay_out(case, data_directory)
    comparison = _Comparison(case, partition)
    number = 0
    for number, (settings, result) in enumerate(rounds(case, expected), start=1):
        before = tree(partition)
        got = clean(data_directory, case.partition, settings)
        if comparison.is_parted_by_sizes(result, got):
            return comparison.differences
        comparison.add_round(number, result, got, before)
        if between is not None:
            between(number, partition)
        if result.get("error") or got.get("error"):
            return comparison.differences
    if number != len(expected):
        comparison.differences.append(f"ran {number} rounds, expected {len(expected)}")
    if is_kafkas and case.is_after_expected:
        comparison.add_files()
    return comparison.differences


class _Comparison:
    """Collects differences of one case, round after round."""

    def __init__(self, case: Case, partition: Path) -> None:
        self.differences: list[str] = []
        self._case = case
        self._partition = partition
        self._has_other_bytes = False

    def _equal(self, number: int, what: str, expected: object, actual: object) -> None:
        if expected != actual:
            self.differences.append(f"round {number}: {what} expected={expected} actual={actual}")

    def is_parted_by_sizes(self, expected: Json, got: Json) -> bool:
        """Say whether other compressed sizes put the dirty ratio on the other side of its limit.

        From there on the two logs have different rounds and cannot be compared.
        """
        is_skipped = bool(expected.get("skipped")), bool(got.get("skipped"))
        return self._has_other_bytes and is_skipped[0] != is_skipped[1]

    def add_round(
        self, number: int, expected: Json, got: Json, before: dict[str, tuple[str, int]]
    ) -> None:
        """Compare one round's report and what it left."""
        if expected.get("error") or got.get("error"):
            self._add_failure(number, expected.get("error"), got.get("error"), before)
            return
        self._equal(number, "skipped", bool(expected.get("skipped")), bool(got.get("skipped")))
        self._add_bounds(number, expected, got)
        if expected.get("skipped"):
            return
        text = dump_partition(self._partition)
        has_other_bytes = any(mark in text for mark in OTHER_BYTES)
        self._add_stats(number, expected["stats"], got.get("stats") or {}, has_other_bytes)
        self._has_other_bytes |= has_other_bytes
        self._add_dump(number, expected, text)
        self._add_segments(number, expected.get("segments", []))
        self._add_checkpoint(number, expected["end_offset"])

    def _add_failure(
        self,
        number: int,
        expected: str | Json | None,
        error: Json | None,
        before: dict[str, tuple[str, int]],
    ) -> None:
        if expected is None or error is None:
            self._equal(number, "error", expected, error)
        elif isinstance(expected, dict):
            actual = {key: error.get(key) for key in expected}
            self._equal(number, "error", expected, actual)
        if error is not None and tree(self._partition) != before:
            self.differences.append(f"round {number}: a failed round changed the directory")

    def _add_bounds(self, number: int, expected: Json, got: Json) -> None:
        for key in (*BOUNDS, *RENAMED):
            if key in expected and not (self._has_other_bytes and key in SIZES):
                self._equal(number, key, expected[key], got.get(RENAMED.get(key, key)))
        if "lso" in expected:
            # Below the log start it decides nothing, and Kafka is not of one mind about it.
            lowest = expected["log_start"]
            stable = got.get("last_stable")
            self._equal(
                number,
                "last stable offset",
                max(lowest, expected["lso"]),
                stable if stable is None else max(lowest, stable),
            )

    def _add_stats(self, number: int, expected: Json, stats: Json, has_other_bytes: bool) -> None:
        for key in READ_STATS:
            self._equal(number, f"stats.{key}", expected[key], stats.get(key))
        for key in SIZE_STATS:
            if not (self._has_other_bytes or (has_other_bytes and key == "bytes_written")):
                self._equal(number, f"stats.{key}", expected[key], stats.get(key))

    def _add_dump(self, number: int, expected: Json, text: str) -> None:
        if hashlib.sha256(text.encode()).hexdigest() == expected["dump_sha256"]:
            return
        theirs = self._case.dump_after(number)
        if theirs is None:
            self._equal(number, "dump", expected["dump_sha256"], "another")
            return
        if self._has_other_bytes:
            theirs, text = _without_segments(theirs), _without_segments(text)
        for line, (want, have) in enumerate(_pairs(theirs, text), start=1):
            if want != have:
                self._equal(number, f"dump line {line}", want, have)
                return

    def _add_segments(self, number: int, segments: list[Json]) -> None:
        if self._has_other_bytes or not segments:
            return
        logs = sorted(self._partition.glob("*.log"))
        self._equal(
            number, "segments", [s["base"] for s in segments], [int(path.stem) for path in logs]
        )
        for segment, path in zip(segments, logs, strict=False):
            status = path.stat()
            self._equal(number, f"size of {path.name}", segment["size"], status.st_size)
            mtime_ms = status.st_mtime_ns // 10**6
            self._equal(number, f"mtime of {path.name}", segment["mtime"], mtime_ms)

    def _add_checkpoint(self, number: int, end_offset: int) -> None:
        path = self._partition.parent / CLEANER_CHECKPOINT
        stored = decode_offsets(path.read_bytes()) if path.exists() else {}
        self._equal(number, "checkpoint", end_offset, stored.get(self._case.partition))

    def add_files(self) -> None:
        """Compare the files after the last round."""
        kafka = {path.name: path for path in self._case.after.iterdir() if path.is_file()}
        ours = {path.name: path for path in self._partition.iterdir() if path.is_file()}
        for name in sorted(kafka.keys() | ours.keys()):
            if name.endswith(".snapshot"):
                self._add_snapshot(name, kafka, ours)
            elif self._is_beyond_comparison(name, kafka, ours):
                continue
            elif name not in kafka or name not in ours:
                where = "kafka" if name in kafka else "keeplast"
                self.differences.append(f"file {name}: only {where} has it")
            elif (
                name.endswith((".log", "index"))
                and kafka[name].read_bytes() != ours[name].read_bytes()
            ):
                self.differences.append(f"file {name}: other bytes than kafka's")

    def _is_beyond_comparison(
        self, name: str, kafka: dict[str, Path], ours: dict[str, Path]
    ) -> bool:
        """Say whether the file depends on a compressor, or is one that opening a log adds."""
        if self._has_other_bytes and name.endswith((".log", "index")):
            return True
        is_new = name not in ours and not (self._case.before / name).exists()
        return is_new and name.endswith("index") and kafka[name].stat().st_size == 0

    def _add_snapshot(self, name: str, kafka: dict[str, Path], ours: dict[str, Path]) -> None:
        """Compare one producer snapshot.

        Opening a log removes snapshots at or below the log start, and those that belong to no
        segment and are not of its end, which is what Kafka did before it cleaned. That is loading
        and no part of a round.
        """
        last = self._case.expected[-1]
        stem = name.removesuffix(".snapshot")
        is_stray = int(stem) <= last["log_start"] or (
            int(stem) != last["log_end"] and not (self._case.before / f"{stem}.log").exists()
        )
        if name in ours and name not in kafka and is_stray:
            return
        if self._has_other_bytes and (name in ours) != (name in kafka):
            return
        if name not in ours or name not in kafka:
            where = "kafka" if name in kafka else "keeplast"
            self.differences.append(f"file {name}: only {where} has it")
        elif kafka[name].read_bytes() != ours[name].read_bytes():
            self.differences.append(f"file {name}: other bytes than kafka's")


def _without_segments(text: str) -> str:
    """Return the batches and records of a dump, and behind them its aborted transactions."""
    lines = [line for line in text.splitlines() if not line.startswith('{"t":"seg"')]
    aborted = sorted(line for line in lines if line.startswith('{"t":"x"'))
    return "\n".join([line for line in lines if not line.startswith('{"t":"x"')] + aborted)


def _pairs(expected: str, actual: str) -> list[tuple[str | None, str | None]]:
    left: list[str | None] = list(expected.splitlines())
    right: list[str | None] = list(actual.splitlines())
    length = max(len(left), len(right))
    left += [None] * (length - len(left))
    right += [None] * (length - len(right))
    return list(zip(left, right, strict=True))
