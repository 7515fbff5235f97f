"""An empty argument is what an unset variable leaves, and never the current directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import keeplast
from keeplast.errors import InvalidError
from tests.support.replay import tree

COMMANDS = [
    ("clean", ""),
    ("clean", " "),
    ("clean", ".", "--to", ""),
    ("clean", ".", "--to="),
    ("clean", ".", "--receipt="),
    ("plan", ""),
    ("run", ""),
    ("status", ""),
    ("inspect", ""),
    ("verify", "", "."),
    ("delete-records", "", "--topic", "t", "--partition", "0", "--before-offset", "1"),
    ("export", "", "--to", "x"),
    ("pack", "--to", ""),
    ("configure", "", "segment.ms=1"),
    ("copy", ".", "", "--new", "--objects", "file:///x"),
    ("copy", "", "sqlite:///x.db", "--new"),
    ("copy", "", "sqlite:///x.db"),
    ("export", "sqlite:///x.db", "--as", "log", "--to", ""),
    ("clean", "sqlite:///x.db", "--receipt", ""),
]


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_an_empty_argument_is_refused_wherever_it_stands(
    data_dir: Path,
    keeplast: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
) -> None:
    monkeypatch.chdir(data_dir)
    before = tree(data_dir)
    run = keeplast(*arguments, code=2)
    assert "is empty; is a variable not set?" in " ".join(run.err.replace("\u2502", " ").split())
    assert before == tree(data_dir)


def test_an_empty_path_is_no_directory_in_python() -> None:
    with pytest.raises(InvalidError, match="empty path"):
        keeplast.open_log("")
