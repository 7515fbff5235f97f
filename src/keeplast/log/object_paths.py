"""Places in object stores as paths: ``s3://bucket/data`` is ``/s3:/bucket/data``.

Everything below the command line works with paths, and asks a file system about them. This form
survives what is done to paths (``absolute``, ``resolve``, ``parent``), is never an existing one by
accident, and takes as many characters as the URL, which is what people get to see (:func:`shown`).
"""

from __future__ import annotations

import re
from pathlib import Path

from keeplast.errors import InvalidError
from keeplast.model.redaction import shown_url

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
        raise InvalidError("an empty path; name a directory, . for the current one")
    found = _URL.match(text)
    if found is None or (found[1] not in SCHEMES and "://" not in text and found[1] != "file"):
        return Path(text)
    if found[1] == "file":
        return Path("/" + found[2].lstrip("/"))
    if found[1] not in SCHEMES:
        raise InvalidError(
            "no such store; give a path, or s3://, gs:// or az:// with a bucket. "
            f"url={shown_url(text)}"
        )
    parts = found[2].split("/")
    if "@" in parts[0] or ":" in parts[0]:
        raise InvalidError(
            "the URL of an object store begins with its bucket; give credentials by the "
            "environment (AWS_ACCESS_KEY_ID and so on) or as --object-option KEY=@FILE. "
            f"url={shown_url(text)}"
        )
    if not parts[0] or ".." in parts:
        raise InvalidError(
            f"a URL needs a bucket and names no parent directory: s3://BUCKET/PREFIX. url={text}"
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
