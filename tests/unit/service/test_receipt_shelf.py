"""Receipts as they grow: each line once, whatever becomes of the file."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from keeplast.cli.main import app
from keeplast.log.files import LocalFiles
from keeplast.model.partition import TopicPartition
from keeplast.run.receipt import action_line
from keeplast.service.receipt_names import FILE_NAME, PREVIOUS_NAME
from keeplast.service.receipt_shelf import ReceiptShelf
from keeplast.service.status import find_last_rounds, read_round_receipts
from tests.support.small_log import write_log


@pytest.fixture
def lines(tmp_path: Path) -> list[bytes]:
    """The receipts of two partitions, a line each at least."""
    root = tmp_path / "source"
    for number in range(2):
        write_log(root, f"t-{number}", {0: [(b"a", b"1")], 1: [(b"a", b"2")], 2: [(b"b", b"3")]})
    (root / "keeplast.toml").write_text('[topic.t]\n"cleanup.policy" = "compact"\n', "utf-8")
    done = CliRunner().invoke(
        app, ["run", str(root), "--once", "--runner", "local", "--cores", "1"]
    )
    assert 0 == done.exit_code, done.stderr
    found = (root / FILE_NAME).read_bytes().splitlines(keepends=True)
    assert 2 <= len(found)
    return found


def shelf_of(root: Path) -> ReceiptShelf:
    return ReceiptShelf.of_directory(LocalFiles(), root)


def test_last_rounds_are_those_that_status_finds(tmp_path: Path, lines: list[bytes]) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"".join(lines))
    expected = find_last_rounds(read_round_receipts(LocalFiles(), tmp_path, None))
    shelf = shelf_of(tmp_path)
    assert expected == shelf.refresh()
    # Nothing new: nothing is counted twice.
    count = len(shelf.lines())
    shelf.refresh()
    assert count == len(shelf.lines())


def test_lines_are_read_as_they_come_and_a_half_one_waits(
    tmp_path: Path, lines: list[bytes]
) -> None:
    path, shelf = tmp_path / FILE_NAME, shelf_of(tmp_path)
    assert {} == shelf.refresh()
    path.write_bytes(lines[0] + lines[1][:50])
    shelf.refresh()
    assert 1 == len(shelf.lines())
    path.write_bytes(lines[0] + lines[1])
    shelf.refresh()
    assert (2, 0) == (len(shelf.lines()), shelf.unreadable)


def test_a_file_that_was_put_aside_is_read_with_the_next(
    tmp_path: Path, lines: list[bytes]
) -> None:
    path, shelf = tmp_path / FILE_NAME, shelf_of(tmp_path)
    path.write_bytes(b"".join(lines))
    shelf.refresh()
    path.rename(tmp_path / PREVIOUS_NAME)
    action = action_line(TopicPartition("t", 0), name="retry", by="a test", now_ms=7)
    path.write_bytes(action)
    shelf.refresh()
    found = shelf.lines()
    assert len(lines) + 1 >= len(found)
    assert ("action", "retry, asked for by a test") == (found[-1].kind, found[-1].words)
    assert found[-1] in shelf.of(TopicPartition("t", 0))


@pytest.mark.parametrize("junk", [b"{}\n", b"not json\n", b"\xff\xfe\n", b'{"version": 9}\n'])
def test_what_is_no_receipt_is_counted(tmp_path: Path, lines: list[bytes], junk: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(lines[0] + junk + lines[1])
    shelf = shelf_of(tmp_path)
    shelf.refresh()
    assert (2, 1) == (len(shelf.lines()), shelf.unreadable)


def test_a_shelf_of_no_file_is_empty() -> None:
    shelf = ReceiptShelf(LocalFiles(), None)
    assert {} == shelf.refresh()
    assert ((), ()) == (shelf.lines(), shelf.paths)


def test_actions_are_listed_by_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "receipts"
    path.write_bytes(action_line(None, name="pause", by="a test", now_ms=1))
    shown = CliRunner().invoke(app, ["receipt", "show", str(path)])
    assert 0 == shown.exit_code, shown.stderr
    assert "pause, asked for by a test" in " ".join(shown.stdout.split())
