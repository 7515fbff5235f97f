"""Every path below a folder whose name is not known, whoever has put it there.

The rule that a reader must not break: a link is told and never followed, and so is a folder that
cannot be listed. Nothing is read but names, sizes and times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from keeplast.errors import RefusedError
from keeplast.inspect.foreign_search import ForeignPath
from keeplast.log.files import FileSystem, ReadHandle

IsKnown = Callable[[tuple[str, ...]], bool]
"""Says of the parts of a file's path, below the place, whether its name is known."""


def walk(root: Path, files: FileSystem, is_known: IsKnown) -> Iterator[ForeignPath]:
    """Yield every path below ``root`` whose name is not known, folders entered, links not.

    OSError where ``root`` itself cannot be listed.
    """
    waiting: list[tuple[str, ...]] = [()]
    while waiting:
        parts = waiting.pop()
        folder = root.joinpath(*parts)
        try:
            names, folders = files.listdir(folder), files.directories_in(folder)
        except (FileNotFoundError, NotADirectoryError):
            if not parts:
                raise
            continue  # it went, or something else has its name: the next look tells
        except OSError as error:
            if not parts:
                raise
            yield _barred(parts, f"a folder that cannot be listed ({error.strerror})")
            continue
        for name in names:
            path = (*parts, name)
            if name in folders:
                waiting.append(path)
            elif not is_known(path):
                found = _listed(folder / name, path, files)
                if found is not None:
                    yield found


def _listed(path: Path, parts: tuple[str, ...], files: FileSystem) -> ForeignPath | None:
    try:
        status = files.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return _barred(parts, f"it cannot be looked at ({error.strerror})")
    stamp = status.size_bytes, status.mtime_ns, status.inode
    return ForeignPath("/".join(parts), status.size_bytes, stamp, partial(files.open_read, path))


def _barred(parts: tuple[str, ...], why: str) -> ForeignPath:
    def open_none() -> ReadHandle:
        raise RefusedError(f"{why}. path={'/'.join(parts)}")

    return ForeignPath("/".join(parts), 0, (), open_none, why)
