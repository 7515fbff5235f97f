from __future__ import annotations

import pytest

from keeplast.format.filename import (
    DELETED,
    INDEX,
    LOG,
    SNAPSHOT,
    SWAP,
    TIME_INDEX,
    Kind,
    PartitionDirectory,
    SegmentFile,
    parse_partition_directory,
    parse_segment_file,
    segment_file,
)
from keeplast.model.partition import TopicPartition

UNIQUE = "0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize("kind", [LOG, INDEX, TIME_INDEX, ".txnindex", SNAPSHOT])
def test_live_segment_file_reads_back(kind: Kind) -> None:
    name = segment_file(42, kind)

    assert f"00000000000000000042{kind}" == name
    assert SegmentFile(42, kind) == parse_segment_file(name)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("00000000000000000000.log.cleaned", SegmentFile(0, LOG, ".cleaned")),
        ("00000000000000000000.index.swap", SegmentFile(0, INDEX, SWAP)),
        ("00000000000000000007.timeindex.deleted", SegmentFile(7, TIME_INDEX, DELETED)),
        ("00000000000000000007.log.3a9.deleted", SegmentFile(7, LOG, DELETED, "3a9")),
        ("09223372036854775807.log", SegmentFile((1 << 63) - 1, LOG)),
    ],
)
def test_staged_segment_file_reads_back(name: str, expected: SegmentFile) -> None:
    assert expected == parse_segment_file(name)
    assert name == expected.name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "0.log",
        "00000000000000000000",
        "00000000000000000000.txt",
        "00000000000000000000.log\n",
        "00000000000000000000.log.3a9.swap",
        "00000000000000000000.log.3A9.deleted",
        "00000000000000000000.log.a.b.deleted",
        "00000000000000000000.logx",
        "99999999999999999999.log",
        "-0000000000000000001.log",
        "٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠.log",
        "00000000000000000000-0000000000.checkpoint",
        "leader-epoch-checkpoint",
        "partition.metadata",
    ],
)
def test_other_names_are_no_segment_files(name: str) -> None:
    assert parse_segment_file(name) is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("orders-0", PartitionDirectory(TopicPartition("orders", 0))),
        ("a-b.c_d-12", PartitionDirectory(TopicPartition("a-b.c_d", 12))),
        ("t-2147483647", PartitionDirectory(TopicPartition("t", 2147483647))),
        (f"t-0.{UNIQUE}-delete", PartitionDirectory(TopicPartition("t", 0), "delete")),
        (f"t.x-1.{UNIQUE}-future", PartitionDirectory(TopicPartition("t.x", 1), "future")),
        (f"t-0.{UNIQUE}-stray", PartitionDirectory(TopicPartition("t", 0), "stray")),
        ("__consumer_offsets-49", PartitionDirectory(TopicPartition("__consumer_offsets", 49))),
    ],
)
def test_partition_directory_reads(name: str, expected: PartitionDirectory) -> None:
    assert expected == parse_partition_directory(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "orders",
        "-0",
        "orders-",
        "orders-x",
        "orders-2147483648",
        "orders-0-delete",
        "orders-0.-delete",
        f"orders.{UNIQUE}-delete",
        ".-0",
        "..-0",
        "a b-0",
        "orders-0\n",
        "x" * 250 + "-0",
        "remote-log-index-cache",
        "t-٣",
    ],
)
def test_other_names_are_no_partition_directories(name: str) -> None:
    assert parse_partition_directory(name) is None
