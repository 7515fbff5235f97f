"""Writes a partition directory of a few segments by hand, so that a test sees every byte it made.

Timestamps are the offsets plus 1,700,000,000,000; every record is a batch of its own. Indexes are
empty but present, as a broker leaves them for segments below one index interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from keeplast.format import leader_epoch, offset_index, time_index
from keeplast.format.batch import encode_batch
from keeplast.format.compression import Codec
from keeplast.format.record import Record

EPOCH_MS = 1_700_000_000_000

Pair = tuple[bytes | None, bytes | None]


def batch(offset: int, key: bytes | None, value: bytes | None, codec: Codec = Codec.NONE) -> bytes:
    """Return a batch of one record at ``offset``."""
    return encode_batch([Record(offset, EPOCH_MS + offset, key, value)], codec=codec)


def write_log(root: Path, name: str, segments: Mapping[int, Sequence[Pair]]) -> Path:
    """Make the directory ``root/name`` with segments: base offset to its records in order."""
    directory = root / name
    directory.mkdir(parents=True)
    for base, pairs in segments.items():
        stem = f"{base:020d}"
        data = b"".join(batch(base + i, key, value) for i, (key, value) in enumerate(pairs))
        (directory / f"{stem}.log").write_bytes(data)
        (directory / f"{stem}.index").write_bytes(offset_index.encode([]))
        last = base + len(pairs) - 1
        times = [(EPOCH_MS + last, last - base)] if pairs else []
        (directory / f"{stem}.timeindex").write_bytes(time_index.encode(times))
    (directory / "leader-epoch-checkpoint").write_bytes(
        leader_epoch.encode([leader_epoch.LeaderEpoch(0, 0)])
    )
    return directory
