"""Names in a Kafka data directory: segment files and partition directories.

A segment file is ``<base offset as 20 digits><kind><stage>``. Staged files of ours put the attempt
between kind and stage: ``<base>.log.<attempt>.deleted``, which a broker removes at start-up and
concludes nothing from. A name that does not follow the rules gives None, never a guess. The name of
a segment file of an unknown kind is kept apart from names without any meaning.

What ``keeplast undo`` would put back lies next to the log as
``keeplast-undo.<attempt>.<base offset as 20 digits><kind>.kept``. The name begins with no number
and ends in nothing that brokers know. So they never touch it and remove it with the partition.

A partition directory is ``topic-partition``, split at the last ``-``. While a replica is being
deleted, moved or set aside it is ``topic-partition.<unique>-<mark>``, with the topic possibly cut.
Answers to ``LogFileUtils`` and ``UnifiedLog.parseTopicPartitionName``; formats.md 2.2 and 2.3.
"""

from __future__ import annotations

import functools
import re
from typing import Final, Literal

from msgspec import Struct

from keeplast.model.partition import INT32_MAX, INT64_MAX, TopicPartition, is_topic_name

LOG: Final = ".log"
INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
TXN_INDEX: Final = ".txnindex"
SNAPSHOT: Final = ".snapshot"
CLEANED: Final = ".cleaned"
SWAP: Final = ".swap"
DELETED: Final = ".deleted"

LEADER_EPOCH_CHECKPOINT: Final = "leader-epoch-checkpoint"
PARTITION_METADATA: Final = "partition.metadata"
INCOMPLETE: Final = ".keeplast-incomplete"
"""Lies in a partition directory that ``clean --to`` has begun and not finished."""
CLEANED_FOR: Final = "keeplast-cleaned-for"
"""Lies in a partition directory while a round has replaced segments and no checkpoint says so."""
META_PROPERTIES: Final = "meta.properties"
LOCK: Final = ".lock"
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
RECOVERY_POINT_CHECKPOINT: Final = "recovery-point-offset-checkpoint"
LOG_START_CHECKPOINT: Final = "log-start-offset-checkpoint"
REPLICATION_CHECKPOINT: Final = "replication-offset-checkpoint"
CLEANER_CHECKPOINT: Final = "cleaner-offset-checkpoint"

Kind = Literal[".log", ".index", ".timeindex", ".txnindex", ".snapshot"]
Stage = Literal["", ".cleaned", ".swap", ".deleted"]
Mark = Literal["delete", "future", "stray"]

_KINDS: dict[str, Kind] = {
    ".log": LOG,
    ".index": INDEX,
    ".timeindex": TIME_INDEX,
    ".txnindex": TXN_INDEX,
    ".snapshot": SNAPSHOT,
}
_STAGES: dict[str, Stage] = {"": "", ".cleaned": CLEANED, ".swap": SWAP, ".deleted": DELETED}
_MARKS: dict[str, Mark] = {"delete": "delete", "future": "future", "stray": "stray"}

NAMES_KNOWN = 1 << 14
"""So many names stay parsed: a call asks for each several times, and partitions have the same."""

_SEGMENT_FILE = re.compile(
    r"([0-9]{20})(\.log|\.index|\.timeindex|\.txnindex|\.snapshot)"
    r"(?:\.([0-9a-z]+)(?=\.deleted\Z))?(\.cleaned|\.swap|\.deleted|)\Z"
)
_NUMBERED_FILE = re.compile(r"[0-9]{20}\.[A-Za-z0-9_-]+(?:\.(?:cleaned|swap|deleted))?\Z")
_UNDO_FILE = re.compile(
    r"keeplast-undo\.([0-9a-z]{1,64})\.([0-9]{20})(\.log|\.index|\.timeindex|\.txnindex|\.snapshot|"
    r"\.json)\.kept\Z"
)
_MARKED_DIRECTORY = re.compile(r"(\S+)\.([^\s.]+)-(delete|future|stray)\Z")
_PARTITION = re.compile(r"(.+)-([0-9]{1,10})\Z")


class SegmentFile(Struct, frozen=True):
    """What the name of a file next to a log says."""

    base_offset: int
    kind: Kind
    stage: Stage = ""
    attempt: str | None = None

    @property
    def name(self) -> str:
        """The file's name, without a directory."""
        attempt = "" if self.attempt is None else f".{self.attempt}"
        return f"{self.base_offset:020d}{self.kind}{attempt}{self.stage}"


class UndoFile(Struct, frozen=True):
    """What the name of a file that a round has kept for ``keeplast undo`` says.

    ``kind`` None is the list of what a wave has kept, and ``number`` its place among all of the
    partition's. Otherwise ``number`` is the base offset of a segment.
    """

    attempt: str
    number: int
    kind: Kind | None

    @property
    def name(self) -> str:
        """The file's name, without a directory."""
        kind = ".json" if self.kind is None else self.kind
        return f"keeplast-undo.{self.attempt}.{self.number:020d}{kind}.kept"


class PartitionDirectory(Struct, frozen=True):
    """What the name of a directory in a data directory says; ``mark`` None means in service.

    The topic of a marked directory may have been cut by the broker to make the name fit.
    """

    partition: TopicPartition
    mark: Mark | None = None


def segment_file(base_offset: int, kind: Kind) -> str:
    """Return the name of a live segment file of ``base_offset`` (0 to 2^63-1)."""
    return f"{base_offset:020d}{kind}"


@functools.lru_cache(NAMES_KNOWN)
def parse_segment_file(name: str) -> SegmentFile | None:
    """Return what ``name`` says, or None if it is not the name of a segment file."""
    match = _SEGMENT_FILE.match(name)
    if match is None or int(match[1]) > INT64_MAX:
        return None
    return SegmentFile(int(match[1]), _KINDS[match[2]], _STAGES[match[4]], match[3])


def parse_undo_file(name: str) -> UndoFile | None:
    """Return what ``name`` says, or None if it is not the name of what a round has kept."""
    match = _UNDO_FILE.match(name) if name.startswith("keeplast-undo.") else None
    if match is None or int(match[2]) > INT64_MAX:
        return None
    return UndoFile(match[1], int(match[2]), _KINDS.get(match[3]))


def is_unknown_kind(name: str) -> bool:
    """Say whether ``name`` is a segment file's in all but its kind: a newer broker's, most likely.

    Twenty digits, one suffix that is not in the list of kinds, perhaps a stage.
    """
    return parse_segment_file(name) is None and _NUMBERED_FILE.match(name) is not None


def parse_partition_directory(name: str) -> PartitionDirectory | None:
    """Return what ``name`` says, or None if a broker could not have made a directory of it."""
    mark: Mark | None = None
    marked = _MARKED_DIRECTORY.match(name)
    if marked is not None:
        name, mark = marked[1], _MARKS[marked[3]]
    match = _PARTITION.match(name)
    if match is None or not is_topic_name(match[1]) or int(match[2]) > INT32_MAX:
        return None
    return PartitionDirectory(TopicPartition(match[1], int(match[2])), mark)
