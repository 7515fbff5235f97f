"""Receipts as they grow: each line once, whatever becomes of the file."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typer.testing import CliRunner

from keeplast.cli.main import app
from keeplast.errors import InvalidError
from keeplast.log.files import LocalFiles, ReadHandle
from keeplast.log.root_files import PREVIOUS_RECEIPTS_NAME, RECEIPTS_NAME
from keeplast.model.document import JudgedBy, Verdict
from keeplast.model.partition import TopicPartition
from keeplast.run.receipt import action_line, verdict_line
from keeplast.service.receipt_shelf import ReceiptShelf
from keeplast.service.status import LastRound, find_last_rounds, read_kept_entries
from keeplast.survey.receipt_book import (
    RoundReceipt,
    VerdictReceipt,
    parse_entry,
    read_chain,
    read_entries,
)
from tests.support import called
from tests.support.small_log import write_log


@pytest.fixture
def lines(tmp_path: Path) -> list[bytes]:
    """The receipts of two partitions, a line each at least."""
    root = tmp_path / "source"
    for number in range(2):
        write_log(root, f"t-{number}", {0: [(b"a", b"1")], 1: [(b"a", b"2")], 2: [(b"b", b"3")]})
    (root / "keeplast.toml").write_text('[topic.t]\n"cleanup.policy" = "compact"\n', "utf-8")
    called.run("run", str(root), "--once", "--runner", "local", "--cores", "1", code=0)
    found = (root / RECEIPTS_NAME).read_bytes().splitlines(keepends=True)
    assert 2 <= len(found)
    return found


def shelf_of(root: Path) -> ReceiptShelf:
    return ReceiptShelf(LocalFiles(), root / RECEIPTS_NAME)


def read_shelf(root: Path) -> ReceiptShelf:
    found = shelf_of(root)
    found.refresh()
    return found


def by_status(root: Path) -> dict[TopicPartition, LastRound]:
    """Return the newest rounds as the command line finds them."""
    return find_last_rounds(read_kept_entries(LocalFiles(), root, None))


def test_last_rounds_are_those_that_status_finds(tmp_path: Path, lines: list[bytes]) -> None:
    (tmp_path / RECEIPTS_NAME).write_bytes(b"".join(lines))
    shelf = shelf_of(tmp_path)
    assert by_status(tmp_path) == shelf.refresh()
    # Nothing new: nothing is counted twice.
    count = len(shelf.lines())
    shelf.refresh()
    assert count == len(shelf.lines())


def test_lines_are_read_as_they_come_and_a_half_one_waits(
    tmp_path: Path, lines: list[bytes]
) -> None:
    path, shelf = tmp_path / RECEIPTS_NAME, shelf_of(tmp_path)
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
    path, shelf = tmp_path / RECEIPTS_NAME, shelf_of(tmp_path)
    path.write_bytes(b"".join(lines))
    shelf.refresh()
    path.rename(tmp_path / PREVIOUS_RECEIPTS_NAME)
    action = action_line(TopicPartition("t", 0), name="retry", by="a test", now_ms=7)
    path.write_bytes(action)
    shelf.refresh()
    found = shelf.lines()
    assert len(lines) + 1 >= len(found)
    assert ("action", "retry, asked for by a test") == (found[-1].kind, found[-1].words)
    assert TopicPartition("t", 0) == shelf.lines()[-1].partition


@pytest.mark.parametrize("junk", [b"{}\n", b"not json\n", b"\xff\xfe\n", b'{"version": 9}\n'])
def test_lines_that_are_no_receipts_are_counted(
    tmp_path: Path, lines: list[bytes], junk: bytes
) -> None:
    (tmp_path / RECEIPTS_NAME).write_bytes(lines[0] + junk + lines[1])
    shelf = read_shelf(tmp_path)
    assert (2, 1) == (len(shelf.lines()), shelf.unreadable)


def test_a_shelf_of_no_file_is_empty() -> None:
    shelf = ReceiptShelf(LocalFiles(), None)
    assert {} == shelf.refresh()
    assert ((), ()) == (shelf.lines(), shelf.paths)


def test_actions_are_listed_by_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "receipts"
    path.write_bytes(action_line(None, name="pause", by="a test", now_ms=1))
    shown = called.run("inspect", str(path), code=0)
    assert "pause, asked for by a test" in " ".join(shown.stdout.split())


def verdict_of(
    verdict: Verdict, *rounds: RoundReceipt, broken: tuple[str, ...] = (), now_ms: int = 7
) -> bytes:
    """Return a line that says so of ``rounds``, which are of one partition."""
    names = [each.name for each in rounds]
    return verdict_line(
        rounds[0].partition, now_ms=now_ms, verdict=verdict, rounds=names, broken=broken,
        unjudged=("records",) if verdict is Verdict.UNJUDGED else (),
    )  # fmt: skip


def round_in(line: bytes) -> RoundReceipt:
    found = parse_entry(line)
    assert isinstance(found, RoundReceipt)
    return found


def test_a_verdict_stands_next_to_its_round_and_is_no_line(
    tmp_path: Path, lines: list[bytes]
) -> None:
    path, shelf = tmp_path / RECEIPTS_NAME, shelf_of(tmp_path)
    first, second = round_in(lines[0]), round_in(lines[1])
    path.write_bytes(lines[0] + lines[1])
    shelf.refresh()
    assert ["", ""] == [each.verdict for each in shelf.lines()]
    with path.open("ab") as file:
        file.write(verdict_of(Verdict.HOLDS, first))
    assert by_status(tmp_path) == shelf.refresh()
    assert "holds 1970-01-01 00:00:00.007" == shelf.last_rounds[first.partition].verdict
    found = shelf.lines()
    assert ["holds 1970-01-01 00:00:00.007", ""] == [each.verdict for each in found]
    assert (["round", "round"], 0) == ([each.kind for each in found], shelf.unreadable)
    assert [first.partition, second.partition] == [each.partition for each in found]
    # The newest counts, unless it could not judge.
    with path.open("ab") as file:
        file.write(verdict_of(Verdict.BROKEN, first, broken=("winners", "receipt"), now_ms=8))
        file.write(verdict_of(Verdict.UNJUDGED, first, now_ms=9))
        file.write(verdict_of(Verdict.UNJUDGED, second, now_ms=9))
    shelf.refresh()
    assert [
        "broken: winners, receipt 1970-01-01 00:00:00.008",
        "cannot be judged 1970-01-01 00:00:00.009",
    ] == [each.verdict for each in shelf.lines()]
    assert by_status(tmp_path) == shelf.refresh()
    assert "cannot be judged" in shelf.last_rounds[second.partition].verdict


def test_one_of_two_simultaneous_requests_reads(tmp_path: Path, lines: list[bytes]) -> None:
    (tmp_path / RECEIPTS_NAME).write_bytes(b"".join(lines))
    entered: list[bool] = []

    class Files(LocalFiles):
        def open_read(self, path: Path) -> ReadHandle:
            with ThreadPoolExecutor(1) as other:
                entered.append(other.submit(shelf._lock.acquire, blocking=False).result())
            return super().open_read(path)

    shelf = ReceiptShelf(Files(), tmp_path / RECEIPTS_NAME)
    shelf.refresh()
    assert entered
    assert not any(entered)


def test_status_says_the_verdict_of_the_last_round(tmp_path: Path, lines: list[bytes]) -> None:
    write_log(tmp_path, "t-0", {0: [(b"a", b"1")], 1: [(b"a", b"2")], 2: [(b"b", b"3")]})
    (tmp_path / "keeplast.toml").write_text('[topic.t]\n"cleanup.policy" = "compact"\n', "utf-8")
    found = next(each for each in map(round_in, lines) if each.partition == TopicPartition("t", 0))
    (tmp_path / RECEIPTS_NAME).write_bytes(b"".join(lines) + verdict_of(Verdict.HOLDS, found))
    done = CliRunner().invoke(app, ["status", str(tmp_path), "--topic", "t", "--partition", "0"])
    assert "verdict: holds 1970-01-01 00:00:00.007" in " ".join(done.stdout.split())
    done = CliRunner().invoke(app, ["status", str(tmp_path), "--json"])
    (partition,) = json.loads(done.stdout)["partitions"]
    assert "holds 1970-01-01 00:00:00.007" == partition["last_round"]["verdict"]


def test_a_verdict_on_a_log_with_an_owner_says_as_of_what(
    tmp_path: Path, lines: list[bytes]
) -> None:
    first = round_in(lines[0])
    judged_by = JudgedBy("tier verify", 3, 100)
    line = verdict_line(
        first.partition, now_ms=7, verdict=Verdict.HOLDS, rounds=[first.name], broken=(),
        unjudged=(), judged_by=judged_by,
    )  # fmt: skip
    (tmp_path / RECEIPTS_NAME).write_bytes(lines[0] + line)
    shelf = read_shelf(tmp_path)
    (found,) = shelf.lines()
    assert "holds 1970-01-01 00:00:00.007 (tier verify, epoch 3, clean to 100)" == found.verdict
    entry = parse_entry(line)
    assert isinstance(entry, VerdictReceipt)
    assert judged_by == entry.judged_by


def test_a_verdict_finds_its_round_in_the_file_that_was_put_aside(
    tmp_path: Path, lines: list[bytes]
) -> None:
    (tmp_path / PREVIOUS_RECEIPTS_NAME).write_bytes(lines[0])
    (tmp_path / RECEIPTS_NAME).write_bytes(verdict_of(Verdict.HOLDS, round_in(lines[0])) + lines[1])
    shelf = read_shelf(tmp_path)
    assert ["holds 1970-01-01 00:00:00.007", ""] == [each.verdict for each in shelf.lines()]


def test_a_verdict_whose_rounds_are_gone_is_a_line(tmp_path: Path, lines: list[bytes]) -> None:
    gone = verdict_of(Verdict.BROKEN, round_in(lines[0]), broken=("winners",))
    (tmp_path / RECEIPTS_NAME).write_bytes(gone + lines[1])
    shelf = read_shelf(tmp_path)
    found = shelf.lines()
    assert ["verdict", "round"] == [each.kind for each in found]
    assert "broken: winners 1970-01-01 00:00:00.007, of rounds before these" == found[0].words
    shown = CliRunner().invoke(app, ["inspect", str(tmp_path / RECEIPTS_NAME)])
    # The line between the two is gone, and the chain with it; all that is there is shown.
    assert (1, True) == (shown.exit_code, "its chain is broken: line 2" in shown.stderr)
    assert "verdict: broken: winners" in " ".join(shown.stdout.split())


def test_a_verdict_on_a_part_of_a_round_is_none_on_all_of_it(
    tmp_path: Path, lines: list[bytes]
) -> None:
    wave = json.loads(lines[0])
    del wave["chain"]
    first = json.dumps({**wave, "is_last": False}).encode() + b"\n"
    second = json.dumps({**wave, "wave": 2, "outputs": []}).encode() + b"\n"
    path, shelf = tmp_path / RECEIPTS_NAME, shelf_of(tmp_path)
    path.write_bytes(first + verdict_of(Verdict.HOLDS, round_in(first)))
    shelf.refresh()
    assert ["holds 1970-01-01 00:00:00.007"] == [each.verdict for each in shelf.lines()]
    with path.open("ab") as file:
        file.write(second)
    shelf.refresh()
    assert [("verdict", ""), ("round", "")] == [(e.kind, e.verdict) for e in shelf.lines()]
    entries = read_entries(path, LocalFiles())
    assert [VerdictReceipt, RoundReceipt] == [type(each) for each in entries]


def test_an_old_line_without_a_name_is_found_by_its_clock_and_range(
    tmp_path: Path, lines: list[bytes]
) -> None:
    old = json.loads(lines[0])
    del old["attempt"], old["chain"]
    line = json.dumps(old).encode() + b"\n"
    (tmp_path / RECEIPTS_NAME).write_bytes(line + verdict_of(Verdict.HOLDS, round_in(line)))
    shelf = read_shelf(tmp_path)
    assert ["holds 1970-01-01 00:00:00.007"] == [each.verdict for each in shelf.lines()]


@pytest.mark.parametrize("verdict", ['"fine"', "[]", "null"])
def test_a_verdict_that_is_none_is_counted_as_unreadable(
    tmp_path: Path, lines: list[bytes], verdict: str
) -> None:
    line = verdict_of(Verdict.HOLDS, round_in(lines[0]))
    bad = line.replace(b'"holds"', verdict.encode())
    assert bad != line
    (tmp_path / RECEIPTS_NAME).write_bytes(lines[0] + bad)
    shelf = read_shelf(tmp_path)
    assert ([""], 1) == ([each.verdict for each in shelf.lines()], shelf.unreadable)
    with pytest.raises(InvalidError, match=r"not a receipt.*line=2"):
        read_entries(tmp_path / RECEIPTS_NAME, LocalFiles())


def test_a_loop_goes_on_with_receipts_in_which_verdicts_were_noted(tmp_path: Path) -> None:
    write_log(tmp_path, "t-0", {0: [(b"a", b"1")], 1: [(b"a", b"2")], 2: [(b"b", b"3")]})
    (tmp_path / "keeplast.toml").write_text('[topic.t]\n"cleanup.policy" = "compact"\n', "utf-8")
    receipts = str(tmp_path / RECEIPTS_NAME)
    loop = ["run", str(tmp_path), "--once", "--runner", "local", "--cores", "1"]
    note = ["verify", str(tmp_path), "--receipt", receipts, "--note"]
    for arguments in (loop, note, loop, ["status", str(tmp_path)], note):
        called.run(*arguments, code=0)
    shelf = read_shelf(tmp_path)
    assert 0 == shelf.unreadable
    assert "cannot be judged" in shelf.lines()[-1].verdict
    chain = read_chain(tmp_path / RECEIPTS_NAME, LocalFiles())
    assert () == chain.problems
