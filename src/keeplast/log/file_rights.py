"""Which right to a path this user lacks, in words that help: whose it is, and on which directory.

The operating system names a file, which may be one of ours that nobody knows.
"""

from __future__ import annotations

import os
import pwd
from pathlib import Path


def user_name() -> str:
    """Return who this process works as: a name, or the number where it has none."""
    number = os.geteuid()
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def missing_right(path: Path) -> str:
    """Return the right to ``path`` that this user lacks, in words; empty when none is seen.

    What does not exist would have to be made in its directory.
    """
    path = path.absolute()
    for parent in reversed(path.parents):
        if _exists(parent) and not os.access(parent, os.X_OK):
            return f"enter {parent}"
    if not _exists(path):
        return "" if os.access(path.parent, os.W_OK) else f"write in {path.parent}"
    if not os.access(path, os.R_OK):
        return f"read {path}"
    for place in (path, path.parent):
        if not os.access(place, os.W_OK):
            return f"write in {place}" if place.is_dir() else f"write {place}"
    return ""


def right_words(error: Exception) -> str:
    """Return what to add to the text of a missing right: ``user`` and ``right``; else nothing."""
    if not isinstance(error, PermissionError):
        return ""
    words = f" user={user_name()}"
    if error.filename is not None:
        right = missing_right(Path(os.fsdecode(error.filename)))
        words += f" right={right!r}" if right else ""
    return words


def _exists(path: Path) -> bool:
    try:
        os.lstat(path)
    except OSError:
        return False
    return True
