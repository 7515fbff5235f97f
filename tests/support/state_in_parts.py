"""The state of a partition read in parts, as threads or as tasks without shared memory do it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from keeplast.model.topic_config import TopicConfig
from keeplast.read.log_state import (
    NO_WINNERS,
    CutState,
    StatePart,
    Winners,
    send_keys,
    winners_of_bucket,
)
from keeplast.rewrite.task import Progressed
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN
from keeplast.run.local_runner import LocalRunner
from tests.support.record_rows import LogRow, rows_of
from tests.support.source_reading import splits_of, view_of


def parts_of_log(
    directory: Path, topic: TopicConfig, *, split_bytes: int, buckets: int = 1
) -> list[StatePart]:
    """Cut what readers see of a log."""
    splits = splits_of(view_of(directory), split_bytes=split_bytes)
    firsts = tuple(split.wanted.first_offset for split in splits)
    state = CutState(0, topic, firsts, buckets, MEMORY_BYTES_MIN)
    return [StatePart(state, number, split) for number, split in enumerate(splits)]


def rows_by_threads(parts: Sequence[StatePart]) -> list[LogRow]:
    """Return the rows of all parts, whose keys went to one map."""
    with LocalRunner(cores=2) as runner:
        found = list(runner.latest(parts, _numbered, _ignore))
    return [row for _, rows in sorted(found, key=lambda each: each[0]) for row in rows]


def rows_by_buckets(
    parts: Sequence[StatePart], *, between: Callable[[], object] | None = None
) -> list[LogRow]:
    """Return the rows of all parts, whose keys went to buckets, the last part first.

    ``between`` is called when all keys have been read and no row has.
    """
    if not parts:
        return []
    state = parts[0].state
    sent = [rows for part in reversed(parts) for rows in send_keys(part, _ignore)]
    if between is not None:
        between()
    winners: dict[int, list[Winners]] = {}
    for bucket in range(state.buckets):
        arrived = (rows for rows in sent if rows.bucket == bucket)
        for number, offsets in winners_of_bucket(state, arrived):
            winners.setdefault(number, []).append(offsets)
    rows: list[LogRow] = []
    for part in parts:
        its = np.concatenate([NO_WINNERS, *winners.get(part.number, [])])
        rows += rows_of(part.show(np.sort(its), _ignore))
    return rows


def _numbered(
    part: StatePart, winners: Winners, progressed: Progressed
) -> tuple[int, list[LogRow]]:
    return part.number, rows_of(part.show(winners, progressed))


def _ignore(read_bytes: int) -> None:
    """Do nothing."""
