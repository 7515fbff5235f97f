"""Whether a topic that is read is there as a whole: every partition that the metadata log knows.

A directory is one of a broker's several ``log.dirs``, or one broker's share of a cluster, more
often than not. The rule: **a part of a topic never passes for the topic.** Who names partitions
gets those; who names topics, or nothing, gets all partitions of each topic of which one is there,
or an error that names the others, unless told to take what is there.

Without a metadata log nobody knows how many there are. A store, and what is shown of a live
cluster, say themselves which partitions they have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from keeplast.errors import RefusedError
from keeplast.log.data_directory import PartitionEntry
from keeplast.model.partition import TopicPartition
from keeplast.pipeline.log_parts import Logs
from keeplast.pipeline.source_options import SourceOptions

KnownPartitions = Callable[[Logs], Mapping[str, frozenset[int]]]
"""Which partitions a topic has, as far as the place of some logs says; none of other topics."""
NAMES_SHOWN_MAX = 20


def nothing_known(logs: Logs) -> Mapping[str, frozenset[int]]:
    """Know of no topic how many partitions it has."""
    return {}


def require_whole_topics(
    logs: Logs, options: SourceOptions, entries: Sequence[PartitionEntry], known: KnownPartitions
) -> None:
    """Raise RefusedError when a topic of ``entries``, which are read, has more partitions.

    Not for who names partitions, or accepts a part of a topic.
    """
    if options.takes_partial or options.choice.assigned or logs.directory.is_single:
        return
    here = {entry.partition for entry in entries}
    numbers = known(logs)
    missing = [
        TopicPartition(topic, number)
        for topic in sorted({partition.topic for partition in here})
        for number in sorted(numbers.get(topic, frozenset()))
        if TopicPartition(topic, number) not in here
    ]
    if missing:
        more = len(missing) - NAMES_SHOWN_MAX
        shown = ",".join(map(str, missing[:NAMES_SHOWN_MAX])) + (f" and {more} more" * (more > 0))
        raise RefusedError(
            "partitions of the topic are not here, by the directory's metadata log; give all "
            "directories of the broker, or of several brokers, as one place, or take what is here: "
            f"partialTopics=true in a query, --partial-topics in a command. missing={shown} "
            f"{options.where()}"
        )
