"""Shows how far a run is: a bar of bytes on a terminal, a line per finished partition elsewhere.

Calls come from worker threads; rich's progress has a lock of its own and whole lines are written at
once. All of it goes to stderr.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from keeplast.cli.show.output import say, stderr_console, voice
from keeplast.cli.show.tables import round_sentence
from keeplast.model.partition import TopicPartition
from keeplast.model.text import printable
from keeplast.run.events import RoundWork
from keeplast.survey.report import RoundReport


class ProgressEvents:
    """Receiver of progress for people; a context manager that cleans the terminal up."""

    def __init__(self, what: str, console: Console | None = None) -> None:
        """Prepare a bar called ``what``; nothing is drawn before bytes are planned."""
        self._what = what
        self._console = stderr_console() if console is None else console
        self._progress: Progress | None = None
        self._task = TaskID(0)
        self._total = 0

    def __enter__(self) -> Self:
        """Start listening; the bar appears only on a terminal."""
        if self._console.is_terminal:
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                DownloadColumn(binary_units=True),
                TransferSpeedColumn(),
                TimeRemainingColumn(),
                console=self._console,
                transient=True,
            )
            self._task = self._progress.add_task(self._what, total=None, visible=False)
            self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    @property
    def has_bar(self) -> bool:
        """Say whether planned bytes are shown."""
        return self._progress is not None

    def _pause_bar(self) -> None:
        """Take the bar away, so that something else can move there."""
        if self._progress is not None:
            self._empty_bar()
            self._progress.stop()

    def _resume_bar(self) -> None:
        """Bring it back."""
        if self._progress is not None:
            self._progress.start()

    def _empty_bar(self) -> None:
        """Begin again: what is planned next has nothing to do with what went before."""
        self._total = 0
        if self._progress is not None:
            self._progress.reset(self._task, total=None, visible=False)

    def planned(self, total_bytes: int, work: RoundWork | None = None) -> None:
        """Lengthen the bar."""
        self._total += total_bytes
        if self._progress is not None:
            self._progress.update(self._task, total=self._total, visible=True)

    def progressed(self, read_bytes: int, partition: TopicPartition | None = None) -> None:
        """Move the bar."""
        if self._progress is not None:
            self._progress.advance(self._task, read_bytes)

    def finished(self, partition: TopicPartition, report: RoundReport) -> None:
        """Say it in a line where there is no bar."""
        words = f"{self._what} {partition}: {round_sentence(report)}"
        if self._progress is None:
            say(words)
        elif voice().is_verbose:
            self._above(words)
        else:
            voice().keep(words)

    def noted(self, message: str) -> None:
        """Say how work will be done, above the bar."""
        if self._progress is not None:
            self._above(message)
        else:
            say(message)

    def warned(self, message: str) -> None:
        """Say it at once, above the bar."""
        if self._progress is not None and not voice().is_quiet:
            self._above(f"warning: {message}")
        else:
            say(message, kind="warning")

    def _above(self, message: str) -> None:
        """Print a line above the bar."""
        voice().keep(message)
        self._console.print(printable(message), soft_wrap=True)
