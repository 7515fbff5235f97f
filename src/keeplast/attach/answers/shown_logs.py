"""Attached partitions as one data directory that is only read, and from where on states are told.

What brokers serve of a partition is one log, each segment up to where the next one serves. What is
with the brokers alone, behind the remote tier's end, is not in it, and that is said. The rules:

1. **A hole is an error**: a state without some records is no state.
2. Raw segments lose nothing. What swaps took, the decision log says, of each the end of its round;
   where it does not know of a compacted segment that brokers serve, or where a round was to end,
   as of one by an earlier version, only the end of the remote tier can be told.
3. What a new leader has copied over an output does not give back what was removed in front of it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator

from keeplast.attach.held.kept_folds import fold_known
from keeplast.attach.held.outputs import OutputMark
from keeplast.attach.rounds.attached_files import ROOT, AttachedRecipe, attached_path
from keeplast.attach.rounds.attached_place import NOBODY
from keeplast.attach.rounds.round import read_lineage
from keeplast.attach.rounds.seams import measure_sources
from keeplast.attach.rules.effective_log import EffectiveLog, effective_log, synthetic_lineage
from keeplast.attach.rules.sources import Source, Sources, newest_whole
from keeplast.cleaner.reasons import SourcesEnd, SourcesLimit
from keeplast.clock import Clock
from keeplast.cluster.facts import ClusterFacts, OffsetRange, TopicFacts
from keeplast.cluster.layouts.layout import RemoteLayout
from keeplast.cluster.live_cluster import MetadataReader
from keeplast.cluster.metadata_cache import ClusterCache, PartitionCache
from keeplast.cluster.status import is_compactors, name_of
from keeplast.errors import (
    CompactionError,
    ConflictError,
    CorruptError,
    InvalidError,
    RefusedError,
)
from keeplast.format.identifier import encode_id
from keeplast.format.remote_log_metadata import RemoteLogSegment, TopicIdPartition
from keeplast.log.files import FilesRecipe
from keeplast.model.partition import TopicPartition
from keeplast.model.redaction import shown_url
from keeplast.tier.metadata.database import is_missing, open_database
from keeplast.tier.metadata.decisions import DecisionLog
from keeplast.tier.objects.log_directory import EmptyLogRecipe, LogDirectoryRecipe, ShownLog
from keeplast.tier.state.attached import Attached, AttachedName


def told_from(
    cache: PartitionCache, log: DecisionLog | None, known: Attached | None, *, log_start: int
) -> int:
    """Return the offset as of which, and of every later one, a state can be told.

    As far as the decision ``log`` says, whose row of the partition is ``known``; None is nothing.
    At most the end of what brokers serve.
    """
    served = [each.segment for each in cache.served()]
    end = max((each.end_offset + 1 for each in served), default=log_start)
    compacted = {each.id.segment_id for each in served if is_compactors(each)}
    if log is None or known is None:
        return max(end, log_start) if compacted else log_start
    is_told = known.cleaned_for or not log.decisions(known)
    if compacted and (
        not is_told or compacted - {each.segment_id for each in log.own_segments(known)}
    ):
        return max(end, log_start)
    return max(log_start, min(max(known.cleaned_to, known.cleaned_for), end))


def shown_log(
    layout: RemoteLayout,
    partition: TopicIdPartition,
    ends: OffsetRange,
    cache: PartitionCache,
    log: DecisionLog | None,
    known: Attached | None,
) -> ShownLog:
    """Return what brokers serve of a partition as a reader's directory has it: it may be nothing.

    ``ends`` are the whole log's, read behind the metadata topic. RefusedError for what cannot be
    read as one log: holes, and segments that lie across where another one serves; ConflictError
    when an object is missing.
    """
    name = TopicPartition(partition.topic, partition.partition)
    try:
        newest = newest_whole(cache)
        lineage = synthetic_lineage(cache) if newest is None else read_lineage(layout, newest)
        effective = effective_log(cache, lineage, ends.start)
        sources = _sources_of(layout, name, effective)
    except FileNotFoundError as error:
        raise ConflictError(
            "an object of a segment that brokers serve is missing; ask again, and if it stays so, "
            f"keeplast verify. partition={name} object={error.filename}"
        ) from error
    end = sources[-1].end_offset + 1 if sources else ends.start
    behind = ""
    if end < ends.end:
        behind = (
            f"offsets {end} to {ends.end - 1} are with the brokers alone, not in the remote tier"
        )
    files: FilesRecipe = EmptyLogRecipe(attached_path(partition), ends.start)
    if sources:
        files = AttachedRecipe(layout, sources, OutputMark(NOBODY, 0), shows_snapshots=True)
    return ShownLog(
        partition=name,
        files=files,
        log_start=ends.start,
        told_from=told_from(cache, log, known, log_start=ends.start),
        topic_id=partition.topic_id, lineage=tuple(lineage), behind=behind,
    )  # fmt: skip


def find_shown_logs(
    cluster: MetadataReader,
    facts: ClusterFacts,
    known: ClusterCache,
    log: DecisionLog | None,
    layout: RemoteLayout,
    wants: Callable[[TopicPartition], bool],
    where: str,
) -> LogDirectoryRecipe:
    """Return the topics of ``facts`` as a directory, with the logs that somebody ``wants``.

    ``known`` is the fold of the metadata topic, ``where`` says in messages what is read. Errors as
    for :func:`shown_log`.
    """
    logs: list[ShownLog] = []
    others: list[TopicPartition] = []
    for topic in facts.topics:
        for number, ends in enumerate(cluster.read_ranges(topic)):
            name = name_of(topic, number)
            cache = known.partitions.get(name, PartitionCache())
            partition = TopicPartition(topic.name, number)
            if not wants(partition):
                others.append(partition)
            else:
                held = None if log is None else log.find(AttachedName(facts.cluster_id, name))
                logs.append(shown_log(layout, name, ends, cache, log, held))
    return LogDirectoryRecipe(ROOT, tuple(logs), tuple(others), where)


def find_shown_topics(
    cluster: MetadataReader,
    facts: ClusterFacts,
    log: DecisionLog | None,
    layout: RemoteLayout,
    wants: Callable[[TopicPartition], bool],
    where: str,
    progressed: Callable[[int], object] = lambda count: None,
) -> LogDirectoryRecipe:
    """Return the same by the cluster's metadata topic, which is read to its present end.

    ``progressed`` hears how many of its offsets were passed. RefusedError for a topic that is not
    tiered, and where the metadata topic is not what brokers would accept.
    """
    if facts.metadata_topic is None:
        raise RefusedError("nothing was ever copied to a remote tier here")
    folded = fold_known(cluster, facts, facts.metadata_topic, log, progressed)
    folded.require_sound()
    for topic in facts.topics:
        _require_tiered(topic, folded.cache)
    return find_shown_logs(cluster, facts, folded.cache, log, layout, wants, where)


@contextlib.contextmanager
def decision_log_at(
    store: str | None, clock: Clock, *, only_looks: bool = True, makes: bool = False
) -> Iterator[DecisionLog | None]:
    """Open a decision log, None without a URL; InvalidError for one that is missing.

    With ``makes`` a missing one is made.
    """
    if store is None:
        yield None
        return
    if is_missing(store) and not makes:
        raise InvalidError(f"there is no such decision log. store={shown_url(store)}")
    log = DecisionLog(open_database(store, only_looks=only_looks), clock)
    try:
        yield log
    finally:
        log.close()


@contextlib.contextmanager
def naming_segments(logs: LogDirectoryRecipe) -> Iterator[None]:
    """Let errors of who reads ``logs`` name segments, and not files that nobody else can see."""
    try:
        yield
    except CorruptError as error:
        path = None if error.path is None else _named(logs, f"path={error.path}")[5:]
        if path == error.path:
            raise
        raise CorruptError(
            error.problem, path=path, position=error.position, expected=error.expected,
            found=error.found,
        ) from error  # fmt: skip
    except CompactionError as error:
        text = _named(logs, str(error))
        if text == str(error):
            raise
        raise type(error)(text) from error


def _named(logs: LogDirectoryRecipe, text: str) -> str:
    """Return ``text`` with what stands behind the paths of ``logs`` in their place."""
    sources = {
        (str(each.partition), source.start_offset): source
        for each in logs.logs
        if isinstance(each.files, AttachedRecipe)
        for source in each.files.sources
    }

    def words(found: re.Match[str]) -> str:
        source = sources.get((found[1], int(found[2]))) if found[2] else None
        if source is None:
            return f"path=the remote tier of {found[1]}"
        ids = ",".join(encode_id(each.id.segment_id) for each in source.parts)
        return (
            f"path=the remote tier of {found[1]} segment={ids} "
            f"offsets={source.start_offset}..{source.end_offset}"
        )

    return re.sub(rf"path={ROOT}/([^/\s]+)(?:/([0-9]{{20}})[.a-z]*)?(?=\s|$)", words, text)


def _require_tiered(topic: TopicFacts, known: ClusterCache) -> None:
    """Raise RefusedError for a topic of which nobody will ever find anything in the remote tier."""
    names = [name_of(topic, number) for number in range(topic.partition_count)]
    was_copied = any(
        known.partitions[each].segment_count for each in names if each in known.partitions
    )
    if not topic.is_tiered and not was_copied:
        raise RefusedError(
            "the topic is not tiered: brokers alone have it, and its state is in their data "
            f"directories; export one of those. topic={topic.name}"
        )


def _sources_of(
    layout: RemoteLayout, partition: TopicPartition, effective: EffectiveLog
) -> tuple[Source, ...]:
    """Return the ranges as files; those of which each lies over the end of the last are one."""
    if effective.holes:
        first, last = effective.holes[0]
        raise RefusedError(
            f"nothing in the remote tier serves offsets {first} to {last}, so that no state can be "
            f"told; see keeplast attach status. partition={partition}"
        )
    found: list[Source] = []
    parts: list[RemoteLogSegment] = []
    for number, each in enumerate(effective.ranges):
        is_cut = each.end < each.segment.end_offset
        is_last = number + 1 == len(effective.ranges)
        if (number and each.start != each.segment.start_offset) or (is_cut and is_last):
            raise RefusedError(
                "brokers serve a part of a segment that another one lies over, so that no state "
                f"can be told from here; see keeplast attach status. partition={partition} "
                f"offset={each.start}"
            )
        parts.append(each.segment)
        if not is_cut:
            found.append(Source(tuple(parts), tuple(part.size_bytes for part in parts)))
            parts = []
    end = found[-1].end_offset + 1 if found else 0
    measured = measure_sources(
        layout, Sources(tuple(found), end, SourcesLimit(end, SourcesEnd.HOLE))
    )
    if len(measured.segments) < len(found):
        raise RefusedError(
            "a batch lies on both sides of where the next segment serves, so that no state can be "
            f"told from here. partition={partition} offset={measured.end}"
        )
    return measured.segments
