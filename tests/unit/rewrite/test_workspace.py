"""What remains does not depend on how much fits into a worker's arrays at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from keeplast.rewrite import workspace
from tests.support.mixed_log import write_mixed_log
from tests.support.partition_maker import clean, clean_request


def cleaned(root: Path) -> dict[str, bytes]:
    """Clean a log with something of everything; return all of its files."""
    directory = write_mixed_log(root)
    clean(clean_request(directory))
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_few_rows_are_given_to_the_map_more_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    expected = cleaned(tmp_path / "many")
    monkeypatch.setattr(workspace, "ROWS_MAX", rows)
    assert expected == cleaned(tmp_path / "few")


@pytest.mark.parametrize("share", [1, 1 << 20, 1 << 25])
def test_a_ledger_of_any_length_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: int
) -> None:
    """A share of 1/2^20 leaves room for the first few offsets, 1/2^25 for none."""
    expected = cleaned(tmp_path / "default")
    monkeypatch.setattr(workspace, "LEDGER_SHARE", share)
    assert expected == cleaned(tmp_path / "other")
