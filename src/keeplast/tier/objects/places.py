"""How the files of a call are opened: disks, and object stores where a place is in one.

What speaks to object stores is an optional package, and imported when a place needs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from keeplast.errors import InvalidError, installing
from keeplast.log.files import FilesRecipe, LocalRecipe
from keeplast.log.paths import is_object_path, url_of

if TYPE_CHECKING:
    from keeplast.tier.objects.object_files import MountedRecipe


def recipe_of(places: Iterable[Path | None], options: Mapping[str, str]) -> FilesRecipe:
    """Return how a worker opens the files of ``places``; ``options`` are the object stores'.

    InvalidError when a store cannot be opened, and for options that no place is for. None is no
    place.
    """
    remote = tuple(path for path in places if path is not None and is_object_path(path))
    if not remote:
        if options:
            raise InvalidError(
                "options are given for an object store, and none is named; leave them out. "
                f"option={next(iter(options))}",
                code="K103",
            )
        return LocalRecipe()
    return mounted(remote, options)


def mounted(remote: tuple[Path, ...], options: Mapping[str, str]) -> MountedRecipe:
    """Return how the object stores of ``remote`` are opened; errors as for :func:`recipe_of`."""
    try:
        from keeplast.tier.objects.object_files import mount
    except ModuleNotFoundError as error:
        raise InvalidError(
            f"object stores need one more package; {installing('s3')}. "
            f"url={url_of(remote[0])} missing={error.name}",
            code="K134",
        ) from error
    return mount(remote, dict(options))
