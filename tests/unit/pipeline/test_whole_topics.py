"""A part of a topic never passes for the topic, and several directories are one place."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import keeplast
from keeplast.config.log_source import KafkaLogSource
from keeplast.errors import CompactionError, CorruptError, InvalidError, RefusedError
from keeplast.format import leader_epoch, partition_metadata
from keeplast.format.batch import encode_batch
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.format.partition_metadata import PartitionMetadata
from keeplast.format.record import Record
from keeplast.log.append import NewRecord
from keeplast.model.topic_config import TopicConfig
from keeplast.pipeline.data_source import SCHEMA
from keeplast.pipeline.log_parts import Logs
from keeplast.pipeline.source_options import read_options
from tests.support.flipped import flip
from tests.support.heard_export import HeardExport
from tests.support.log_builder import LogBuilder
from tests.support.partition_maker import NOW_MS

ID = b"t" * 16


def write(directory: Path, count: int, *, value: bytes = b"v", epoch: int | None = None) -> Path:
    """Write a partition of ``count`` keys, the last record's leader epoch ``epoch``."""
    log = LogBuilder(directory, TopicConfig())
    for number in range(count):
        log.append(NewRecord(b"%d" % number, value, NOW_MS + number))
    log.close()
    metadata = partition_metadata.encode(PartitionMetadata(ID))
    (directory / "partition.metadata").write_bytes(metadata)
    if epoch is not None:
        lines = leader_epoch.encode([LeaderEpoch(epoch, 0)])
        (directory / "leader-epoch-checkpoint").write_bytes(lines)
    return directory


def know(root: Path, topic: str, partitions: int) -> None:
    """Let the metadata log of ``root`` know a topic with so many partitions."""
    name = topic.encode()
    values = [b"\x01\x02\x00" + bytes([len(name) + 1]) + name + ID + b"\x00"]
    values += [b"\x01\x03\x01" + n.to_bytes(4, "big") + ID + b"\x02" for n in range(partitions)]
    records = [Record(i, NOW_MS, None, value, ()) for i, value in enumerate(values)]
    path = root / "__cluster_metadata-0/00000000000000000000.log"
    path.parent.mkdir()
    path.write_bytes(encode_batch(records, base_offset=0, last_offset=len(records) - 1))


@pytest.fixture
def one(tmp_path: Path) -> Path:
    """One of two directories of a broker, which has two of four partitions."""
    for number in (0, 2):
        write(tmp_path / f"one/t-{number}", 3)
    know(tmp_path / "one", "t", 4)
    return tmp_path / "one"


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """The other one."""
    for number in (1, 3):
        write(tmp_path / f"two/t-{number}", 2)
    return tmp_path / "two"


def read(*paths: Path, **options: str) -> list[str]:
    """Return the partitions that a query's tasks read."""
    given = {"paths": json.dumps([str(path) for path in paths]), **options}
    reader = KafkaLogSource(given).reader(SCHEMA)
    parts = (part for task in reader.partitions() for part in task.value)
    return sorted({str(part.split.partition) for part in parts})


def test_partitions_that_the_metadata_log_knows_and_that_are_not_here_are_named(
    one: Path, tmp_path: Path
) -> None:
    with pytest.raises(RefusedError, match=r"missing=t-1,t-3 path="):
        read(one)
    with pytest.raises(RefusedError, match=r"missing=t-1,t-3 path="):
        read(one, subscribe="t", state="latest")
    with pytest.raises(RefusedError, match=r"missing=t-1,t-3 path="):
        keeplast.export(one, tmp_path / "out")
    with pytest.raises(RefusedError, match=r"missing=t-1,t-3 path="):
        keeplast.export(keeplast.DirectoryLogs(one), tmp_path / "out", topics=["t"])
    assert not (tmp_path / "out").exists()


def test_named_partitions_or_a_part_of_them_are_those_that_are_here(
    one: Path, tmp_path: Path
) -> None:
    assert ["t-0", "t-2"] == read(one, partialTopics="true")
    assert ["t-0", "t-2"] == read(one, assign='{"t":[0,2]}')
    assert ["t-2"] == read(one / "t-2")
    some = keeplast.export(one, tmp_path / "some", partitions=[2])
    part = keeplast.export(one, tmp_path / "part", partial_topics=True)
    assert ({"t": {"2": 3}}, {"t": {"0": 3, "2": 3}}) == (some.offsets(), part.offsets())


def test_a_topic_is_whole_where_all_its_partitions_are_or_their_number_is_unknown(
    one: Path, two: Path
) -> None:
    assert ["t-1", "t-3"] == read(two)
    for number in (1, 3):
        write(one / f"t-{number}", 2)
    assert ["t-0", "t-1", "t-2", "t-3"] == read(one)


def test_a_stream_over_a_part_of_a_topic_is_refused_when_it_begins(one: Path, two: Path) -> None:
    def stream(*paths: Path) -> KafkaLogSource:
        return KafkaLogSource({"paths": json.dumps([str(path) for path in paths])})

    with pytest.raises(RefusedError, match=r"missing=t-1,t-3"):
        stream(one).streamReader(SCHEMA).initialOffset()
    again = stream(one).streamReader(SCHEMA)
    with pytest.raises(RefusedError, match=r"missing=t-1,t-3"):
        again.latestOffset({"t": {"0": 0, "2": 0}}, again.getDefaultReadLimit())
    whole = stream(one, two).streamReader(SCHEMA)
    assert {"0": 3, "1": 2, "2": 3, "3": 2} == whole.initialOffset()["t"]


def test_several_directories_are_one_place(one: Path, two: Path, tmp_path: Path) -> None:
    """In any order: the one with the metadata log says what is said once."""
    for number, paths in enumerate([(one, two), (two, one)]):
        assert ["t-0", "t-1", "t-2", "t-3"] == read(*paths)
        done = keeplast.export(paths, tmp_path / f"out-{number}")
        assert {"t": {"0": 3, "1": 2, "2": 3, "3": 2}} == done.offsets()


def test_settings_are_those_of_the_directory_with_the_metadata_log(one: Path, two: Path) -> None:
    (one / "keeplast.toml").write_text('[topic."t"]\n"compaction.strategy" = "timestamp"\n')
    options = {"paths": json.dumps([str(two), str(one)]), "state": "latest"}
    reader = KafkaLogSource(options).reader(SCHEMA)
    ranks = {part.state_of.strategy for task in reader.partitions() for part in task.value}
    assert {keeplast.topic_config({"compaction.strategy": "timestamp"}).strategy} == ranks


def test_of_several_replicas_the_furthest_is_read_and_that_is_said(tmp_path: Path) -> None:
    """A later leader epoch goes before a longer log, as in an election."""
    roots = [tmp_path / name for name in ("a", "b", "c")]
    for root, count, epoch in zip(roots, (9, 5, 7), (3, 4, 4), strict=True):
        write(root / "t-0", count, value=root.name.encode(), epoch=epoch)
    heard = HeardExport()
    done = keeplast.export(roots, tmp_path / "out", events=heard)
    assert {"t": {"0": 7}} == done.offsets()
    table = pq.read_table(tmp_path / "out/t/partition=0/part-00000.parquet", partitioning=None)
    assert {b"c"} == set(table.column("value").to_pylist())
    said = (
        f"t-0 is read from {tmp_path}/c, to offset 7, the furthest of 3 replicas; "
        f"{tmp_path}/a to offset 9, {tmp_path}/b to offset 5"
    )
    assert said in heard.notes
    with pytest.warns(UserWarning, match="the furthest of 3 replicas"):
        read(*roots)


def test_a_bad_place_is_refused(one: Path, two: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other/t-0", 3)
    metadata = partition_metadata.encode(PartitionMetadata(b"x" * 16))
    (other / "partition.metadata").write_bytes(metadata)
    cases: list[tuple[type[CompactionError], str, tuple[Path, ...], dict[str, str]]] = [
        (RefusedError, "different topics with the same name", (one, other.parent, two), {}),
        (InvalidError, "given twice", (one, one), {}),
        (InvalidError, "given twice", (one, one / "t-0"), {}),
        (InvalidError, "no such directory", (one, tmp_path / "none"), {}),
        (InvalidError, "one list", (one, two), {"path": str(one)}),
        (InvalidError, "one directory", (one, two), {"endingGroup": "g"}),
        (InvalidError, "leave one of the two out", (one, two), {"store": "sqlite:///m.db"}),
    ]
    for error, words, paths, options in cases:
        with pytest.raises(error, match=words):
            read(*paths, **options)
    for text in ("[]", "7", "[7]", "no list"):
        with pytest.raises(InvalidError, match="not a list of directories"):
            read_options({"paths": text}, is_streaming=False)
    with pytest.raises(InvalidError, match="one directory"):
        keeplast.export([one, two], tmp_path / "out", end_group="g")
    with pytest.raises(InvalidError, match="no directory is given"):
        keeplast.export([], tmp_path / "out")
    with pytest.raises(RefusedError, match="would lie in one another"):
        keeplast.export([one, two], two / "out")


def test_a_replica_that_is_damaged_is_an_error_and_not_a_shorter_one(
    one: Path, tmp_path: Path
) -> None:
    copy = write(tmp_path / "copy/t-0", 9)
    path = copy / "00000000000000000000.log"
    flip(path, -100)
    options = read_options({"paths": json.dumps([str(one), str(copy.parent)])}, is_streaming=False)
    with pytest.raises(CorruptError, match="whole batches follow"):
        Logs(options)
