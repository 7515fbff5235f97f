"""What a run reports while it runs, and how it is asked to end.

Calls come from worker threads; receivers must not block. Progress is counted in bytes read by both
passes, so that a bar moves evenly. A report names the partition of the bytes where the runner knows
it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from msgspec import Struct

from keeplast.errors import StoppedError
from keeplast.model.partition import TopicPartition
from keeplast.survey.report import RoundReport


class StopSwitch:
    """One call's request to end. Workers ask :meth:`check`, or hear of it by :meth:`heard`."""

    def __init__(self) -> None:
        self._is_stopped = False
        self._hear: Callable[[], None] | None = None

    @property
    def is_stopped(self) -> bool:
        """Say whether the end was asked for."""
        return self._is_stopped

    def stop(self) -> None:
        """Ask for the end."""
        self._is_stopped = True
        if self._hear is not None:
            self._hear()

    def check(self) -> None:
        """Raise StoppedError once the end was asked for."""
        if self._is_stopped:
            raise StoppedError(
                "stopped on request; what is published stays, run again", code="K237"
            )

    @contextlib.contextmanager
    def heard(self, hear: Callable[[], None]) -> Iterator[None]:
        """Call ``hear`` when the end is asked for, also when it was before."""
        self._hear = hear
        if self._is_stopped:
            hear()
        try:
            yield
        finally:
            self._hear = None


class RoundWork(Struct, frozen=True):
    """Whose round was planned, and how much of its bytes the first pass reads.

    ``index_bytes`` are read to find the winners before any is read to rewrite; None where the
    passes alternate, as for a round in chunks.
    """

    partition: TopicPartition
    index_bytes: int | None = None


class Events(Protocol):
    """Receiver of progress."""

    def planned(self, total_bytes: int, work: RoundWork | None = None) -> None:
        """Say that ``total_bytes`` more will be read by what was just planned; ``work`` is whose
        they are, None of what is no round.
        """

    def progressed(self, read_bytes: int, partition: TopicPartition | None = None) -> None:
        """Say that ``read_bytes`` more were read, by the round of ``partition`` if known."""

    def finished(self, partition: TopicPartition, report: RoundReport) -> None:
        """Say that a round of ``partition`` ended, well or not."""

    def warned(self, message: str) -> None:
        """Say something the user should know that is not an error."""


class NoEvents:
    """Receiver that ignores everything."""

    def planned(self, total_bytes: int, work: RoundWork | None = None) -> None:
        """Ignore it."""

    def progressed(self, read_bytes: int, partition: TopicPartition | None = None) -> None:
        """Ignore it."""

    def finished(self, partition: TopicPartition, report: RoundReport) -> None:
        """Ignore it."""

    def warned(self, message: str) -> None:
        """Ignore it."""


class ProgressOnly(NoEvents):
    """Receiver that hears of progress, and ignores everything else."""

    def __init__(self, progressed: Callable[[int], None]) -> None:
        """Pass progress on to ``progressed``; what that raises ends the work."""
        self._progressed = progressed

    def progressed(self, read_bytes: int, partition: TopicPartition | None = None) -> None:
        """Pass it on."""
        self._progressed(read_bytes)


class RoundsProgress:
    """What a runner reports of several tasks: bytes that were read, as a call.

    A runner that knows the task of the bytes asks for a call of its own by :meth:`of`.
    ``partitions`` has, by a task's number, the partition of its round. ``check_stop`` raises when
    the work is to end.
    """

    def __init__(
        self,
        events: Events,
        partitions: Mapping[int, TopicPartition],
        check_stop: Callable[[], None],
    ) -> None:
        """Take who hears of it."""
        self._events = events
        self._partitions = partitions
        self._check_stop = check_stop

    def __call__(self, read_bytes: int) -> None:
        """Report bytes of an unknown task."""
        self._report(read_bytes, None)

    def of(self, number: int) -> Callable[[int], None]:
        """Return what hears of the bytes of one task."""
        partition = self._partitions.get(number)
        return lambda read_bytes: self._report(read_bytes, partition)

    def _report(self, read_bytes: int, partition: TopicPartition | None) -> None:
        self._events.progressed(read_bytes, partition)
        self._check_stop()  # Workers come here window by window, and end when asked to.
