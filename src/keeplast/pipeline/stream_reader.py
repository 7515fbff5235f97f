"""``spark.readStream.format("kafka-log")``: follows a directory that grows.

An offset of the stream is Kafka's JSON, ``{"topic": {"0": 23}}``, with the next offset to read of
every partition. A batch is the ranges between two of them, so that a restart from a checkpoint
reads the same offsets again and every record comes exactly once, in order within its partition.

The rules:

1. Nothing above the end is read: the last stable offset where only committed records are wanted,
   and, unless asked otherwise, the high watermark, because what lies above it may yet be replaced.
2. A partition that appears later is read from its start.
3. Offsets that are gone before they were read fail the query, unless ``failOnDataLoss`` is false.
   Gaps that compaction leaves inside a log are no loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from keeplast.engine.log_ranges import plan_splits
from keeplast.engine.log_view import LogView
from keeplast.errors import InvalidError
from keeplast.model.partition import TopicPartition
from keeplast.pipeline.log_parts import LogPart, Logs, check_within, read_part
from keeplast.pipeline.offset_options import parse_offsets
from keeplast.pipeline.source_options import SourceOptions

Position = dict[TopicPartition, int]


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads the batches of one streaming query."""

    def __init__(self, options: SourceOptions, names: Sequence[str]) -> None:
        """Take checked options and the columns that are asked for."""
        self._options = options
        self._names = tuple(names)
        self._target: Position | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Return where a query without a checkpoint begins."""
        logs = Logs(self._options)
        views = [logs.look(entry) for entry in logs.entries]
        return _document({view.partition: logs.range_of(view)[0] for view in views})

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of a batch."""
        limit = self._options.offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end: what is written from now on is the next run's."""
        self._target = self._ends(self._look())

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the end as it is now, for the query's progress."""
        return _document(self._ends(self._look()))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return where the batch that begins at ``start`` ends."""
        begin = _position(start)
        views = self._look()
        if self._options.fails_on_loss:
            for view in views:
                check_within(view, "offset", begin.get(view.partition, view.log_start))
        target = self._ends(views) if self._target is None else self._target
        # What is not there (any more) stays where it was; partitions() decides whether that is
        # loss. An end never lies before the start, whatever has been truncated.
        ends = {**begin, **{p: max(end, begin.get(p, end)) for p, end in target.items()}}
        if not isinstance(limit, ReadMaxRows):
            return _document(ends)
        starts = {**{view.partition: view.log_start for view in views}, **begin}
        starts = {
            partition: min(starts.get(partition, end), end) for partition, end in ends.items()
        }
        return _document(_limited(starts, ends, limit.max_rows))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return what each task of a batch reads."""
        begin, ends = _position(start), _position(end)
        logs = Logs(self._options)
        entries = {entry.partition: entry for entry in logs.entries}
        parts: list[LogPart] = []
        for partition in sorted(ends):
            if begin.get(partition) == ends[partition]:
                continue
            if partition not in entries:
                self._lose(f"the partition is gone. partition={partition}")
                continue
            view = logs.look(entries[partition])
            first = begin.get(partition, view.log_start)
            if self._options.fails_on_loss:
                check_within(view, "offset", first)
                check_within(view, "offset", ends[partition])
            parts += self._parts(logs, view, first, ends[partition])
        return [InputPartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the record batches of one task."""
        if partition.value is None:
            return iter(())
        return read_part(partition.value, self._names, self._options.memory_bytes)

    def _parts(self, logs: Logs, view: LogView, first: int, end: int) -> Iterator[LogPart]:
        if not self._options.is_committed:
            view = replace(view, aborted=())
        wanted = self._options.wanted.between(max(first, view.log_start), end)
        for split in plan_splits(view, wanted, split_bytes=self._options.split_bytes):
            yield LogPart(split, files=logs.recipe)

    def _look(self) -> list[LogView]:
        logs = Logs(self._options)
        return [logs.look(entry) for entry in logs.entries]

    def _ends(self, views: Sequence[LogView]) -> Position:
        committed, replicated = self._options.is_committed, self._options.is_replicated
        return {v.partition: v.end_for(committed=committed, replicated=replicated) for v in views}

    def _lose(self, what: str) -> None:
        if self._options.fails_on_loss:
            raise InvalidError(
                f"{what} Set failOnDataLoss=false to go on without it. path={self._options.path}"
            )


def _limited(starts: Position, ends: Position, count: int) -> Position:
    """Return ends that are together at most ``count`` offsets above the starts.

    Every partition gets an equal share, and what one does not need goes to the others; at least
    one offset is given while there is any.
    """
    limited = dict(starts)
    waiting = [p for p in sorted(ends) if ends[p] > starts[p]]
    while waiting and count > 0:
        share = max(1, count // len(waiting))
        for partition in waiting:
            step = min(share, ends[partition] - limited[partition], count)
            limited[partition] += step
            count -= step
        waiting = [p for p in waiting if ends[p] > limited[p]]
    return limited


def _position(document: Mapping[str, Any]) -> Position:
    text = str(document)
    return parse_offsets(document, "offset", text, "remove the checkpoint to begin anew")


def _document(position: Position) -> dict[str, Any]:
    document: dict[str, dict[str, int]] = {}
    for partition in sorted(position):
        offsets = document.setdefault(partition.topic, {})
        offsets[str(partition.partition)] = position[partition]
    return document
