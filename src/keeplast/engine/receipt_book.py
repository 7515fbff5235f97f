"""Reads receipts again: what rounds said of themselves, one JSON line each.

A last line that a crash cut off belongs to a round that moved no checkpoint; it is left out. What
is not a receipt is refused: a verdict must not rest on half of one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from keeplast.engine.receipt import BYTES_MAX
from keeplast.errors import InvalidError
from keeplast.log.files import FileSystem
from keeplast.model.partition import TopicPartition
from keeplast.model.strategy import Strategy

VERSIONS = (1, 2)


@dataclass(frozen=True, slots=True)
class SegmentEntry:
    """A segment that a round found (``batches`` None) or left; ``crc32c`` None when not taken."""

    base_offset: int
    size_bytes: int
    mtime_ms: int | None = None
    batches: int | None = None
    crc32c: int | None = None
    sources: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RoundReceipt:
    """One line; ``document`` is all of it."""

    partition: TopicPartition
    now_ms: int
    delete_retention_ms: int
    min_compaction_lag_ms: int
    first_dirty: int
    bound: int
    end_offset: int
    inputs: tuple[SegmentEntry, ...]
    outputs: tuple[SegmentEntry, ...]
    producers: tuple[tuple[int, int, int], ...] | None
    messages_written: int
    document: dict[str, Any]
    strategy: Strategy = Strategy.OFFSET
    strategy_header: str | None = None
    expired: frozenset[int] = frozenset()
    """Base offsets of what retention or the log start offset let go since."""


@dataclass(frozen=True, slots=True)
class ExpiryReceipt:
    """A line about segments that expired; ``bases`` are theirs."""

    partition: TopicPartition
    now_ms: int
    log_start_before: int
    log_start: int
    bases: tuple[int, ...]
    document: dict[str, Any]


def read_receipts(path: Path, files: FileSystem) -> tuple[RoundReceipt, ...]:
    """Return the rounds in a receipt file, in order, each with what expired after it.

    InvalidError when it is no receipt file. What expired before any round is nobody's.
    """
    rounds: list[RoundReceipt] = []
    newest: dict[TopicPartition, int] = {}
    for entry in read_entries(path, files):
        if isinstance(entry, RoundReceipt):
            newest[entry.partition] = len(rounds)
            rounds.append(entry)
        elif entry.partition in newest:
            at = newest[entry.partition]
            rounds[at] = replace(rounds[at], expired=rounds[at].expired.union(entry.bases))
    return tuple(rounds)


def read_entries(path: Path, files: FileSystem) -> tuple[RoundReceipt | ExpiryReceipt, ...]:
    """Return every line of a receipt file, in order; InvalidError when it is no receipt file."""
    # A file that the user names may be a link.
    data = files.read_bytes(path.resolve(), BYTES_MAX)
    whole, _, _ = data.rpartition(b"\n")
    receipts: list[RoundReceipt | ExpiryReceipt] = []
    for number, line in enumerate(whole.split(b"\n") if whole else [], start=1):
        try:
            document = json.loads(line)
            receipts.append(_expiry(document) if "expiry" in document else _receipt(document))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InvalidError(
                f"not a receipt; give the file that clean --receipt wrote. path={path} "
                f"line={number} problem={type(error).__name__}: {error}"
            ) from error
    if not receipts:
        raise InvalidError(f"no whole receipt in the file. path={path}")
    return tuple(receipts)


def _expiry(document: dict[str, Any]) -> ExpiryReceipt:
    if document["version"] not in VERSIONS:
        raise ValueError(f"version {document['version']}")
    found = document["expiry"]
    return ExpiryReceipt(
        partition=TopicPartition(str(document["topic"]), int(document["partition"])),
        now_ms=int(document["now_ms"]),
        log_start_before=int(found["log_start_before"]),
        log_start=int(found["log_start"]),
        bases=tuple(int(segment["base"]) for segment in found["segments"]),
        document=document,
    )


def _receipt(document: dict[str, Any]) -> RoundReceipt:
    if document["version"] not in VERSIONS:
        raise ValueError(f"version {document['version']}")
    config, found = document["config"], document["round"]
    producers = document.get("producers")
    return RoundReceipt(
        partition=TopicPartition(str(document["topic"]), int(document["partition"])),
        now_ms=int(document["now_ms"]),
        delete_retention_ms=int(config["delete.retention.ms"]),
        min_compaction_lag_ms=int(config["min.compaction.lag.ms"]),
        first_dirty=int(found["first_dirty"]),
        bound=int(found["bound"]),
        end_offset=int(found["end_offset"]),
        inputs=tuple(
            SegmentEntry(int(s["base"]), int(s["bytes"]), int(s["mtime_ms"]), None, s.get("crc32c"))
            for s in document["inputs"]
        ),
        outputs=tuple(
            SegmentEntry(
                int(s["base"]),
                int(s["bytes"]),
                None,
                int(s["batches"]),
                s.get("crc32c"),
                tuple(int(base) for base in s["sources"]),
            )
            for s in document["outputs"]
        ),
        producers=None
        if producers is None
        else tuple((int(a), int(b), int(c)) for a, b, c in producers),
        messages_written=int(found["stats"]["messages_written"]),
        document=document,
        strategy=Strategy(config.get("compaction.strategy", Strategy.OFFSET)),
        strategy_header=config.get("compaction.strategy.header"),
    )


def choose_rounds(
    receipts: Sequence[RoundReceipt],
    *,
    before: dict[int, int] | None,
    after: dict[int, int],
) -> tuple[RoundReceipt, ...]:
    """Return the rounds that lead from one log to another, both as bytes by base offset.

    They end with the newest whose outputs lie in ``after``, and begin with the newest that found
    ``before``. Where none fits wholly the nearest is taken: check receipt then says what differs.
    """
    last = max(range(len(receipts)), key=lambda i: (_share(receipts[i].outputs, after), i))
    if before is None:
        return (receipts[last],)
    first = max(range(last + 1), key=lambda i: (_share(receipts[i].inputs, before), i))
    return tuple(receipts[first : last + 1])


def _share(segments: Sequence[SegmentEntry], found: dict[int, int]) -> float:
    """Return which part of ``segments`` is there with the size they have."""
    fitting = sum(found.get(s.base_offset) == s.size_bytes for s in segments)
    return fitting / max(len(segments), 1)
