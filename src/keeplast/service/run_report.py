"""How a run ended: what was done, what was not, and what still stands against it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from keeplast.errors import CorruptError, InvariantError
from keeplast.model.partition import TopicPartition
from keeplast.service.schedule import Schedule
from keeplast.service.snapshot import PartitionCondition, Snapshot


@dataclass(frozen=True, slots=True)
class RunReport:
    """How a run ended: the last snapshot, and what was done since the start.

    ``failures`` are those that no later round has made good; ``left`` are the partitions that
    were eligible and had no round any more.
    """

    snapshot: Snapshot
    seconds: float
    rounds: int
    bytes_read: int
    bytes_written: int
    failures: dict[TopicPartition, Exception]
    left: tuple[TopicPartition, ...]


def run_report(
    snapshot: Snapshot,
    schedule: Schedule,
    refused: Mapping[TopicPartition, Exception],
    seconds: float,
) -> RunReport:
    """Return the report of a run whose last snapshot is ``snapshot``.

    ``refused`` are the partitions that could not be worked on because of how they are set up.
    """
    histories = schedule.histories
    failures: dict[TopicPartition, Exception] = {
        partition: (
            CorruptError(mark.reason)
            if mark.error_class == CorruptError.__name__
            else InvariantError(mark.reason)
        )
        for partition, mark in schedule.marks.items()
    }
    failures |= refused
    failures |= {
        partition: history.failure
        for partition, history in histories.items()
        if history.failure is not None
    }
    left = [
        each.partition
        for each in snapshot.partitions
        if each.state is PartitionCondition.ELIGIBLE and each.partition not in snapshot.cleaned
    ]
    return RunReport(
        snapshot,
        seconds,
        sum(history.rounds for history in histories.values()),
        sum(history.bytes_read for history in histories.values()),
        sum(history.bytes_written for history in histories.values()),
        failures,
        tuple(left),
    )
