"""Points that a state may be of: a time, what a group has committed, what lies elsewhere.

The rule of points above the end of what is here, as above what a remote tier has: records elsewhere
are never taken for absent ones. An offset above the end here is no mistake, and a time that nothing
here is later than may lie elsewhere: both are refused.

The committed offsets of a consumer group come from the ``__consumer_offsets`` logs of the directory
that the log is in, or from brokers. An offset that may not be this log's makes no point: it is
refused, and never taken for nothing committed.

The offset at which a log stood at a time is that of the first record with a later timestamp.
Producers set timestamps, and clocks differ: a record below that offset may be younger, and one
above it older. So it is an approximation, unless the broker dates records (LogAppendTime). Markers
count, as brokers date them. Answers to ``UnifiedLog.fetchOffsetByTimestamp``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from msgspec.structs import replace

from keeplast.clock import Clock
from keeplast.columns import arrow_columns as a
from keeplast.columns import batches as t
from keeplast.errors import InvalidError, InvariantError, RefusedError
from keeplast.format.consumer_offsets import group_name
from keeplast.log.data_directory import read_topic_id
from keeplast.log.files import FileSystem
from keeplast.log.windows import WindowBuffers
from keeplast.model.hold import Absence, GroupReader, WaitedGroup
from keeplast.model.partition import INT64_MAX, TopicPartition
from keeplast.read.log_view import LogView, Split, Wanted, plan_splits
from keeplast.read.record_source import read_records, read_wanted
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN, Workspace
from keeplast.survey.bounds import load_checkpoints
from keeplast.survey.group_offsets import FoundOffsets, GroupOffsets, waited_group
from keeplast.survey.wording import absence_words


def require_here(view: LogView, behind: str, what: str, end_offset: int) -> None:
    """Raise RefusedError for an end, exclusive, beyond what is here of a log that goes on.

    ``behind`` says what is elsewhere, empty for nothing; ``what`` names the end for people.
    """
    if behind and end_offset > view.log_end:
        raise RefusedError(
            f"the state as of this offset cannot be given from here: {behind}. Give an offset up "
            f"to where it ends. {what}={end_offset} partition={view.partition} "
            f"log_end={view.log_end}",
            code="K152",
        )


def require_later(view: LogView, behind: str, what: str, time_ms: int, found: int | None) -> None:
    """Raise RefusedError for a time without a later record ``found`` where a log goes on."""
    if behind and found is None:
        raise RefusedError(
            "nothing here is later than this time, and what is may be elsewhere: "
            f"{behind}. Give an earlier time, or an offset. {what}={time_ms} "
            f"partition={view.partition} log_end={view.log_end}",
            code="K152",
        )


class GroupPoint:
    """The offsets of one group in the data directory ``root``, read once.

    ``name`` is what errors call the argument that gave the group. With ``brokers`` they are asked,
    and no file; ``where`` says in errors what is read, by default the directory.
    """

    def __init__(
        self,
        root: Path,
        group: str,
        files: FileSystem,
        clock: Clock,
        name: str,
        brokers: GroupReader | None = None,
        where: str = "",
    ) -> None:
        """Read what ``group`` has committed; InvalidError for what is no group's name."""
        group_name(group)
        self._group, self._files, self._name = group, files, name
        self._clock, self._brokers = clock, brokers
        self._where = where or f"path={root}"
        self._found: FoundOffsets | None = None
        if brokers is None:
            watermarks = load_checkpoints(files, root).high_watermark
            self._found = GroupOffsets(files).of(root, [group], watermarks, clock.now_ms())

    def find(self, partition: TopicPartition, path: Path, log_end: int) -> WaitedGroup:
        """Return what it has committed of the log in ``path``, which ends at ``log_end``.

        RefusedError for an offset of a topic that was deleted, one beyond the log end, and one that
        is not understood, or not reported.
        """
        topic_id = read_topic_id(path, self._files)
        each = self._asked(partition, topic_id, log_end)
        if each.offset is None and each.absence not in (Absence.NOT_COMMITTED, Absence.NOT_HERE):
            raise RefusedError(
                f"the group's offsets make no checkpoint: it {absence_words(each)}; leave the "
                f"partition out, or give the offset itself. {self._name}={self._group!r} "
                f"partition={partition} {self._where}",
                code="K154",
            )
        return each

    def _asked(
        self, partition: TopicPartition, topic_id: bytes | None, log_end: int
    ) -> WaitedGroup:
        if self._found is not None:
            return waited_group(self._group, partition, self._found, topic_id, log_end)
        if self._brokers is None:
            raise InvariantError("a group's offsets come from files or from brokers", code="K901")
        (each,) = self._brokers.waited(partition, [self._group], topic_id, self._clock.now_ms())
        return each

    def offset(self, partition: TopicPartition, path: Path, log_end: int) -> int:
        """Return the offset that it has committed, exclusive; InvalidError without one."""
        each = self.find(partition, path, log_end)
        if each.offset is None:
            raise self.nothing({absence_words(each)})
        return each.offset

    def nothing(self, words: set[str]) -> InvalidError:
        """Return the error that it has committed nothing for what was chosen; ``words`` say why."""
        return InvalidError(
            "the group has no committed offset for what was chosen: it "
            f"{'; '.join(sorted(words)) or 'was asked for no partition'}. "
            f"{self._name}={self._group!r} {self._where}",
            code="K154",
        )


SPLIT_BYTES = 128 << 20


def first_offset_from(view: LogView, time_ms: int, files: FileSystem, clock: Clock) -> int | None:
    """Return the offset of the first record with a timestamp of at least ``time_ms``.

    None when the log has none. Whole segments are passed over by their time indexes; of the rest
    headers are read, and the records of one batch. Records of open and aborted transactions count.
    """
    later = Wanted(view.log_start, INT64_MAX, first_ms=time_ms)
    for part in plan_splits(view, later, files, split_bytes=SPLIT_BYTES):
        first = part.wanted.first_offset
        for _, window, _, _ in read_wanted(part, files, clock, WindowBuffers(), checks_crc=False):
            rows = window.table[: window.batches]
            lasts = rows[:, t.LAST_OFFSET]
            later_here = (lasts >= first) & (rows[:, t.MAX_TIMESTAMP] >= time_ms)
            for i in np.flatnonzero(later_here).tolist():
                if rows[i, t.ATTRIBUTES] & t.CONTROL and rows[i, t.MAGIC] == 2:
                    return int(rows[i, t.BASE_OFFSET])
                # The wrapper of an old format says only where it ends.
                begins = max(first, int(lasts[i - 1]) + 1) if i else first
                batch = Wanted(begins, int(lasts[i]) + 1, first_ms=time_ms)
                found = first_record(replace(part, wanted=batch), files, clock)
                if found is not None:
                    return found
            first = max(first, int(lasts.max()) + 1)
    return None


def first_record(split: Split, files: FileSystem, clock: Clock) -> int | None:
    """Return the offset of the first record that is wanted of a split, aborted ones included.

    None when there is none: headers may promise more than their batch has.
    """
    every = replace(split, hides_aborted=False)
    for columns in read_records(every, files, clock, Workspace(MEMORY_BYTES_MIN)):
        return int(columns.longs[a.OFFSET, 0])
    return None
