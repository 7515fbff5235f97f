"""Where compiled kernels live.

The folder's name is a digest of every source of ``columns``, of numba and of Python. Numba itself
does not notice that a callee in another file changed. It separates processors inside of the folder.
Neither paths nor times matter, so the folder can be moved to another host with the package: an
environment that was packed for executors brings it along. :mod:`keeplast.columns` installs it
before anything is compiled.

Nothing here may fail a command: a folder that cannot be written costs time, and is said.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import hashlib
import importlib.metadata
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

import platformdirs

from keeplast.errors import invariant

SHIPPED = "kernels"
"""Where a packed environment has the folders, inside of the package."""

INDEX_ENDING = ".nbi"
CODE_ENDING = ".nbc"
MACHINE_CODE = f"*{INDEX_ENDING}"
"""One of these names each kernel that was compiled."""

PARTIAL = ".tmp."
"""In the name of a file that is being written, before it takes its own."""

LOCK_ENDING = ".lock"
WAITS_MAX = 600
"""How often one looks whether another process has compiled a kernel, before doing so too."""
WAIT_SECONDS = 0.05

Say = Callable[[str], None]

_folder: Path | None = None
_warning: str | None = None
_say: Say | None = None
_warn: Say | None = None


def install() -> None:
    """Choose the cache folder and point numba at it; later calls do nothing.

    The folder that is asked for, else the one that the environment has brought, else the user's.
    One that cannot be written will do if it has kernels: a cluster may unpack without that right.
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
        if not _has_kernels(folder):
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
    for source in sorted((Path(__file__).parent / "columns").glob("*.py")):
        digest.update(source.name.encode())
        digest.update(source.read_bytes())
    digest.update(importlib.metadata.version("numba").encode())
    digest.update(str(sys.implementation.cache_tag).encode())
    return digest.hexdigest()[:24]


def _has_kernels(folder: Path) -> bool:
    try:
        return any(folder.glob(MACHINE_CODE))
    except OSError:
        return False


def cache_warning() -> str | None:
    """Return why machine code does not last, None when it does."""
    return _warning


def cache_folder() -> Path:
    """Return the folder; :func:`install` has chosen it."""
    invariant(_folder is not None, "kernels have no folder before they are declared")
    return cast(Path, _folder)


def compiled_count() -> int:
    """Return how many kernels have machine code in the folder; of several processors each once."""
    return len({each.name.partition("-")[0] for each in cache_folder().glob(MACHINE_CODE)})


def announce(say: Say, warn: Say) -> None:
    """Have ``say`` hear when this process first compiles, once, and ``warn`` if it will not last.

    Executors and programs that embed keeplast have no place to say it.
    """
    global _say, _warn
    _say, _warn = say, warn


def compiling() -> None:
    """Hear from a kernel that it is about to be compiled."""
    global _say, _warn
    say, warn, _say, _warn = _say, _warn, None, None
    if warn is not None and _warning is not None:
        warn(_warning)
    if say is not None:
        say(
            f"compiling what this needs for this processor, once (some seconds); kept in "
            f"{cache_folder()}"
        )


def is_kept(name: str) -> bool:
    """Return whether the folder has machine code of the kernel ``name``, for any processor.

    That is index and machine code; the index is written before the code.
    """
    try:
        sizes = {path.suffix: path.stat().st_size for path in cache_folder().glob(_stem(name))}
    except OSError:  # just removed by another process
        return False
    return bool(sizes.get(INDEX_ENDING) and sizes.get(CODE_ENDING))


@contextlib.contextmanager
def reserved(name: str, processor: str = "") -> Iterator[None]:
    """Keep other processes from making the kernel ``name`` for ``processor`` meanwhile.

    They would compile the same, as executors that start together do. A process that has waited
    long, or cannot lock anything, goes on next to them: it costs time and nothing else.

    What a process that was killed, or a host that lost power, left of the kernel is removed. Files
    of a kernel become visible whole, and those of two processors have different names: what may be
    loaded is what one process has compiled for this one.
    """
    try:
        file = (cache_folder() / f"{name}{LOCK_ENDING}").open("ab")
    except OSError:
        yield
        return
    with file:
        if _is_locked(file):
            _remove_remains(_stem(name, processor))
        yield


def _stem(name: str, processor: str = "") -> str:
    """Return how the files of a kernel begin, as a pattern; numba names them, and we the middle."""
    module, function = name.split(".")[-2:]
    return f"{glob.escape(f'{module}.{function}')}-*{glob.escape(processor)}.*"


def _remove_remains(stem: str) -> None:
    """Remove what was being written, and what became visible and never reached the disk."""
    for path in cache_folder().glob(stem):
        with contextlib.suppress(OSError):
            if PARTIAL in path.name or path.stat().st_size == 0:
                path.unlink()


def _is_locked(file: BinaryIO) -> bool:
    """Wait for the lock; False where it cannot be had."""
    for _ in range(WAITS_MAX):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(WAIT_SECONDS)  # noqa: TID251 - nothing is decided by this time
        except OSError:
            return False
        else:
            return True
    return False
