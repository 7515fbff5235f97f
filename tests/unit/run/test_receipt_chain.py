"""The chain of a receipt file: whatever is done to its lines afterwards is found, or said."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keeplast.errors import InvalidError
from keeplast.log.files import LocalFiles
from keeplast.run.receipt import append_receipt, withdraw_receipt
from keeplast.service.receipts import receipt_to
from keeplast.survey.kept_heads import CHAINS_MAX, anchor_of, check_lines, keep_line, kept_chains
from keeplast.survey.receipt_book import read_chain
from keeplast.survey.receipt_chain import (
    ChainHead,
    KeptChain,
    chained,
    check_chain,
    check_kept,
    head_of,
    next_link,
)
from tests.support.existing import existing

FILES = LocalFiles()


def written(path: Path, count: int) -> list[bytes]:
    """Append lines ``0 .. count``; returns them as they were written."""
    return [append_receipt(FILES, path, b'{"number":%d}\n' % n) for n in range(count)]


def head(line: bytes) -> ChainHead:
    found = existing(head_of(line))
    return found


def test_an_untouched_file_is_whole_and_its_tail_not_proven(tmp_path: Path) -> None:
    lines = written(tmp_path / "r", 5)
    chain = read_chain(tmp_path / "r", FILES)
    assert ((), head(lines[-1])) == (chain.problems, chain.head)
    assert "its chain is whole, tail not proven" == chain.sentence


def test_a_head_that_was_kept_proves_all_in_front_of_it(tmp_path: Path) -> None:
    lines = written(tmp_path / "r", 5)
    kept = ChainHead.parse(str(head(lines[2])))
    chain = read_chain(tmp_path / "r", FILES, kept)
    assert (True, ()) == (chain.is_tail_proven, chain.problems)


def edited(lines: list[bytes]) -> list[bytes]:
    return [lines[0], lines[1].replace(b'"number":1', b'"number":7', 1), *lines[2:]]


def exchanged(lines: list[bytes]) -> list[bytes]:
    return [lines[0], lines[2], lines[1], *lines[3:]]


def removed(lines: list[bytes]) -> list[bytes]:
    return [lines[0], *lines[2:]]


def doubled(lines: list[bytes]) -> list[bytes]:
    return [lines[0], lines[1], *lines[1:]]


def unlinked(lines: list[bytes]) -> list[bytes]:
    document = json.loads(lines[1])
    del document["chain"]
    return [lines[0], json.dumps(document).encode() + b"\n", *lines[2:]]


@pytest.mark.parametrize("change", [edited, exchanged, removed, doubled, unlinked])
def test_a_line_that_was_changed_moved_or_removed_is_found(
    tmp_path: Path, change: Callable[[list[bytes]], list[bytes]]
) -> None:
    lines = written(tmp_path / "r", 5)
    (tmp_path / "r").write_bytes(b"".join(change(lines)))
    chain = read_chain(tmp_path / "r", FILES)
    assert chain.problems
    assert "its chain is broken" == chain.sentence


@given(st.integers(0, 5), st.integers(0, 5))
def test_what_is_cut_off_is_found_where_a_head_was_kept(left: int, kept: int) -> None:
    lines = list[bytes]()
    for number in range(6):
        lines.append(chain_of(lines, number))
    chain = check_chain(lines[:left], head(lines[kept]))
    assert (kept < left) == chain.is_tail_proven
    assert (kept >= left) == bool(chain.problems)


def chain_of(lines: list[bytes], number: int) -> bytes:
    link = next_link(lines[-1] if lines else None, "ab" * 16)
    return chained(b'{"number":%d}\n' % number, link)


def test_a_chain_that_was_made_again_is_not_the_one_that_was_kept(tmp_path: Path) -> None:
    lines = written(tmp_path / "r", 3)
    kept = head(lines[-1])
    (tmp_path / "r").unlink()
    written(tmp_path / "r", 3)
    assert () == read_chain(tmp_path / "r", FILES).problems
    assert "another chain" in read_chain(tmp_path / "r", FILES, kept).problems[0]


def test_lines_of_earlier_versions_are_reported_as_unchained_and_bound(tmp_path: Path) -> None:
    path = tmp_path / "r"
    path.write_bytes(b'{"number":-2}\n{"number":-1}\n')
    assert "its lines are not chained" == read_chain(path, FILES).sentence
    written(path, 2)
    chain = read_chain(path, FILES)
    assert (2, ()) == (chain.unchained, chain.problems)
    path.write_bytes(path.read_bytes().replace(b'"number":-1', b'"number":-9'))
    assert read_chain(path, FILES).problems


def test_a_chain_goes_on_in_the_file_that_follows_a_full_one(tmp_path: Path) -> None:
    append = existing(receipt_to(FILES, tmp_path / "r", bytes_max=300))
    lines = [append(b'{"version":2,"topic":"%d"}\n' % n) for n in range(4)]
    assert (tmp_path / "r.1").exists()
    chain = read_chain(tmp_path / "r", FILES)
    assert chain.problems == ()
    assert 0 < chain.missing_before < 4
    assert lines[-1] is not None
    assert head(lines[-1]) == chain.head
    both = [
        line
        for name in ("r.1", "r")
        for line in (tmp_path / name).read_bytes().splitlines(keepends=True)
    ]
    assert () == check_chain(both).problems


def test_a_line_that_is_taken_back_leaves_the_chain_whole(tmp_path: Path) -> None:
    lines = written(tmp_path / "r", 3)
    withdraw_receipt(FILES, tmp_path / "r", lines[-1])
    written(tmp_path / "r", 1)
    chain = read_chain(tmp_path / "r", FILES)
    assert ((), 3) == (chain.problems, chain.lines)


def test_threads_and_processes_that_write_one_file_make_one_chain(tmp_path: Path) -> None:
    path = tmp_path / "r"
    script = (
        "import sys; from pathlib import Path; from keeplast.log.files import LocalFiles; "
        "from keeplast.run.receipt import append_receipt\n"
        "for n in range(20): append_receipt(LocalFiles(), Path(sys.argv[1]), b'{\"n\":1}\\n')"
    )
    others = [subprocess.Popen([sys.executable, "-c", script, str(path)]) for _ in range(2)]
    threads = [threading.Thread(target=written, args=(path, 20)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [0, 0] == [other.wait() for other in others]
    chain = read_chain(path, FILES)
    assert ((), 80, 0) == (chain.problems, chain.lines, chain.unchained)


@pytest.mark.parametrize("text", ["", "1:2", "x:1:" + "0" * 64, "ab" * 16 + ":1:" + "0" * 63])
def test_a_bad_head_is_refused(text: str) -> None:
    with pytest.raises(InvalidError, match="the head of a receipt chain"):
        ChainHead.parse(text)


def test_a_head_survives_as_a_fact_of_a_store() -> None:
    found = ChainHead("ab" * 16, 12, "0" * 64)
    key, text = found.as_fact()
    assert found == ChainHead.of_fact(key.removeprefix("receipts/"), text)
    assert text < ChainHead("ab" * 16, 100, "0" * 64).as_fact()[1]
    assert None is ChainHead.of_fact("ab" * 16, "")


class Facts:
    """Facts in memory; ``raised`` are the anchors that transactions of their own have raised."""

    def __init__(self, host: str = "host-a") -> None:
        self.host = host
        self.values: dict[str, str] = {}

    def find(self, key: str) -> str | None:
        return self.values.get(key)

    def under(self, prefix: str, most: int) -> dict[str, str]:
        found = sorted(key for key in self.values if key.startswith(prefix))
        return {key: self.values[key] for key in found[:most]}

    def made(self, key: str, make: Callable[[], str]) -> str:
        return self.values.setdefault(key, make())

    def raise_to(self, anchor: tuple[str, str]) -> None:
        key, text = anchor
        self.values[key] = max(self.values[key], text)


def lines_of(chain_id: str, count: int) -> list[bytes]:
    lines = list[bytes]()
    for number in range(count):
        link = next_link(lines[-1] if lines else None, chain_id)
        lines.append(chained(b'{"number":%d}\n' % number, link))
    return lines


A, B, C = "aa" * 16, "bb" * 16, "cc" * 16


def test_a_line_without_a_chain_anchors_nothing() -> None:
    facts = Facts()
    assert None is anchor_of(facts, None)
    assert None is anchor_of(facts, b'{"number":1}\n')
    keep_line(facts, None)
    assert {} == facts.values


def test_a_chain_is_known_before_a_commit_raises_it_and_by_its_first_host() -> None:
    facts, lines = Facts(), lines_of(A, 2)
    anchor = anchor_of(facts, lines[0])
    assert (KeptChain(A, None, "host-a"),) == kept_chains(facts)
    assert anchor is not None
    facts.host = "host-b"
    keep_line(facts, lines[1])
    facts.raise_to(anchor)
    assert (KeptChain(A, head(lines[1]), "host-a"),) == kept_chains(facts)


def test_a_chain_without_a_host_is_reported_as_such() -> None:
    facts, lines = Facts(), lines_of(A, 1)
    keep_line(facts, lines[0])
    del facts.values[f"receipts-host/{A}"]
    chain = check_lines(lambda: lines, facts)
    assert "its chain is whole, proven up to the head that was kept" == chain.sentence
    other = check_lines(list, facts)
    assert "1 chain (an unnamed host, to line 1)" in other.problems[0]


def test_a_chain_is_found_next_to_those_that_are_read_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert CHAINS_MAX > 1
    monkeypatch.setattr("keeplast.survey.kept_heads.CHAINS_MAX", 1)
    facts, lines = Facts(), lines_of(B, 3)
    for each in (*lines_of(A, 1), *lines):
        keep_line(facts, each)
    assert {A} == {each.chain_id for each in kept_chains(facts)}
    chain = check_lines(lambda: lines, facts)
    assert (True, (), "host-a") == (
        chain.is_tail_proven, chain.problems, None if chain.chain is None else chain.chain.host
    )  # fmt: skip


def test_a_chain_of_which_no_commit_was_made_is_no_strange_one() -> None:
    facts, lines = Facts(), lines_of(B, 1)
    keep_line(facts, lines_of(A, 1)[0])
    anchor_of(facts, lines[0])
    chain = check_lines(lambda: lines, facts)
    assert ((), False) == (chain.problems, chain.is_tail_proven)
    assert chain.sentence.startswith("its chain is whole, tail not proven; written on host host-a")


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "it was emptied"),
        ([b'{"number":0}\n'], "their links were taken out"),
        ([b"no line at all\n"], "their links were taken out"),
        (lines_of(C, 2), f"the file's chain, {C}, is none of them"),
    ],
)
def test_a_file_of_none_of_the_chains_that_were_kept_is_a_problem(
    lines: list[bytes], words: str
) -> None:
    kept = [KeptChain(A, head(lines_of(A, 3)[-1]), "host-a"), KeptChain(B, None, "host-b")]
    chain = check_kept(lines, kept)
    assert words in chain.problems[0]
    # Of a chain that no commit has raised nothing is missing.
    assert "1 chain (host host-a, to line 3)" in chain.problems[0]
    assert () == check_kept(lines_of(C, 2), kept[1:]).problems


def test_of_many_chains_the_longest_are_named() -> None:
    kept = [
        KeptChain(f"{number:032x}", head(lines_of(f"{number:032x}", number)[-1]), f"h{number}")
        for number in range(1, 6)
    ]
    (problem,) = check_kept([], kept).problems
    assert "5 chains (host h5, to line 5; host h4, to line 4; host h3, to line 3; and 2 more)" in (
        problem
    )


def test_a_line_that_is_written_between_two_looks_is_no_problem() -> None:
    facts, lines = Facts(), lines_of(A, 2)
    keep_line(facts, lines[0])
    looks = iter([lines[:1], lines])

    def read() -> list[bytes]:
        found = next(looks)
        if len(found) == 1:
            keep_line(facts, lines[1])
        return found

    chain = check_lines(read, facts)
    assert (True, ()) == (chain.is_tail_proven, chain.problems)


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 6))
def test_a_file_is_proven_where_it_has_the_head_or_begins_at_once_after_it(
    kept: int, start: int, count: int
) -> None:
    lines = lines_of(A, 6)
    chain = check_chain(lines[start - 1 : start - 1 + count], head(lines[kept - 1]))
    end = min(start - 1 + count, 6)
    is_there = count > 0 and start - 1 <= kept <= end
    assert is_there == chain.is_tail_proven
    assert is_there == (not chain.problems)
