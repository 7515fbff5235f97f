"""When a partition's turn comes: after failures, after being passed over, or never again.

    ok ──failure that may pass──> retrying ──its time has come──> ok
     └──damage, or a defect────> set aside ──other files, --retry, deletion──> ok

Damage in a partition, and what only a defect of ours explains, sets it aside: trying again reads
the same bytes. Everything else may pass (a disk, a worker, a setting that somebody corrects) and is
tried again after a pause that doubles from ``log.cleaner.backoff.ms`` to :data:`RETRY_MS_MAX`.
Nobody's failure keeps others from their turn. Kafka: cleaning.md 1.1, "error routing", where any
error sets aside until the broker restarts, and an error of the disk ends the whole directory.

Pure: times come from the caller.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from keeplast.cleaner.eligibility import CleanableRange
from keeplast.errors import CompactionError, CorruptError, InvariantError, StoppedError
from keeplast.model.partition import TopicPartition
from keeplast.model.strategy import Strategy
from keeplast.run.events import RoundWork
from keeplast.service.set_aside import SetAside
from keeplast.survey.report import RoundReport

LOOK_MS_MIN = 1000
"""What was found of a partition holds for so long at least, and the loop rests so long."""
RETRY_MS_MAX = 900_000
RETRY_MS_MIN = 100
"""So that a back-off of 0 does not make a busy loop of a full disk."""


@dataclass(slots=True)
class TurnHistory:
    """What has happened to one partition since the start."""

    passed_over: int = 0
    rounds: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    seconds: float = 0.0
    last_round: RoundReport | None = None
    last_round_ms: int | None = None
    failures: int = 0
    failure: Exception | None = None
    retry_at_ms: int | None = None
    pause_ms: int = 0

    @property
    def has_changed_anything(self) -> bool:
        """True when the last round left the log otherwise than it found it, and did not fail."""
        last = self.last_round
        if last is None or last.failure is not None or last.skipped:
            return False
        if (last.end_offset or 0) > (last.first_dirty or 0):
            return True
        return last.stats is not None and last.stats.bytes_written != last.stats.bytes_read


def is_lasting(error: Exception, directory: Path) -> bool:
    """Say whether trying again would fail again: damage in ``directory``, or our defect."""
    if isinstance(error, CorruptError):
        return error.path is None or Path(error.path).is_relative_to(directory)
    may_pass = isinstance(error, CompactionError | OSError | MemoryError)
    return isinstance(error, InvariantError) or not may_pass


def planned_round(
    partition: TopicPartition, ranges: CleanableRange, strategy: Strategy
) -> tuple[int, RoundWork]:
    """Return what both passes of a round will read, in bytes by its look, and whose that is.

    As :meth:`~keeplast.run.round_state.Round.bytes_to_read` counts: with versions the first pass
    reads what is clean, too.
    """
    index = ranges.cleanable_bytes
    if strategy is not Strategy.OFFSET:
        index += ranges.clean_bytes
    return index + ranges.clean_bytes + ranges.cleanable_bytes, RoundWork(partition, index)


def retry_ms(failures: int, backoff_ms: int) -> int:
    """Return how long to wait after so many failures in a row, at least one."""
    first = max(backoff_ms, RETRY_MS_MIN)
    return max(min(first << min(failures - 1, 32), RETRY_MS_MAX), first)


@dataclass(slots=True)
class Schedule:
    """The histories of all partitions, and the marks of those that are set aside."""

    marks: dict[TopicPartition, SetAside] = field(default_factory=dict)
    histories: dict[TopicPartition, TurnHistory] = field(default_factory=dict)

    def history(self, partition: TopicPartition) -> TurnHistory:
        """Return the history of a partition, a new one when it is new."""
        return self.histories.setdefault(partition, TurnHistory())

    def is_waiting(self, partition: TopicPartition, now_ms: int) -> bool:
        """Say whether the pause after a failure is not over yet.

        One that would last longer than it was meant to is over: the clock was ahead when it began.
        """
        history = self.history(partition)
        retry_at = history.retry_at_ms
        return retry_at is not None and 0 < retry_at - now_ms <= history.pause_ms

    def passed_over(self, partitions: set[TopicPartition], chosen: set[TopicPartition]) -> None:
        """Count a choice: among the eligible ``partitions``, ``chosen`` were taken."""
        for partition, history in self.histories.items():
            is_left = partition in partitions and partition not in chosen
            history.passed_over = history.passed_over + 1 if is_left else 0

    def finished(self, partition: TopicPartition, report: RoundReport, now_ms: int) -> None:
        """Note a round that ended, well or not; failures are told by :meth:`failed` as well."""
        history = self.history(partition)
        history.last_round, history.last_round_ms = report, now_ms
        if report.failure is None and report.stats is not None:
            history.rounds += 1
            history.bytes_read += report.stats.map_bytes_read + report.stats.bytes_read
            history.bytes_written += report.stats.bytes_written
            history.seconds += report.stats.total_seconds
            self.recovered(partition)

    def recovered(self, partition: TopicPartition) -> None:
        """Forget failures: the partition could be worked on."""
        history = self.history(partition)
        history.failures, history.failure, history.retry_at_ms = 0, None, None

    def failed(
        self, partition: TopicPartition, error: Exception, *, backoff_ms: int, now_ms: int
    ) -> int:
        """Note a failure that may pass; returns the pause in milliseconds."""
        history = self.history(partition)
        history.failures += 1
        history.failure = error
        pause = retry_ms(history.failures, backoff_ms)
        history.retry_at_ms, history.pause_ms = now_ms + pause, pause
        return pause

    def keep(self, partitions: set[TopicPartition]) -> None:
        """Forget the histories of all partitions but these."""
        self.histories = {
            each: history for each, history in self.histories.items() if each in partitions
        }


def is_stop(error: Exception | None) -> bool:
    """Say whether a round ended because somebody asked for that: no failure."""
    return isinstance(error, StoppedError)
