"""What is odd about the files of a log, in words: said with its round, and left as it is."""

from __future__ import annotations

from collections.abc import Sequence

from keeplast.format.filename import LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA
from keeplast.log.partition_log import PartitionFiles, Tail
from keeplast.model.partition import TopicPartition

BROKER_NAMES = frozenset({LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA})
NAMES_SHOWN_MAX = 10


def file_notes(
    listing: PartitionFiles, tail: Tail, rebuilt: Sequence[int], tp: TopicPartition
) -> list[str]:
    """Return what is odd about the files; ``rebuilt`` are segments without good indexes."""
    notes: list[str] = []
    if tail.torn_at is not None:
        notes.append(
            f"the active segment {listing.active.base_offset} is torn at byte {tail.torn_at} "
            f"({tail.problem}); the log is taken to end at offset {tail.log_end}"
        )
    if rebuilt:
        names = ", ".join(str(base) for base in rebuilt)
        notes.append(f"indexes rebuilt in memory for segments {names}")
    strange = [name for name in listing.unknown if name not in BROKER_NAMES]
    if strange:
        shown = ", ".join(repr(name) for name in strange[:NAMES_SHOWN_MAX])
        notes.append(f"{len(strange)} files with names that mean nothing, left alone: {shown}")
    if listing.leftovers:
        notes.append(f"{len(listing.leftovers)} staged files of an earlier run lie in {tp}")
    return notes
