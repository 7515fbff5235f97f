"""What a run tells while it runs. Calls come from worker threads; receivers must not block.

Progress is counted in bytes read by both passes, so that a bar moves evenly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from keeplast.model.partition import TopicPartition
from keeplast.survey.report import RoundReport


class Events(Protocol):
    """Receiver of progress."""

    def planned(self, total_bytes: int) -> None:
        """Say that ``total_bytes`` more will be read by what was just planned."""
        ...

    def progressed(self, read_bytes: int) -> None:
        """Say that ``read_bytes`` more were read."""
        ...

    def finished(self, partition: TopicPartition, report: RoundReport) -> None:
        """Say that a round of ``partition`` ended, well or not."""
        ...

    def warned(self, message: str) -> None:
        """Say something the user should know that is not an error."""
        ...


class NoEvents:
    """Receiver that ignores everything."""

    def planned(self, total_bytes: int) -> None:
        """Ignore it."""

    def progressed(self, read_bytes: int) -> None:
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

    def progressed(self, read_bytes: int) -> None:
        """Pass it on."""
        self._progressed(read_bytes)
