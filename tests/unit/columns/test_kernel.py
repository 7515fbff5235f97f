"""Kernels are compiled once a machine: the first start says so, the second has nothing to say."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from numba.core.registry import cpu_target

import keeplast
from keeplast import kernel_cache
from keeplast.columns import kernel
from tests.support.turns import Turn

SHARES = 16
"""Of the kernels, which take turns: to compile all of them takes half a minute."""

START = """
import sys
import keeplast.columns
from keeplast import kernel_cache
from keeplast.columns import kernel
kernel_cache.announce(print, print)
kernel._KERNELS[:] = kernel._KERNELS[int(sys.argv[1])::int(sys.argv[2])]
kernel.load()
for each in kernel._KERNELS:
    misses = each.dispatcher.stats.cache_misses
    print("!", misses.total() if misses else 0)
"""


def start(folder: Path, turn: Turn, **environment: str) -> tuple[list[str], int]:
    """Start a process that makes kernels ready; return what it says and how many it compiled."""
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
    assert 1 == len(said)
    assert said[0].startswith("compiling ")
    assert str(tmp_path) in said[0]
    assert len(list(tmp_path.rglob(kernel_cache.MACHINE_CODE))) == compiled > 0

    for lock in tmp_path.rglob(f"*{kernel_cache.LOCK_ENDING}"):
        lock.unlink()
    before = sorted(tmp_path.rglob("*"))
    assert ([], 0) == start(tmp_path, turn)
    assert before == sorted(tmp_path.rglob("*"))

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


def test_every_kernel_is_declared_by_the_room_itself() -> None:
    """So that all of them are packed, and as many are counted as there are."""
    script = (
        "import importlib, pkgutil, keeplast.columns as room; from keeplast.columns import kernel; "
        "before = kernel.names(); [importlib.import_module(f'{room.__name__}.{each.name}') "
        "for each in pkgutil.iter_modules(room.__path__)]; print(before == kernel.names())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "True" == done.stdout.strip()


def test_folder_changes_with_any_source_of_the_kernels() -> None:
    """Numba itself does not notice that a callee in another file changed."""
    before = kernel_cache._digest()
    assert before == kernel_cache._digest()
    assert len(before) == 24


def test_folder_that_cannot_be_written_is_used_for_the_kernels_that_it_has(tmp_path: Path) -> None:
    """A cluster may unpack an archive without the right to write where it lies."""
    code = (
        "import tempfile\n"
        "def refuse(**options): raise PermissionError(options['dir'])\n"
        "tempfile.NamedTemporaryFile = refuse\n"
        "from keeplast import kernel_cache\n"
        "kernel_cache.install()\n"
        "print(kernel_cache.cache_folder())"
    )
    folder = tmp_path / "kernels" / kernel_cache._digest()
    folder.mkdir(parents=True)
    environment = {**os.environ, "KEEPLAST_CACHE_DIR": str(tmp_path), "TMPDIR": str(tmp_path)}

    def chosen() -> Path:
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True,
            check=True, timeout=900,
        )  # fmt: skip
        return Path(done.stdout.strip())

    assert chosen() != folder
    (folder / "columns.kernel-1.nbi").write_bytes(b"")
    assert folder == chosen()


@kernel.inline
def _one_more(number: Any) -> Any:
    return number + 1


def _twice(number: Any) -> Any:
    return _one_more(_one_more(0)) + _one_more(number)


@pytest.fixture
def declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the dispatcher of a kernel that was never called, with a cache of its own."""
    monkeypatch.setattr(kernel, "_KERNELS", [])
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(kernel_cache, "_folder", tmp_path)
    return kernel.kernel("int64(int64)")(_twice)


def test_first_call_makes_a_kernel_ready_and_no_other_types(declared: Any) -> None:
    assert [] == declared.signatures
    assert 8 == declared(5)
    assert 1 == len(declared.signatures)
    with pytest.raises(TypeError):
        declared("five")


def test_first_call_with_other_types_runs_nothing(declared: Any) -> None:
    with pytest.raises(TypeError, match="No matching definition"):
        declared("five")
    assert 8 == declared(5)


def test_number_in_the_source_makes_no_second_part(declared: Any) -> None:
    """Numba would type and compile ``f(0)`` apart from ``f(i)``."""
    assert 8 == declared(5)
    assert 1 == len(_one_more.overloads)


def test_part_is_not_for_python_to_call(declared: Any) -> None:
    assert 8 == declared(5)
    with pytest.raises(TypeError, match="only kernels call it"):
        _one_more(5)


def test_cache_that_became_full_costs_the_next_process_time_and_nothing_else(
    declared: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(declared._cache, "load_overload", lambda *_: None)
    monkeypatch.setattr(
        declared._cache,
        "save_overload",
        Mock(side_effect=OSError(errno.ENOSPC, "no space left on device")),
    )
    assert 8 == declared(5)


@pytest.mark.parametrize("gives_up", [False, True])
def test_kernel_that_another_process_makes_is_waited_for_a_bounded_number_of_times(
    gives_up: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_cache, "_folder", tmp_path)
    other = (tmp_path / f"module.one{kernel_cache.LOCK_ENDING}").open("ab")
    fcntl.flock(other, fcntl.LOCK_EX)
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if not gives_up and len(waits) == 3:
            other.close()

    monkeypatch.setattr(kernel_cache, "time", SimpleNamespace(sleep=sleep))
    with kernel_cache.reserved("module.one"):
        assert (kernel_cache.WAITS_MAX if gives_up else 3) == len(waits)
    other.close()


def files_of(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.suffix != ".lock"}


@pytest.mark.parametrize("lost", ["code", "code is empty", "index is empty"])
def test_an_entry_that_a_killed_process_left_is_made_again(
    lost: str, declared: Any, tmp_path: Path
) -> None:
    """The index is written first; a host without power can keep a file's name and nothing else."""
    assert 8 == declared(5)
    whole = files_of(tmp_path)
    endings = (kernel_cache.INDEX_ENDING, kernel_cache.CODE_ENDING)
    (index,), (code,) = ([name for name in whole if name.endswith(each)] for each in endings)
    (tmp_path / f"{code}{kernel_cache.PARTIAL}0123456789abcdef").write_bytes(whole[code][:100])
    (tmp_path / (index if lost.startswith("index") else code)).write_bytes(b"")
    if lost == "code":
        (tmp_path / code).unlink()

    assert 8 == kernel.kernel("int64(int64)")(_twice)(5)
    assert whole.keys() == files_of(tmp_path).keys()
    again = kernel.kernel("int64(int64)")(_twice)
    assert 8 == again(5)
    assert 0 == again.stats.cache_misses.total()


def test_what_is_kept_is_loaded_without_what_only_a_compiler_needs(
    declared: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 8 == declared(5)
    again = kernel.kernel("int64(int64)")(_twice)

    monkeypatch.setattr(
        cpu_target.target_context,
        "refresh",
        Mock(side_effect=AssertionError("all that code can be made of was registered")),
    )
    assert 8 == again(5)


def test_processors_have_files_of_their_own(declared: Any, tmp_path: Path) -> None:
    """One list for all of them, written by two at once, could lead to code of the other."""
    assert 8 == declared(5)
    assert files_of(tmp_path)
    assert all(f"-{kernel.processor()}." in name for name in files_of(tmp_path))


def test_an_entry_that_another_process_is_writing_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_cache, "_folder", tmp_path)
    monkeypatch.setattr(kernel_cache, "WAITS_MAX", 1)
    partial = tmp_path / f"module.one-1-some.nbi{kernel_cache.PARTIAL}01"
    partial.write_bytes(b"")
    with (tmp_path / f"module.one{kernel_cache.LOCK_ENDING}").open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with kernel_cache.reserved("module.one"):
            assert partial.exists()
    with kernel_cache.reserved("module.one"):
        assert not partial.exists()


def test_a_compilation_is_said_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kernel_cache, "_folder", tmp_path)
    monkeypatch.setattr(kernel_cache, "_warning", "it will not last")
    said: list[str] = []
    warned: list[str] = []
    kernel_cache.announce(said.append, warned.append)
    kernel_cache.compiling()
    kernel_cache.compiling()
    assert ["it will not last"] == warned
    assert 1 == len(said)
    assert str(tmp_path) in said[0]
