"""A fetch and a look for a time find what is there, whatever the indexes of a segment say."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.format import offset_index, time_index
from keeplast.format.filename import INDEX, TIME_INDEX
from keeplast.log.append import NewRecord
from keeplast.log.files import LocalFiles
from keeplast.log.partition_log import list_partition
from keeplast.log.readers import fetch, find_offset_for_time
from tests.support.log_builder import LogBuilder
from tests.support.partition_maker import COMPACT, NOW_MS

SEGMENT, RECORDS = 50, 100


@pytest.fixture
def log(tmp_path: Path) -> LogBuilder:
    """Two closed segments of batches of one record, a millisecond apart, each with its index."""
    made = LogBuilder(tmp_path / "t-0", replace(COMPACT, index_interval_bytes=100))
    for number in range(RECORDS):
        made.append(NewRecord(b"k", b"v", NOW_MS + number))
        if number % SEGMENT == SEGMENT - 1:
            made.roll()
    made.close()
    return made


def found_at(log: LogBuilder, timestamp_ms: int) -> tuple[int, int] | None:
    listing = list_partition(log.directory, LocalFiles())
    return find_offset_for_time(LocalFiles(), listing, timestamp_ms, start=0, end=RECORDS)


@pytest.mark.parametrize("kept", [0, 1, 4])
def test_a_time_is_found_after_the_end_that_its_index_has_lost(log: LogBuilder, kept: int) -> None:
    path = log.path(0, TIME_INDEX)
    path.write_bytes(path.read_bytes()[: kept * time_index.ENTRY_BYTES])
    for number in range(RECORDS):
        assert (number, NOW_MS + number) == found_at(log, NOW_MS + number)
    assert found_at(log, NOW_MS + RECORDS) is None


@pytest.mark.parametrize("shift", [-3, 70, 400])
def test_a_fetch_finds_a_batch_that_the_index_leads_past_or_into(
    log: LogBuilder, shift: int
) -> None:
    path = log.path(0, INDEX)
    size = log.path(0).stat().st_size
    entries = offset_index.decode(path.read_bytes())
    entries[:, 1] += shift
    path.write_bytes(offset_index.encode(entries[entries[:, 1] < size]))
    listing = list_partition(log.directory, LocalFiles())
    for offset in range(RECORDS):
        got = fetch(LocalFiles(), listing, offset, end=RECORDS, bytes_max=1)
        assert offset + 1 == got.next_offset
