"""Local updates read a part of the log with filters; the table says by how much less."""

from __future__ import annotations

from pathlib import Path

from benchmarks.tier import Measured, measure, table
from keeplast.model.topic_config import Shape


def test_rounds_with_filters_read_less_where_updates_are_local(tmp_path: Path) -> None:
    rows = measure(tmp_path, segments=10, segment_bytes=20_000, value_bytes=500)
    by_name = {(row.workload, row.shape, row.has_filters): row for row in rows}
    for shape in Shape:
        local, plain = by_name["local", shape, True], by_name["local", shape, False]
        assert local.share_skipped > 0.5
        assert plain.bytes_read > 2 * local.bytes_read
        assert plain.bytes_written <= local.bytes_written
        assert 0 == plain.filter_bytes


def test_table_compares_with_the_row_without_filters() -> None:
    plain = Measured("local", "bucket", False, 2, 1 << 20, 10, 4 << 20, 0, 1.0, 0.0, 0, 0.0)
    saving = Measured("local", "bucket", True, 2, 1 << 20, 10, 1 << 20, 0, 1.0, 0.9, 100, 0.003)
    *_, last = table([plain, saving]).splitlines()
    assert last.endswith("| 90.0% | 0.30% | 4.0× |")
