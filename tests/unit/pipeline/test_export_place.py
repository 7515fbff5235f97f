"""What killed exports have left goes with the next one; what a running one makes stays."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from keeplast.errors import RefusedError
from keeplast.log.files import LocalFiles
from keeplast.pipeline.export_files import ExportPlace, sweep_killed

KILLED = """
import os, signal, sys
from pathlib import Path
from keeplast.pipeline.export_files import ExportPlace
place = ExportPlace(Path(sys.argv[1]), "0123abcd")
with place.held():
    place.staging.mkdir()
    (place.staging / "part").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "out"


def test_files_of_a_killed_export_are_swept(target: Path, tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(target)], check=False)
    assert -9 == killed.returncode
    assert [".out.0123abcd.lock", ".out.0123abcd.partial"] == names(tmp_path)
    sweep_killed(target)
    assert [] == names(tmp_path)


def test_a_running_export_and_those_to_other_places_are_left_alone(
    target: Path, tmp_path: Path
) -> None:
    (tmp_path / ".out.00000000.partial").mkdir()
    others = [".other.00000000.partial", ".out.later.partial", ".out.00000000.partial.kept"]
    for name in others:
        (tmp_path / name).mkdir()
    running = ExportPlace(target, "11111111")
    with running.held():
        running.staging.mkdir()
        sweep_killed(target)
        mine = [".out.11111111.lock", ".out.11111111.partial"]
        assert sorted([*others, *mine]) == names(tmp_path)
    assert sorted(others) == names(tmp_path)


def test_an_export_gets_its_name_and_leaves_nothing_else(target: Path, tmp_path: Path) -> None:
    for content in ("one", "two"):
        place = ExportPlace(target)
        with place.held():
            place.staging.mkdir()
            (place.staging / content).touch()
            place.put_in_place(LocalFiles())
        assert (["out"], [content]) == (names(tmp_path), names(target))


@pytest.mark.parametrize("is_there", [True, False])
def test_an_earlier_export_that_was_renamed_for_a_killed_one_is_not_lost(
    target: Path, tmp_path: Path, is_there: bool
) -> None:
    for name, content in ((".out.22222222.replaced", "old"), (".out.22222222.partial", "new")):
        (tmp_path / name).mkdir()
        (tmp_path / name / content).touch()
    if is_there:
        (tmp_path / ".out.22222222.partial").rename(target)
    sweep_killed(target)
    assert (["out"], ["new" if is_there else "old"]) == (names(tmp_path), names(target))


def test_an_export_that_was_taken_for_a_killed_one_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def swept_meanwhile(fd: int, operation: int) -> None:
        sweep_killed_by_another(tmp_path)

    def sweep_killed_by_another(directory: Path) -> None:
        for lock in directory.glob(".out.*.lock"):
            lock.unlink()

    monkeypatch.setattr(fcntl, "flock", swept_meanwhile)
    with pytest.raises(RefusedError, match="run it again"), ExportPlace(tmp_path / "out").held():
        pass
    assert [] == names(tmp_path)
