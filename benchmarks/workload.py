"""Writes logs for measurements, fast: whole blocks of batches are filled in by numpy.

A log consists of equal batches of records of one size. Keys are drawn uniformly, with
``records_per_key`` records for each on average, so that survivors are spread over the whole log
with most of them near its end; with 1, every record has a key of its own. A skewed log has what
Zipf's law with exponent 1 leaves of a long history: a clean section in the order of the keys' last
records, and then records of a tenth of the keys. Values are drawn from a dictionary of words, so
that every codec finds something. The same workload always gives the same bytes.

The segments carry the indexes that a broker would have written (rule F3 of the cleaner, which is
the rule of an append as well), and an empty active segment ends the log.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from keeplast.format import producer_snapshot
from keeplast.format.checksum import crc32c
from keeplast.format.compression import Codec, compress
from keeplast.format.fields import encode_varint
from keeplast.format.filename import INDEX, LOG, SNAPSHOT, TIME_INDEX, segment_file

TOPIC = "bench"
FIRST_TIMESTAMP_MS = 1_700_000_000_000
INDEX_INTERVAL_BYTES = 4096
BLOCK_BYTES = 8 << 20
KEY_BYTES = 12
WORD_BYTES = 24
"""A value is a run of JSON members of this length, drawn from WORD_COUNT different ones."""
WORD_COUNT = 1024
HEADER_BYTES = 61

_CRC_AT = 17
_CRC_FROM = 21


class Workload(Struct, frozen=True):
    """What a log for a measurement looks like; ``log_bytes`` is its size as it lies on disk."""

    name: str
    value_bytes: int
    records_per_batch: int
    codec: Codec
    log_bytes: int
    segment_bytes: int = 256 << 20
    records_per_key: int = 2
    is_skewed: bool = False
    """Leaves ``records_per_key`` aside."""


class WrittenLog(Struct, frozen=True):
    """What was written: the partition directory and the facts a measurement relates to.

    ``first_dirty`` is where the clean section ends, exclusive; 0 without one.
    """

    path: Path
    records: int
    keys: int
    log_bytes: int
    largest_batch_bytes: int
    first_dirty: int = 0


class _Template(Struct, frozen=True):
    """One batch with everything in place but keys, values and the header's variable fields."""

    data: NDArray[np.uint8]
    key_at: tuple[int, ...]
    value_at: tuple[int, ...]


def write_log(
    workload: Workload, data_directory: Path, *, number: int = 0, seed: int = 1
) -> WrittenLog:
    """Write a log as partition ``number`` of topic ``bench`` below ``data_directory``."""
    partition = data_directory / f"{TOPIC}-{number}"
    partition.mkdir(parents=True)
    template = _template(workload)
    random = np.random.default_rng(seed)
    words = _words(random)
    keys = _Keys(workload, random, _estimated_records(workload, template, words))
    segment: _Segment | None = None
    base_offset = written_bytes = largest = 0
    while written_bytes < workload.log_bytes:
        for batch in _block(workload, template, words, random, keys, base_offset):
            if segment is None or segment.size_bytes + len(batch) > workload.segment_bytes:
                if segment is not None:
                    segment.close()
                segment = _Segment(partition, base_offset)
            segment.append(batch, base_offset, workload.records_per_batch)
            base_offset += workload.records_per_batch
            written_bytes += len(batch)
            largest = max(largest, len(batch))
            if written_bytes >= workload.log_bytes:
                break
    if segment is not None:
        segment.close()
    _Segment(partition, base_offset).close()
    # As after a clean shutdown; without it a start would replay the log for its producers.
    (partition / segment_file(base_offset, SNAPSHOT)).write_bytes(producer_snapshot.encode(()))
    uncompressed = int(template.data.size)
    return WrittenLog(
        partition,
        base_offset,
        keys.count or base_offset,
        written_bytes,
        max(largest, uncompressed),
        keys.first_dirty,
    )


def _words(random: np.random.Generator) -> NDArray[np.uint8]:
    """Return JSON members such as ``"field07":"qwhzkdpl", ``, so that codecs find what they do."""
    letters = random.integers(97, 123, size=(WORD_COUNT, 9), dtype=np.uint8)
    members = [
        f'"field{i % 40:02d}":"{bytes(letters[i]).decode()}",\n'.encode().ljust(WORD_BYTES)
        for i in range(WORD_COUNT)
    ]
    return np.frombuffer(b"".join(members), np.uint8).reshape(WORD_COUNT, WORD_BYTES)


def _template(workload: Workload) -> _Template:
    parts = [bytes(HEADER_BYTES)]
    position = HEADER_BYTES
    key_at: list[int] = []
    value_at: list[int] = []
    for delta in range(workload.records_per_batch):
        head = b"\0" + encode_varint(delta) + encode_varint(delta) + encode_varint(KEY_BYTES)
        value_head = encode_varint(workload.value_bytes)
        size = len(head) + KEY_BYTES + len(value_head) + workload.value_bytes + 1
        prefix = encode_varint(size)
        key_at.append(position + len(prefix) + len(head))
        value_at.append(key_at[-1] + KEY_BYTES + len(value_head))
        record = prefix + head + bytes(KEY_BYTES) + value_head + bytes(workload.value_bytes + 1)
        parts.append(record)
        position += len(record)
    data = np.frombuffer(b"".join(parts), dtype=np.uint8).copy()
    return _Template(data, tuple(key_at), tuple(value_at))


def _estimated_records(workload: Workload, template: _Template, words: NDArray[np.uint8]) -> int:
    """Return about how many records fill the log; the number of keys follows from it."""
    random = np.random.default_rng(0)
    keys = _Keys(replace(workload, is_skewed=False), random, 1 << 20)
    sample = _block(workload, template, words, random, keys, 0, limit=64)
    mean = sum(len(batch) for batch in sample) / len(sample)
    return int(workload.log_bytes / mean) * workload.records_per_batch


def _block(
    workload: Workload,
    template: _Template,
    words: NDArray[np.uint8],
    random: np.random.Generator,
    keys: _Keys,
    base_offset: int,
    *,
    limit: int = 1 << 30,
) -> list[memoryview | bytes]:
    """Return some batches that start at ``base_offset``, at most ``limit``."""
    size = int(template.data.size)
    count = min(limit, max(1, BLOCK_BYTES // size))
    per_batch = workload.records_per_batch
    rows = np.tile(template.data, (count, 1))
    ids = keys.drawn(base_offset, count * per_batch).reshape(count, per_batch)
    powers = 10 ** np.arange(KEY_BYTES - 1, -1, -1, dtype=np.int64)
    word_count = -(-workload.value_bytes // WORD_BYTES)
    for i in range(per_batch):
        digits = (ids[:, i, None] // powers) % 10 + ord("0")
        rows[:, template.key_at[i] : template.key_at[i] + KEY_BYTES] = digits
        picked = words[random.integers(0, WORD_COUNT, size=(count, word_count))]
        values = picked.reshape(count, -1)[:, : workload.value_bytes]
        rows[:, template.value_at[i] : template.value_at[i] + workload.value_bytes] = values
    return [
        _finished(row, workload, base_offset + index * per_batch) for index, row in enumerate(rows)
    ]


class _Keys:
    """Draws the key of each record. ``count`` is how many there are, 0 for one a record."""

    def __init__(self, workload: Workload, random: np.random.Generator, records: int) -> None:
        """Prepare for about so many ``records``."""
        self._random = random
        self._sequence: NDArray[np.int64] | None = None
        self.first_dirty = 0
        if workload.is_skewed:
            # With the sizes of our logs a third of as many records has a tenth of the keys.
            batches = records * 3 // 4 // workload.records_per_batch
            self.count = self.first_dirty = max(1, batches) * workload.records_per_batch
            self._sequence = _skewed(random, self.count, records)
        else:
            is_once = workload.records_per_key == 1
            self.count = 0 if is_once else max(1, records // workload.records_per_key)

    def drawn(self, base_offset: int, count: int) -> NDArray[np.int64]:
        """Return the keys of ``count`` records from ``base_offset`` on."""
        if self._sequence is not None:
            places = np.arange(base_offset, base_offset + count) % len(self._sequence)
            return self._sequence[places]
        if not self.count:
            return np.arange(base_offset, base_offset + count)
        return self._random.integers(0, self.count, size=count)


def _skewed(random: np.random.Generator, keys: int, records: int) -> NDArray[np.int64]:
    """Return each of ``keys`` by the place of its last record in a history, and further draws."""
    reach = np.cumsum(1 / np.arange(1, keys + 1))
    draws = np.searchsorted(reach, random.uniform(0, reach[-1], size=4 * keys + records))
    last = np.full(keys, -1)
    last[draws[: 4 * keys]] = np.arange(4 * keys)
    ranks = np.concatenate([np.argsort(last, kind="stable"), draws[4 * keys :]])
    return np.take(random.permutation(keys), ranks)


def _finished(row: NDArray[np.uint8], workload: Workload, base_offset: int) -> memoryview | bytes:
    """Return the batch with its header; compressed when the workload says so."""
    batch: bytearray | memoryview
    if workload.codec is Codec.NONE:
        batch = row.data
    else:
        batch = bytearray(HEADER_BYTES) + compress(workload.codec, row[HEADER_BYTES:].data)
    first = _timestamp(base_offset)
    count = workload.records_per_batch
    struct.pack_into(
        ">qiibIhiqqqhii",
        batch,
        0,
        base_offset,
        len(batch) - 12,
        0,  # leader epoch
        2,  # magic
        0,  # crc, below
        int(workload.codec),
        count - 1,
        first,
        first + count - 1,
        -1,  # producer id
        -1,  # producer epoch
        -1,  # base sequence
        count,
    )
    struct.pack_into(">I", batch, _CRC_AT, crc32c(memoryview(batch)[_CRC_FROM:]))
    return memoryview(batch)


def _timestamp(offset: int) -> int:
    """Return the timestamp of the record at ``offset``: a thousand records a second."""
    return FIRST_TIMESTAMP_MS + offset


class _Segment:
    """A segment being written, with both of its indexes."""

    def __init__(self, partition: Path, base_offset: int) -> None:
        self._partition = partition
        self._base_offset = base_offset
        self._log = (partition / segment_file(base_offset, LOG)).open("wb", buffering=1 << 20)
        self._offsets: list[int] = []
        self._times: list[tuple[int, int]] = []
        self._since = 0
        self._last: tuple[int, int] | None = None
        self.size_bytes = 0

    def append(self, batch: memoryview | bytes, base_offset: int, count: int) -> None:
        """Append one batch whose first record is at ``base_offset``."""
        relative = base_offset + count - 1 - self._base_offset
        self._last = (_timestamp(base_offset + count - 1), relative)
        if self._since > INDEX_INTERVAL_BYTES:
            self._offsets += [relative, self.size_bytes]
            self._times.append(self._last)
            self._since = 0
        self._since += len(batch)
        self._log.write(batch)
        self.size_bytes += len(batch)

    def close(self) -> None:
        """Write the indexes; the segment is whole then."""
        self._log.close()
        if self._last is not None and (not self._times or self._times[-1] != self._last):
            self._times.append(self._last)
        offsets = np.array(self._offsets, dtype=">i4").tobytes()
        times = b"".join(struct.pack(">qi", *entry) for entry in self._times)
        (self._partition / segment_file(self._base_offset, INDEX)).write_bytes(offsets)
        (self._partition / segment_file(self._base_offset, TIME_INDEX)).write_bytes(times)
