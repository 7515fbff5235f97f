"""The leader-epoch checkpoint of a partition: at which offset each leader epoch starts.

Decoding gives the lines as they stand. When a broker loads them, a later line with an epoch or an
offset not above an earlier one's removes the earlier. It also trims to the log; that is the log's
business, not the file's. Same text form as the other checkpoints. Answers to
``LeaderEpochCheckpointFile``; formats.md section 2.8.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from keeplast.format.checkpoint import decode_entries, encode_entries
from keeplast.format.checksum import Buffer


class LeaderEpoch(Struct, frozen=True):
    """An epoch and the first offset written in it, inclusive."""

    epoch: int
    start_offset: int


def decode(data: Buffer) -> tuple[LeaderEpoch, ...]:
    """Return the entries in file order; raises :class:`CorruptError` on any malformed line."""
    return tuple(
        LeaderEpoch(epoch.int32(), start_offset.int64())
        for epoch, start_offset in decode_entries(data, field_count=2)
    )


def encode(entries: Iterable[LeaderEpoch]) -> bytes:
    """Return the file's bytes with ``entries`` in the given order."""
    return encode_entries((entry.epoch, entry.start_offset) for entry in entries)
