"""Directories on disks and in object stores, as people name them: a path, or a URL."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from keeplast.errors import InvalidError
from keeplast.log.object_paths import place_path
from keeplast.tier.objects.option_values import read_option

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
    from keeplast.tier.objects.places import recipe_of

    return recipe_of(places, dict(object_option(text) for text in object_options))


def object_option(text: str) -> tuple[str, str]:
    """Return what ``KEY=VALUE`` says; the value may be a secret and is in no error.

    It may also be named, as ``KEY=@FILE`` or ``KEY=env:NAME``.
    """
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise InvalidError("give KEY=VALUE. --object-option=" + (key if not separator else "=..."))
    return key, read_option(f"--object-option={key}", value)
