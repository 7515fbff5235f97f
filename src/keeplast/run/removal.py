"""Removes files that nobody needs any more; a disk that refuses is no reason to give anything up.

They have staged names: the next call here, or a broker's start, removes what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from keeplast.errors import UnavailableError
from keeplast.log.files import FileSystem


def remove_files(files: FileSystem, paths: Iterable[Path], warned: Callable[[str], None]) -> None:
    """Remove ``paths``; ``warned`` hears of each that stays."""
    for path in paths:
        try:
            files.unlink(path)
        except FileNotFoundError:
            continue  # an attempt that nobody waits for any more has removed its own
        except (OSError, UnavailableError) as error:
            warned(
                "a file could not be removed; the next clean, or a broker's start, does. "
                f"path={path} error={error}"
            )
