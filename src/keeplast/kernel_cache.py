"""Where compiled kernels live.

The folder's name is a digest of every source of ``columns``, of numba and of Python, because numba
itself does not notice that a callee in another file changed. Numba tells processors apart inside
of it. Neither paths nor times matter, so the folder can be moved to another host with the package:
an environment that was packed for executors brings it along. :mod:`keeplast.columns` installs it
before anything is compiled.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import sys
import tempfile
from pathlib import Path
from typing import cast

import platformdirs

from keeplast.errors import invariant

SHIPPED = "kernels"
"""Where a packed environment has the folders, inside of the package."""

_folder: Path | None = None
_warning: str | None = None


def install() -> None:
    """Choose the cache folder and point numba at it; later calls do nothing.

    The folder that is asked for, else the one that the environment has brought, else the user's.
    """
    global _folder, _warning
    if _folder is not None:
        return
    given = os.environ.get("KEEPLAST_CACHE_DIR")
    shipped = Path(__file__).parent / SHIPPED
    base = Path(given) if given else Path(platformdirs.user_cache_dir("keeplast"))
    folder = base / "kernels" / _digest()
    if not given and (shipped / folder.name).is_dir():
        base, folder = shipped, shipped / folder.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder):
            pass
    except OSError as error:
        folder = Path(tempfile.mkdtemp(prefix="keeplast-kernels-"))
        _warning = (
            f"the cache folder cannot be written, so kernels are compiled at every start; "
            f"set KEEPLAST_CACHE_DIR to a folder that can. path={base} error={error}"
        )
    _folder = folder
    os.environ["NUMBA_CACHE_DIR"] = str(folder)
    config = sys.modules.get("numba.core.config")
    if config is not None:  # somebody imported numba before us
        config.CACHE_DIR = str(folder)  # type: ignore[attr-defined]


def _digest() -> str:
    digest = hashlib.sha256()
    columns = Path(__file__).parent / "columns"
    for source in sorted(columns.glob("*.py")):
        digest.update(source.name.encode())
        digest.update(source.read_bytes())
    digest.update(importlib.metadata.version("numba").encode())
    digest.update(str(sys.implementation.cache_tag).encode())
    return digest.hexdigest()[:24]


def cache_warning() -> str | None:
    """Return why machine code does not last, None when it does."""
    return _warning


def cache_folder() -> Path:
    """Return the folder, whose kernels have been loaded."""
    invariant(_folder is not None, "kernels have no folder before they are loaded")
    return cast(Path, _folder)
