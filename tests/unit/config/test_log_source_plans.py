"""How ``kafka-log`` plans a batch query, asked as Spark asks it."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from keeplast.config.log_source import KafkaLogSource
from keeplast.errors import InvalidError
from keeplast.format import offset_index
from keeplast.format.filename import INDEX
from keeplast.log.append import NewRecord
from keeplast.model.partition import NO_TIMESTAMP
from keeplast.model.topic_config import TopicConfig
from keeplast.pipeline.data_source import SCHEMA
from tests.support.counting_files import count_reads
from tests.support.log_builder import LogBuilder
from tests.support.partition_maker import NOW_MS

RECORDS = 2000


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two partitions, one of which is empty."""
    log = LogBuilder(tmp_path / "orders-0", TopicConfig())
    for number in range(RECORDS):
        log.append(NewRecord(b"%d" % number, b"v", NOW_MS))
    log.finish()
    LogBuilder(tmp_path / "orders-1", TopicConfig()).close()
    return tmp_path


@pytest.mark.parametrize("name", ["startingOffsets", "endingOffsets"])
@pytest.mark.parametrize(
    ("offsets", "expected"),
    [
        ('{"oders":{"0":0}}', "did you mean orders-0. Leave it out, or choose the partition"),
        ('{"orders":{"0":0,"7":-1}}', "=orders-7 path="),
        ('{"orders":{"1":0}}', "=orders-1 path="),
    ],
)
def test_offsets_of_what_is_not_read_are_refused(
    data: Path, name: str, offsets: str, expected: str
) -> None:
    source = KafkaLogSource({"path": str(data), "assign": '{"orders":[0]}', name: offsets})
    with pytest.raises(InvalidError, match=re.escape(expected)):
        source.reader(SCHEMA).partitions()


@pytest.mark.parametrize("count", [1, 4])
def test_tasks_are_as_many_as_asked_for(data: Path, count: int) -> None:
    source = KafkaLogSource({"path": str(data), "minPartitions": str(count)})
    reader = source.reader(SCHEMA)
    parts = reader.partitions()
    assert count <= len(parts) <= count + 2
    offsets = [o for p in parts for b in reader.read(p) for o in b.column("offset").to_pylist()]
    assert list(range(RECORDS)) == offsets


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ({}, [0, 1, 2, 3]),
        ({"minTimestamp": "-10"}, [0, 2, 3]),
        ({"maxTimestamp": "9"}, [0, 2]),
        ({"minTimestamp": "-1", "maxTimestamp": "-1"}, []),
        ({"state": "latest", "maxTimestamp": "9"}, [0, 2]),
    ],
)
def test_a_record_without_a_timestamp_is_in_no_range_of_times(
    tmp_path: Path, bounds: dict[str, str], expected: list[int]
) -> None:
    log = LogBuilder(tmp_path / "t-0", TopicConfig())
    for number, stamp in enumerate([-5, NO_TIMESTAMP, 7, 10]):
        log.append(NewRecord(b"%d" % number, b"v", stamp))
    log.close()
    reader = KafkaLogSource({"path": str(tmp_path), **bounds}).reader(SCHEMA)
    batches = [b for p in reader.partitions() for b in reader.read(p)]
    assert expected == [o for b in batches for o in b.column("offset").to_pylist()]


def test_a_table_is_read_with_the_options_that_it_was_made_with(data: Path) -> None:
    made = {
        "provider": "kafka-log",
        "location": f"file:{data}",
        "owner": "o",
        "subscribe": "orders",
        "endingOffsets": '{"orders":{"0":3}}',
        "object.secret_access_key": "s3cret",
    }
    schema = KafkaLogSource(made).schema()
    assert (SCHEMA.names, SCHEMA.simpleString()) == (schema.names, schema.simpleString())
    assert "s3cret" not in schema.json()
    # Spark 4.2 gives none of them to a reader of the table, but the schema.
    reader = KafkaLogSource({}).reader(schema)
    rows = [b for p in reader.partitions() for b in reader.read(p)]
    assert [0, 1, 2] == [o for b in rows for o in b.column("offset").to_pylist()]
    own = KafkaLogSource({"EndingOffsets": '{"orders":{"0":1}}'}).reader(schema)
    assert [0] == [
        o for p in own.partitions() for b in own.read(p) for o in b.column("offset").to_pylist()
    ]
    assert KafkaLogSource({"path": str(data)}).schema() == SCHEMA


def test_a_plan_reads_a_few_entries_of_an_index_and_cuts_as_if_it_had_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segments, entries, offsets = 3, 1 << 16, 1 << 20
    rows = np.arange(1, entries)[:, None]
    index = offset_index.encode(rows * (offsets // entries, (1 << 30) // entries) + (15, 0))
    log = LogBuilder(tmp_path / "t-0", TopicConfig())
    for number in range(segments):
        log.roll((number + 1) * offsets)
        log.path(number * offsets, INDEX).write_bytes(index)
        with log.path(number * offsets).open("wb") as file:
            file.truncate(1 << 30)
    log.append(NewRecord(b"k", b"v", NOW_MS))
    log.close()
    read = count_reads(monkeypatch)
    parts = KafkaLogSource({"path": str(tmp_path)}).reader(SCHEMA).partitions()
    assert read[".index"] <= segments * 64 * offset_index.ENTRY_BYTES
    assert ".timeindex" not in read
    wanted = [part.split.wanted for task in parts for part in task.value]
    assert segments * 8 <= len(wanted) <= segments * 8 + 1
    assert 0 == wanted[0].first_offset
    assert segments * offsets + 1 == wanted[-1].end_offset
    assert all(a.end_offset == b.first_offset for a, b in itertools.pairwise(wanted))
    # Finer parts need more of them, and get them.
    fine = KafkaLogSource({"path": str(tmp_path), "maxPartitionBytes": "1m"}).reader(SCHEMA)
    assert segments * 1024 <= sum(len(task.value) for task in fine.partitions())
