"""Offsets that consumer groups have committed, as a coordinator writes them into its topic."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

from keeplast.format.batch import encode_batch
from keeplast.format.compression import Codec
from keeplast.format.consumer_offsets import (
    PARTITIONS_DEFAULT,
    TOPIC,
    OffsetCommit,
    home_partition,
)
from keeplast.format.fields import encode_unsigned
from keeplast.format.record import Record
from keeplast.model.partition import TopicPartition
from tests.support.partition_maker import NOW_MS, write_segment


def commit_key(group: str, partition: TopicPartition, *, version: int = 1) -> bytes:
    """Return the key of a committed offset."""
    number = struct.pack(">i", partition.partition)
    return struct.pack(">h", version) + _text(group) + _text(partition.topic) + number


def commit_value(commit: OffsetCommit) -> bytes:
    """Return the value in the encoding of its version."""
    version = commit.version
    fields = struct.pack(">hq", version, commit.offset)
    if version >= 3:
        fields += struct.pack(">i", commit.leader_epoch)
    if version >= 4:
        metadata = commit.metadata.encode()
        fields += encode_unsigned(len(metadata) + 1) + metadata
    else:
        fields += _text(commit.metadata)
    fields += struct.pack(">q", commit.commit_timestamp)
    if version == 1:
        fields += struct.pack(">q", commit.expire_timestamp)
    if version < 4:
        return fields
    if commit.topic_id is None:
        return fields + encode_unsigned(0)
    return fields + b"".join(map(encode_unsigned, (1, 0, 16))) + commit.topic_id


def commit_record(
    at: int,
    group: str,
    partition: TopicPartition,
    offset: int | None,
    *,
    version: int = 3,
    topic_id: bytes | None = None,
) -> Record:
    """Return the record at offset ``at`` that commits ``offset``; None takes it away."""
    value = None
    if offset is not None:
        value = commit_value(OffsetCommit(version, offset, -1, "", NOW_MS, topic_id=topic_id))
    return Record(at, NOW_MS, commit_key(group, partition), value)


def commit_batch(
    *records: Record, producer_id: int | None = None, codec: Codec = Codec.NONE
) -> bytes:
    """Return a batch of commits, of a transaction where there is a producer."""
    if producer_id is None:
        return encode_batch(list(records), codec=codec)
    return encode_batch(
        list(records), codec=codec, producer_id=producer_id, producer_epoch=0,
        base_sequence=records[0].offset, is_transactional=True,
    )  # fmt: skip


def home_of(group: str) -> int:
    """Return a group's partition among as many as a broker makes."""
    return home_partition(group, PARTITIONS_DEFAULT)


def write_offsets_log(root: Path, number: int, segments: Mapping[int, bytes]) -> Path:
    """Make a partition of the topic in the data directory ``root``, from given batches."""
    directory = root / f"{TOPIC}-{number}"
    for base_offset, data in segments.items():
        write_segment(directory, base_offset, data)
    return directory


def commit_offsets(
    root: Path,
    group: str,
    offsets: Mapping[TopicPartition, int | None],
    *,
    number: int | None = None,
) -> Path:
    """Write down that ``group`` has committed ``offsets`` and nothing else, where it belongs."""
    records: Sequence[Record] = [
        commit_record(at, group, partition, offset)
        for at, (partition, offset) in enumerate(offsets.items())
    ]
    home = home_of(group) if number is None else number
    return write_offsets_log(root, home, {0: commit_batch(*records)})


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data
