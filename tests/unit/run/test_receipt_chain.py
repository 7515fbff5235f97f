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
from keeplast.survey.receipt_book import read_chain
from keeplast.survey.receipt_chain import ChainHead, chained, check_chain, head_of, next_link

FILES = LocalFiles()


def written(path: Path, count: int) -> list[bytes]:
    """Append lines ``0 .. count``; returns them as they were written."""
    return [append_receipt(FILES, path, b'{"number":%d}\n' % n) for n in range(count)]


def head(line: bytes) -> ChainHead:
    found = head_of(line)
    assert found is not None
    return found


def test_a_file_that_nobody_touched_is_whole_and_its_tail_not_proven(tmp_path: Path) -> None:
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


def test_a_chain_that_was_made_anew_is_not_the_one_that_was_kept(tmp_path: Path) -> None:
    lines = written(tmp_path / "r", 3)
    kept = head(lines[-1])
    (tmp_path / "r").unlink()
    written(tmp_path / "r", 3)
    assert () == read_chain(tmp_path / "r", FILES).problems
    assert "another chain" in read_chain(tmp_path / "r", FILES, kept).problems[0]


def test_lines_of_earlier_versions_are_told_as_unchained_and_bound(tmp_path: Path) -> None:
    path = tmp_path / "r"
    path.write_bytes(b'{"number":-2}\n{"number":-1}\n')
    assert "its lines are not chained" == read_chain(path, FILES).sentence
    written(path, 2)
    chain = read_chain(path, FILES)
    assert (2, ()) == (chain.unchained, chain.problems)
    path.write_bytes(path.read_bytes().replace(b'"number":-1', b'"number":-9'))
    assert read_chain(path, FILES).problems


def test_a_chain_goes_on_in_the_file_that_follows_a_full_one(tmp_path: Path) -> None:
    append = receipt_to(FILES, tmp_path / "r", bytes_max=300)
    assert append is not None
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
def test_what_is_no_head_is_told(text: str) -> None:
    with pytest.raises(InvalidError, match="the head of a receipt chain"):
        ChainHead.parse(text)


def test_a_head_survives_as_a_fact_of_a_store() -> None:
    found = ChainHead("ab" * 16, 12, "0" * 64)
    key, text = found.as_fact()
    assert found == ChainHead.of_fact(key.removeprefix("receipts/"), text)
    assert text < ChainHead("ab" * 16, 100, "0" * 64).as_fact()[1]
    assert None is ChainHead.of_fact("ab" * 16, "")
