"""The manifest of a segment in Aiven's layout: how its log and its indexes are stored.

One line of JSON, never compressed or encrypted. Members, in the order in which they are written::

    version "1" | chunkIndex | segmentIndexes | compression | encryption (where there is any)
    remoteLogSegmentMetadata (for people; no program reads it)

The rule: **a member that is not known is refused by its name**. A reader that skipped it would read
another log than a newer plugin does. A manifest with a member of ours no broker can read. Pure.
Answers to ``SegmentManifestV1`` and its codecs.

The chunk index of a manifest says where the chunks of a log lie in Aiven's object. The log is cut
into chunks of ``original_chunk_size`` bytes, the last one shorter and never empty; each is stored
on its own, one after the other. An index is ``fixed`` when all but the last have one stored size,
else ``variable``: the sizes, big-endian, in one zstd frame::

    int32 0 | int32 1, int32 size | int32 count, int32 base, uint8 width, (count - 1) * width, int32

A size but the last is ``base`` plus its ``width`` bytes; ``base`` is the least of them. The rule:
**an index that does not add up is damage**; a reader that believed it would give a broker other
bytes at an offset. Pure. Answers to ``FixedSizeChunkIndex``, ``VariableSizeChunkIndex``,
``ChunkSizesBinaryCodec``.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from keeplast.cluster.layouts.layout import AUXILIARY_BYTES_MAX, AuxiliaryFile
from keeplast.errors import CorruptError, RefusedError, invariant
from keeplast.format.compression import compress_sized, decompress_sized, sized_content
from keeplast.format.identifier import encode_id
from keeplast.format.remote_log_metadata import TXN_INDEX_EMPTY_TAG, RemoteLogSegment
from keeplast.model.partition import INT32_MAX

FIXED, VARIABLE = "fixed", "variable"
SEAL_BYTES = 28
"""What encryption adds to a chunk: 12 bytes of IV before it and 16 of tag after it."""
FRAME_BYTES_MAX = 10 << 20
"""The plugin's own limit of what the sizes of a variable index may be, decompressed."""
_INT32 = struct.Struct(">i")
_HEAD = struct.Struct(">iiB")
_WIDTH_MAX = 4

Sizes = NDArray[np.int64]
JsonObject = dict[str, object]


@dataclass(frozen=True, eq=False)
class ChunkIndex:
    """The chunks of one log: ``sizes`` are those stored, in order."""

    original_chunk_size: int
    original_size: int
    sizes: Sizes

    def __post_init__(self) -> None:
        """Raise CorruptError unless the numbers fit each other."""
        is_chunk = 0 < self.original_chunk_size <= INT32_MAX
        if not is_chunk or not 0 <= self.original_size <= INT32_MAX:
            raise _wrong(
                "sizes of a log and its chunks are out of range", f"1 to {INT32_MAX}",
                f"chunk {self.original_chunk_size} log {self.original_size}",
            )  # fmt: skip
        count = chunk_count(self.original_size, self.original_chunk_size)
        if len(self.sizes) != count:
            raise _wrong("another number of chunks than the log has", count, len(self.sizes))
        if count and int(self.sizes.min()) < 1:
            raise _wrong("a chunk has no bytes", ">= 1", int(self.sizes.min()))
        if self.stored_size > INT32_MAX:
            raise _wrong("chunks are more than an object holds", INT32_MAX, self.stored_size)

    @cached_property
    def starts(self) -> Sizes:
        """Where chunks lie in the object; one more than there are, the last is its size."""
        starts = np.zeros(len(self.sizes) + 1, np.int64)
        np.cumsum(self.sizes, out=starts[1:])
        return starts

    @property
    def stored_size(self) -> int:
        """Return the size of the log's object."""
        return int(self.starts[-1])

    def original_range(self, chunk: int) -> tuple[int, int]:
        """Return the bytes of the log that a chunk holds, ``[start, end)``."""
        start = chunk * self.original_chunk_size
        return start, min(start + self.original_chunk_size, self.original_size)

    def check_untransformed(self, added: int) -> None:
        """Raise CorruptError unless each chunk is stored with ``added`` bytes more than it has."""
        if not len(self.sizes):
            return
        start, end = self.original_range(len(self.sizes) - 1)
        whole = self.original_chunk_size + added
        is_last = int(self.sizes[-1]) == end - start + added
        if not is_last or not bool((self.sizes[:-1] == whole).all()):
            raise _wrong(
                "chunks that are not compressed have other sizes than the log's", whole,
                int(self.sizes[0]),
            )  # fmt: skip


def chunk_count(original_size: int, original_chunk_size: int) -> int:
    """Return how many chunks a log is cut into."""
    return -(-original_size // original_chunk_size)


def fixed_index(original_chunk_size: int, original_size: int, added: int) -> ChunkIndex:
    """Return the index of chunks that are stored with ``added`` bytes more each."""
    count = chunk_count(original_size, original_chunk_size)
    sizes = np.full(count, original_chunk_size + added, np.int64)
    if count:
        sizes[-1] = original_size - (count - 1) * original_chunk_size + added
    return ChunkIndex(original_chunk_size, original_size, sizes)


def check_log_size(size: int, original_chunk_size: int) -> None:
    """RefusedError for a log that the plugin could not read to its end.

    It counts in signed 32 bits, and up to the end of a chunk after the last one.
    """
    chunks = chunk_count(size, original_chunk_size)
    if size + 2 * original_chunk_size + SEAL_BYTES * chunks > INT32_MAX:
        raise RefusedError(
            "the plugin cannot read a log of this size in such chunks; make segments smaller "
            f"(segment.bytes). size={size} chunk_size={original_chunk_size}",
            code="K438",
        )


def encode_index(index: ChunkIndex, *, is_compressed: bool) -> JsonObject:
    """Return the ``chunkIndex`` of a manifest; members in the plugin's order.

    Chunks that are not compressed have one size, and a fixed index.
    """
    shared: JsonObject = {
        "originalChunkSize": index.original_chunk_size,
        "originalFileSize": index.original_size,
    }
    if is_compressed:
        packed = base64.b64encode(compress_sized(encode_sizes(index.sizes))).decode("ascii")
        return {"type": VARIABLE, **shared, "transformedChunks": packed}
    last_start, last_end = index.original_range(max(len(index.sizes) - 1, 0))
    last = int(index.sizes[-1]) if len(index.sizes) else 0
    added = last - (last_end - last_start)
    whole = index.original_chunk_size + added
    return {
        "type": FIXED, **shared, "transformedChunkSize": whole, "finalTransformedChunkSize": last,
    }  # fmt: skip


def fixed_sizes(original_size: int, original_chunk_size: int, whole: int, last: int) -> Sizes:
    """Return the stored sizes that a fixed index means.

    CorruptError when there are more chunks than a variable index may have.
    """
    count = chunk_count(original_size, original_chunk_size)
    if count > FRAME_BYTES_MAX:
        raise _wrong("too many chunks", FRAME_BYTES_MAX, count)
    if max(whole, last) > INT32_MAX:
        raise _wrong("a chunk is larger than an object", INT32_MAX, max(whole, last))
    sizes = np.full(count, whole, np.int64)
    if count:
        sizes[-1] = last
    return sizes


def unpack_sizes(text: str) -> Sizes:
    """Return the stored sizes in ``transformedChunks``; CorruptError when they cannot be read."""
    try:
        frame = base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, ValueError):
        raise _wrong("transformedChunks is not base64", "base64", text[:40]) from None
    size = sized_content(frame)
    if size > FRAME_BYTES_MAX:
        raise _wrong("too many chunks", f"{FRAME_BYTES_MAX} bytes of sizes", size)
    return decode_sizes(decompress_sized(frame, size))


def encode_sizes(sizes: Sizes) -> bytes:
    """Return stored sizes as a variable index has them."""
    count = len(sizes)
    if count < 2:
        return b"".join(_INT32.pack(value) for value in (count, *map(int, sizes)))
    before = sizes[:-1]
    base = int(before.min())
    over = (before - base).astype(">u4")
    width = max(1, -(-int(over.max()).bit_length() // 8))
    body = over.view(np.uint8).reshape(-1, _WIDTH_MAX)[:, _WIDTH_MAX - width :].tobytes()
    return _HEAD.pack(count, base, width) + body + _INT32.pack(int(sizes[-1]))


def decode_sizes(data: bytes) -> Sizes:
    """Return stored sizes; CorruptError for other lengths than their head says."""
    if len(data) < _INT32.size:
        raise _wrong("sizes of chunks end early", _INT32.size, len(data))
    (count,) = _INT32.unpack_from(data)
    if count < 2:
        if count < 0 or len(data) != _INT32.size * (1 + count):
            raise _wrong("sizes of chunks end elsewhere", _INT32.size * (1 + count), len(data))
        return np.frombuffer(data, ">i4", offset=_INT32.size).astype(np.int64)
    if len(data) < _HEAD.size:
        raise _wrong("sizes of chunks end early", _HEAD.size, len(data))
    _, base, width = _HEAD.unpack_from(data)
    end = _HEAD.size + (count - 1) * width
    if not 0 < width <= _WIDTH_MAX or len(data) != end + _INT32.size:
        raise _wrong("sizes of chunks end elsewhere", end + _INT32.size, len(data))
    over = np.zeros((count - 1, _WIDTH_MAX), np.uint8)
    over[:, _WIDTH_MAX - width :] = np.frombuffer(
        data, np.uint8, (count - 1) * width, _HEAD.size
    ).reshape(-1, width)
    sizes = np.empty(count, np.int64)
    sizes[:-1] = over.view(">u4").ravel().astype(np.int64) + base
    (sizes[-1],) = _INT32.unpack_from(data, end)
    return sizes


def _wrong(problem: str, expected: object, found: object) -> CorruptError:
    return CorruptError(f"chunk index: {problem}", expected=expected, found=found, code="K437")


MANIFEST_BYTES_MAX = 16 << 20
"""The sizes of the most chunks there may be, in base64, and some more."""
VERSION = "1"
INDEX_MEMBERS = {
    AuxiliaryFile.OFFSET_INDEX: "offset",
    AuxiliaryFile.TIME_INDEX: "timestamp",
    AuxiliaryFile.SNAPSHOT: "producerSnapshot",
    AuxiliaryFile.LEADER_EPOCHS: "leaderEpoch",
    AuxiliaryFile.TXN_INDEX: "transaction",
}
"""The files of ``.indexes`` in the order in which they lie there, and their names in a manifest."""
_AAD_BYTES_MAX = 1 << 10
_KEY_BYTES_MAX = 1 << 12
_SHOWN_MAX = 60


class Sealing(Struct, frozen=True):
    """By what a segment is encrypted: a data key that only a key pair opens, and its AAD."""

    key_id: str
    wrapped_key: bytes
    aad: bytes


class StoredFile(Struct, frozen=True):
    """Where a file lies in ``.indexes``: as it is stored, encrypted or not."""

    position: int
    size: int


class SegmentManifest(Struct, frozen=True):
    """What a reader needs of a segment; ``files`` has no transaction index where there is none."""

    chunks: ChunkIndex
    files: Mapping[AuxiliaryFile, StoredFile]
    is_compressed: bool
    sealing: Sealing | None


def decode_manifest(data: bytes) -> SegmentManifest:
    """Return the manifest in an object.

    CorruptError for what is no manifest or does not add up, RefusedError for a version or member
    that is not known.
    """
    top = _Members(parse_object(data), "manifest")
    version = top.take("version")
    if version not in (VERSION, int(VERSION)) or isinstance(version, bool):
        raise RefusedError(
            f"a manifest of a version that is not known. version={_shown(version)} known={VERSION}",
            code="K438",
        )
    chunk_index = top.take("chunkIndex")
    files = _decode_files(_Members(top.object("segmentIndexes"), "segmentIndexes"))
    is_compressed, sealing = decode_variant(top)
    top.maybe("remoteLogSegmentMetadata")
    top.end()
    chunks = decode_chunks(chunk_index, is_compressed=is_compressed, is_sealed=sealing is not None)
    return SegmentManifest(chunks, files, is_compressed, sealing)


def encode_manifest(manifest: SegmentManifest, segment: RemoteLogSegment) -> bytes:
    """Return the object; ``segment`` is what people may read in it."""
    members: JsonObject = {
        "version": VERSION,
        "chunkIndex": encode_index(manifest.chunks, is_compressed=manifest.is_compressed),
        "segmentIndexes": {
            member: None
            if (file := manifest.files.get(kind)) is None
            else {"position": file.position, "size": file.size}
            for kind, member in INDEX_MEMBERS.items()
        },
        "compression": manifest.is_compressed,
    }
    if manifest.sealing is not None:
        members["encryption"] = encode_sealing(manifest.sealing)
    members["remoteLogSegmentMetadata"] = _for_people(segment)
    data = write_object(members)
    invariant(len(data) <= MANIFEST_BYTES_MAX, f"a manifest is too large. bytes={len(data)}")
    return data


def encode_written(manifest: SegmentManifest) -> bytes:
    """Return what is known of a log before its indexes: chunks, compression, encryption."""
    members: JsonObject = {
        "chunkIndex": encode_index(manifest.chunks, is_compressed=manifest.is_compressed),
        "compression": manifest.is_compressed,
    }
    if manifest.sealing is not None:
        members["encryption"] = encode_sealing(manifest.sealing)
    return write_object(members)


def decode_written(data: bytes) -> SegmentManifest:
    """Return what :func:`encode_written` wrote; CorruptError for anything else."""
    members = _Members(parse_object(data), "description of a log")
    chunk_index = members.take("chunkIndex")
    is_compressed, sealing = decode_variant(members)
    members.end()
    chunks = decode_chunks(chunk_index, is_compressed=is_compressed, is_sealed=sealing is not None)
    return SegmentManifest(chunks, {}, is_compressed, sealing)


class _Members:
    """The members of an object while they are taken one by one."""

    def __init__(self, members: JsonObject, name: str) -> None:
        self._left = dict(members)
        self._name = name

    def take(self, member: str) -> object:
        """Return a member that must be there."""
        if member not in self._left:
            raise _corrupt(f"{self._name} lacks a member", member, "none")
        return self._left.pop(member)

    def maybe(self, member: str) -> object:
        """Return a member, None for one that is not there."""
        return self._left.pop(member, None)

    def number(self, member: str, least: int, most: int = INT32_MAX) -> int:
        """Return a whole number that must be there, within bounds (inclusive)."""
        value = self.take(member)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise _corrupt(f"{self._name}: {member} is no such number", f"{least} to {most}", value)
        return value

    def text(self, member: str) -> str:
        """Return a string that must be there."""
        value = self.take(member)
        if not isinstance(value, str):
            raise _corrupt(f"{self._name}: {member} is no string", "a string", value)
        return value

    def flag(self, member: str) -> bool:
        """Return true or false, which must be there."""
        value = self.take(member)
        if not isinstance(value, bool):
            raise _corrupt(f"{self._name}: {member} is neither true nor false", "a flag", value)
        return value

    def object(self, member: str) -> JsonObject:
        """Return an object that must be there."""
        return _object(self.take(member), f"{self._name}: {member}")

    def end(self) -> None:
        """RefusedError when a member is left that was not asked for."""
        if self._left:
            raise RefusedError(
                f"{self._name} has a member that is not known; this version or format of the "
                f"plugin was not tested. member={_shown(min(self._left))}",
                code="K438",
            )


def decode_variant(members: _Members) -> tuple[bool, Sealing | None]:
    """Take ``compression`` and ``encryption``."""
    is_compressed = members.flag("compression")
    found = members.maybe("encryption")
    if found is None:
        return is_compressed, None
    sealing = _Members(_object(found, "encryption"), "encryption")
    key_id, separator, wrapped = sealing.text("dataKey").partition(":")
    if not separator or not key_id:
        raise _corrupt("encryption: dataKey names no key pair", "KEY-ID:KEY", "none")
    key = _bytes(wrapped, "dataKey", _KEY_BYTES_MAX)
    aad = _bytes(sealing.text("aad"), "aad", _AAD_BYTES_MAX)
    sealing.end()
    return is_compressed, Sealing(key_id, key, aad)


def decode_chunks(found: object, *, is_compressed: bool, is_sealed: bool) -> ChunkIndex:
    """Return a chunk index; sizes must be what ``is_compressed`` and ``is_sealed`` make of them."""
    members = _Members(_object(found, "chunkIndex"), "chunkIndex")
    kind = members.take("type")
    chunk, size = members.number("originalChunkSize", 1), members.number("originalFileSize", 0)
    if kind == FIXED:
        whole = members.number("transformedChunkSize", 0)
        last = members.number("finalTransformedChunkSize", 0)
        sizes = fixed_sizes(size, chunk, whole, last)
    elif kind == VARIABLE:
        sizes = unpack_sizes(members.text("transformedChunks"))
    else:
        raise RefusedError(
            f"a chunk index of a kind that is not known. type={_shown(kind)}", code="K438"
        )
    members.end()
    index = ChunkIndex(chunk, size, sizes)
    added = SEAL_BYTES if is_sealed else 0
    if not is_compressed:
        index.check_untransformed(added)
    elif len(sizes) and int(sizes.min()) <= added:
        raise _corrupt("a chunk has fewer bytes than its encryption", added + 1, int(sizes.min()))
    return index


def encode_sealing(sealing: Sealing) -> JsonObject:
    """Return the member ``encryption``."""
    wrapped, aad = (
        base64.b64encode(each).decode("ascii") for each in (sealing.wrapped_key, sealing.aad)
    )
    return {"dataKey": f"{sealing.key_id}:{wrapped}", "aad": aad}


def parse_object(data: bytes) -> JsonObject:
    """Return the one JSON object that ``data`` is; CorruptError for anything else."""
    if len(data) > MANIFEST_BYTES_MAX:
        raise _corrupt("a manifest is too large", f"<= {MANIFEST_BYTES_MAX} bytes", len(data))
    try:
        found: object = json.loads(
            data.decode(),
            object_pairs_hook=_once,
            parse_constant=_no_number,
        )
    except (ValueError, RecursionError) as error:
        raise _corrupt("not a manifest", "one JSON object", str(error)) from None
    return _object(found, "manifest")


def write_object(members: JsonObject) -> bytes:
    """Return an object in one line, without spaces."""
    return json.dumps(members, separators=(",", ":"), ensure_ascii=False).encode()


def _once(pairs: Iterable[tuple[str, object]]) -> JsonObject:
    members: JsonObject = {}
    for name, value in pairs:
        if name in members:
            raise ValueError(f"a member twice: {name[:_SHOWN_MAX]}")
        members[name] = value
    return members


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"not a whole number: {text[:_SHOWN_MAX]}")


def _object(found: object, name: str) -> JsonObject:
    if not isinstance(found, dict):
        raise _corrupt(f"{name} is no object", "an object", found)
    return found


def _bytes(text: str, name: str, limit: int) -> bytes:
    try:
        found = base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, ValueError):
        raise _corrupt(f"encryption: {name} is not base64", "base64", "other text") from None
    if not 0 < len(found) <= limit:
        raise _corrupt(f"encryption: {name} has no such length", f"1 to {limit}", len(found))
    return found


def _decode_files(members: _Members) -> dict[AuxiliaryFile, StoredFile]:
    files: dict[AuxiliaryFile, StoredFile] = {}
    for kind, name in INDEX_MEMBERS.items():
        found = members.take(name)
        if found is None and kind == AuxiliaryFile.TXN_INDEX:
            continue
        place = _Members(_object(found, name), name)
        size = place.number("size", 0, AUXILIARY_BYTES_MAX)
        files[kind] = StoredFile(place.number("position", 0, INT32_MAX - size), size)
        place.end()
    members.end()
    return files


def _for_people(segment: RemoteLogSegment) -> JsonObject:
    name = segment.id.partition
    shown: JsonObject = {
        "remoteLogSegmentId": {
            "topicIdPartition": {
                "topicId": encode_id(name.topic_id),
                "topicPartition": {"topic": name.topic, "partition": name.partition},
            },
            "id": encode_id(segment.id.segment_id),
        },
        "startOffset": segment.start_offset,
        "endOffset": segment.end_offset,
        "maxTimestampMs": segment.max_timestamp_ms,
        "brokerId": segment.broker_id,
        "eventTimestampMs": segment.event_timestamp_ms,
        "segmentLeaderEpochs": {str(each.epoch): each.start_offset for each in segment.epochs},
    }
    if TXN_INDEX_EMPTY_TAG in dict(segment.tags):
        shown["txnIdxEmpty"] = segment.is_txn_index_empty
    return shown


def _shown(value: object) -> str:
    return repr(value)[:_SHOWN_MAX]


def _corrupt(problem: str, expected: object, found: object) -> CorruptError:
    return CorruptError(problem, expected=expected, found=_shown(found), code="K437")
