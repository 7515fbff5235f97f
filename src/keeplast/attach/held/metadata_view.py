"""What a live cluster says at one moment of one partition, and whether it may be acted upon.

The rule: **a view is read to the partition's end under one leader epoch**, and of a metadata topic
that goes on from what was seen before. A topic is another one when it is shorter, was created
again, or has another record where one was seen. It was then restored, cloned, or cut by an unclean
leader. Where an earlier fold was kept and fits, only new records are read, and those that are asked
for.

A kept fold is the newest here, each in a store. The second rule: **a kept fold was read from a
topic that was accepted**, and no caller takes it as true. A caller that goes on from it first
compares the topic with its point. When a fold is wrong, :meth:`KeptFolds.refute` says so once, and
the next kept fold takes its place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from msgspec import Struct, field

from keeplast.attach.rules.swap import Batch
from keeplast.cluster.check import Severity, check_cluster, check_topic
from keeplast.cluster.live_cluster import (
    METADATA_TOPIC,
    BrokerFacts,
    ClusterFacts,
    LiveCluster,
    MetadataEnd,
    MetadataReader,
    MetadataValue,
    OffsetRange,
    TopicFacts,
)
from keeplast.cluster.metadata_cache import PartitionCache, is_compactors
from keeplast.cluster.metadata_log import (
    FoldCheckpoint,
    FoldedMetadata,
    FoldPoint,
    decode_checkpoint,
    digest_of,
    encode_checkpoint,
    fold_metadata,
    fold_values,
    partitions_of,
    require_beginning,
)
from keeplast.errors import ConflictError, CorruptError, RefusedError, UnavailableError
from keeplast.format.identifier import encode_id, metadata_partition
from keeplast.format.remote_log_metadata import RemoteLogSegmentState
from keeplast.tier.metadata.decisions import DecisionLog
from keeplast.tier.metadata.facts import FoldRows
from keeplast.tier.state.attached import AttachedName, MetadataPoint, epoch_of_mark

WRITTEN_RECORDS_MIN = 500
"""So few records are read again in no time."""
RECORDS_A_SEGMENT = 4
"""To read a record takes longer than to write a segment, and a fold writes all of its segments each
time.
"""


class KeptFolds:
    """The folds that a decision log keeps, for one thread. One of them is in memory, as it is."""

    def __init__(self, rows: FoldRows) -> None:
        """Read nothing yet."""
        self._rows = rows
        self._newest: FoldCheckpoint | None = None
        self._stored: dict[tuple[str, int], int] = {}
        self._refuted: set[tuple[str, int]] = set()

    def find(self, cluster_id: str, partition: int) -> FoldCheckpoint | None:
        """Return what was kept of a partition of the metadata topic, whichever that topic was.

        A fold that is damaged, or was kept by other rules, counts as absent.
        """
        known = self._newest
        if known is not None and _key(known) == (cluster_id, partition):
            return known
        if (cluster_id, partition) in self._refuted:
            return None
        data = self._rows.read(cluster_id, partition)
        if data is None:
            return None
        try:
            found = decode_checkpoint(data)
        except CorruptError:
            return None
        if _key(found) != (cluster_id, partition):
            return None
        self._newest = found
        self._stored[cluster_id, partition] = found.record_count
        return found

    def refute(self, cluster_id: str, partition: int) -> None:
        """Forget a fold that the metadata topic does not go on from."""
        self._refuted.add((cluster_id, partition))
        self._stored.pop((cluster_id, partition), None)
        if self._newest is not None and _key(self._newest) == (cluster_id, partition):
            self._newest = None

    def keep(self, checkpoint: FoldCheckpoint) -> None:
        """Keep a fold of a topic that was accepted; written when that is worth it."""
        key = _key(checkpoint)
        self._newest = checkpoint
        new = checkpoint.record_count - self._stored.get(key, 0)
        is_worth = new >= WRITTEN_RECORDS_MIN
        is_worth &= new * RECORDS_A_SEGMENT >= checkpoint.segment_count
        if is_worth or key in self._refuted:
            data = encode_checkpoint(checkpoint) if is_worth else None
            self._rows.write(*key, data)
            self._stored[key] = checkpoint.record_count if data is not None else 0
            self._refuted.discard(key)


def _key(checkpoint: FoldCheckpoint) -> tuple[str, int]:
    return checkpoint.point.cluster_id, checkpoint.point.partition


def fold_known(
    client: MetadataReader,
    facts: ClusterFacts,
    metadata_topic: TopicFacts,
    log: DecisionLog | None,
    progressed: Callable[[int], object] = lambda count: None,
) -> FoldedMetadata:
    """Return what brokers know of the topics of ``facts``; what ``log`` keeps is not read again."""

    def kept(partition: int) -> FoldCheckpoint | None:
        return None if log is None else KeptFolds(log.folds).find(facts.cluster_id, partition)

    return fold_metadata(
        client, metadata_topic, partitions_of(facts.topics, metadata_topic), progressed, kept
    )


_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
LOOKS_MAX = 3
"""How often a view is read again because the leader changed meanwhile."""
GAP_MAX = 5_000
"""So many records between two that are asked for are read with them: that is faster than to ask."""


class AttachTerms(Struct, frozen=True):
    """What keeplast is asked to do with a topic, and how the cluster is called in remedies.

    A swap that is decided on these terms keeps its sources for ``keep_sources_ms`` at least.
    """

    policy: frozenset[str] = frozenset({"compact"})
    address: str = "HOST:PORT"
    keep_sources_ms: int = 0


class MetadataView(Struct):
    """One look; ``end`` is that of the metadata partition."""

    topic: TopicFacts
    brokers: tuple[BrokerFacts, ...]
    metadata_topic: TopicFacts
    metadata_partition: int
    end: MetadataEnd
    folded: FoldedMetadata
    name: AttachedName
    log: OffsetRange = field(default_factory=lambda: OffsetRange(0, 0))
    """The range of the log's leader, read after the metadata: brokers move the log start first, and
    then say what goes. The other way round that would look like a hole.
    """
    digest: str = ""
    record_epoch: int = -1
    is_continued: bool = True
    """Whether what was seen before is still there."""
    places: dict[bytes, list[int]] = field(default_factory=dict)
    """Where values that were looked for lie, ascending."""

    @property
    def cache(self) -> PartitionCache:
        """Return what brokers know of the partition."""
        return self.folded.cache.partitions.setdefault(self.name.partition, PartitionCache())

    @property
    def point(self) -> MetadataPoint:
        """Return how far was seen."""
        return MetadataPoint(
            topic_id=self.metadata_topic.topic_id,
            partition_count=self.metadata_topic.partition_count, offset=self.end.offset,
            leader_epoch=self.end.leader_epoch, digest=self.digest,
        )  # fmt: skip

    def checkpoint(self) -> FoldCheckpoint | None:
        """Return the fold for a later look to go on from, None while there is no record."""
        if self.folded.faults or not self.digest:
            return None
        point = FoldPoint(
            cluster_id=self.name.cluster_id, topic_id=self.metadata_topic.topic_id,
            partition_count=self.metadata_topic.partition_count,
            partition=self.metadata_partition, offset=self.end.offset,
            leader_epoch=self.end.leader_epoch, record_epoch=self.record_epoch,
            digest=self.digest,
        )  # fmt: skip
        return FoldCheckpoint(point, self.folded.cache.copy(), self.folded.record_count)

    def find(self, batch: Batch) -> OffsetRange | None:
        """Return where ``batch``, which was looked for, lies in one piece; None when nowhere."""
        first, *rest = batch.values
        for start in self.places.get(first, ()):
            if all(
                start + at in self.places.get(value, ()) for at, value in enumerate(rest, start=1)
            ):
                return OffsetRange(start, start + len(batch.values))
        return None

    def require_continued(self) -> None:
        """Raise RefusedError when the metadata topic is another one than was seen before."""
        if not self.is_continued:
            raise RefusedError(
                f"{METADATA_TOPIC} is not the one that was seen before, or has lost its end: it "
                "was restored, cloned or cut. Nothing is decided or deleted until somebody has "
                "looked, and says keeplast repair --accept-metadata. Where brokers were cut "
                "off just now, an older leader may have answered: try again first. "
                f"partition={self.metadata_partition} end={self.end.offset}",
                code="K413",
            )

    def require_own(
        self, known: Iterable[bytes], epoch: int, undecided: Collection[bytes] = ()
    ) -> None:
        """Raise RefusedError for a segment with a compactor's mark that is not among ``known``.

        ``epoch`` is the newest of the decision log. The log knows of ``undecided`` ids that they
        were given out, and has no decision with them: none of them may be live.
        """
        ids = set(known)
        marked = [each for each in self.cache.segments if is_compactors(each)]
        for each in marked:
            is_lost = each.state is _FINISHED and each.id.segment_id in undecided
            is_later = epoch_of_mark(each.broker_id) > epoch
            if each.id.segment_id not in ids or is_lost or is_later:
                raise RefusedError(
                    "a compactor announced a segment that this decision log does not know: "
                    "another one works here, or this log is an older one. Use the one that "
                    "has it (--decisions), or its newest backup; if that is lost, keeplast repair "
                    f"--rebuild. partition={self.name} segment={encode_id(each.id.segment_id)} "
                    f"mark={each.broker_id}",
                    code="K415",
                )


def look(
    cluster: LiveCluster,
    name: AttachedName,
    terms: AttachTerms,
    seen: MetadataPoint | None = None,
    batches: Sequence[Batch] = (),
    kept: KeptFolds | None = None,
) -> MetadataView:
    """Look again; ``batches`` are looked for, and ``kept`` folds are gone on from where they fit.

    RefusedError when a rule of :mod:`keeplast.cluster.check` refuses, the cluster or the topic is
    another one, or the metadata topic cannot be followed. A kept fold shows, as ``seen`` does, that
    the metadata topic is another one when it does not go on from there. For a caller without
    ``seen`` the fold shows nothing.
    """
    for left in reversed(range(LOOKS_MAX)):
        view = _begin(cluster, name, terms, seen)
        base = None if kept is None else kept.find(name.cluster_id, view.metadata_partition)
        try:
            if base is not None and not _go_on(cluster, view, base, seen, batches):
                assert kept is not None
                kept.refute(name.cluster_id, view.metadata_partition)
                view = _begin(cluster, name, terms, seen)
                view.is_continued &= seen is None
                base = None
            if base is None:
                _read(cluster, view, [OffsetRange(0, view.end.offset)], seen, batches)
            view.log = _read_log(cluster, view)
            _require_leader(cluster, view)
        except ConflictError:
            if not left:
                raise
            continue
        view.folded.require_sound()
        return view
    raise AssertionError("unreachable")


def look_further(cluster: LiveCluster, view: MetadataView, batches: Sequence[Batch]) -> None:
    """Read what was appended since ``view`` was read, and fold it on; errors as :func:`look`."""
    start = view.end.offset
    found = cluster.read_end(view.metadata_partition)
    if found.offset < start or found.leader_epoch < view.end.leader_epoch:
        raise UnavailableError(
            f"a leader of {METADATA_TOPIC} has less than the one before; look again. "
            f"partition={view.metadata_partition} end={found.offset} before={start}",
            code="K413",
        )
    view.end = found
    _read(cluster, view, [OffsetRange(start, found.offset)], None, batches)
    view.log = _read_log(cluster, view)
    _require_leader(cluster, view)
    view.folded.require_sound()


def _begin(
    cluster: LiveCluster, name: AttachedName, terms: AttachTerms, seen: MetadataPoint | None
) -> MetadataView:
    facts = cluster.read_facts([name.partition.topic])
    (topic,) = facts.topics
    metadata = facts.metadata_topic
    findings = list(check_cluster(facts, terms.address))
    findings += check_topic(topic, terms.policy, terms.address)
    for each in findings:
        if each.severity is Severity.REFUSES:
            raise RefusedError(
                f"{each.words}; see keeplast place check. rule={each.rule} partition={name}",
                code="K416",
            )
    if metadata is None:
        raise RefusedError(f"there is no {METADATA_TOPIC} any more. partition={name}", code="K417")
    if facts.cluster_id != name.cluster_id or topic.topic_id != name.partition.topic_id:
        raise RefusedError(
            "the topic is another one of the same name: it was deleted and created again, or the "
            f"address is another cluster's. partition={name} cluster_id={facts.cluster_id} "
            f"topic_id={encode_id(topic.topic_id)}",
            code="K418",
        )
    is_same = seen is not None and seen.topic_id == metadata.topic_id
    if seen is not None and is_same and seen.partition_count != metadata.partition_count:
        raise RefusedError(
            f"partitions were added to {METADATA_TOPIC}: brokers go on by the count that they were "
            "configured with, and it is not known here which of them they read. "
            "--accept-metadata does not help: restore the topic. "
            f"partition_count={metadata.partition_count} before={seen.partition_count}",
            code="K414",
        )
    at = metadata_partition(topic.topic_id, name.partition.partition, metadata.partition_count)
    view = MetadataView(
        topic, facts.brokers, metadata, at, cluster.read_end(at), FoldedMetadata(), name
    )
    if seen is not None:
        view.is_continued = (
            (seen.topic_id, seen.partition_count) == (metadata.topic_id, metadata.partition_count)
            and view.end.offset >= seen.offset
            and view.end.leader_epoch >= seen.leader_epoch
        )
    require_beginning(view.folded, at, cluster.read_ranges(metadata)[at].start)
    view.folded.require_sound()
    return view


def _go_on(
    cluster: LiveCluster, view: MetadataView, base: FoldCheckpoint, seen: MetadataPoint | None,
    batches: Sequence[Batch],
) -> bool:  # fmt: skip
    """Fold on from ``base``; False when the metadata topic does not go on from there.

    In a topic that goes on, a batch lies where it was found, or at its floor or later.
    """
    point = base.point
    if not point.may_lead_to(view.name.cluster_id, view.metadata_topic, view.end):
        return False
    view.folded.cache = base.cache.copy()
    view.folded.record_count = base.record_count
    start = point.offset
    asked = [OffsetRange(start - 1, view.end.offset)]
    if seen is not None and 0 < seen.offset < start:
        asked.append(OffsetRange(seen.offset - 1, seen.offset))
    asked += [each.place or OffsetRange(each.floor_offset, start) for each in batches]
    if not _read(cluster, view, _merged(asked, view.end.offset), seen, batches, base):
        return False
    floors = [each.floor_offset for each in batches if view.find(each) is None]
    if min(floors, default=start) < start:
        # Not where it was found before: another process published it once more, without a row.
        left = [OffsetRange(min(floors), start)]
        return _read(cluster, view, left, None, batches, base)
    return True


def _merged(asked: Iterable[OffsetRange], end: int) -> list[OffsetRange]:
    """Return ranges below ``end`` that cover ``asked``, ascending, far enough from each other."""
    found: list[OffsetRange] = []
    for each in sorted(asked, key=lambda each: each.start):
        start, stop = max(each.start, 0), min(each.end, end)
        if start >= stop:
            continue
        if found and start <= found[-1].end + GAP_MAX:
            found[-1] = OffsetRange(found[-1].start, max(found[-1].end, stop))
        else:
            found.append(OffsetRange(start, stop))
    return found


def _read(
    cluster: LiveCluster, view: MetadataView, ranges: Sequence[OffsetRange],
    seen: MetadataPoint | None, batches: Sequence[Batch], base: FoldCheckpoint | None = None,
) -> bool:  # fmt: skip
    """Note what lies in ``ranges``, and fold what ``base`` has not; False when it does not fit."""
    view.folded.ranges[view.metadata_partition] = OffsetRange(0, view.end.offset)
    wanted = {value for batch in batches for value in batch.values}
    fits = True

    def noted(held: OffsetRange) -> Iterator[MetadataValue | int]:
        nonlocal fits
        for each in cluster.read_metadata(view.metadata_partition, held):
            at = each if isinstance(each, int) else each.offset
            if base is not None and at + 1 == base.point.offset and not base.point.is_at(each):
                fits = False
                return
            if isinstance(each, MetadataValue) and each.value is not None:
                if each.value in wanted:
                    view.places.setdefault(each.value, []).append(at)
                if at + 1 == view.end.offset:
                    view.digest, view.record_epoch = digest_of(each.value), each.leader_epoch
                if seen is not None and at + 1 == seen.offset:
                    view.is_continued &= digest_of(each.value) == seen.digest
            if base is None or at >= base.point.offset:
                yield each

    for held in ranges:
        if fits:
            fold_values(view.folded, view.metadata_partition, noted(held))
    return fits


def _read_log(cluster: LiveCluster, view: MetadataView) -> OffsetRange:
    return cluster.read_ranges(view.topic)[view.name.partition.partition]


def _require_leader(cluster: LiveCluster, view: MetadataView) -> None:
    """Raise ConflictError when another leader came while ``view`` was read."""
    after = cluster.read_end(view.metadata_partition)
    if after.leader_epoch != view.end.leader_epoch or after.offset < view.end.offset:
        raise ConflictError(
            f"the leader of {METADATA_TOPIC} changed while it was read; look again. "
            f"partition={view.metadata_partition} epoch={view.end.leader_epoch} "
            f"now={after.leader_epoch}",
            code="K419",
        )
