"""The receipt file: one whole line a round, whatever a crash left of the one before."""

from __future__ import annotations

from pathlib import Path

import pytest

from keeplast.engine.receipt import append_receipt
from keeplast.log.files import LocalFiles


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        (None, b"new\n"),
        (b"", b"new\n"),
        (b"one\n", b"one\nnew\n"),
        (b"one\ntw", b"one\nnew\n"),
        (b"on", b"new\n"),
    ],
    ids=["no file", "empty", "whole", "torn", "only a torn line"],
)
def test_a_line_that_a_crash_cut_off_is_replaced(
    tmp_path: Path, before: bytes | None, expected: bytes
) -> None:
    path = tmp_path / "receipts.jsonl"
    if before is not None:
        path.write_bytes(before)
    append_receipt(LocalFiles(), path, b"new\n")
    assert expected == path.read_bytes()
