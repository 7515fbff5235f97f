"""The line for an error: who lacked which right to what."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from keeplast.cli.show.output import fault_text
from keeplast.errors import CorruptError
from keeplast.log.data_directory import open_data_directory
from keeplast.log.files import LocalFiles
from keeplast.log.paths import missing_right, user_name
from tests.support.heard_calls import hear
from tests.unit.cli.conftest import Run


def refuse(monkeypatch: pytest.MonkeyPatch, place: Path, right: int) -> None:
    """Take a right away from this process, also where it is root."""

    def access(path: Path, mode: int) -> bool:
        return not (Path(path) == place and mode == right)

    monkeypatch.setattr("keeplast.log.paths.os.access", access)


@pytest.mark.parametrize(
    ("place", "right", "expected"),
    [
        ("d", os.X_OK, "enter {}"),
        ("d/x.log", os.R_OK, "read {}"),
        ("d/x.log", os.W_OK, "write {}"),
        ("d", os.W_OK, "write in {}"),
        ("elsewhere", os.R_OK, ""),
    ],
)
def test_the_missing_right_is_named_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, right: int, expected: str
) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "x.log").touch()
    refuse(monkeypatch, tmp_path / place, right)
    assert expected.format(tmp_path / place) == missing_right(tmp_path / "d" / "x.log")


def test_a_name_that_is_not_there_yet_needs_a_right_in_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, tmp_path, os.W_OK)
    error = PermissionError(13, "Permission denied", str(tmp_path / ".lock"))
    assert fault_text(error).endswith(
        f"path={tmp_path}/.lock user={user_name()} right='write in {tmp_path}' [K531]"
    )


def test_other_errors_name_no_user() -> None:
    assert "crc mismatch. path=x" == fault_text(CorruptError("crc mismatch", path="x"))


def test_what_may_not_be_looked_at_is_not_said_to_be_missing(
    keeplast: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = tmp_path / "t-0"

    def lstat(path: Path, **_: int) -> None:
        if Path(path) == hidden:
            raise PermissionError(13, "Permission denied", str(path))

    hear(monkeypatch, os, "lstat", lstat)
    run = keeplast("inspect", hidden, code=5)
    assert "permission denied; run as a user who has the right" in run.err
    assert "no such file" not in run.err


@pytest.mark.parametrize(
    ("name", "problem"), [("missing", "no such directory"), ("file", "not a directory")]
)
def test_a_directory_that_does_not_exist_is_not_called_another_thing(
    tmp_path: Path, name: str, problem: str
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Exception, match=f"^{problem}; give a Kafka log.dirs directory"):
        open_data_directory(tmp_path / name, LocalFiles())


@pytest.mark.parametrize("method", ["exists", "is_directory"])
def test_nothing_lies_below_a_file(tmp_path: Path, method: str) -> None:
    (tmp_path / "file").touch()
    assert getattr(LocalFiles(), method)(tmp_path / "file" / "below") is False
