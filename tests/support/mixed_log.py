"""One small partition directory with something of everything that cleaning has to do with.

Six closed segments: plain, compressed and old-format batches, transactions that commit and abort
across segments, tombstones, records without a key, and one segment that loses nothing.
"""

from __future__ import annotations

from pathlib import Path

from keeplast.format.batch import encode_batch
from keeplast.format.compression import Codec
from keeplast.format.producer_snapshot import ProducerEntry
from keeplast.format.record import ControlType, Record
from keeplast.format.txn_index import AbortedTransaction
from tests.support.legacy_sets import encode_message_set
from tests.support.partition_maker import (
    NOW_MS,
    data_batch,
    marker,
    one,
    write_partition,
    write_segment,
    write_snapshot,
)

LEFT_ALONE = 20
"""Base of the segment that loses nothing."""
END = 62


def _records(base: int, keys: str, *, values: bool = True) -> list[Record]:
    return [
        Record(base + i, NOW_MS + base + i, key.encode(), b"value of %d" % i if values else None)
        for i, key in enumerate(keys)
    ]


def segments() -> dict[int, bytes]:
    """Return the bytes of every segment by its base offset."""
    return {
        0: encode_message_set(_records(0, "abc"), magic=0)
        + encode_message_set(_records(3, "abcd"), magic=1, codec=Codec.LZ4)
        + one(7, None, b"no key"),
        10: encode_batch(_records(10, "abcdef"), codec=Codec.GZIP)
        + data_batch(16, 7, [b"a", b"x"])
        + one(18, b"b", None, NOW_MS),
        LEFT_ALONE: one(20, b"only here", b"1", NOW_MS) + one(21, b"nor there", b"2", NOW_MS),
        30: data_batch(30, 8, [b"c", b"y"])
        + marker(32, 7, ControlType.ABORT)
        + encode_batch(_records(33, "de"), codec=Codec.ZSTD),
        40: marker(40, 8, ControlType.COMMIT)
        + encode_batch(_records(41, "zz"), codec=Codec.SNAPPY)
        + one(43, b"a", b"2", NOW_MS),
        50: encode_batch(_records(50, "fghz", values=False), codec=Codec.LZ4)
        + data_batch(54, 7, [b"last"], sequence=2)
        + marker(55, 7, ControlType.COMMIT),
        60: one(60, b"a", b"3", NOW_MS) + one(61, b"b", b"3", NOW_MS),
    }


def write_mixed_log(root: Path) -> Path:
    """Write the directory with transaction indexes and a producer snapshot at the active base."""
    directory = write_partition(root, segments())
    aborted = [AbortedTransaction(7, 16, 32, 30)]
    write_segment(directory, 30, segments()[30], aborted=aborted)
    for base in (10, 40, 50):
        write_snapshot(directory, base)
    for base in (20, 30):
        write_snapshot(directory, base, [ProducerEntry(7, 0, 1, 17, 1, NOW_MS, 0, 16)])
    producers = [
        ProducerEntry(7, 0, 2, 54, 0, NOW_MS, 0, -1),
        ProducerEntry(8, 0, 1, 31, 1, NOW_MS, 0, -1),
    ]
    write_snapshot(directory, 60, producers)
    return directory
