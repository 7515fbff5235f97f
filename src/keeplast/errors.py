"""Every exception of keeplast, by what the caller should do about it.

::

    CompactionError
    ├── InvalidError          fix the setting or the argument
    ├── RefusedError          the request is understood and not safe to carry out here
    │   └── InterruptedSwapError  a swap of segments was cut off; end it, then ask again
    ├── CorruptError          stop this partition; carries path, position, expected, found
    ├── UnavailableError      transient (disk, network, a worker); retry with backoff
    ├── ConflictError         somebody else changed what we planned on; re-plan
    ├── FencedError           a newer owner exists; stop, never retry
    ├── CommitUnknownError    it may have happened; delete nothing, reconcile
    ├── StoppedError          somebody asked for it; run again to go on
    └── InvariantError        our bug; stop the process

A new class is added only when a caller would act differently. Messages are lower case, say what
failed first and end with ``name=value`` pairs.

Each place that raises one of them names a code, such as ``K214``: one cause with one remedy, which
``messages.toml`` explains. ``str(error)`` is the message alone, because messages stand in others;
:func:`error_text`, which words an error for people, ends with the code.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import importlib.util
import re
import shlex
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from types import ModuleType
from typing import Any, TypeVar

_T = TypeVar("_T")


class CompactionError(Exception):
    """Base of every error that keeplast raises on purpose.

    ``code`` names its entry in ``messages.toml``; a traceback shows it too. The text names options
    as the command line does, and parameters for a program that has called a function of
    :mod:`keeplast`.
    """

    def __init__(self, *args: object, code: str | None = None) -> None:
        super().__init__(*args)
        self.code = code
        if code is not None:
            self.add_note(f"{code}: keeplast help {code}")

    def __str__(self) -> str:
        text = super().__str__()
        return parameter_words(text) if _Names.are_parameters else text


class InvalidError(CompactionError):
    """A setting or an argument cannot be used; the message names it, its value and the remedy."""


class RefusedError(CompactionError):
    """What was asked is understood, and not carried out because it would not be safe."""


class Despite(StrEnum):
    """A limit that the caller may go past, by the name that ``--despite`` takes.

    A refusal that one of these lifts ends its remedy with :attr:`remedy`.
    """

    DIRTY_RATIO = "dirty-ratio"
    LOG_BOUNDS = "log-bounds"
    EXISTING_TARGET = "existing-target"
    KEYLESS_RECORDS = "keyless-records"
    PARTIAL_TOPICS = "partial-topics"

    @property
    def remedy(self) -> str:
        """Return the words that a refusal ends with."""
        return f"to go past this: --despite {self}"


class InterruptedSwapError(RefusedError):
    """A crash has cut off a swap of segments: what has the names of a log is not the whole log."""


class CorruptError(CompactionError):
    """Bytes on disk are not what the format says.

    ``path`` is the file, None while a pure codec does not know it. ``position`` is the byte offset
    in it at which the damaged unit starts, ``expected`` and ``found`` are what was compared.
    """

    def __init__(
        self,
        problem: str,
        *,
        path: str | None = None,
        position: int | None = None,
        expected: object = None,
        found: object = None,
        code: str | None = None,
    ) -> None:
        """Store the parts; the message is made from them."""
        self.problem = problem
        self.path = path
        self.position = position
        self.expected = expected
        self.found = found
        parts = [
            f"{name}={value}"
            for name, value in (
                ("path", path),
                ("position", position),
                ("expected", expected),
                ("found", found),
            )
            if value is not None
        ]
        super().__init__(f"{problem}. {' '.join(parts)}" if parts else problem, code=code)

    def placed(self, **changes: Any) -> CorruptError:
        """Return the same error with other parts, such as its ``path`` or ``position``."""
        return CorruptError(self.problem, **self._parts | changes)

    def located(self, path: str) -> CorruptError:
        """Return the same error with ``path`` set, unless it has one."""
        return self.placed(path=self.path or path, position=self.position or 0)

    def __reduce__(self) -> tuple[Any, ...]:
        """Survive pickling between processes with every attribute."""
        return partial(CorruptError, self.problem, **self._parts), ()

    @property
    def _parts(self) -> dict[str, Any]:
        names = ("path", "position", "expected", "found", "code")
        return {name: getattr(self, name) for name in names}


class UnavailableError(CompactionError):
    """A disk, a service or a worker failed in a way that may pass."""


class ConflictError(CompactionError):
    """The state that a decision was based on has changed meanwhile."""


class FencedError(CompactionError):
    """A newer owner of the same thing exists."""


class CommitUnknownError(CompactionError):
    """A commit may or may not have happened; nothing may be deleted on its account."""


class StoppedError(CompactionError):
    """The work ended early because that was asked for; what was finished stays."""


class InvariantError(CompactionError):
    """Something that cannot be true is true: a defect of keeplast."""


class _Names:
    """What the errors of this process name: None until somebody has said it, and then options."""

    are_parameters: bool | None = None


def name_parameters(chosen: bool) -> None:
    """Choose what errors name, unless it was chosen before: the process's owner comes first."""
    if _Names.are_parameters is None:
        _Names.are_parameters = chosen


_PARAMETERS = {
    "--topic": "topics=", "--partition": "partitions=", "--as-of": "as_of_ms=",
    "--checkpoint-group": "end_group=", "--until-done": "rounds=None",
    "--incremental": "incremental=True", "--tombstones": "tombstones=True",
    "--take-over": "takes_over=True", "--master": "runner=", "--max-age": "max_age_ms=",
    "--despite dirty-ratio": "force=True", "--despite log-bounds": "is_unsafe=True",
    "--despite existing-target": "overwrite=True (of clean: overwrites=True)",
    "--despite partial-topics": "partial_topics=True",
    "--runner local": "runner=None", "--runner spark": "runner=SparkRunner()",
}  # fmt: skip
"""What is called otherwise in a program; of any other option the name is the same."""
# Patterns are compiled where a message needs them: every start of the command line loads this.
_SETTING = r"(?<![^\s(])--config ([a-z.]+)=([^\s,;)]+)"
_CHOICE = r"(?<![^\s(])--(?:despite|runner) [a-z-]+"
_OPTION = r"(?<![^\s(])(--[a-z][a-z-]+)(?:[= ](?=[A-Z0-9@/])|=)?"
_COMMAND = r"\b(?:keeplast [a-z]|kafka-[a-z-]+\.sh|aws |pip |mkdir|spark-submit)[^;:,.)]*"
"""What is typed in a shell, up to where its clause ends, and stays as it is."""


def parameter_words(text: str) -> str:
    """Return a message with parameters in the place of options: ``--topic=x`` is ``topics=x``."""
    parts, at = [], 0
    for command in re.finditer(_COMMAND, text):
        parts += [_parameters(text[at : command.start()]), command[0]]
        at = command.end()
    return "".join([*parts, _parameters(text[at:])])


def _parameters(text: str) -> str:
    text = re.sub(_SETTING, r'config={"\1": "\2"}', text)
    text = re.sub(_CHOICE, lambda found: _PARAMETERS.get(found[0], found[0]), text)
    return re.sub(_OPTION, lambda found: _parameter(found[1]), text)


def _parameter(option: str) -> str:
    return _PARAMETERS.get(option) or f"{option[2:].replace('-', '_')}="


def invariant(condition: bool, message: str) -> None:
    """Raise :class:`InvariantError` unless ``condition`` holds; stays on under ``python -O``."""
    if not condition:
        raise InvariantError(message, code="K901")


def retry_on(error: type[Exception], tries: int, act: Callable[[], _T]) -> _T:
    """Return what ``act`` returns; an ``error`` of it counts with the last of ``tries`` only."""
    for _ in range(tries - 1):
        with contextlib.suppress(error):
            return act()
    return act()


def module_when_named(room: str, name: str) -> ModuleType:
    """Import a module of the package ``room``; AttributeError where it has none of that name.

    As ``__getattr__`` of a room it imports a module when a caller first names it in full. The verbs
    of a place are one class, and a command is about one of them. Who checks types does not see it:
    the caller imports the same modules for them.
    """
    if importlib.util.find_spec(f".{name}", room) is None:
        raise AttributeError(f"module {room!r} has no attribute {name!r}")
    return importlib.import_module(f".{name}", room)


INSTALLING = "docs/how-to/install.md#from-a-wheel"


def installing(extra: str) -> str:
    """Return how to get what ``extra`` brings, from an index or from a wheel's file."""
    return f"run pip install 'keeplast[{extra}]' (from a wheel: 'FILE.whl[{extra}]'; {INSTALLING})"


def making(directory: object) -> str:
    """Return how to get a directory that only the user may make: a name may be mistyped."""
    return f"make it (mkdir -p {shlex.quote(str(directory))})"


SYSTEM_ERRORS = {
    errno.EACCES: ("K531", "run as a user who has the right to it, or give this one the right"),
    errno.EPERM: ("K532", "run as the user who owns it"),
    errno.ENOENT: ("K533", "correct the path, or look who removed it"),
    errno.ENOTDIR: ("K534", "name a directory"),
    errno.EISDIR: ("K535", "name a file"),
    errno.EEXIST: ("K536", "name another place, or move away what is there"),
    errno.ENOTEMPTY: ("K537", "move away what is there"),
    errno.ENOSPC: ("K538", "make room on that disk, then run again"),
    errno.EDQUOT: ("K539", "make room, or have the user's quota raised, then run again"),
    errno.EFBIG: ("K540", "raise the user's limit (ulimit -f), or use another file system"),
    errno.EROFS: ("K541", "mount it for writing, or name another place"),
    errno.EIO: ("K542", "the disk or its cable fails; look at the system's log, and keep a copy"),
    errno.EMFILE: ("K543", "raise the limit of open files (ulimit -n), then run again"),
    errno.ENFILE: ("K544", "close other programs, or raise the system's limit of open files"),
    errno.ENOMEM: ("K545", "give the process more memory, or let it work on less at once"),
    errno.ENAMETOOLONG: ("K546", "name a shorter path"),
    errno.ELOOP: ("K547", "correct the links on the path; they lead in a circle"),
    errno.EBUSY: ("K548", "something else uses it; end that, then run again"),
    errno.ETXTBSY: ("K548", "something else uses it; end that, then run again"),
    errno.EXDEV: ("K549", "name a place on the same disk"),
    errno.ESTALE: ("K550", "mount the network's directory again, then run again"),
    errno.EADDRINUSE: ("K551", "choose another port, or 0 for a free one"),
    errno.EADDRNOTAVAIL: ("K552", "choose an address that this host has"),
    errno.ECONNREFUSED: ("K553", "see that the service runs and that host and port are right"),
    errno.ECONNRESET: ("K554", "see that the service runs, then run again"),
    errno.EHOSTUNREACH: ("K555", "see that the network reaches that host, then run again"),
    errno.ENETUNREACH: ("K556", "see that there is a network, then run again"),
    errno.ETIMEDOUT: ("K557", "see that the service answers, then run again"),
}
"""The code of an error of the operating system and what helps; the one place where that is said."""
_ANY_REMEDY = "K530", "look at the system's log, then run again"


_CODE_AT_END = r" \[(K\d{3})\]$"


def code_in(text: str) -> str | None:
    """Return the code that ``text`` ends with."""
    found = re.search(_CODE_AT_END, text)
    return None if found is None else found[1]


def code_of(error: BaseException) -> str | None:
    """Return the code of an error: its own, else that of the error that it was raised from.

    None for one of ours without any. What was not expected is a defect.
    """
    if isinstance(error, OSError):
        return SYSTEM_ERRORS.get(error.errno or 0, _ANY_REMEDY)[0]
    if not isinstance(error, CompactionError):
        return "K902"
    return error.code or (None if error.__cause__ is None else code_of(error.__cause__))


def error_words(error: Exception) -> str:
    """Return the sentence for ``error`` without a code, for use in another message.

    The operating system's errors are given our form, followed by what helps. Where the number is
    not known, that is the system's log.
    """
    if isinstance(error, OSError) and error.strerror:
        _, remedy = SYSTEM_ERRORS.get(error.errno or 0, _ANY_REMEDY)
        problem, name = f"{error.strerror.lower()}; {remedy}", error.filename
        if name is None:
            return problem
        path = name.decode(errors="surrogateescape") if isinstance(name, bytes) else name
        return f"{problem}. path={path}"
    return str(error) or type(error).__name__


def error_text(error: Exception, more: str = "") -> str:
    """Return the sentence for ``error`` as people read it: with ``more``, and with its code."""
    text, code = error_words(error) + more, code_of(error)
    return text if code is None or code_in(text) is not None else f"{text} [{code}]"
