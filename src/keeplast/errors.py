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
"""

from __future__ import annotations

import errno
import shlex
from enum import StrEnum
from typing import Any


class CompactionError(Exception):
    """Base of every error that keeplast raises on purpose."""


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

    ``path`` is the file (None while a pure codec has not been told), ``position`` the byte offset
    in it at which the damaged unit starts, ``expected`` and ``found`` what was compared.
    """

    def __init__(
        self,
        problem: str,
        *,
        path: str | None = None,
        position: int | None = None,
        expected: object = None,
        found: object = None,
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
        super().__init__(f"{problem}. {' '.join(parts)}" if parts else problem)

    def located(self, path: str) -> CorruptError:
        """Return the same error with ``path`` set, unless it has one."""
        return CorruptError(
            self.problem,
            path=path if self.path is None else self.path,
            position=self.position or 0,
            expected=self.expected,
            found=self.found,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Survive pickling between processes with every attribute."""
        return (
            _rebuild_corrupt,
            (self.problem, self.path, self.position, self.expected, self.found),
        )


def _rebuild_corrupt(
    problem: str, path: str | None, position: int | None, expected: object, found: object
) -> CorruptError:
    return CorruptError(problem, path=path, position=position, expected=expected, found=found)


class UnavailableError(CompactionError):
    """A disk, a service or a worker failed in a way that may pass."""


class ConflictError(CompactionError):
    """The state that a decision was based on has changed meanwhile."""


class FencedError(CompactionError):
    """A newer owner of the same thing exists."""


class CommitUnknownError(CompactionError):
    """A commit may or may not have happened; nothing may be deleted on its account."""


class StoppedError(CompactionError):
    """The work ended early because somebody asked for it; what was finished stays."""


class InvariantError(CompactionError):
    """Something that cannot be true is true: a defect of keeplast."""


def invariant(condition: bool, message: str) -> None:
    """Raise :class:`InvariantError` unless ``condition`` holds; stays on under ``python -O``."""
    if not condition:
        raise InvariantError(message)


INSTALLING = "docs/how-to/rolling-clean.md#on-the-broker-host"


def installing(extra: str) -> str:
    """Return how to get what ``extra`` brings; no package index has keeplast."""
    return (
        f"install keeplast with it: pip install '.[{extra}]' in a clone, or its wheels as "
        f"{INSTALLING} says"
    )


def making(directory: object) -> str:
    """Return how to get a directory that only the user may make: a name may be mistyped."""
    return f"make it (mkdir -p {shlex.quote(str(directory))})"


_REMEDIES = {
    errno.EACCES: "run as a user who has the right to it, or give this one the right",
    errno.EPERM: "run as the user who owns it",
    errno.ENOENT: "correct the path, or look who removed it",
    errno.ENOTDIR: "name a directory",
    errno.EISDIR: "name a file",
    errno.EEXIST: "name another place, or move away what is there",
    errno.ENOTEMPTY: "move away what is there",
    errno.ENOSPC: "make room on that disk, then run again",
    errno.EDQUOT: "make room, or have the user's quota raised, then run again",
    errno.EFBIG: "the file system or a limit of the user (ulimit -f) allows no larger file",
    errno.EROFS: "mount it for writing, or name another place",
    errno.EIO: "the disk or its cable fails; look at the system's log, and keep a copy",
    errno.EMFILE: "raise the limit of open files (ulimit -n), then run again",
    errno.ENFILE: "close other programs, or raise the system's limit of open files",
    errno.ENOMEM: "give the process more memory, or let it work on less at once",
    errno.ENAMETOOLONG: "name a shorter path",
    errno.ELOOP: "correct the links on the path; they lead in a circle",
    errno.EBUSY: "something else uses it; end that, then run again",
    errno.ETXTBSY: "something else uses it; end that, then run again",
    errno.EXDEV: "name a place on the same disk",
    errno.ESTALE: "mount the network's directory again, then run again",
    errno.EADDRINUSE: "choose another port, or 0 for a free one",
    errno.EADDRNOTAVAIL: "choose an address that this host has",
    errno.ECONNREFUSED: "see that the service runs and that host and port are right",
    errno.ECONNRESET: "see that the service runs, then run again",
    errno.EHOSTUNREACH: "see that the network reaches that host, then run again",
    errno.ENETUNREACH: "see that there is a network, then run again",
    errno.ETIMEDOUT: "see that the service answers, then run again",
}
"""What helps against an error of the operating system; the one place where that is said."""
_ANY_REMEDY = "look at the system's log, then run again"


def error_text(error: Exception) -> str:
    """Return the sentence for ``error``; the operating system's errors are given our form.

    Theirs are followed by what helps. Where the code is not known, that is the system's log.
    """
    if isinstance(error, OSError) and error.strerror:
        remedy = _ANY_REMEDY if error.errno is None else _REMEDIES.get(error.errno, _ANY_REMEDY)
        problem, name = f"{error.strerror.lower()}; {remedy}", error.filename
        if name is None:
            return problem
        path = name.decode(errors="surrogateescape") if isinstance(name, bytes) else name
        return f"{problem}. path={path}"
    return str(error) or type(error).__name__
