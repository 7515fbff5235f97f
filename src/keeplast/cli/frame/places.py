"""Directories on disks and in object stores, as people name them: a path, or a URL."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from keeplast.errors import InvalidError
from keeplast.log.object_paths import place_path

if TYPE_CHECKING:
    from keeplast.log.files import FilesRecipe

FROM_FILE, FROM_ENVIRONMENT = "@", "env:"
OPTION_BYTES_MAX = 1 << 16


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

    ``KEY=@FILE`` takes it from a file, without the newline at its end, and ``KEY=env:NAME`` from
    the environment: what is given on the command line stands in the list of processes.
    """
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise InvalidError("give KEY=VALUE. --object-option=" + (key if not separator else "=..."))
    if value.startswith(FROM_FILE):
        return key, _read_value(key, Path(value.removeprefix(FROM_FILE)).expanduser())
    if value.startswith(FROM_ENVIRONMENT):
        name = value.removeprefix(FROM_ENVIRONMENT)
        if not os.environ.get(name):
            raise InvalidError(
                "the variable of an object store's option is not set; export it. "
                f"--object-option={key} variable={name}"
            )
        return key, os.environ[name]
    return key, value


def _read_value(key: str, path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(OPTION_BYTES_MAX + 1)
        value = data.decode().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InvalidError(
            "the file of an object store's option cannot be read; name another one. "
            f"--object-option={key} path={path} error={str(reason).lower()}"
        ) from None
    if len(data) > OPTION_BYTES_MAX or not value or not value.isprintable():
        raise InvalidError(
            f"the file of an object store's option is one line of at most {OPTION_BYTES_MAX} "
            f"bytes. --object-option={key} path={path}"
        )
    return value
