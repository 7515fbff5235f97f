"""Where output goes: the document or the tables to stdout, all that is said meanwhile to stderr.

In a process of its own (:func:`claim_stdout`) file descriptor 1 is stderr: a JVM or any library
that prints to it cannot spoil the one document on stdout.
"""

from __future__ import annotations

import itertools
import os
import sys
from typing import IO, Any, cast

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from keeplast.cli.show.table_fit import fit_table
from keeplast.cli.show.voice import voice
from keeplast.log.object_paths import shown
from keeplast.model.escapes import printable
from keeplast.service.document_text import document_text

PLAIN_WIDTH = 120
"""Columns to lay out for when stdout is a file or a pipe and nobody says how wide it is."""


def claim_stdout() -> None:
    """Keep stdout for ourselves and give everybody else stderr in its place."""
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


def say(message: str, *, kind: str | None = None) -> None:
    """Print a line to stderr; ``kind`` is a word such as ``warning`` before it.

    A quiet command keeps back what is neither an error nor a warning; the log file has all lines.
    """
    prefix = f"{kind}: " if kind else ""
    line = f"{prefix}{shown(printable(message))}"
    voice().keep(line)
    if voice().says(kind):
        sys.stderr.write(fitting(f"{line}\n", sys.stderr.encoding))
        sys.stderr.flush()


def say_trace(trace: str) -> None:
    """Print to stderr where an error comes from, which is many lines."""
    voice().keep(trace)
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
