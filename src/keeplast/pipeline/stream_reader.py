"""``spark.readStream.format("kafka-log")``: follows a directory that grows.

An offset of the stream is Kafka's JSON, ``{"topic": {"0": 23}}``, with the next offset to read of
every partition, and what identifies the log. A batch is the ranges between two of them. So a
restart from a checkpoint reads the same offsets again, and every record comes exactly once, in
order within its partition.

The rules:

1. Nothing above the end is read. The end is the last stable offset where only committed records are
   wanted. It is the high watermark too, unless asked otherwise, because what lies above it may yet
   be replaced.
2. A partition that appears later is read from its start.
3. Offsets that are gone before they were read fail the query, unless ``failOnDataLoss`` is false.
   So do those of a partition that appears without its first ones, or that is gone. So do those of a
   topic that was deleted and created again, and of a log that was cut below them. All that counts
   while the query ran and before it began again. Gaps that compaction leaves inside a log are no
   loss.

An offset also says which log it is of::

    {"orders": {"0": 23}, "@": {"orders-0": {"topicId": "lFYiyUK3Tr6yiY0SHi2x8Q", "epoch": 4}}}

A name may be used again and an offset be written again. The topic's id and the leader epoch of the
record before the offset are not. So a stream that begins again from a checkpoint recognises a topic
that was created again in the meantime. It recognises a log that was cut below the offset and has
grown since. The rule: **what a log does not say contradicts nothing**; offsets of earlier versions
have no ``@``. No topic can have the name ``@``.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from msgspec import Struct
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from keeplast.errors import CorruptError, InvalidError
from keeplast.format.identifier import decode_id, encode_id
from keeplast.log.files import FileSystem
from keeplast.model.partition import TopicPartition
from keeplast.pipeline.log_parts import (
    KnownPartitions,
    Logs,
    check_within,
    nothing_known,
    read_parts,
    require_whole_topics,
    share_out,
)
from keeplast.pipeline.query_options import is_number, parse_offsets
from keeplast.pipeline.source_options import SourceOptions
from keeplast.read.log_view import LogView, Wanted, last_epoch
from keeplast.survey.rolling import FollowedLog

LINEAGE = "@"
_ID, _EPOCH = "topicId", "epoch"
_REMEDY = "remove the checkpoint to begin again"

Offsets = dict[TopicPartition, int]


class Lineage(Struct, frozen=True):
    """The topic of an offset, and the leader epoch of the record before it.

    None is not known.
    """

    topic_id: bytes | None = None
    epoch: int | None = None

    def contradiction(self, now: Lineage) -> str | None:
        """Return why what the log says ``now`` is not what it said then; None where it may be."""
        if None not in (self.topic_id, now.topic_id) and self.topic_id != now.topic_id:
            return "the topic was deleted and made again, so that its offsets are others"
        if None not in (self.epoch, now.epoch) and self.epoch != now.epoch:
            return (
                "the log was cut below what was read of it and written again, or the topic was "
                "made again: the record before the offset is of another leader epoch"
            )
        return None


NOTHING_KNOWN = Lineage()


def lineage_at(view: LogView, offset: int, files: FileSystem) -> Lineage:
    """Return what a log says of an offset of its own, exclusive; CorruptError as the files do."""
    return Lineage(view.topic_id, last_epoch(view, files, offset))


class Position(Struct, frozen=True):
    """The next offsets to read, and what was known of them."""

    offsets: Offsets
    lineages: Mapping[TopicPartition, Lineage]

    def lineage(self, partition: TopicPartition) -> Lineage:
        """Return what was known of a partition's offset."""
        return self.lineages.get(partition, NOTHING_KNOWN)

    def as_document(self) -> dict[str, Any]:
        """Return it as Spark keeps it."""
        document: dict[str, dict[str, Any]] = {}
        for partition in sorted(self.offsets):
            its = document.setdefault(partition.topic, {})
            its[str(partition.partition)] = self.offsets[partition]
        known: dict[str, dict[str, Any]] = {}
        for partition in sorted(self.offsets):
            lineage, said = self.lineage(partition), dict[str, Any]()
            if lineage.topic_id is not None:
                said[_ID] = encode_id(lineage.topic_id)
            if lineage.epoch is not None:
                said[_EPOCH] = lineage.epoch
            if said:
                known[str(partition)] = said
        return {**document, LINEAGE: known} if known else document


def read_position(document: Mapping[str, Any]) -> Position:
    """Return what Spark kept; InvalidError when it is something else."""
    text = str(document)
    plain = {topic: its for topic, its in document.items() if topic != LINEAGE}
    offsets = parse_offsets(plain, "offset", text, _REMEDY)
    known = document.get(LINEAGE, {})
    names = {str(partition): partition for partition in offsets}
    if not isinstance(known, dict) or not names.keys() >= known.keys():
        raise InvalidError(
            f"not what is known of its offsets; {_REMEDY}. offset={text!r}", code="K142"
        )
    return Position(offsets, {names[name]: _lineage(said, text) for name, said in known.items()})


def _lineage(said: object, text: str) -> Lineage:
    if not isinstance(said, dict):
        raise InvalidError(
            f"not what is known of an offset; {_REMEDY}. offset={text!r}", code="K142"
        )
    topic_id, epoch = said.get(_ID), said.get(_EPOCH)
    try:
        found = None if topic_id is None else decode_id(str(topic_id))
    except CorruptError as error:
        raise InvalidError(f"{error}; {_REMEDY}. offset={text!r}", code="K142") from None
    if epoch is not None and not is_number(epoch):
        raise InvalidError(
            f"not a leader epoch: {epoch!r}; {_REMEDY}. offset={text!r}", code="K142"
        )
    return Lineage(found, epoch)


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads the batches of one streaming query."""

    def __init__(
        self,
        options: SourceOptions,
        names: Sequence[str],
        known: KnownPartitions = nothing_known,
    ) -> None:
        """Take checked options, the columns that are asked for, and which partitions there are."""
        self._options = options
        self._known = known
        self._was_looked_at = False
        self._followed: dict[Path, FollowedLog] = {}
        self._names = tuple(names)
        self._target: Offsets | None = None
        self._served: TopicPartition | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Return where a query without a checkpoint begins."""
        logs = Logs(self._options, waits=True, followed=self._followed)
        self._require_whole(logs)
        where = self._options.where()
        self._options.starting.require_chosen("startingOffsets", logs.entries, where)
        views = [logs.look(entry) for entry in logs.entries]
        return self._document(
            {view.partition: logs.range_of(view)[0] for view in views}, logs, views
        )

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of a batch."""
        limit = self._options.offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end: what is written from now on is the next run's."""
        self._target = self._ends(self._look()[1])

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the end as it is now, for the query's progress."""
        logs, views = self._look()
        return self._document(self._ends(views), logs, views)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return where the batch that begins at ``start`` ends."""
        known = read_position(start)
        begin = known.offsets
        # A directory that has lost everything is not waited for: it may not be mounted.
        logs, views = self._look(waits=not begin)
        self._require_whole(logs)
        for view in views:
            lineage = known.lineage(view.partition)
            self._require_offset(logs, view, begin.get(view.partition, 0), lineage)
        found = {view.partition for view in views}
        for partition in sorted(begin):
            # Its end is not known any more, so it is not known whether all of it was read.
            if partition not in found and self._options.choice.covers(partition):
                self._lose(f"the partition is gone. partition={partition}")
        target = self._ends(views) if self._target is None else self._target
        # What is not there (any more) stays where it was. An end never lies before the start,
        # whatever has been truncated.
        ends = {**begin, **{p: max(end, begin.get(p, end)) for p, end in target.items()}}
        if not isinstance(limit, ReadMaxRows):
            return self._document(ends, logs, views, known)
        starts = {**{view.partition: view.log_start for view in views}, **begin}
        starts = {
            partition: min(starts.get(partition, end), end) for partition, end in ends.items()
        }
        limited = _limit(starts, ends, limit.max_rows, after=self._served)
        served = [p for p in _in_turn(limited, self._served) if limited[p] > starts[p]]
        self._served = served[-1] if served else self._served
        return self._document(limited, logs, views, known)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return what each task of a batch reads."""
        known, then = read_position(start), read_position(end)
        begin, ends = known.offsets, then.offsets
        logs = Logs(self._options, waits=not begin, followed=self._followed)
        entries = {entry.partition: entry for entry in logs.entries}
        ranges: list[tuple[LogView, Wanted]] = []
        for partition in sorted(ends):
            if begin.get(partition) == ends[partition]:
                continue
            if partition not in entries:
                self._lose(f"the partition is gone. partition={partition}")
                continue
            view = logs.look(entries[partition])
            logs.warn_torn(view)
            first = begin.get(partition, 0)
            self._require_offset(logs, view, first, known.lineage(partition))
            self._require_offset(logs, view, ends[partition], then.lineage(partition))
            first = max(first, view.log_start)
            ranges.append((view, self._options.wanted.between(first, ends[partition])))
        options, parts = self._options, logs.record_parts(ranges)
        tasks = share_out(parts, tasks_min=options.tasks_min, split_bytes=options.split_bytes)
        return [InputPartition(parts) for parts in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the record batches of one task."""
        if partition.value is None:
            return iter(())
        return read_parts(partition.value, self._names, self._options.memory_bytes)

    def _require_whole(self, logs: Logs) -> None:
        """Refuse a part of a topic, once: a running broker makes partitions a moment after it has
        heard of them."""
        if not self._was_looked_at:
            require_whole_topics(logs, self._options, logs.entries, self._known)
            for note in logs.notes:
                warnings.warn(note, stacklevel=2)
        self._was_looked_at = True

    def _look(self, *, waits: bool = True) -> tuple[Logs, list[LogView]]:
        logs = Logs(self._options, waits=waits, followed=self._followed)
        return logs, [logs.look(entry) for entry in logs.entries]

    def _document(
        self,
        offsets: Offsets,
        logs: Logs,
        views: Sequence[LogView],
        known: Position | None = None,
    ) -> dict[str, Any]:
        """Return offsets as Spark keeps them; what has no view stays as ``known``."""
        lineages = {} if known is None else dict(known.lineages)
        for view in views:
            if view.partition in offsets:
                offset = offsets[view.partition]
                lineages[view.partition] = lineage_at(view, offset, logs.files)
        return Position(offsets, lineages).as_document()

    def _ends(self, views: Sequence[LogView]) -> Offsets:
        committed, replicated = self._options.is_committed, self._options.is_replicated
        return {v.partition: v.end_for(committed=committed, replicated=replicated) for v in views}

    def _require_offset(self, logs: Logs, view: LogView, offset: int, lineage: Lineage) -> None:
        """Raise InvalidError when the log does not have ``offset``, unless loss is accepted.

        Nor has it one of another log of the same name, as ``lineage`` shows.
        """
        if not self._options.fails_on_loss:
            return
        self._require_lineage(view, offset, lineage, Lineage(view.topic_id))
        check_within(view, "offset", offset)
        if lineage != NOTHING_KNOWN:
            self._require_lineage(view, offset, lineage, lineage_at(view, offset, logs.files))

    def _require_lineage(self, view: LogView, offset: int, lineage: Lineage, now: Lineage) -> None:
        why = lineage.contradiction(now)
        if why is not None:
            self._lose(
                f"{why}; begin with another checkpoint. partition={view.partition} offset={offset}"
            )

    def _lose(self, what: str) -> None:
        if self._options.fails_on_loss:
            raise InvalidError(
                f"{what} Set failOnDataLoss=false to go on without it. {self._options.where()}",
                code="K143",
            )


def _limit(starts: Offsets, ends: Offsets, count: int, *, after: TopicPartition | None) -> Offsets:
    """Return ends that are together at most ``count`` offsets above the starts.

    Every partition gets an equal share, and what one does not need goes to the others; at least one
    offset is given while there is any. Where there are fewer offsets than partitions, those later
    than ``after`` come first, so that each has its turn however fast the others grow. A query that
    was started again begins somewhere that its offsets say.
    """
    limited = dict(starts)
    waiting = [p for p in _in_turn(ends, after) if ends[p] > starts[p]]
    if after is None and waiting:
        turn = sum(starts.values()) % len(waiting)
        waiting = waiting[turn:] + waiting[:turn]
    while waiting and count > 0:
        share = max(1, count // len(waiting))
        for partition in waiting:
            step = min(share, ends[partition] - limited[partition], count)
            limited[partition] += step
            count -= step
        waiting = [p for p in waiting if ends[p] > limited[p]]
    return limited


def _in_turn(position: Offsets, after: TopicPartition | None) -> list[TopicPartition]:
    """Return the partitions in order, those later than ``after`` first."""
    return sorted(position, key=lambda p: (after is not None and p <= after, p))
