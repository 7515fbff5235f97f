"""Directories on disks and in object stores, as people name them: a path, or a URL.

What opens a store is imported when one is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from keeplast.errors import InvalidError
from keeplast.log.object_paths import is_object_path, place_path, url_of

if TYPE_CHECKING:
    from keeplast.log.files import FilesRecipe


def place(text: str) -> Path:
    """Return the path of an argument; for Typer, which shows the mistake as one of usage."""
    try:
        return place_path(text)
    except InvalidError as error:
        raise typer.BadParameter(str(error)) from error


def recipe_for(places: Iterable[Path | None], object_options: Sequence[str]) -> FilesRecipe:
    """Return how to open the files of a call; InvalidError when a store needs what is not there."""
    from keeplast.log.files import LocalRecipe

    remote = tuple(path for path in places if path is not None and is_object_path(path))
    given = dict(object_option(text) for text in object_options)
    if not remote:
        if given:
            raise InvalidError(
                "--object-option is for a directory in an object store, and none is named; leave "
                f"it out. --object-option={next(iter(given))}=..."
            )
        return LocalRecipe()
    try:
        from keeplast.tier.mounted_files import mount
    except ModuleNotFoundError as error:
        raise InvalidError(
            f"object stores need one more package; run pip install 'keeplast[s3]'. "
            f"url={url_of(remote[0])} missing={error.name}"
        ) from error
    return mount(remote, given)


def object_option(text: str) -> tuple[str, str]:
    """Return what ``KEY=VALUE`` says; the value may be a secret and is in no error."""
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise InvalidError("give KEY=VALUE. --object-option=" + (key if not separator else "=..."))
    return key, value
