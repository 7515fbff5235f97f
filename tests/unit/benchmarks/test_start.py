"""Commands over small logs are measured with their start, and each log is one that is cleaned."""

from __future__ import annotations

from pathlib import Path

from benchmarks.start import WRITTEN, Taken, table, write_partitions
from keeplast.log.files import LocalFiles
from keeplast.log.partition_log import list_partition


def test_copies_follow_the_logs_that_were_written(tmp_path: Path) -> None:
    write_partitions(tmp_path, WRITTEN + 2)
    listings = [
        list_partition(tmp_path / f"bench-{number}", LocalFiles()) for number in range(WRITTEN + 2)
    ]
    assert all(len(each.segments) == 4 for each in listings)
    sizes = [[segment.size_bytes for segment in each.segments] for each in listings]
    assert sizes[:2] == sizes[WRITTEN:]
    assert all(each[-1] == 0 for each in sizes)


def test_table_has_milliseconds_a_partition_where_there_are_many() -> None:
    found = table({"first clean": Taken(6.0, 10.0), "plan of 20 partitions": Taken(1.0, 2.0)}, 20)
    assert "| first clean | 6.0 s | 10.0 s |  |" in found
    assert "| plan of 20 partitions | 1.0 s | 2.0 s | 100.00 ms |" in found
