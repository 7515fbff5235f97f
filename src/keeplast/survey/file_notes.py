"""What is odd about the files of a log: said with its round, and left as it is."""

from __future__ import annotations

from collections.abc import Sequence

from keeplast.format.filename import (
    CLEANED_FOR,
    LEADER_EPOCH_CHECKPOINT,
    PARTITION_METADATA,
    parse_undo_file,
)
from keeplast.log.cleaned_for import UNFINISHED as UNFINISHED_NOTE
from keeplast.log.partition_log import PartitionFiles, Tail
from keeplast.model.partition import TopicPartition
from keeplast.survey.notes import RebuiltIndexes, StagedFiles, TornTail, UnknownFiles

KNOWN_NAMES = frozenset({LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA, CLEANED_FOR, UNFINISHED_NOTE})
NAMES_SHOWN_MAX = 10


FileNote = TornTail | RebuiltIndexes | UnknownFiles | StagedFiles


def file_notes(
    listing: PartitionFiles, tail: Tail, rebuilt: Sequence[int], tp: TopicPartition
) -> list[FileNote]:
    """Return what is odd about the files; ``rebuilt`` are segments without good indexes."""
    notes: list[FileNote] = []
    torn = torn_tail(listing, tail)
    if torn is not None:
        notes.append(torn)
    if rebuilt:
        notes.append(RebuiltIndexes(tuple(rebuilt)))
    strange = [
        name
        for name in listing.unknown
        if name not in KNOWN_NAMES and parse_undo_file(name) is None
    ]
    if strange:
        notes.append(UnknownFiles(len(strange), tuple(strange[:NAMES_SHOWN_MAX])))
    if listing.leftovers:
        notes.append(StagedFiles(len(listing.leftovers), tp))
    return notes


def torn_tail(listing: PartitionFiles, tail: Tail) -> TornTail | None:
    """Return what ends a log in front of an unfinished batch, None where nothing does."""
    if tail.torn_at is None:
        return None
    return TornTail(listing.active.base_offset, tail.torn_at, str(tail.problem), tail.log_end)
