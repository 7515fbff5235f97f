"""A consumer group's committed offsets as a checkpoint: the state that its members had read.

The offsets are those in the data directory's own ``__consumer_offsets``, whichever topics of it a
query chooses. What the group has committed nothing for is in no such state. A group that reads
several topics commits them one by one: where they must fit each other, they do as far as the
group's own commits do.
"""

from __future__ import annotations

from collections.abc import Collection

from keeplast.clock import SystemClock
from keeplast.errors import InvalidError, RefusedError
from keeplast.format.consumer_offsets import group_name
from keeplast.log.topic_id import read_topic_id
from keeplast.model.partition import TopicPartition
from keeplast.model.reader_wait import Absence
from keeplast.pipeline.log_parts import Logs
from keeplast.pipeline.source_options import SourceOptions
from keeplast.survey.group_offsets import GroupOffsets, waited_group
from keeplast.survey.log_bounds import load_checkpoints
from keeplast.survey.wording import absence_words

NAME = "--checkpoint-group"


def read_group_checkpoint(
    options: SourceOptions, group: str, numbers: Collection[int]
) -> dict[TopicPartition, int]:
    """Return what ``group`` has committed for the partitions that ``options`` choose, exclusive.

    Of those the ones with ``numbers``, all without any. InvalidError when that is nothing;
    RefusedError for an offset of a topic that was deleted, one beyond the log end, and one that is
    not understood.
    """
    group_name(group)
    logs = Logs(options)
    root = logs.directory.root
    watermarks = load_checkpoints(logs.files, root).high_watermark
    offsets = GroupOffsets(logs.files).of(root, [group], watermarks, SystemClock().now_ms())
    found: dict[TopicPartition, int] = {}
    missing: set[str] = set()
    for entry in logs.entries:
        if numbers and entry.partition.partition not in numbers:
            continue
        topic_id = read_topic_id(entry.path, logs.files)
        log_end = logs.look(entry).log_end
        each = waited_group(group, entry.partition, offsets, topic_id, log_end)
        if each.offset is not None:
            found[entry.partition] = each.offset
            continue
        words = absence_words(each)
        if each.absence in (Absence.NOT_COMMITTED, Absence.NOT_HERE):
            missing.add(words)
        else:
            raise RefusedError(
                f"the group's offsets make no checkpoint: it {words}; leave the partition out, or "
                f"give --ending-offsets. {NAME}={group!r} partition={entry.partition} "
                f"path={root}"
            )
    if not found:
        raise InvalidError(
            "the group has no committed offset for what was chosen: it "
            f"{'; '.join(sorted(missing)) or 'was asked for no partition'}. {NAME}={group!r} "
            f"path={root}"
        )
    return found
