"""The receipt file: one whole line a round, whatever a crash left of the one before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from keeplast.log.files import LocalFiles
from keeplast.run.receipt import append_receipt
from keeplast.survey.receipt_book import LINE_BYTES, LINE_BYTES_MAX, clock_notes
from keeplast.survey.wording import sentences
from tests.support.durations import DAY_MS


@pytest.mark.parametrize(
    ("before", "kept"),
    [
        (None, b""),
        (b"", b""),
        (b'{"a":1}\n', b'{"a":1}\n'),
        (b'{"a":1}\n{"a', b'{"a":1}\n'),
        (b'{"a', b""),
    ],
    ids=["no file", "empty", "whole", "torn", "only a torn line"],
)
def test_a_line_that_a_crash_cut_off_is_replaced(
    tmp_path: Path, before: bytes | None, kept: bytes
) -> None:
    path = tmp_path / "receipts.jsonl"
    if before is not None:
        path.write_bytes(before)
    written = append_receipt(LocalFiles(), path, b'{"new":2}\n')
    assert kept + written == path.read_bytes()
    assert {"new": 2} == {k: v for k, v in json.loads(written).items() if k != "chain"}


def line(now_ms: int, filler: int = 0) -> bytes:
    return b'{"now_ms":%d,"x":"%s"}\n' % (now_ms, b"x" * filler)


@pytest.mark.parametrize(
    "data",
    [
        line(DAY_MS), line(1) + line(DAY_MS), line(1) + line(DAY_MS) + b'{"now_ms":1',
        line(1, 2 * LINE_BYTES) + line(DAY_MS, 3 * LINE_BYTES), line(DAY_MS, 2 * LINE_BYTES),
    ],
    ids=["one", "two", "torn", "long ones", "a long one"],
)  # fmt: skip
def test_a_clock_before_the_last_receipt_is_named(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "receipts"
    path.write_bytes(data)
    (note,) = sentences(clock_notes(LocalFiles(), path, DAY_MS - 3000))
    assert note.startswith("the clock is 3 s behind the last receipt")
    assert note.endswith(f"receipt={path} last_ms={DAY_MS} now_ms={DAY_MS - 3000}")
    for now_ms in (DAY_MS - 999, DAY_MS, 2 * DAY_MS):
        assert () == clock_notes(LocalFiles(), path, now_ms)


@pytest.mark.parametrize(
    "data",
    [None, b"", b"\n", b"{}\n", b"no receipt\n", b'{"now_ms":9', line(9, LINE_BYTES_MAX)],
    ids=["no file", "empty", "blank", "no time", "no json", "torn", "too long"],
)
def test_what_is_no_receipt_says_nothing_of_the_clock(tmp_path: Path, data: bytes | None) -> None:
    path = tmp_path / "receipts"
    if data is not None:
        path.write_bytes(data)
    assert () == clock_notes(LocalFiles(), path, 0)
    assert () == clock_notes(LocalFiles(), tmp_path, 0)
    assert () == clock_notes(LocalFiles(), None, 0)
