"""Attached partitions as one data directory that is only read, and their holds.

What brokers serve of a partition is one log, each segment up to where the next one serves. Records
that only the brokers have, above the remote tier's end, are not in it, and that is said. The rules:

1. **A hole is an error**: a state without some records is no state.
2. Raw segments lose nothing. For each swap the decision log says where its round ended. It may not
   know a compacted segment that brokers serve, or the end of its round, as for one by an earlier
   version. Then only the state as of the remote tier's end can be read.
3. A new leader's copy over an output does not give back the records removed below it.

Attached topics have holds, and tiered ones that may be attached later. The point of a hold comes
from the log in the remote tier, which is read as a directory is. Or, as of now, it comes from the
brokers: the decided part ends there. The rule: **a finding counts only when nothing was decided
since**. The row that the hold is added after shows that. A hold claims nothing, fences nothing, and
attaches no topic.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from tempfile import TemporaryDirectory
from typing import Protocol

from keeplast.attach.answers.explain import served_there
from keeplast.attach.held.metadata_view import (
    AttachTerms,
    KeptFolds,
    MetadataView,
    fold_known,
    look,
)
from keeplast.attach.held.outputs import OutputMark
from keeplast.attach.held.ownership import OwnerObject
from keeplast.attach.held.publication import require_own
from keeplast.attach.rounds.attached_files import ROOT, AttachedRecipe, attached_path
from keeplast.attach.rounds.attached_place import UNANNOUNCED
from keeplast.attach.rounds.missing_aborts import measure_sources
from keeplast.attach.rounds.round import read_lineage, sources_of
from keeplast.attach.rules.sources import (
    EffectiveLog,
    Source,
    Sources,
    effective_log,
    newest_whole,
    synthetic_lineage,
)
from keeplast.cleaner.reasons import SourcesEnd, SourcesLimit
from keeplast.clock import Clock
from keeplast.cluster.layouts.layout import RemoteLayout
from keeplast.cluster.live_cluster import (
    ClusterFacts,
    LiveCluster,
    MetadataReader,
    OffsetRange,
    TopicFacts,
)
from keeplast.cluster.metadata_cache import ClusterCache, PartitionCache, is_compactors, name_of
from keeplast.errors import (
    CompactionError,
    ConflictError,
    CorruptError,
    InvalidError,
    RefusedError,
    retry_on,
)
from keeplast.format.identifier import encode_id
from keeplast.format.remote_log_metadata import RemoteLogSegment, TopicIdPartition
from keeplast.log.data_directory import PartitionEntry
from keeplast.log.files import FilesRecipe
from keeplast.model.hold import Hold, HoldPoint, KeptPoint
from keeplast.model.partition import TopicPartition
from keeplast.model.text import shown_url
from keeplast.read.held_point import decided_end, keep_end, keep_point, require_offset
from keeplast.run.holds import check_hold, look_at_entry
from keeplast.tier.metadata.database import is_missing, open_database
from keeplast.tier.metadata.decisions import DecisionLog
from keeplast.tier.metadata.hold_rows import AttachedPoint
from keeplast.tier.objects.log_directory import EmptyLogRecipe, LogDirectoryRecipe, ShownLog
from keeplast.tier.state.attached import Attached, AttachedName


def earliest_as_of(
    cache: PartitionCache, log: DecisionLog | None, known: Attached | None, *, log_start: int
) -> int:
    """Return the first offset with a readable state as of it; each later one has such a state too.

    This is as far as the decision ``log`` says, with ``known`` as its row of the partition; None is
    nothing. It is at most the end of what brokers serve.
    """
    served = [each.segment for each in cache.served()]
    end = max((each.end_offset + 1 for each in served), default=log_start)
    compacted = {each.id.segment_id for each in served if is_compactors(each)}
    if log is None or known is None:
        return max(end, log_start) if compacted else log_start
    is_known = known.cleaned_for or not log.decisions(known)
    if compacted and (
        not is_known or compacted - {each.segment_id for each in log.own_segments(known)}
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

    ``ends`` are the whole log's, read after the metadata topic. RefusedError for what cannot be
    read as one log: holes, and segments that lie across where another one serves; ConflictError
    when an object is missing.
    """
    name = TopicPartition(partition.topic, partition.partition)
    with served_there(name):
        newest = newest_whole(cache)
        lineage = synthetic_lineage(cache) if newest is None else read_lineage(layout, newest)
        sources = _sources_of(layout, name, effective_log(cache, lineage, ends.start))
    end = sources[-1].end_offset + 1 if sources else ends.start
    behind = (
        f"offsets {end} to {ends.end - 1} are with the brokers alone, not in the remote tier"
        if end < ends.end
        else ""
    )
    files: FilesRecipe = (
        AttachedRecipe(layout, sources, OutputMark(UNANNOUNCED, 0), shows_snapshots=True)
        if sources
        else EmptyLogRecipe(attached_path(partition), ends.start)
    )
    return ShownLog(
        partition=name,
        files=files,
        log_start=ends.start,
        earliest_as_of=earliest_as_of(cache, log, known, log_start=ends.start),
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
    """Return the topics of ``facts`` as a directory, with the logs that the caller ``wants``.

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
        raise RefusedError(
            "the cluster has no remote tier: nothing was ever copied to one", code="K407"
        )
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

    With ``makes`` a missing one is made. A caller that ``only_looks`` as well has one of its own
    until then, empty as the one that a round would make.
    """
    if store is None:
        yield None
        return
    if is_missing(store) and not makes:
        raise InvalidError(
            "there is no such decision log: the first keeplast clean or run makes it. Correct "
            "decisions, or name only kafka://HOST:PORT to see what brokers serve. "
            f"decisions={shown_url(store)}",
            code="K408",
        )
    imagines = only_looks and is_missing(store)
    with TemporaryDirectory(prefix="keeplast-plan-") as scratch:
        url = f"sqlite:///{scratch}/decisions.db" if imagines else store
        log = DecisionLog(open_database(url, only_looks=only_looks and not imagines), clock)
        try:
            yield log
        finally:
            log.close()


def reading_notes(found: LogDirectoryRecipe, *, has_log: bool) -> Iterator[str]:
    """Yield what is to be said of logs that are read; ``has_log`` says the decision log was."""
    for each in found.logs:
        if each.behind:
            yield f"{each.partition}: {each.behind}"
        if not has_log and each.earliest_as_of > each.log_start:
            yield (
                f"{each.partition}: it was compacted; how far, the decision log says "
                "(--decisions), and without it only the latest state is known"
            )


@contextlib.contextmanager
def naming_segments(logs: LogDirectoryRecipe) -> Iterator[None]:
    """Let errors of a reader of ``logs`` name segments, and not files that only it can see."""
    try:
        yield
    except CorruptError as error:
        path = None if error.path is None else _named(logs, f"path={error.path}")[5:]
        if path == error.path:
            raise
        raise error.placed(path=path) from error
    except CompactionError as error:
        text = _named(logs, str(error))
        if text == str(error):
            raise
        raise type(error)(text, code=error.code) from error


def _named(logs: LogDirectoryRecipe, text: str) -> str:
    """Return ``text`` with the names of segments in place of the paths of ``logs``."""
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
    """Raise RefusedError for a topic that will never have anything in the remote tier."""
    names = [name_of(topic, number) for number in range(topic.partition_count)]
    was_copied = any(
        known.partitions[each].segment_count for each in names if each in known.partitions
    )
    if not topic.is_tiered and not was_copied:
        raise RefusedError(
            "the topic is not tiered: brokers alone have it, and its state is in their data "
            f"directories; export one of those. topic={topic.name}",
            code="K410",
        )


def _sources_of(
    layout: RemoteLayout, partition: TopicPartition, effective: EffectiveLog
) -> tuple[Source, ...]:
    """Return the ranges as files; ranges that each lie over the end of the one before are one
    file.
    """
    if effective.holes:
        first, last = effective.holes[0]
        raise RefusedError(
            f"nothing in the remote tier serves offsets {first} to {last}, so that there is no "
            f"state to give; see keeplast status. partition={partition}",
            code="K152",
        )
    found: list[Source] = []
    parts: list[RemoteLogSegment] = []
    for number, each in enumerate(effective.ranges):
        is_cut = each.end < each.segment.end_offset
        is_last = number + 1 == len(effective.ranges)
        if (number and each.start != each.segment.start_offset) or (is_cut and is_last):
            raise RefusedError(
                "brokers serve a part of a segment that another one lies over, so that no state "
                f"can be given from here; see keeplast status. partition={partition} "
                f"offset={each.start}",
                code="K152",
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
            "a batch lies on both sides of where the next segment serves, so that no state can "
            f"be given from here. partition={partition} offset={measured.end}",
            code="K152",
        )
    return measured.segments


LOOKS_MAX = 3
"""How often logs are looked at again because rounds went on meanwhile."""


class HeldCluster(LiveCluster, Protocol):
    """A cluster that says where what is decided of a topic's partitions ends."""

    def read_stable_ends(self, topic: TopicFacts) -> list[int]:
        """Return the last stable offset of each partition."""


class AttachedHolds:
    """The holds of one cluster in one decision log."""

    def __init__(
        self, cluster: HeldCluster, log: DecisionLog, layout: RemoteLayout, clock: Clock
    ) -> None:
        """Take the components; nothing is read yet."""
        self._cluster = cluster
        self._log = log
        self._layout = layout
        self._clock = clock
        self._folds = KeptFolds(log.folds)

    def add(
        self,
        chosen: Sequence[tuple[AttachedName, AttachTerms]],
        name: str,
        point: HoldPoint,
        max_age_ms: int,
    ) -> tuple[Hold, ...]:
        """Keep rounds of every host from passing ``point``, for ``max_age_ms`` from now; all or
        none.

        InvalidError for an impossible name, age or offset, and for a point above the remote tier's
        end. RefusedError for a topic that may not be attached, or that another decision log
        compacts. Also where the state as of the point can no longer be read, and where the name is
        taken. ConflictError when rounds go on for every look.
        """
        check_hold(name, point, max_age_ms, len(chosen))
        return retry_on(
            ConflictError, LOOKS_MAX,
            lambda: self._log.hold_rows.add_attached(
                [self._find(each, terms, point) for each, terms in chosen], name, max_age_ms
            ),
        )  # fmt: skip

    def _find(self, name: AttachedName, terms: AttachTerms, point: HoldPoint) -> AttachedPoint:
        known = self._log.find(name)
        seen = None if known is None else known.seen
        view = look(self._cluster, name, terms, seen, kept=self._folds)
        view.require_continued()
        self._require_ours(view, known)
        number = name.partition.partition
        # In this order: a transaction that is open at the end begins at or above the decided
        # offsets.
        stable = self._cluster.read_stable_ends(view.topic)[number]
        end = self._cluster.read_ranges(view.topic)[number].end
        kept = (
            KeptPoint(stable, stable)
            if point.is_now and end <= stable  # Nothing is in flight there.
            else self._find_kept(view, known, point, stable, end)
        )
        return AttachedPoint(name, known, view.log.start, view.point, kept)

    def _require_ours(self, view: MetadataView, known: Attached | None) -> None:
        """Raise RefusedError when another decision log, or a newer copy of it, is at work."""
        require_own(view, self._log)
        owner = OwnerObject(self._layout, view.name, self._log.store_id()).read()
        if owner is not None and owner.epoch > (0 if known is None else known.epoch):
            raise RefusedError(
                "the owner object says a later epoch than the decision log. The log is an older "
                f"one; use the newest, which must know of the hold. partition={view.name} "
                f"epoch={owner.epoch}",
                code="K415",
            )

    def _find_kept(
        self, view: MetadataView, known: Attached | None, point: HoldPoint, stable: int, end: int
    ) -> KeptPoint:
        """Return how states are kept, by what rounds may reach of the log.

        A transaction in flight at a later point begins at or above the part decided in it.
        """
        at, log_start = view.name.partition, view.log.start
        partition = TopicPartition(at.topic, at.partition)
        asked = stable if point.is_now else point.offset
        if asked is not None:
            require_offset(partition, asked, log_start=log_start, end=end)
        lineage_of = partial(read_lineage, self._layout)
        sources = measure_sources(
            self._layout,
            sources_of(
                lineage_of, view.cache, log_start, margin_bytes=0, now_ms=self._log.clock.now_ms()
            ),
        )
        if not sources.segments:
            # There is nothing that could be cleaned.
            return KeptPoint(log_start if asked is None else asked, log_start)
        earliest = earliest_as_of(view.cache, self._log, known, log_start=log_start)
        shown = ShownLog(
            partition=partition,
            files=AttachedRecipe(
                self._layout, sources.segments, OutputMark(UNANNOUNCED, 0), shows_snapshots=True
            ),
            log_start=max(log_start, sources.segments[0].start_offset),
            earliest_as_of=min(earliest, sources.end), topic_id=at.topic_id,
            lineage=tuple(lineage_of(sources.segments[-1].newest)),
        )  # fmt: skip
        files = LogDirectoryRecipe(ROOT, (shown,)).open()
        entry = PartitionEntry(partition, attached_path(at), None)
        reached = look_at_entry(entry, files, self._clock)
        if asked is not None and asked >= reached.log_end:
            return KeptPoint(asked, decided_end(reached))
        if point.is_now:
            return keep_end(reached, stable, files, self._clock, is_noted=True)
        return keep_point(reached, point, files, self._clock, is_noted=True)
