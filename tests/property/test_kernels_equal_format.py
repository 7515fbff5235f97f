"""The kernels and ``keeplast.format`` are two readers and writers of one format: they agree.

Reading: every record of random batches of every magic and codec, in windows of every size.
Writing: what a round leaves of a batch is what the format encodes from the records that stay.
Bounds: damaged and crafted files once more, by kernels that check each index before they use it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from keeplast.columns import batches as t
from keeplast.columns.rows import HAS_KEY, HAS_VALUE
from keeplast.format.batch import RecordBatch, TimestampType, encode_batch
from keeplast.format.message_set import read_batches
from keeplast.format.record import Record, decode_record
from tests.support.drawn_batches import SUPERSEDED, Drawn, drawn_batches
from tests.support.kernel_window import rows_of, window_of, windows_of
from tests.support.partition_maker import (
    COMPACT,
    NOW_MS,
    batches_of,
    clean,
    clean_request,
    one,
    write_partition,
)
from tests.support.turns import examples

TAIL_OFFSET = 1 << 20
HOSTILE = ("test_hostile_directories.py", "test_fuzz_directories.py", "test_small_batches.py")
LEAVES = """
from keeplast.columns.batches import new_batch_table
from keeplast.columns.retained import count_messages
count_messages(new_batch_table(1), 0, 2)
"""


@given(batches=drawn_batches())
@settings(max_examples=examples(200))
def test_headers_are_read_as_the_format_reads_them(batches: list[Drawn]) -> None:
    data = b"".join(batch.encode() for batch in batches)
    window = window_of(data)
    columns = (
        t.POSITION, t.SIZE, t.MAGIC, t.LAST_OFFSET, t.MAX_TIMESTAMP, t.PRODUCER_ID,
        t.PRODUCER_EPOCH,
    )  # fmt: skip
    expected = [
        (
            batch.position, batch.size_bytes, batch.magic, batch.last_offset, batch.max_timestamp,
            batch.producer_id, batch.producer_epoch,
        )
        for batch in read_batches(data)
    ]  # fmt: skip
    rows = window.table[: window.batches]
    assert expected == [tuple(int(row[column]) for column in columns) for row in rows]
    assert [batch.codec for batch in read_batches(data)] == (
        rows[:, t.ATTRIBUTES] & t.CODEC_MASK
    ).tolist()


@given(batches=drawn_batches(), window_bytes=st.sampled_from([61, 200, 1000, 1 << 20]))
@settings(max_examples=examples(200))
def test_records_are_read_as_the_format_reads_them(batches: list[Drawn], window_bytes: int) -> None:
    data = b"".join(batch.encode() for batch in batches)
    found: list[Record] = []
    hashes: dict[tuple[int, int], bytes] = {}
    identities: dict[bytes, tuple[int, int]] = {}
    for window in windows_of(data, window_bytes=window_bytes):
        for row in rows_of(window):
            table = window.table[row.batch]
            is_append_time = table[t.ATTRIBUTES] & t.LOG_APPEND_TIME != 0 and table[t.MAGIC] == 2
            record, end = decode_record(
                row.record,
                0,
                base_offset=int(table[t.BASE_OFFSET]),
                base_timestamp=int(table[t.BASE_TIMESTAMP]),
                append_timestamp=int(table[t.MAX_TIMESTAMP]) if is_append_time else None,
            )
            assert len(row.record) == end
            assert (record.key is not None, record.value is not None) == (
                bool(row.flags & HAS_KEY), bool(row.flags & HAS_VALUE),
            )  # fmt: skip
            assert record.offset == row.offset
            if record.key is not None:
                assert record.key == hashes.setdefault(row.hashes, record.key)
                assert row.hashes == identities.setdefault(record.key, row.hashes)
            found.append(record)
    assert [record for batch in read_batches(data) for record in batch.records()] == found


def expected_output(drawn: Drawn, superseded_by: dict[bytes, int], horizon: int) -> list[bytes]:
    """Return what should be left of a batch, encoded by the format."""
    (*entries,) = read_batches(drawn.encode())
    output: list[bytes] = []
    for entry in entries:
        records = list(entry.records())
        kept = [
            record
            for record in records
            if record.key is not None and superseded_by[record.key] <= record.offset
        ]
        has_tombstone = any(record.value is None for record in kept)
        if not kept:
            continue
        changes: dict[str, Any] = {"delete_horizon_ms": horizon} if has_tombstone else {}
        if isinstance(entry, RecordBatch):
            if len(kept) == len(records) and not has_tombstone:
                output.append(bytes(entry.data))
            else:
                output.append(drawn.encode_records(kept, **changes))
            continue
        is_append_time = entry.timestamp_type is TimestampType.LOG_APPEND_TIME
        output.append(
            encode_batch(
                kept,
                codec=drawn.codec,
                timestamp_type=(
                    TimestampType.LOG_APPEND_TIME if is_append_time else TimestampType.CREATE_TIME
                ),
                max_timestamp=entry.max_timestamp if is_append_time else None,
                **changes,
            )
        )
    return output


@given(batches=drawn_batches(), segment_bytes=st.sampled_from([14, 1 << 20]))
@settings(max_examples=examples(150))
def test_batches_are_written_as_the_format_writes_them(
    batches: list[Drawn], segment_bytes: int
) -> None:
    """The records' own CRC-32 messages leave one by one, sets as one batch: F1."""
    tail = one(TAIL_OFFSET, SUPERSEDED, b"newest")
    with tempfile.TemporaryDirectory() as scratch:
        base = batches[0].records[0].offset - batches[0].before
        # No active producer, so that no batch is kept for one.
        data = b"".join(replace(batch, producer_id=-1).encode() for batch in batches)
        directory = write_partition(
            Path(scratch), {base: data, TAIL_OFFSET: tail, TAIL_OFFSET + 1: b""}
        )
        clean(clean_request(directory, topic=replace(COMPACT, segment_bytes=segment_bytes)))
        found = [_bytes_of(batch) for batch in batches_of(directory)]
    records = (record for batch in batches for record in batch.records)
    winners = {each.key: each.offset for each in records if each.key is not None}
    winners[SUPERSEDED] = TAIL_OFFSET
    horizon = NOW_MS + COMPACT.delete_retention_ms
    expected = [
        output
        for batch in batches
        for output in expected_output(replace(batch, producer_id=-1), winners, horizon)
    ]
    assert [*expected, tail] == found


def _bytes_of(batch: object) -> bytes:
    assert isinstance(batch, RecordBatch)
    return bytes(batch.data)


@pytest.mark.repeats(
    "tests/property/test_hostile_directories.py::test_crafted_headers_are_cleaned_or_reported"
)
def test_no_kernel_leaves_its_arrays(tmp_path: Path) -> None:
    checks = os.environ | {"NUMBA_BOUNDSCHECK": "1", "KEEPLAST_CACHE_DIR": str(tmp_path)}
    python = [sys.executable, "-c", LEAVES]
    assert b"IndexError" in subprocess.run(python, env=checks, stderr=subprocess.PIPE).stderr
    python[1:] = "-m", "pytest", "-q", "--all", *HOSTILE
    subprocess.run(python, env=checks, check=True, cwd=Path(__file__).parent)
