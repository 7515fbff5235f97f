"""Paths of files, places in object stores as paths, and which right to a path this user lacks.

``s3://bucket/data`` is ``/s3:/bucket/data``. Everything below the command line works with paths,
and asks a file system about them. This form survives what is done to paths (``absolute``,
``resolve``, ``parent``), and is never an existing one by accident. It takes as many characters as
the URL, which people get to see (:func:`shown`).

The rule: imports nothing heavy, because every command prints paths. A ``name`` of
:func:`child_path` is one that a directory can list: it has no separator and is not a dot.

A missing right is said in words that help: whose it is, and on which directory. The operating
system names a file, which may be one of ours that users do not know.
"""

from __future__ import annotations

import os
import pwd
import re
import sys
from pathlib import Path

from keeplast.errors import InvalidError
from keeplast.model.text import shown_url

if sys.version_info < (3, 12):

    def child_path(directory: Path, name: str) -> Path:
        """Return ``directory / name``, as pathlib makes it of what it has listed itself.

        Its text is given along: what is named is nearly always asked for it, and joining the parts
        again takes three times as long as all else here.
        """
        path: Path = directory._make_child_relpath(name)  # type: ignore[attr-defined]
        text = str(directory)
        # The root, and what has no part, are not followed by a separator of their own.
        if text != "." and text[-1] != "/":
            path._str = f"{text}/{name}"  # type: ignore[attr-defined]
        return path

else:

    def child_path(directory: Path, name: str) -> Path:
        """Return ``directory / name``, which newer versions of Python parse when it is asked."""
        return directory / name


SCHEMES = {"s3": "s3", "s3a": "s3", "gs": "gs", "az": "az"}
"""What a URL may begin with, and what it is here."""


_URL = re.compile(r"\A([a-z][a-z0-9+.-]*):/{1,2}(.*)\Z", re.DOTALL)


_PATH = re.compile(r"\A/(s3|gs|az):/[^/]")


_SHOWN = re.compile(r"(?<![\w/:.-])/(s3|gs|az):/(?=[^/\s])")


def place_path(text: str) -> Path:
    """Return the path of what a user names by path or URL.

    InvalidError for an empty text, another kind of URL, one without a bucket, and one that leads
    out of it.
    """
    if not text.strip():
        # A path would make it the current directory, wherever somebody happens to be.
        raise InvalidError("an empty path; name a directory, . for the current one", code="K108")
    found = _URL.match(text)
    if found is None or (found[1] not in SCHEMES and "://" not in text and found[1] != "file"):
        return Path(text)
    if found[1] == "file":
        return Path("/" + found[2].lstrip("/"))
    if found[1] not in SCHEMES:
        raise InvalidError(
            "no such store; give a path, or s3://, gs:// or az:// with a bucket. "
            f"url={shown_url(text)}",
            code="K117",
        )
    parts = found[2].split("/")
    if "@" in parts[0] or ":" in parts[0]:
        raise InvalidError(
            "the URL of an object store begins with its bucket; give credentials by the "
            "environment (AWS_ACCESS_KEY_ID and so on) or as --object-option KEY=@FILE. "
            f"url={shown_url(text)}",
            code="K119",
        )
    if not parts[0] or ".." in parts:
        raise InvalidError(
            f"a URL needs a bucket and names no parent directory: s3://BUCKET/PREFIX. url={text}",
            code="K117",
        )
    return Path("/", f"{SCHEMES[found[1]]}:", *parts)


def is_object_path(path: Path) -> bool:
    """Say whether ``path`` is a place in an object store."""
    return _PATH.match(str(path)) is not None


def mount_of(path: Path) -> Path:
    """Return the part of an object path that names the store: its scheme and bucket."""
    return Path(*path.parts[:3])


def url_of(path: Path) -> str:
    """Return the URL of an object path."""
    return shown(str(path))


def shown(text: str) -> str:
    """Return ``text`` with object paths in it as the URLs they stand for."""
    return _SHOWN.sub(r"\1://", text)


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
