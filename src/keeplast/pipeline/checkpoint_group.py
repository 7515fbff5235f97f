"""A consumer group's committed offsets as a checkpoint: the state that its members had read.

The offsets are those in the data directory's own ``__consumer_offsets``, whichever topics of it a
query chooses, or those that brokers tell. What the group has committed nothing for is in no such
state. A group that reads several topics commits them one by one: where they must fit each other,
they do as far as the group's own commits do.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from keeplast.clock import SystemClock
from keeplast.model.partition import TopicPartition
from keeplast.model.reader_wait import GroupReader
from keeplast.pipeline.log_parts import Logs
from keeplast.pipeline.offset_options import LATEST, Offsets
from keeplast.pipeline.partition_choice import topics_named
from keeplast.pipeline.source_options import SourceOptions
from keeplast.read.group_point import GroupPoint
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
    option's ``name``; RefusedError as :class:`~keeplast.read.group_point.GroupPoint` says. With
    ``brokers`` they tell it, in the place of files.
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

    With ``brokers`` they tell it, in the place of files. Where they choose no topics, those are
    read of which the group has committed anything.
    InvalidError where it has for none, and where a partition that is chosen has no offset.
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
