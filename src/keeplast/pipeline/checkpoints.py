"""States as of a checkpoint: a group's committed offsets, or those that another topic's record has.

*A group's offsets* are a checkpoint: the state that its members had read. The offsets are those in
the data directory's own ``__consumer_offsets``, whichever topics of it a query chooses, or those
that brokers report. What the group has committed nothing for is in no such state. A group that
reads several topics commits them one by one. Where they must fit each other, they do as far as the
group's own commits do.

*Consistent checkpoints* (KIP-58) are the offsets that a record of another topic names. An
application that writes to several topics writes down, from time to time, up to where all of them
belong together. It is a record whose value is ``{"orders":{"0":120,"1":77},"stock":{"0":301}}``,
offsets exclusive, as everywhere. What is read is committed, so that a producer can write the record
in the transaction that it is about. The last one counts that has a value, or the one at a given
offset. The topic has records in one partition only: those of several have no order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import replace

from msgspec import Struct

from keeplast.clock import SystemClock
from keeplast.errors import InvalidError, RefusedError
from keeplast.model.hold import GroupReader
from keeplast.model.partition import INT64_MAX, TopicPartition
from keeplast.pipeline.arrow_batches import record_batch
from keeplast.pipeline.log_parts import Logs
from keeplast.pipeline.query_options import LATEST, Offsets, parse_offsets, topics_named
from keeplast.pipeline.source_options import SourceOptions
from keeplast.read.log_view import LogView, Split, Wanted
from keeplast.read.points import GroupPoint
from keeplast.read.record_source import read_records
from keeplast.rewrite.workspace import Workspace
from keeplast.survey.wording import absence_words


def read_group_checkpoint(
    options: SourceOptions,
    group: str,
    numbers: Collection[int],
    name: str = "--checkpoint-group",
    brokers: GroupReader | None = None,
) -> dict[TopicPartition, int]:
    """Return what ``group`` has committed for the partitions that ``options`` choose, exclusive.

    Of those the ones with ``numbers``, all without any. InvalidError when that is nothing, with the
    option's ``name``; RefusedError as :class:`~keeplast.read.points.GroupPoint` says. With
    ``brokers`` they report it, in the place of files.
    """
    logs = Logs(options)
    point = GroupPoint(
        logs.directory.root, group, logs.files, SystemClock(), name, brokers, options.where()
    )
    found: dict[TopicPartition, int] = {}
    missing: set[str] = set()
    for entry in logs.entries:
        if numbers and entry.partition.partition not in numbers:
            continue
        each = point.find(entry.partition, entry.path, logs.look(entry).log_end)
        if each.offset is None:
            missing.add(absence_words(each))
        else:
            found[entry.partition] = each.offset
    if not found:
        raise point.nothing(missing)
    return found


def at_group(options: SourceOptions, brokers: GroupReader | None = None) -> SourceOptions:
    """Return the options of a query with its group's offsets in the place of the group.

    With ``brokers`` they report it, in the place of files. Where the options choose no topics,
    those are read that the group has committed anything for. InvalidError where it has for none,
    and where a partition that is chosen has no offset.
    """
    group = options.ending_group
    if group is None:
        return options
    found = read_group_checkpoint(options, group, (), "endingGroup", brokers)
    choice = options.choice
    if choice.chooses is None:
        choice = topics_named({each.topic for each in found})
    ending = Offsets(LATEST, found)
    chosen = replace(options, choice=choice, ending=ending, ending_group=None)
    ending.require_named(Logs(chosen).entries, chosen.where())
    return chosen


NAME = "--checkpoint"
VALUE_SHOWN_MAX = 200


class Checkpoint(Struct, frozen=True):
    """The offsets, exclusive, that the record at ``offset`` of ``partition`` names."""

    partition: TopicPartition
    offset: int
    offsets: dict[TopicPartition, int]


def split_checkpoint(text: str) -> tuple[str, int | None]:
    """Return the topic, and the offset if one is given, of ``TOPIC`` or ``TOPIC@OFFSET``."""
    found = re.fullmatch(r"([a-zA-Z0-9._-]{1,249})(?:@([0-9]{1,19}))?", text)
    if found is None or int(found[2] or 0) > INT64_MAX:
        raise InvalidError(
            f"not a topic; give TOPIC, or TOPIC@OFFSET for another record than the last. "
            f"{NAME}={text!r}",
            code="K155",
        )
    return found[1], None if found[2] is None else int(found[2])


def read_checkpoint(options: SourceOptions, offset: int | None) -> Checkpoint:
    """Return the last checkpoint in the one topic that ``options`` choose, or that at ``offset``.

    InvalidError when there is none there, or its value is no document of offsets; RefusedError when
    several partitions have records.
    """
    logs = Logs(options)
    found: list[tuple[TopicPartition, int, bytes]] = []
    for entry in logs.entries:
        view = logs.look(entry)
        last = _find_record(view, logs, options, offset)
        if last is not None:
            found.append((view.partition, *last))
    if not found:
        where = "" if offset is None else f" offset={offset}"
        raise InvalidError(
            f"the topic has no committed record with a value there, so no checkpoint. "
            f"topic={logs.entries[0].partition.topic}{where} {options.where()}",
            code="K155",
        )
    if len(found) > 1:
        raise RefusedError(
            "several partitions of the topic have checkpoints, and which is the last is not known; "
            "give such a topic one partition. partitions="
            f"{','.join(str(partition) for partition, _, _ in found)} {options.where()}",
            code="K155",
        )
    ((partition, at, value),) = found
    return Checkpoint(partition, at, _offsets(partition, at, value))


def _find_record(
    view: LogView, logs: Logs, options: SourceOptions, offset: int | None
) -> tuple[int, bytes] | None:
    """Return offset and value of the last committed record that has one; the newest first."""
    end = logs.latest_of(view)
    if offset is not None:
        ranges = [Wanted(max(offset, view.log_start), min(offset + 1, end))]
    else:
        bases = [max(segment.base_offset, view.log_start) for segment in view.segments]
        ends = [*bases[1:], end]
        ranges = [Wanted(a, min(b, end)) for a, b in zip(bases, ends, strict=True)]
    for wanted in reversed(ranges):
        if wanted.first_offset >= wanted.end_offset:
            continue
        split = Split(view.partition, view.path, wanted, 0)
        last = None
        for columns in read_records(
            split, logs.files, SystemClock(), Workspace(options.memory_bytes)
        ):
            batch = record_batch(columns, view.partition, ("offset", "value"))
            for row in reversed(range(batch.num_rows)):
                if batch.column("value")[row].is_valid:
                    last = batch.column("offset")[row].as_py(), batch.column("value")[row].as_py()
                    break
        if last is not None:
            return last
    return None


def _offsets(partition: TopicPartition, at: int, value: bytes) -> dict[TopicPartition, int]:
    where = f"{NAME} {partition} offset={at} value"
    text = value[:VALUE_SHOWN_MAX].decode("utf-8", "replace")
    remedy = 'a checkpoint is {"topic":{"0":23}}, offsets from 0 on'
    try:
        document = json.loads(value)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise InvalidError(f"not understood; {remedy}. {where}={text!r}", code="K155")
    found = parse_offsets(document, where, text, remedy)
    if not found or min(found.values()) < 0:
        raise InvalidError(f"names no point; {remedy}. {where}={text!r}", code="K155")
    return found
