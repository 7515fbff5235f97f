"""Where output goes: the document or the tables to stdout, all that is said meanwhile to stderr.

In a process of its own (:func:`claim_stdout`) file descriptor 1 is stderr: a JVM or any library
that prints to it cannot spoil the one document on stdout. One voice a process: commands run one at
a time, and their worker threads share it. Errors and warnings are said at any verbosity; a quiet
command has its log file all the same. The line for an error has no secret, and says whose right is
missing.

A table gets the width of the screen, so that no letter is lost. A column is as wide as its widest
cell where all of them fit. Otherwise numbers, pictures and times stay whole (``no_wrap``), gaps
become narrow, and texts fold, the widest first: between words, and inside a word only where one is
longer than :data:`WORD_WIDTH_MAX`. A screen that is too small even for that gets a table that is
wider than it, which the screen folds. rich has a rule of its own, which takes from the widest
column first whatever stands in it.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import os
import sys
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, cast

from msgspec import Struct
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from keeplast.clock import Clock, SystemClock
from keeplast.errors import error_text
from keeplast.log.paths import right_words, shown
from keeplast.model.text import printable, without_secrets
from keeplast.service.document_text import document_text


def fault_text(error: Exception) -> str:
    """Return the sentence for ``error``; after a missing right with ``user`` and ``right``."""
    return without_secrets(error_text(error, right_words(error)))


WORD_WIDTH_MAX = 24
"""A longer word, such as a topic's name or a key, may be cut into lines."""
GAP, NARROW_GAP = 2, 1


class Reach(Struct, frozen=True):
    """How wide a column must be, and how wide it is when nothing in it folds."""

    least: int
    most: int


class FittedTable(Struct, frozen=True):
    """A table whose columns have their widths, without blanks at line ends.

    A line that fits is put together here: rich takes half a millisecond for a row, and a data
    directory has thousands. rich folds what does not fit.
    """

    table: Table
    cells: Sequence[Sequence[str | Text]]
    widths: tuple[int, ...]
    gap: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = self.table.columns
        style = self.table.header_style or ""
        headings = self._fold_row([Text(str(each.header), style) for each in columns], console)
        height = max(map(len, headings), default=0)
        yield from self._lines(
            [[*[""] * (height - len(each)), *each] for each in headings], console
        )
        for row in zip(*self.cells, strict=True):
            yield from self._lines(self._fold_row(row, console), console)

    def _fold_row(self, row: Sequence[str | Text], console: Console) -> list[list[str | Text]]:
        return [_fold(cell, width, console) for cell, width in zip(row, self.widths, strict=True)]

    def _lines(self, folded: Sequence[list[str | Text]], console: Console) -> Iterable[Segment]:
        for line in itertools.zip_longest(*folded, fillvalue=""):
            blanks, text = 0, ""
            for piece, width, column in zip(line, self.widths, self.table.columns, strict=True):
                taken = _width(piece)
                before = width - taken if column.justify == "right" else 0
                if taken:
                    text += " " * (blanks + before)
                    blanks = 0
                    if isinstance(piece, str):
                        text += piece
                    else:
                        yield Segment(text)
                        yield from piece.render(console)
                        text = ""
                else:
                    before = 0
                blanks += width - taken - before + self.gap
            yield Segment(text + "\n")


def fit_table(table: Table, width: int) -> FittedTable:
    """Give the columns of ``table`` widths for a screen of ``width``."""
    cells = [[_text(cell) for cell in column.cells] for column in table.columns]
    reaches = [_reach(column, texts) for column, texts in zip(table.columns, cells, strict=True)]
    gap = find_gap(reaches, width)
    widths = share_width(reaches, width - gap * (len(reaches) - 1))
    return FittedTable(table, cells, tuple(widths), gap)


def find_gap(reaches: Sequence[Reach], width: int) -> int:
    """Return how many blanks stand between columns: fewer where that keeps texts or words whole."""
    gaps = len(reaches) - 1
    for wanted in (sum(each.most for each in reaches), sum(each.least for each in reaches)):
        for gap in (GAP, NARROW_GAP):
            if wanted + gap * gaps <= width:
                return gap
    return NARROW_GAP


def share_width(reaches: Sequence[Reach], width: int) -> list[int]:
    """Return the width of each column; in all ``width`` at the most, unless the least is more.

    What is left over the least goes to the narrowest columns first, so that a long text gives way
    to many short ones.
    """
    widths = [each.least for each in reaches]
    spare = max(width - sum(widths), 0)
    growing = [index for index, each in enumerate(reaches) if each.most > each.least]
    while spare and growing:
        index = min(growing, key=lambda each: widths[each])
        widths[index] += 1
        spare -= 1
        if widths[index] == reaches[index].most:
            growing.remove(index)
    return widths


def _reach(column: Column, texts: Sequence[str | Text]) -> Reach:
    most = word = 0
    for text in (_text(column.header), *texts):
        plain = text if isinstance(text, str) else text.plain
        if plain.isascii() and len(plain) <= (most if column.no_wrap else word):
            continue  # Neither a line nor a word of it is wider than those before.
        most = max(most, *map(_width, plain.splitlines() or [""]))
        if not column.no_wrap:
            word = max(word, *map(_width, plain.split() or [""]))
    return Reach(most if column.no_wrap else min(word, WORD_WIDTH_MAX), most)


def _text(cell: object) -> str | Text:
    """Return a cell as letters alone, or with its styles where it has any."""
    if isinstance(cell, Text) and (cell.spans or cell.style):
        return cell
    return str(cell)


def _width(text: str | Text) -> int:
    if isinstance(text, str):
        return len(text) if text.isascii() else cell_len(text)
    return text.cell_len


def _fold(cell: str | Text, width: int, console: Console) -> list[str | Text]:
    """Return the lines of a cell, none of them wider than ``width`` nor with blanks at its end."""
    plain = cell if isinstance(cell, str) else cell.plain
    if _width(plain) <= width and plain.isprintable() and not plain.endswith(" "):
        return [cell]
    text = Text(cell) if isinstance(cell, str) else cell
    lines = text.wrap(console, width, overflow="fold")
    for line in lines:
        line.rstrip()
    return [line.plain if isinstance(cell, str) else line for line in lines]


LOUD = ("error", "warning")
"""Kinds of lines that no ``--quiet`` keeps back."""

_lock = threading.RLock()


class Voice:
    """What ``--quiet``, ``--verbose`` and ``--log-file`` ask for; in force inside its ``with``."""

    def __init__(
        self,
        *,
        is_quiet: bool = False,
        is_verbose: bool = False,
        path: Path | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Take what was asked for; ``path`` is opened by :meth:`open`."""
        self.is_quiet = is_quiet
        self.is_verbose = is_verbose
        self._path = path
        self._clock = SystemClock() if clock is None else clock
        self._file: IO[str] | None = None

    def __enter__(self) -> Self:
        global _voice
        _voice = self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Speak as before, and close the file."""
        global _voice
        _voice = _USUAL
        if self._file is not None:
            self._file.close()
            self._file = None

    def open(self) -> None:
        """Open the log file, which is appended to; OSError when that cannot be."""
        if self._path is not None:
            self._file = self._path.open("a", encoding="utf-8", errors="backslashreplace")

    def says(self, kind: str | None) -> bool:
        """Say whether a line of this kind goes to stderr."""
        return not self.is_quiet or kind in LOUD

    def keep(self, text: str) -> None:
        """Write lines into the log file, if there is one, after the time in UTC."""
        now = datetime.datetime.fromtimestamp(self._clock.now_ms() / 1000, datetime.UTC)
        moment = now.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
        with _lock:
            if self._file is None:
                return
            try:
                for line in text.splitlines():
                    self._file.write(f"{moment} {line}\n")
                self._file.flush()
            except OSError as error:
                with contextlib.suppress(OSError):
                    self._file.close()
                self._file = None
                say(f"the log file gets no more lines: {error}. path={self._path}", kind="warning")


_USUAL = Voice()
_voice = _USUAL


def voice() -> Voice:
    """Return the voice that is in force."""
    return _voice


PLAIN_WIDTH = 120
"""Columns to lay out for when stdout is a file or a pipe and its width is not given."""


def claim_stdout() -> None:
    """Keep stdout for ourselves and give every other writer stderr in its place.

    What the caller has closed leads nowhere: the next file would get its number.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            setattr(sys, name, os.fdopen(number, "w" if number else "r"))
    sys.stdout.flush()
    own = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = os.fdopen(
        own, "w", encoding=sys.stdout.encoding or "utf-8", errors="backslashreplace"
    )


def print_document(document: object) -> None:
    """Print the one JSON document of a command, made of ``document``."""
    sys.stdout.write(document_text(document))
    sys.stdout.flush()


def print_result(*parts: RenderableType) -> None:
    """Print what a person asked for; text is taken literally."""
    console = _console(sys.stdout)
    for is_plain, some in itertools.groupby(parts, lambda part: isinstance(part, str)):
        if is_plain:
            # As they are, and at once: a directory has thousands of notes.
            console.out(*some, sep="\n", highlight=False)
            continue
        for part in some:
            if isinstance(part, Table):
                console.print(fit_table(part, console.width), crop=False)
            else:
                console.print(part, soft_wrap=isinstance(part, Text))


def screen_width() -> int:
    """Return how many columns what is printed is laid out for."""
    return _console(sys.stdout).width


def clear_screen() -> None:
    """Begin at the top of a terminal; a file or a pipe gets an empty line."""
    console = _console(sys.stdout)
    console.clear() if console.is_terminal else console.print()


def say(*messages: str, kind: str | None = None) -> None:
    """Print a line to stderr for each message; ``kind`` is a word such as ``warning`` before it.

    A quiet command keeps back what is neither an error nor a warning; the log file has all lines.
    """
    prefix = f"{kind}: " if kind else ""
    for message in messages:
        line = f"{prefix}{shown(printable(message))}"
        voice().keep(line)
        if voice().says(kind):
            # Work goes on where its words find no room, as in a log on a full disk.
            with contextlib.suppress(OSError):
                sys.stderr.write(fitting(f"{line}\n", sys.stderr.encoding))
                sys.stderr.flush()


def say_trace(trace: str) -> None:
    """Print to stderr where an error comes from, which is many lines."""
    voice().keep(trace)
    with contextlib.suppress(OSError):
        sys.stderr.write(trace)


def stderr_console() -> Console:
    """Return a console for progress; nothing shows on it while a command is quiet."""
    console = _console(sys.stderr)
    console.quiet = voice().is_quiet
    return console


_PLAIN = str.maketrans("█▓▒░╱│━·…→", "#=-.!|_,~>")
"""What is drawn where the output has no such letters; one for one, so that columns stay even."""


def fitting(text: str, encoding: str | None) -> str:
    """Return ``text`` with pictures of plain letters where ``encoding`` has none for them."""
    try:
        text.encode(encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return text.translate(_PLAIN)
    return text


class _Shown:
    """A stream that shows places in object stores as URLs, which are as long: tables stay even."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return int(self._stream.write(fitting(shown(text), self._stream.encoding)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Paper(Console):
    """A console whose reader may leave early, as ``head`` does: the command goes on to its end.

    rich would end the process with 1, which means that a check has failed.
    """

    def on_broken_pipe(self) -> None:
        """Write nowhere from now on; the exit code stays the command's."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.file.fileno())
        os.close(nowhere)


def _console(stream: Any) -> Console:
    width = None if stream.isatty() or "COLUMNS" in os.environ else PLAIN_WIDTH
    return _Paper(
        file=cast(IO[str], _Shown(stream)), markup=False, highlight=False, emoji=False, width=width
    )
