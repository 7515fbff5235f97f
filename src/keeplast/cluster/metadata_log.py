"""``__remote_log_metadata`` read from its beginning to its end, and folded as brokers fold it.

The rule: **a record that a broker could not read, or would stop at, is reported with its offset,
and nothing is concluded from later records.** Brokers replay the topic from offset 0 at every
start, so a fold is whole only where offset 0 is still there.

A fold of one partition of the metadata topic is kept, so that a second look costs what is new. The
second rule: **it is a cache, and is gone on with only where its metadata topic is still the one
that is there**:

* the same cluster, topic id and partition count;
* an end and a leader epoch that are not lower;
* the very record before its offset, by digest and by the leader epoch that it was taken in.

No client sees the CRC of a batch; value and epoch of its last record stand for it. By Kafka's
replication the same epoch at the same offset has the same log before it. Content that is damaged,
or of other rules, counts as absent; only :func:`decode_checkpoint` reads it.

::

    magic (8 bytes)  size (uint64)  size of its JSON (uint32)  SHA-256  content, as one zstd frame

The content is JSON, ids, then columns as :data:`_COLUMNS` lists them, little-endian, one row a
segment, an epoch of one, or a start offset that is served; blobs last. The digest is of the two
sizes and the content.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice

import numpy as np
from msgspec import Struct, field
from msgspec.structs import asdict
from numpy.typing import NDArray

from keeplast.cluster.live_cluster import (
    METADATA_TOPIC,
    MetadataEnd,
    MetadataFault,
    MetadataReader,
    MetadataValue,
    OffsetRange,
    TopicFacts,
)
from keeplast.cluster.metadata_cache import RULES, CacheState, ClusterCache, PartitionCache
from keeplast.errors import CompactionError, CorruptError, InvalidError, RefusedError
from keeplast.format.compression import compress_sized, decompress_sized
from keeplast.format.identifier import ID_BYTES, metadata_partition
from keeplast.format.remote_log_metadata import (
    EpochStart,
    RemoteLogSegment,
    RemoteLogSegmentId,
    RemoteLogSegmentState,
    Tags,
    TopicIdPartition,
    decode,
    encode,
)

VERSION = 1
CHECKPOINT_BYTES_MAX = 1 << 28
_CONTENT_BYTES_MAX = 1 << 31
_MAGIC = b"klfold\0\1"
_HEAD = struct.Struct("<8sQI32s")
_SIZES = struct.Struct("<QI")
_COLUMNS = (
    ("start", "<i8"), ("end", "<i8"), ("max_timestamp", "<i8"), ("event_timestamp", "<i8"),
    ("broker", "<i4"), ("size", "<i4"), ("epoch_count", "<i4"), ("tags", "<i4"),
    ("blob_bytes", "<i4"), ("state", "<i1"),
    ("epoch", "<i4"), ("epoch_start", "<i8"), ("served_start", "<i8"), ("served_by", "<i4"),
)  # fmt: skip
_OF_A_SEGMENT = [name for name, _ in _COLUMNS[:10]]
"""The columns with one row a segment."""
_ENCODED, _NO_BLOB = -1, -1
"""In ``tags``: the segment stands as a broker's record in the blobs. In ``blob_bytes``: null."""


class FoldPoint(Struct, frozen=True, kw_only=True):
    """How far a partition of a metadata topic was folded, ``offset`` exclusive, and which it is.

    ``digest`` and ``record_epoch`` (-1 for unknown) are of the record before ``offset``;
    ``leader_epoch`` is the partition's leader's by then.
    """

    cluster_id: str
    topic_id: bytes
    partition_count: int
    partition: int
    offset: int
    leader_epoch: int
    record_epoch: int
    digest: str

    def may_lead_to(self, cluster_id: str, topic: TopicFacts, end: MetadataEnd) -> bool:
        """Say whether a metadata topic with this end may go on from here; see :meth:`is_at`."""
        return (
            (self.cluster_id, self.topic_id, self.partition_count)
            == (cluster_id, topic.topic_id, topic.partition_count)
            and 0 < self.offset <= end.offset
            and self.leader_epoch <= end.leader_epoch
        )

    def is_at(self, found: MetadataValue | int | None) -> bool:
        """Say whether ``found`` is the record before :attr:`offset`."""
        if not isinstance(found, MetadataValue) or found.value is None:
            return False
        is_epoch = -1 in (self.record_epoch, found.leader_epoch) or (
            self.record_epoch == found.leader_epoch
        )
        return is_epoch and (found.offset, digest_of(found.value)) == (self.offset - 1, self.digest)


class FoldCheckpoint(Struct, frozen=True):
    """What brokers know at ``point``, of ``record_count`` records; ``cache`` takes no more
    events.
    """

    point: FoldPoint
    cache: ClusterCache
    record_count: int

    @property
    def segment_count(self) -> int:
        """Return how many segments are known."""
        return sum(each.segment_count for each in self.cache.partitions.values())


def digest_of(value: bytes) -> str:
    """Return by what a record is known again."""
    return hashlib.sha256(value).hexdigest()


def encode_checkpoint(checkpoint: FoldCheckpoint) -> bytes | None:
    """Return the checkpoint as bytes, None for one that is larger than any is read."""
    columns: dict[str, list[int]] = {name: [] for name, _ in _COLUMNS}
    ids: list[bytes] = []
    blobs: list[bytes] = []
    tags: dict[Tags, int] = {}
    partitions = []
    for name, cache in checkpoint.cache.partitions.items():
        state = cache.state()
        numbers = {each.id: len(ids) + at for at, each in enumerate(state.segments)}
        for segment in state.segments:
            ids.append(segment.id.segment_id)
            _add_segment(columns, blobs, tags, segment)
        for _, _, starts, served in state.epochs:
            columns["served_start"] += starts
            columns["served_by"] += [numbers[each] for each in served]
        epochs = [[epoch, highest, len(starts)] for epoch, highest, starts, _ in state.epochs]
        partitions.append(
            [name.topic, name.topic_id.hex(), name.partition, len(state.segments), epochs]
        )
    head = json.dumps(
        {
            "version": VERSION, "rules": RULES, "record_count": checkpoint.record_count,
            "point": asdict(checkpoint.point) | {"topic_id": checkpoint.point.topic_id.hex()},
            "partitions": partitions,
            "tags": [[[number, value.hex()] for number, value in each] for each in tags],
            "rows": {name: len(values) for name, values in columns.items()},
        }
    ).encode()  # fmt: skip
    content = b"".join(
        (
            head, b"".join(ids),
            *(np.array(columns[name], kind).tobytes() for name, kind in _COLUMNS), *blobs,
        )
    )  # fmt: skip
    packed = compress_sized(content)
    if len(packed) > CHECKPOINT_BYTES_MAX - _HEAD.size or len(content) > _CONTENT_BYTES_MAX:
        return None
    return _HEAD.pack(_MAGIC, len(content), len(head), _digest(content, len(head))) + packed


def decode_checkpoint(data: bytes) -> FoldCheckpoint:
    """Return what was kept; CorruptError for anything else, older rules of the fold included."""
    try:
        magic, size, head_size, digest = _HEAD.unpack_from(data)
        if magic != _MAGIC or not head_size <= size <= _CONTENT_BYTES_MAX:
            raise _damaged("its head", data[: _HEAD.size].hex())
        content = decompress_sized(memoryview(data)[_HEAD.size :], size)
        if _digest(content, head_size) != digest:
            raise _damaged("the checksum of its content", digest.hex())
        head = json.loads(content[:head_size])
        if (head["version"], head["rules"]) != (VERSION, RULES):
            raise _damaged("these rules", (head["version"], head["rules"]))
        point = dict(head["point"])
        point["topic_id"] = bytes.fromhex(point["topic_id"])
        cache = _KeptColumns(head, content, head_size).cache()
        return FoldCheckpoint(FoldPoint(**point), cache, head["record_count"])
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, struct.error) as error:
        raise _damaged("a fold", error) from error
    except CorruptError:
        raise
    except CompactionError as error:
        raise _damaged("a fold", error) from error


def _add_segment(
    columns: dict[str, list[int]], blobs: list[bytes], tags: dict[Tags, int],
    segment: RemoteLogSegment,
) -> None:  # fmt: skip
    """Append a segment's row; one with tagged fields inside of its fields as a broker's record."""
    is_plain = not (
        segment.id.tags or segment.id.partition.tags or any(each.tags for each in segment.epochs)
    )
    blob = segment.custom_metadata if is_plain else encode(segment)
    row = (
        segment.start_offset, segment.end_offset,
        segment.max_timestamp_ms, segment.event_timestamp_ms,
        segment.broker_id, segment.size_bytes,
        len(segment.epochs) if is_plain else 0,
        tags.setdefault(segment.tags, len(tags)) if is_plain else _ENCODED,
        _NO_BLOB if blob is None else len(blob), segment.state,
    )  # fmt: skip
    for name, value in zip(_OF_A_SEGMENT, row, strict=True):
        columns[name].append(value)
    if is_plain:
        columns["epoch"] += [each.epoch for each in segment.epochs]
        columns["epoch_start"] += [each.start_offset for each in segment.epochs]
    if blob is not None:
        blobs.append(blob)


class _KeptColumns:
    """The columns of a content whose checksum was right."""

    def __init__(self, head: dict[str, object], content: bytes, position: int) -> None:
        rows, partitions, tags = head["rows"], head["partitions"], head["tags"]
        if not (isinstance(rows, dict) and isinstance(partitions, list) and isinstance(tags, list)):
            raise TypeError("not the head of a fold")
        self._partitions = partitions
        self._tags: list[Tags] = [
            tuple((number, bytes.fromhex(value)) for number, value in each) for each in tags
        ]
        count = rows[_COLUMNS[0][0]]
        end = position + ID_BYTES * count
        self._ids = [content[at : at + ID_BYTES] for at in range(position, end, ID_BYTES)]
        self._columns: dict[str, list[int]] = {}
        for name, kind in _COLUMNS:
            values: NDArray[np.int64] = np.frombuffer(content, kind, rows[name], end)
            self._columns[name] = values.tolist()
            end += values.nbytes
        self._blobs = content[end:]

    def cache(self) -> ClusterCache:
        """Return the fold."""
        found = ClusterCache()
        names = [
            TopicIdPartition(topic, bytes.fromhex(topic_id), number)
            for topic, topic_id, number, _, _ in self._partitions
        ]
        of_segment = chain.from_iterable(
            [name] * each[3] for name, each in zip(names, self._partitions, strict=True)
        )
        segments = self._segments(of_segment)
        first = served = 0
        starts, served_by = self._columns["served_start"], self._columns["served_by"]
        for name, (_, _, _, count, epochs) in zip(names, self._partitions, strict=True):
            state = CacheState(segments[first : first + count], [])
            for epoch, highest, rows in epochs:
                places = slice(served, served + rows)
                by = [segments[at].id for at in served_by[places]]
                state.epochs.append((epoch, highest, starts[places], by))
                served += rows
            found.partitions[name] = PartitionCache.of_state(state)
            first += count
        return found

    def _segments(self, of_segment: chain[TopicIdPartition]) -> list[RemoteLogSegment]:
        columns = self._columns
        epochs = map(EpochStart, columns["epoch"], columns["epoch_start"])
        states = {int(each): each for each in RemoteLogSegmentState}
        found, position = [], 0
        for name, id_, start, end, latest, at_ms, broker, size, count, tags, length, state in zip(
            of_segment, self._ids, *(columns[each] for each in _OF_A_SEGMENT), strict=True
        ):
            blob = None if length == _NO_BLOB else self._blobs[position : position + length]
            position += max(length, 0)
            if tags == _ENCODED:
                segment = decode(blob)
                if not isinstance(segment, RemoteLogSegment):
                    raise _damaged("a segment", segment)
                found.append(segment)
                continue
            found.append(
                RemoteLogSegment(
                    id=RemoteLogSegmentId(name, id_), start_offset=start, end_offset=end,
                    broker_id=broker, max_timestamp_ms=latest, event_timestamp_ms=at_ms,
                    epochs=tuple(islice(epochs, count)), size_bytes=size, custom_metadata=blob,
                    state=states[state], tags=self._tags[tags],
                )
            )  # fmt: skip
        return found


def _digest(content: bytes, head_size: int) -> bytes:
    made = hashlib.sha256(_SIZES.pack(len(content), head_size))
    made.update(content)
    return made.digest()


def _damaged(expected: object, found: object) -> CorruptError:
    return CorruptError(
        "a kept fold of the metadata topic cannot be read",
        expected=expected,
        found=found,
        code="K442",
    )


FAULTS_MAX = 100
"""How many faults of one partition are reported; one is enough to stop a broker."""


class FoldedMetadata(Struct):
    """What brokers know after reading ``ranges`` (by partition), and what stands in the way."""

    cache: ClusterCache = field(default_factory=ClusterCache)
    ranges: dict[int, OffsetRange] = field(default_factory=dict)
    faults: list[MetadataFault] = field(default_factory=list)
    dropped: list[MetadataFault] = field(default_factory=list)
    record_count: int = 0

    def require_sound(self) -> None:
        """Raise RefusedError for the first fault, if there is one."""
        if self.faults:
            first = self.faults[0]
            raise RefusedError(
                f"{METADATA_TOPIC} cannot be followed as brokers do: {first.problem}; see "
                f"keeplast place check. partition={first.partition} offset={first.offset}",
                code="K442",
            )


def partitions_of(topics: Iterable[TopicFacts], metadata_topic: TopicFacts) -> list[int]:
    """Return which partitions of the metadata topic are about ``topics``, ascending."""
    count = metadata_topic.partition_count
    return sorted(
        {
            metadata_partition(topic.topic_id, each, count)
            for topic in topics
            for each in range(topic.partition_count)
        }
    )


def fold_metadata(
    client: MetadataReader,
    metadata_topic: TopicFacts,
    partitions: Sequence[int],
    progressed: Callable[[int], object] = lambda count: None,
    kept: Callable[[int], FoldCheckpoint | None] = lambda partition: None,
) -> FoldedMetadata:
    """Read ``partitions`` of the metadata topic to their present ends and fold them.

    ``progressed`` receives how many offsets were passed. ``kept`` may know an earlier fold of a
    partition, of this cluster; where the topic does not go on from it, it is read from its
    beginning. A fault ends its partition. Errors are the client's.
    """
    folded = FoldedMetadata()
    ranges = client.read_ranges(metadata_topic)
    for partition in partitions:
        if partition >= len(ranges):
            raise InvalidError(
                f"no such partition of {METADATA_TOPIC}. partition={partition}", code="K115"
            )
        held = folded.ranges[partition] = ranges[partition]
        require_beginning(folded, partition, held.start)
        base = None if folded.faults else kept(partition)
        if base is None or not _go_on(folded, client, metadata_topic, base, held, progressed):
            fold_values(folded, partition, client.read_metadata(partition, held), progressed)
    return folded


def require_beginning(folded: FoldedMetadata, partition: int, start: int) -> None:
    """Note a fault unless the partition begins at offset 0: brokers that start know no more."""
    if start > 0:
        folded.faults.append(MetadataFault(partition, start, "it no longer begins at offset 0"))


def _go_on(
    folded: FoldedMetadata,
    client: MetadataReader,
    metadata_topic: TopicFacts,
    base: FoldCheckpoint,
    held: OffsetRange,
    progressed: Callable[[int], object],
) -> bool:
    """Fold the records after ``base``; False, and nothing is folded, when it does not fit."""
    point = base.point
    is_same = (point.topic_id, point.partition_count) == (
        metadata_topic.topic_id, metadata_topic.partition_count,
    )  # fmt: skip
    if not is_same or not 0 < point.offset <= held.end:
        return False
    values = client.read_metadata(point.partition, OffsetRange(point.offset - 1, held.end))
    if not point.is_at(next(values, None)):
        return False
    folded.cache.partitions |= base.cache.copy().partitions
    folded.record_count += base.record_count
    fold_values(folded, point.partition, values, progressed)
    return True


def fold_values(
    folded: FoldedMetadata,
    partition: int,
    values: Iterable[MetadataValue | int],
    progressed: Callable[[int], object] = lambda count: None,
) -> None:
    """Fold the records of one partition, in order; see :func:`fold_metadata`."""
    for each in values:
        progressed(1)
        if isinstance(each, int):
            # A marker at the end keeps a broker that starts from ever being ready.
            folded.faults.append(
                MetadataFault(
                    partition, each, "no record at this offset: a transaction's marker, or removed"
                )
            )
            if len(folded.faults) >= FAULTS_MAX:
                return
            continue
        folded.record_count += 1
        try:
            dropped = folded.cache.apply(decode(each.value))
        except CorruptError as error:
            folded.faults.append(MetadataFault(partition, each.offset, str(error)))
            return
        if dropped is not None and len(folded.dropped) < FAULTS_MAX:
            folded.dropped.append(MetadataFault(partition, each.offset, dropped))
