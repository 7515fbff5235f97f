"""States as a notebook shows them, and as tables."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

import keeplast
from keeplast.api.live_state import COLUMNS, HTML_ROWS, ShownState
from keeplast.errors import InvalidError
from keeplast.format.batch import encode_batch
from keeplast.format.record import Record
from keeplast.pipeline.arrow_batches import ARROW_TYPES
from tests.support.small_log import write_log

MS = 1_700_000_000_000


def state(tmp_path: Path, *records: Record) -> ShownState:
    directory = write_log(tmp_path, "t-3", {0: []})
    (directory / f"{0:020d}.log").write_bytes(b"".join(encode_batch([each]) for each in records))
    return keeplast.open_log(directory).state()


def live(*records: Record) -> ShownState:
    found = keeplast.LiveState(keeplast.topic_config({}))
    for each in records:
        found.apply(
            partition=3, offset=each.offset, timestamp_ms=each.timestamp, key=each.key,
            value=each.value,
        )  # fmt: skip
    return found


def test_a_state_is_a_table_with_the_exports_columns(tmp_path: Path) -> None:
    headers = ((b"v\xff", b"1"), (b"none", None))
    found = state(tmp_path, Record(0, MS, b"a", b"1", headers), Record(1, MS + 1, b"b", b""))
    table = found.to_arrow()
    assert list(COLUMNS) == table.column_names
    assert [ARROW_TYPES[name] for name in COLUMNS] == list(table.schema.types)
    rows = table.to_pylist()
    assert [(3, 0, b"a", b"1"), (3, 1, b"b", b"")] == [
        (each["partition"], each["offset"], each["key"], each["value"]) for each in rows
    ]
    assert [{"key": "v\ufffd", "value": b"1"}, {"key": "none", "value": None}] == rows[0]["headers"]
    assert rows[1]["headers"] is None
    assert [MS, MS + 1] == [round(each["timestamp"].timestamp() * 1000) for each in rows]


def test_a_time_that_no_column_holds_is_its_last_and_none_is_null() -> None:
    far, none = Record(0, 1 << 62, b"a", b"1"), Record(1, -1, b"b", b"2")
    times = live(far, none).to_arrow().column("timestamp").cast("int64").to_pylist()
    assert [(1 << 63) - 1, None] == times


def test_a_live_state_is_a_table_too() -> None:
    rows = live(Record(5, MS, b"a", b"1"), Record(6, MS, b"b", None)).to_arrow().to_pylist()
    assert [(3, 5, b"a", None)] == [
        (each["partition"], each["offset"], each["key"], each["headers"]) for each in rows
    ]


def test_a_notebook_shows_the_first_rows_escaped(tmp_path: Path) -> None:
    evil = Record(0, MS, b"<script>", b"<b>&" + b"x" * 1000)
    more = [Record(at, MS, b"k%d" % at, b"v") for at in range(1, HTML_ROWS + 5)]
    for found in (state(tmp_path, evil, *more), live(evil, *more)):
        html = found._repr_html_()
        assert HTML_ROWS + 1 == html.count("<tr>")
        assert "<script>" not in html
        assert "&lt;script&gt;" in html
        assert f"The first {HTML_ROWS} are shown." in html
        assert "rank by offset" in html
        assert len(html) < 10_000
    assert "are shown" not in live(evil)._repr_html_()


def test_a_missing_package_is_named_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = live(Record(0, MS, b"a", b"1"))
    monkeypatch.setitem(sys.modules, "keeplast.pipeline.arrow_batches", None)
    with pytest.raises(InvalidError, match="a table needs more packages; run pip install"):
        found.to_arrow()


def test_a_data_frame_is_what_pandas_makes_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    found = live(Record(0, MS, b"a", b"1"))
    frame = object()
    monkeypatch.setattr(found, "to_arrow", lambda: SimpleNamespace(to_pandas=lambda: frame))
    assert frame is found.to_pandas()
    missing = Mock(side_effect=ModuleNotFoundError("No module named 'pandas'", name="pandas"))
    monkeypatch.setattr(found, "to_arrow", lambda: SimpleNamespace(to_pandas=missing))
    with pytest.raises(InvalidError, match="pip install pandas"):
        found.to_pandas()
