"""What is compiled next to a command, and when there is no such process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from keeplast import kernel_cache
from keeplast.cli.frame import ahead
from keeplast.columns import kernel
from keeplast.format import producer_snapshot
from keeplast.format.batch import encode_batch
from keeplast.format.record import Record
from tests.support.small_log import EPOCH_MS, write_log
from tests.support.waiting import SECONDS_MAX

SMALL = ("keeplast.columns.batches.scan_batches", "keeplast.columns.retained.mark_indexed")
"""Kernels that are compiled in a tenth of a second."""

CLEAN = """
import atexit, sys
atexit.register(lambda: print("numpy.ma" in sys.modules, file=sys.stderr))
from keeplast.columns import kernel
make = kernel._Kernel._make
def noted(self):
    print("!", self.name, file=sys.stderr)
    make(self)
kernel._Kernel._make = noted
from keeplast.cli.main import main
sys.argv[:1] = ["keeplast", "clean"]
main()
"""


def test_kernels_of_a_round_are_those_that_a_clean_calls(tmp_path: Path) -> None:
    directory = write_log(tmp_path, "t-0", {0: [], 20: [], 40: []})
    for base in (0, 20):
        records = [Record(base + n, EPOCH_MS, b"%d" % (n % 3), b"value") for n in range(20)]
        (directory / f"{base:020d}.log").write_bytes(encode_batch(records))
    (directory / f"{40:020d}.snapshot").write_bytes(producer_snapshot.encode(()))
    words = "--cores 1 --topic t --config cleanup.policy=compact --config segment.bytes=1048576"
    done = subprocess.run(
        [sys.executable, "-c", CLEAN, str(tmp_path), *words.split()],
        capture_output=True, text=True, check=True, timeout=SECONDS_MAX,
    )  # fmt: skip
    called = [line[2:] for line in done.stderr.splitlines() if line.startswith("! ")]
    assert sorted(ahead.ROUND) == sorted(called)
    # To ask of an array whether it is masked would take as long as all of these kernels.
    assert done.stderr.endswith("False\n")
    # Checksums are checked here or there, as windows are; the process begins where we end.
    assert (ahead.ROUND[0], ahead.ROUND[-1]) == (called[0], called[-1])


def start(folder: Path, *names: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", ahead.__name__, *names],
        stdin=subprocess.PIPE,
        env={**os.environ, "KEEPLAST_CACHE_DIR": str(folder)},
    )


def kept(folder: Path, ending: str = kernel_cache.INDEX_ENDING) -> list[str]:
    return sorted(path.name.partition("-")[0] for path in folder.rglob(f"*{ending}"))


def test_each_kernel_leaves_its_index_its_code_and_its_lock_and_nothing_else(
    tmp_path: Path,
) -> None:
    process = start(tmp_path, *SMALL)
    process.wait(SECONDS_MAX)  # with its input open
    assert 0 == process.returncode
    assert process.stdin is not None
    process.stdin.close()
    assert ["batches.scan_batches", "retained.mark_indexed"] == kept(tmp_path)
    assert kept(tmp_path) == kept(tmp_path, kernel_cache.CODE_ENDING)
    assert 3 * len(SMALL) == sum(path.is_file() for path in tmp_path.rglob("*"))


def test_process_whose_command_is_gone_compiles_nothing_more(tmp_path: Path) -> None:
    process = start(tmp_path, *SMALL)
    process.communicate(timeout=SECONDS_MAX)
    assert 0 == process.returncode
    assert [] == kept(tmp_path)


def test_kernels_are_made_from_the_last_one_on(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    monkeypatch.setattr(kernel, "make_ready", made.append)
    answers = iter([True, True, False])
    ahead.compile_from_end(("one", "two", "three"), lambda: next(answers))
    assert ["three", "two"] == made


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """Return the commands of processes that would be started, for an empty folder."""
    commands: list[list[str]] = []

    def refuse(command: list[str], **_: Any) -> None:
        commands.append(command)
        raise OSError

    monkeypatch.setattr(subprocess, "Popen", refuse)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(kernel_cache, "_folder", tmp_path)
    monkeypatch.setattr(kernel_cache, "_warning", None)
    return commands


def test_process_that_cannot_be_started_fails_no_command(started: list[list[str]]) -> None:
    with ahead.compiled_ahead(None, SMALL):
        assert [sys.executable, "-P", "-m", ahead.__name__, *SMALL] == started[0]


def write_kept(folder: Path, name: str) -> None:
    module, function = name.split(".")[-2:]
    for ending in (kernel_cache.INDEX_ENDING, f".1{kernel_cache.CODE_ENDING}"):
        (folder / f"{module}.{function}-1-processor.py311{ending}").write_bytes(b"x")


def test_folder_that_has_all_of_them_needs_no_process(
    started: list[list[str]], tmp_path: Path
) -> None:
    write_kept(tmp_path, SMALL[0])
    with ahead.compiled_ahead(None, SMALL):
        assert 1 == len(started)
    write_kept(tmp_path, SMALL[1])
    with ahead.compiled_ahead(None, SMALL):
        assert 1 == len(started)


def test_folder_that_does_not_keep_them_gets_no_process(
    started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_cache, "_warning", "it will not last")
    with ahead.compiled_ahead(None, SMALL):
        assert [] == started


def test_command_with_one_core_starts_no_second_process(
    started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with ahead.compiled_ahead(1, SMALL):
        assert [] == started
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    with ahead.compiled_ahead(None, SMALL):
        assert [] == started


def test_process_ends_with_its_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It would go on for as long as its input is open: no process has to wait for it."""
    begun: list[subprocess.Popen[bytes]] = []

    def forever(*_: Any, **options: Any) -> subprocess.Popen[bytes]:
        code = "import sys; sys.stdin.read()"
        begun.append(real([sys.executable, "-c", code], **options))
        return begun[0]

    real = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", forever)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(kernel_cache, "_folder", tmp_path)
    monkeypatch.setattr(kernel_cache, "_warning", None)
    with ahead.compiled_ahead(None, SMALL):
        assert begun[0].poll() is None
    assert begun[0].returncode is not None
