"""``verify --receipt`` of a store: a file is held against the heads that its commits have kept.

The receipts are the ledger of a store's rounds: whatever was done to the file afterwards is found.
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from keeplast.log.files import LocalFiles
from keeplast.run.receipt import action_line, append_receipt
from tests.support.placed_logs import make_store
from tests.support.small_log import write_log
from tests.unit.cli.conftest import Command, stripped

Pairs = list[tuple[bytes, bytes]]
ROUNDS: tuple[Mapping[int, Pairs], ...] = (
    {0: [(b"a", b"1"), (b"b", b"2")], 2: [(b"a", b"3")], 3: []},
    {3: [(b"a", b"4")], 4: [(b"b", b"5")], 5: []},
    {5: [(b"c", b"6")], 6: [(b"a", b"7")], 7: []},
)


class Ledger:
    """A store with the topic ``t``, and the receipts of its rounds in ``receipt``."""

    def __init__(self, root: Path, keeplast: Command) -> None:
        self.root = root
        self.url = f"sqlite:///{root / 'meta.db'}"
        self.receipt = root / "receipt"
        self._keeplast = keeplast
        self._log: dict[int, Pairs] = {}

    def round(self, number: int, receipt: Path | None = None, *more: str) -> None:
        """Copy what round ``number`` has more, and clean, with a line or more of ``receipt``."""
        self._log |= ROUNDS[number]
        shutil.rmtree(self.root / "data", ignore_errors=True)
        write_log(self.root / "data", "t-0", self._log)
        taken = self._keeplast(
            "copy", self.root / "data", self.url, "--new", "--objects",
            f"file://{self.root / 'objects'}", "--topic", "t", "--config", "cleanup.policy=compact",
            *more,
        )  # fmt: skip
        assert 0 == taken.code, taken.err
        run = self._keeplast(
            "clean", self.url, "--despite", "dirty-ratio", "--receipt", receipt or self.receipt,
            *more,
        )  # fmt: skip
        assert 0 == run.code, run.err

    def lines(self) -> list[bytes]:
        return self.receipt.read_bytes().splitlines(keepends=True)

    def write(self, *lines: bytes) -> None:
        self.receipt.write_bytes(b"".join(lines))

    def verify(self, expected: int, receipt: Path | None = None) -> str:
        """Return what is said of a receipt file, in one line."""
        run = self._keeplast("verify", self.url, "--receipt",
                             receipt or self.receipt, "--json")  # fmt: skip
        assert expected == run.code, run.out + run.err
        found = run.document["receipt"]
        return " ".join([found["sentence"], *found["problems"]])


@pytest.fixture
def ledger(tmp_path: Path, keeplast: Command, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """A store after two rounds."""
    monkeypatch.setattr(socket, "gethostname", lambda: "host-a")
    made = Ledger(tmp_path, keeplast)
    made.round(0)
    made.round(1)
    assert len(made.lines()) >= 2
    return made


def test_an_untouched_file_is_proven_and_its_host_named(ledger: Ledger) -> None:
    said = "its chain is whole, proven up to the head that was kept; written on host host-a"
    assert said == ledger.verify(0)


def test_a_ledger_whose_end_was_cut_off_is_found(ledger: Ledger) -> None:
    ledger.write(*ledger.lines()[:-1])
    assert "lines were cut off" in ledger.verify(1)


def test_a_ledger_whose_last_line_was_torn_is_found(ledger: Ledger) -> None:
    ledger.write(ledger.receipt.read_bytes()[:-20])
    assert "lines were cut off" in ledger.verify(1)


def test_a_ledger_that_was_emptied_is_found(ledger: Ledger) -> None:
    ledger.write()
    said = ledger.verify(1)
    assert said.startswith("it has no lines")
    assert "heads are kept of the lines of 1 chain (host host-a, to line " in said
    assert "it was emptied" in said


def test_a_ledger_whose_only_line_was_torn_counts_as_emptied(ledger: Ledger) -> None:
    ledger.write(ledger.lines()[0][:-1])
    assert "it was emptied" in ledger.verify(1)


@pytest.mark.parametrize("edit", [lambda line: line, lambda line: line.replace(b"t", b"u", 1)])
def test_a_ledger_without_its_links_is_found_edited_or_not(
    ledger: Ledger, edit: Callable[[bytes], bytes]
) -> None:
    ledger.write(*(edit(stripped(line)) for line in ledger.lines()))
    said = ledger.verify(1)
    assert said.startswith("its lines are not chained")
    assert "their links were taken out" in said


def test_a_ledger_in_another_order_is_found(ledger: Ledger) -> None:
    ledger.write(*reversed(ledger.lines()))
    assert ledger.verify(1).startswith("its chain is broken")


def test_a_line_that_was_edited_is_found(ledger: Ledger) -> None:
    first, *others = ledger.lines()
    ledger.write(first.replace(b'"wave":1', b'"wave":7', 1), *others)
    assert "the one before it was changed" in ledger.verify(1)


def test_a_last_line_that_was_edited_is_found(ledger: Ledger) -> None:
    *others, last = ledger.lines()
    ledger.write(*others, last.replace(b'"unsafe":false', b'"unsafe":true'))
    assert "is not the one that was kept as head" in ledger.verify(1)


def test_a_ledger_that_was_made_again_with_a_chain_of_its_own_is_found(ledger: Ledger) -> None:
    lines = ledger.lines()
    ledger.receipt.unlink()
    for line in lines:
        append_receipt(LocalFiles(), ledger.receipt, stripped(line))
    said = ledger.verify(1)
    assert said.startswith("its chain is none of those whose heads were kept")
    assert "it was begun again, or is of another store" in said


def test_another_hosts_file_is_reported_as_that_hosts(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = ledger.root / "of-b"
    monkeypatch.setattr(socket, "gethostname", lambda: "host-b")
    ledger.round(2, other, "--take-over")
    said = ledger.verify(0, other)
    assert "proven up to the head that was kept; written on host host-b" in said
    assert "not in it are the lines of 1 chain (host host-a, to line " in said
    # In place of the first host's file it is whole, and says whose it is.
    shutil.copy(other, ledger.receipt)
    assert said == ledger.verify(0)
    assert "written on host host-a" not in said


def test_the_file_of_another_store_is_found(
    ledger: Ledger, keeplast: Command, tmp_path: Path
) -> None:
    (tmp_path / "second").mkdir()
    second = Ledger(tmp_path / "second", keeplast)
    second.round(0)
    assert "of another store" in ledger.verify(1, second.receipt)
    assert "of another store" in second.verify(1, ledger.receipt)


def test_a_ledger_that_went_on_after_it_was_emptied_says_whose_lines_are_not_in_it(
    ledger: Ledger,
) -> None:
    ledger.write()
    ledger.round(2)
    said = ledger.verify(0)
    assert "proven up to the head that was kept" in said
    assert "not in it are the lines of 1 chain (host host-a, to line " in said


def test_of_a_store_that_has_kept_nothing_no_tail_is_proven(
    tmp_path: Path, keeplast: Command
) -> None:
    make_store(tmp_path)
    found = Ledger(tmp_path, keeplast)
    path = found.receipt
    path.write_bytes(b"")
    assert "it has no lines" == found.verify(0)
    path.write_bytes(action_line(None, name="retry", by="somebody", now_ms=1))
    assert "its lines are not chained" == found.verify(0)
    append_receipt(LocalFiles(), path, action_line(None, name="retry", by="somebody", now_ms=2))
    assert "tail not proven" in found.verify(0)


def test_a_line_whose_round_was_not_committed_lies_after_the_head(ledger: Ledger) -> None:
    append_receipt(LocalFiles(), ledger.receipt, stripped(ledger.lines()[-1]))
    assert "proven up to the head that was kept" in ledger.verify(0)


def test_a_file_that_begins_after_the_head_is_bound_to_it(ledger: Ledger) -> None:
    # As behind a file that was put aside when its last line was committed.
    kept = ledger.lines()
    line = append_receipt(LocalFiles(), ledger.receipt, stripped(kept[-1]))
    ledger.write(line)
    said = ledger.verify(0)
    assert f"{len(kept)} earlier lines are elsewhere, proven up to the head that was kept" in said
    ledger.write(line.replace(b'"previous":"', b'"previous":"f', 1).replace(b'f"}}', b'"}}'))
    assert "does not follow what was kept as head" in ledger.verify(1)


def test_a_file_that_begins_later_than_the_head_is_not_the_whole_of_it(ledger: Ledger) -> None:
    append_receipt(LocalFiles(), ledger.receipt, stripped(ledger.lines()[-1]))
    line = append_receipt(LocalFiles(), ledger.receipt, stripped(ledger.lines()[-1]))
    ledger.write(line)
    assert "give the file that was put aside" in ledger.verify(1)


def test_what_is_taken_out_of_a_store_is_kept_at_once(ledger: Ledger) -> None:
    gone = ledger.root / "gone"
    run = ledger._keeplast("detach", ledger.url, "--topic", "t", "--yes", "--receipt", gone)
    assert 0 == run.code, run.err
    assert "proven up to the head that was kept" in ledger.verify(0, gone)
    gone.write_bytes(b"")
    assert "2 chains" in ledger.verify(1, gone)


def test_the_document_has_the_host_and_what_is_elsewhere(ledger: Ledger, keeplast: Command) -> None:
    verify = ("verify", ledger.url, "--receipt", ledger.receipt, "--json")
    found = keeplast(*verify).document["receipt"]
    assert (True, "host-a", 0) == (
        found["is_tail_proven"], found["host"], found["chains_elsewhere"]
    )  # fmt: skip
    ledger.write()
    found = keeplast(*verify).document["receipt"]
    assert (False, None, 1) == (
        found["is_tail_proven"], found["host"], found["chains_elsewhere"]
    )  # fmt: skip
