"""What consumer groups have committed, as the ``__consumer_offsets`` logs of a data directory say.

Or as brokers report, where they are asked: then the files are not looked at.

The last record of a group and partition counts; one without a value takes its offset away. A record
of a transaction counts once its marker commits it, and one above the high watermark not at all.
Among several records of one group and partition the greatest offset in the log is the last,
wherever the markers lie.

The partition of a group follows from how many there are, which no directory says. So all that are
here are searched, and the number is a guess that only words rest on.

The rule: an offset that is reported too high costs a reader its unread records. An offset that
cannot be read, is not understood, or may be of another topic, counts as not committed.

Answers to ``OffsetMetadataManager.replay`` and ``replayEndTransactionMarker``.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from keeplast.cleaner.settings import INTERNAL_TOPICS
from keeplast.columns import batches as t
from keeplast.errors import CompactionError, error_words
from keeplast.format.consumer_offsets import (
    OFFSET_COMMIT,
    PARTITIONS_DEFAULT,
    TOPIC,
    OffsetCommit,
    decode_key,
    decode_value,
    group_name,
    home_partition,
)
from keeplast.format.filename import parse_partition_directory
from keeplast.format.message_set import Batch, read_batches
from keeplast.format.record import ControlType, decode_control_type
from keeplast.log.data_directory import read_topic_id
from keeplast.log.files import FileSystem, reading
from keeplast.log.log_end import require_log_end
from keeplast.log.partition_log import PartitionFiles, find_tail, list_partition
from keeplast.log.windows import Window, WindowBuffers, read_windows
from keeplast.model.hold import (
    Absence,
    GroupReader,
    ReaderWait,
    WaitedGroup,
    not_asked,
)
from keeplast.model.partition import TopicPartition
from keeplast.survey.bounds import Checkpoints
from keeplast.survey.request import PartitionRequest

FRESH_MS = 10_000
"""What was read counts for so long: thousands of partitions may wait for the same groups."""
DIRECTORIES_MAX = 64

CommitKey = tuple[str, TopicPartition]


class CommittedOffset(Struct, frozen=True):
    """Where a group goes on reading; None where a newer Kafka wrote what is not understood.

    ``topic_id`` is that of the topic that was read, None where the record does not say.
    """

    offset: int | None
    topic_id: bytes | None = None


class FoundOffsets(Struct, frozen=True):
    """What the groups that were asked about have committed, by one data directory.

    ``here`` are the partitions of ``__consumer_offsets`` that lie in it, ``problems`` says of those
    that could not be read why.
    """

    commits: Mapping[CommitKey, CommittedOffset]
    here: frozenset[int]
    problems: Mapping[int, str]

    def home_of(self, group: str) -> int:
        """Return which partition a group is in, if there are as many as it looks.

        Numbers without a gap from 0 on are taken for all of them.
        """
        highest = max(self.here, default=-1)
        is_whole = len(self.here) == highest + 1 and bool(self.here)
        return home_partition(
            group, highest + 1 if is_whole else max(highest + 1, PARTITIONS_DEFAULT)
        )

    def absence_of(self, group: str) -> Absence:
        """Return why a group has nothing here."""
        home = self.home_of(group)
        if home in self.problems:
            return Absence.UNREADABLE
        return Absence.NOT_COMMITTED if home in self.here else Absence.NOT_HERE


class ReaderOffsets(Protocol):
    """A survey's source of where groups go on reading: the files of a directory, or brokers."""

    def waited(
        self,
        partition: PartitionRequest,
        groups: Sequence[str],
        checkpoints: Checkpoints,
        log_end: int,
        now_ms: int,
    ) -> tuple[WaitedGroup, ...]:
        """Return it of each of ``groups``, each once, of a log that ends at ``log_end``, exclusive.

        ``checkpoints`` are those of the directory that the partition is in.
        """


class GroupOffsets:
    """Reads what groups have committed, and remembers it for a while; shared by threads."""

    def __init__(self, files: FileSystem, brokers: GroupReader | None = None) -> None:
        """Read ``files``, or where there are ``brokers`` ask them and look at no file."""
        self._files = files
        self._brokers = brokers
        self._lock = threading.Lock()
        self._kept: dict[Path, _Kept] = {}

    def waited(
        self,
        partition: PartitionRequest,
        groups: Sequence[str],
        checkpoints: Checkpoints,
        log_end: int,
        now_ms: int,
    ) -> tuple[WaitedGroup, ...]:
        """Return where groups go on reading a partition; see :class:`ReaderOffsets`."""
        name = partition.partition
        topic_id = read_topic_id(partition.path, self._files)
        if self._brokers is not None:
            return self._brokers.waited(name, groups, topic_id, now_ms)
        found = self.of(partition.path.parent, groups, checkpoints.high_watermark, now_ms)
        return tuple(
            waited_group(each, name, found, topic_id, log_end) for each in dict.fromkeys(groups)
        )

    def of(
        self,
        root: Path,
        groups: Collection[str],
        watermarks: Mapping[TopicPartition, int],
        now_ms: int,
    ) -> FoundOffsets:
        """Return what ``groups`` have committed by the data directory ``root``; raises nothing.

        ``watermarks`` are its high watermarks; a partition without one is replicated to its end.
        """
        with self._lock:
            kept = self._kept.get(root)
            if kept is None or not kept.has(groups, now_ms):
                if len(self._kept) >= DIRECTORIES_MAX:
                    self._kept.clear()
                asked = frozenset(groups) if kept is None else kept.groups | set(groups)
                kept = _read(root, asked, watermarks, now_ms, kept, self._files)
                self._kept[root] = kept
            return kept.found


class _OffsetsLog(Struct, frozen=True):
    """A partition of ``__consumer_offsets`` as it was read: from its files, with its content."""

    signature: object
    commits: dict[CommitKey, CommittedOffset]


class _Kept(Struct, frozen=True):
    at_ms: int
    groups: frozenset[str]
    found: FoundOffsets
    logs: Mapping[int, _OffsetsLog]

    def has(self, groups: Collection[str], now_ms: int) -> bool:
        return self.groups.issuperset(groups) and 0 <= now_ms - self.at_ms < FRESH_MS


def _read(
    root: Path,
    groups: frozenset[str],
    watermarks: Mapping[TopicPartition, int],
    now_ms: int,
    before: _Kept | None,
    files: FileSystem,
) -> _Kept:
    """Read all logs of the topic in ``root``, but for those that are as they were ``before``."""
    known = before.logs if before is not None and before.groups == groups else {}
    logs: dict[int, _OffsetsLog] = {}
    problems: dict[int, str] = {}
    commits: dict[CommitKey, CommittedOffset] = {}
    for number, path in sorted(_find_logs(root, files).items()):
        try:
            log = _read_log(
                path,
                groups,
                watermarks.get(TopicPartition(TOPIC, number)),
                known.get(number),
                files,
            )
        except (CompactionError, OSError) as error:
            problems[number] = error_words(error)
            continue
        logs[number] = log
        for key, commit in log.commits.items():
            commits[key] = _earlier(commits.get(key), commit)
    return _Kept(
        now_ms, groups, FoundOffsets(commits, frozenset({*logs, *problems}), problems), logs
    )


def _earlier(one: CommittedOffset | None, other: CommittedOffset) -> CommittedOffset:
    """Return what counts where two partitions have the same: one of them is no group's home."""
    if one is None:
        return other
    return min(one, other, key=lambda each: -1 if each.offset is None else each.offset)


def _find_logs(root: Path, files: FileSystem) -> dict[int, Path]:
    """Return the directories of the topic's partitions; none where they cannot be listed."""
    try:
        directories = files.directories_in(root)
    except (CompactionError, OSError):
        return {}
    found = {}
    for name in directories:
        parsed = parse_partition_directory(name)
        if parsed is not None and parsed.partition.topic == TOPIC and parsed.mark is None:
            found[parsed.partition.partition] = root / name
    return found


def _read_log(
    path: Path,
    groups: Collection[str],
    watermark: int | None,
    before: _OffsetsLog | None,
    files: FileSystem,
) -> _OffsetsLog:
    listing = list_partition(path, files, if_empty=0)
    signature = (tuple((each, each.inode) for each in listing.segments), watermark)
    if before is not None and before.signature == signature:
        return before
    return _OffsetsLog(signature, _fold(listing, groups, watermark, files))


def _fold(
    listing: PartitionFiles, groups: Collection[str], watermark: int | None, files: FileSystem
) -> dict[CommitKey, CommittedOffset]:
    tail = find_tail(listing, files)
    require_log_end(listing, tail, watermark, files)
    end = tail.log_end if watermark is None else min(watermark, tail.log_end)
    fold, buffers = _Fold(groups, end), WindowBuffers()
    for segment in listing.segments:
        size = tail.valid_bytes if segment is listing.active else segment.size_bytes
        if not size or segment.base_offset >= end:
            continue
        with reading(files, segment.log_path) as handle:
            for window in read_windows(handle, segment.log_path, buffers, end=size):
                fold.add(window)
    return fold.commits()


Change = tuple[int, CommittedOffset | None]
"""The offset of a record in the log, and what it commits; None takes away."""


class _Fold(Struct):
    """Batches of one log, in their order, up to ``end``; None of the other groups is decoded."""

    groups: Collection[str]
    end: int
    latest: dict[CommitKey, Change] = field(default_factory=dict)
    open: dict[int, dict[CommitKey, Change]] = field(default_factory=dict)
    """What producers have written in transactions that are not decided."""

    def add(self, window: Window) -> None:
        """Take the batches of a window."""
        rows = window.table[: window.batches]
        data = window.data[: window.length].tobytes()
        attributes = rows[:, t.ATTRIBUTES]
        is_new = rows[:, t.MAGIC] == 2
        is_control = is_new & (attributes & t.CONTROL != 0)
        chosen = attributes & t.CODEC_MASK != 0
        chosen[self._hits(data, rows)] = True
        is_transactional = is_new & (attributes & t.TRANSACTIONAL != 0)
        if self.open or (chosen & is_transactional).any():
            chosen |= is_control
        else:
            chosen &= ~is_control
        for i in np.flatnonzero(chosen & (rows[:, t.LAST_OFFSET] < self.end)).tolist():
            start, size = rows[i, [t.POSITION, t.SIZE]].tolist()
            producer = int(rows[i, t.PRODUCER_ID])
            if is_control[i] and producer not in self.open:
                continue
            piece = data[start : start + size]
            for batch in read_batches(piece, base_position=window.position + start):
                if is_control[i]:
                    self._end(producer, batch)
                else:
                    self._take(batch, producer if is_transactional[i] else None)

    def _hits(self, data: bytes, rows: NDArray[np.int64]) -> list[int]:
        """Return the batches in which a group's name stands, as keys have it."""
        positions, sizes = rows[:, t.POSITION], rows[:, t.SIZE]
        found = []
        for name in map(group_name, self.groups):
            at = data.find(name)
            while at >= 0:
                i = int(np.searchsorted(positions, at, "right")) - 1
                found.append(i)
                at = data.find(name, int(positions[i] + sizes[i]))
        return found

    def _take(self, batch: Batch, producer: int | None) -> None:
        changes = self.latest if producer is None else self.open.setdefault(producer, {})
        for record in batch.records():
            about = decode_key(record.key)
            group = about.group
            if about.type_name != OFFSET_COMMIT or group is None or group not in self.groups:
                continue
            key = group, TopicPartition(about.topic or "", about.partition or 0)
            said = decode_value(about, record.value)
            commit = None
            if isinstance(said, OffsetCommit):
                commit = CommittedOffset(said.offset, said.topic_id)
            elif said is not None:
                commit = CommittedOffset(None)
            _put(changes, [(key, (record.offset, commit))])

    def _end(self, producer: int, marker: Batch) -> None:
        for record in marker.records():
            kind = decode_control_type(record.key)
            if kind in (ControlType.COMMIT, ControlType.ABORT):
                changes = self.open.pop(producer, {})
                if kind is ControlType.COMMIT:
                    _put(self.latest, changes.items())

    def commits(self) -> dict[CommitKey, CommittedOffset]:
        """Return what counts."""
        return {key: commit for key, (_, commit) in self.latest.items() if commit is not None}


def _put(changes: dict[CommitKey, Change], more: Iterable[tuple[CommitKey, Change]]) -> None:
    for key, change in more:
        if key not in changes or changes[key][0] < change[0]:
            changes[key] = change


class ReportedReaders(Struct, frozen=True):
    """What brokers reported of one partition's groups: :class:`ReaderOffsets` that can be sent."""

    groups: tuple[WaitedGroup, ...]

    def waited(
        self,
        partition: PartitionRequest,
        groups: Sequence[str],
        checkpoints: Checkpoints,
        log_end: int,
        now_ms: int,
    ) -> tuple[WaitedGroup, ...]:
        """Return the reported groups, for any question."""
        return self.groups


def ask_ahead(
    brokers: GroupReader | None, partition: PartitionRequest, files: FileSystem, now_ms: int
) -> ReportedReaders | None:
    """Ask ``brokers`` about the groups that a partition's tombstones wait for, before a task looks.

    None where no broker is asked: the task reads the directory's own files. Of a log whose topic id
    cannot be read no group has read anything, as its topic is unknown; the task's look reports
    that.
    """
    if brokers is None:
        return None
    groups = partition.topic.tombstones_wait_for_groups
    if not groups or partition.partition.topic in INTERNAL_TOPICS:
        return ReportedReaders(())
    try:
        topic_id = read_topic_id(partition.path, files)
    except OSError:
        return ReportedReaders(not_asked(groups))
    return ReportedReaders(brokers.waited(partition.partition, groups, topic_id, now_ms))


def find_wait(
    partition: PartitionRequest,
    checkpoints: Checkpoints,
    log_end: int,
    groups: ReaderOffsets,
    now_ms: int,
) -> ReaderWait | None:
    """Return the groups that tombstones of a partition wait for; None without one.

    Brokers themselves read their own topics, and commit nothing.
    """
    topic = partition.topic
    asked = topic.tombstones_wait_for_groups
    if not asked or partition.partition.topic in INTERNAL_TOPICS:
        return None
    return ReaderWait(
        groups.waited(partition, asked, checkpoints, log_end, now_ms), topic.tombstones_wait_max_ms
    )


def waited_group(
    group: str, partition: TopicPartition, found: FoundOffsets, topic_id: bytes | None, log_end: int
) -> WaitedGroup:
    """Return where a group goes on reading a partition that ends at ``log_end``, exclusive.

    ``topic_id`` is that of the partition's directory, None where it has none.
    """
    home = found.home_of(group)
    commit = found.commits.get((group, partition))
    absence: Absence | None = None
    if commit is None or home in found.problems:
        absence = found.absence_of(group)
    elif commit.offset is None:
        absence = Absence.NOT_UNDERSTOOD
    elif commit.offset < 0:
        absence = Absence.NOT_COMMITTED
    elif topic_id is not None and commit.topic_id not in (None, topic_id):
        absence = Absence.ANOTHER_TOPIC
    elif commit.offset > log_end:
        # Of a topic that had this name before, or of more than what a backup brought back.
        absence = Absence.BEYOND_END
    if absence is not None or commit is None:
        return WaitedGroup(group, None, home, absence)
    return WaitedGroup(group, commit.offset, home)
