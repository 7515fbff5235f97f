"""Kernels are compiled once a machine: the first start says so, the second has nothing to say."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import keeplast
from keeplast import kernel_cache
from tests.support.turns import Turn

SHARES = 8
"""Of the kernels, which take turns: to compile all of them takes half a minute."""

START = """
import sys
from keeplast.rewrite.kernels import load_kernels
import keeplast.columns
from keeplast.columns import kernel
kernel._KERNELS[:] = kernel._KERNELS[int(sys.argv[1])::int(sys.argv[2])]
load_kernels(print)
for _, dispatcher, _ in kernel._KERNELS:
    print("!", dispatcher.stats.cache_misses.total() if dispatcher.stats.cache_misses else 0)
"""


def start(folder: Path, turn: Turn, **environment: str) -> tuple[list[str], int]:
    """Start a process that makes kernels ready; return what it says and what it compiled."""
    share = (0, 1) if turn.number is None else (turn.number % SHARES, SHARES)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", START, *map(str, share)],
        env={**os.environ, "KEEPLAST_CACHE_DIR": str(folder), **environment},
        capture_output=True, text=True, check=True, timeout=900,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    said = [line for line in lines if not line.startswith("!")]
    return said, sum(int(line.split()[1]) for line in lines if line.startswith("!"))


def test_first_start_says_what_it_compiles_and_the_second_compiles_nothing(
    tmp_path: Path, turn: Turn
) -> None:
    said, compiled = start(tmp_path, turn)
    assert str(tmp_path) in said[0]
    assert len(said) > 1
    assert all(line.startswith("compiling keeplast.columns.") for line in said[1:])
    assert len(said) - 1 == compiled

    assert ([], 0) == start(tmp_path, turn)

    # Nor does a package that lies elsewhere, as executors unpack it, with files of another age.
    package = tmp_path / "elsewhere" / "keeplast"
    shutil.copytree(Path(keeplast.__file__).parent, package, copy_function=shutil.copyfile)
    assert ([], 0) == start(tmp_path, turn, PYTHONPATH=str(package.parent))

    # And the machine code may lie inside of the package.
    (tmp_path / "kernels").rename(package / kernel_cache.SHIPPED)
    home = {"PYTHONPATH": str(package.parent), "KEEPLAST_CACHE_DIR": "", "HOME": str(tmp_path)}
    assert ([], 0) == start(tmp_path, turn, **home)
    assert not (tmp_path / ".cache").exists()


def test_folder_that_cannot_be_written_is_said_and_replaced(tmp_path: Path) -> None:
    """A plain file where the folder should be: root may write everywhere else."""
    blocked = tmp_path / "blocked"
    blocked.write_bytes(b"")
    code = (
        "from keeplast import columns, kernel_cache; import os;"
        "print(kernel_cache._warning); print(os.environ['NUMBA_CACHE_DIR'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "KEEPLAST_CACHE_DIR": str(blocked), "TMPDIR": str(tmp_path)},
        capture_output=True, text=True, check=True, timeout=900,
    )  # fmt: skip
    warning, folder = done.stdout.splitlines()
    assert "KEEPLAST_CACHE_DIR" in warning
    assert str(blocked) in warning
    assert Path(folder).is_dir()
    assert tmp_path == Path(folder).parent


def test_folder_changes_with_any_source_of_the_kernels() -> None:
    """Numba itself does not notice that a callee in another file changed."""
    before = kernel_cache._digest()
    assert before == kernel_cache._digest()
    assert len(before) == 24
