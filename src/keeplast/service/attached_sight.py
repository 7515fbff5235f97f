"""What the loop sees of a live cluster: its attached partitions, what refuses, and what lies there.

The rule: **nothing is done here, and nothing seen here is a reason to delete**. A caller that acts
on a partition looks at the cluster again. It reads the topic by
:mod:`keeplast.attach.held.metadata_view`, and holds it against what was seen before. The folds of
the metadata topic choose what is worth a claim, and nothing else. Each goes on from the last one,
in memory; a topic that does not go on from there is only read from its beginning.

A topic that refuses is asked again after a pause that doubles up to
:data:`~keeplast.service.schedule.RETRY_MS_MAX`, and keeps no other from its turn.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct, field

from keeplast.attach.held.metadata_view import AttachTerms, KeptFolds
from keeplast.attach.rounds.attached_place import DaySum
from keeplast.attach.upkeep.replaced_segments import GRACE_MS_DEFAULT, WhyWait
from keeplast.cluster.check import AttachFinding, Severity, check_cluster, check_faults, check_topic
from keeplast.cluster.group_offsets import GroupCluster
from keeplast.cluster.layouts.paced import PAUSE_MS_MAX, PaceLimits
from keeplast.cluster.live_cluster import (
    ClusterFacts,
    LiveCluster,
    MetadataReader,
    MetadataValue,
    OffsetRange,
    TopicFacts,
)
from keeplast.cluster.metadata_cache import ClusterCache, PartitionCache, name_of
from keeplast.cluster.metadata_log import (
    FoldCheckpoint,
    FoldedMetadata,
    FoldPoint,
    digest_of,
    fold_metadata,
)
from keeplast.config.precedence import Settings
from keeplast.errors import CompactionError, InvalidError, RefusedError, error_text
from keeplast.format.identifier import metadata_partition
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import Keyless, Shape
from keeplast.service.schedule import LOOK_MS_MIN, retry_ms
from keeplast.survey.request import MEMORY_BYTES_DEFAULT, TASK_MEMORY_BYTES_DEFAULT
from keeplast.tier.metadata.decisions import DecisionLog
from keeplast.tier.state.attached import Attached, AttachedName

INTERVAL_MS_DEFAULT = 60_000
SWAPS_A_DAY, RECORDS_A_DAY = 500, 20_000
CAPS_DEFAULT = DaySum(SWAPS_A_DAY, RECORDS_A_DAY)
RATE_MIN = 1 << 20


class LoopLimits(Struct, frozen=True, kw_only=True):
    """How often the loop looks, what it may ask of the remote tier a second, and announce a day.

    InvalidError for a limit that cannot be used. ``back_off_ms`` is the first pause after a store
    has refused.
    """

    interval_ms: int = INTERVAL_MS_DEFAULT
    requests_per_second: int = 200
    bytes_per_second: int = 128 << 20
    back_off_ms: int = 1000
    swaps_per_day: int = SWAPS_A_DAY
    records_per_day: int = RECORDS_A_DAY

    def __post_init__(self) -> None:
        if self.interval_ms < LOOK_MS_MIN:
            raise InvalidError(
                f"give {LOOK_MS_MIN} ms at least. --interval={self.interval_ms}", code="K104"
            )
        if self.bytes_per_second < RATE_MIN:
            raise InvalidError(
                f"give 1m at least. --bytes-per-second={self.bytes_per_second}", code="K104"
            )
        if not 0 < self.back_off_ms <= PAUSE_MS_MAX:
            raise InvalidError(
                f"give 1 to {PAUSE_MS_MAX} ms; longer pauses are made between rounds. "
                f"--back-off-ms={self.back_off_ms}",
                code="K104",
            )

    @property
    def pace(self) -> PaceLimits:
        """Return the limits of this process."""
        return PaceLimits(
            requests_per_second=self.requests_per_second, bytes_per_second=self.bytes_per_second,
            pause_ms=self.back_off_ms,
        )  # fmt: skip

    @property
    def day(self) -> DaySum:
        """Return what all hosts may announce in 24 hours."""
        return DaySum(self.swaps_per_day, self.records_per_day)


class AttachedSettings(Struct, frozen=True, kw_only=True):
    """What stays the same from start to end.

    ``address`` is the cluster's, as people type it. Without ``topics`` the loop is about what the
    decision log has as attached; with them about all partitions of those, or those of
    ``partitions``. ``settings_of`` reads the wanted settings of topics again at each call.
    ``keep_sources_ms`` is written down with each swap, for the process that collects its sources.
    ``why_wait`` is asked whether brokers have heard of a swap before its sources go. ``takes_over``
    takes partitions from other processes at the first claim of each. ``receipt`` is a file that
    takes a line of every wave and collection.
    """

    address: str
    settings_of: Callable[[Sequence[TopicFacts]], Settings]
    topics: tuple[str, ...] = ()
    partitions: tuple[int, ...] = ()
    interval_ms: int = INTERVAL_MS_DEFAULT
    grace_ms: int = GRACE_MS_DEFAULT
    keep_sources_ms: int = 0
    why_wait: WhyWait | None = None
    caps: DaySum = CAPS_DEFAULT
    keyless: Keyless = Keyless.FAIL
    takes_over: bool = False
    memory_bytes: int = MEMORY_BYTES_DEFAULT
    task_memory_bytes: int = TASK_MEMORY_BYTES_DEFAULT
    shape: Shape | None = None
    receipt: Path | None = None


class SightFolds:
    """Folds of one cluster's metadata topic, a partition of it at a time."""

    def __init__(self, cluster: MetadataReader, kept: KeptFolds) -> None:
        """Take who reads, and what the decision log keeps for the first time."""
        self._cluster = cluster
        self._kept = kept
        self._known: dict[tuple[str, int], FoldCheckpoint] = {}

    def fold(
        self, cluster_id: str, metadata_topic: TopicFacts, partitions: Sequence[int]
    ) -> FoldedMetadata:
        """Return what brokers know by ``partitions`` of the topic; errors are the client's."""
        reader = _Noting(self._cluster)
        folded = fold_metadata(
            reader, metadata_topic, partitions,
            kept=lambda each: self._known.get((cluster_id, each))
            or self._kept.find(cluster_id, each),
        )  # fmt: skip
        if folded.faults:
            self._known.clear()
            return folded
        count = metadata_topic.partition_count
        caches: dict[int, ClusterCache] = {each: ClusterCache() for each in partitions}
        for name, cache in folded.cache.partitions.items():
            at = metadata_partition(name.topic_id, name.partition, count)
            caches[at].partitions[name] = cache
        for each, last in reader.last.items():
            if last.value is None:
                continue
            point = FoldPoint(
                cluster_id=cluster_id, topic_id=metadata_topic.topic_id, partition_count=count,
                partition=each, offset=last.offset + 1, leader_epoch=last.leader_epoch,
                record_epoch=last.leader_epoch, digest=digest_of(last.value),
            )  # fmt: skip
            # These caches never change: a fold that goes on from one copies it.
            self._known[cluster_id, each] = FoldCheckpoint(point, caches[each], last.offset + 1)
        return folded


class _Noting:
    """A reader that remembers the last record of each partition."""

    def __init__(self, inner: MetadataReader) -> None:
        self._inner = inner
        self.last: dict[int, MetadataValue] = {}

    def read_ranges(self, topic: TopicFacts) -> list[OffsetRange]:
        return self._inner.read_ranges(topic)

    def read_metadata(self, partition: int, held: OffsetRange) -> Iterator[MetadataValue | int]:
        for each in self._inner.read_metadata(partition, held):
            if isinstance(each, MetadataValue):
                self.last[partition] = each
            yield each


class WatchedCluster(LiveCluster, GroupCluster, Protocol):
    """A live cluster that says who it is, which topics there are, and what groups have read."""

    def read_cluster_id(self) -> str:
        """Return which cluster it is."""

    def read_topic_ids(self, topics: Collection[str]) -> dict[str, bytes]:
        """Return the ids of those of ``topics`` that there are."""


class SeenPartition(Struct, frozen=True):
    """A partition as the cluster has it; ``topic`` is None when the topic that was attached is
    gone, and ``log`` while nothing was read because the topic refuses."""

    name: AttachedName
    topic: TopicFacts | None = None
    log: OffsetRange | None = None
    cache: PartitionCache = field(default_factory=PartitionCache)

    @property
    def partition(self) -> TopicPartition:
        """Return topic and number."""
        return TopicPartition(self.name.partition.topic, self.name.partition.partition)


class TopicRefusal(Struct, frozen=True):
    """Why a topic may not be worked on, how often that was found, and when it is asked again."""

    reason: str
    count: int
    pause_ms: int
    until_ms: int


class AttachedSight:
    """Looks at one cluster, again and again."""

    def __init__(
        self, cluster: WatchedCluster, log: DecisionLog, settings: AttachedSettings,
        folds: KeptFolds,
    ) -> None:  # fmt: skip
        """Take what is asked, and what is kept of the metadata topic; nothing is read yet."""
        self._cluster = cluster
        self._log = log
        self._settings = settings
        self._folds = SightFolds(cluster, folds)
        self._wanted: Settings | None = None
        self._facts: ClusterFacts | None = None
        self.cluster_id = ""
        self.partitions: dict[TopicPartition, SeenPartition] = {}
        self.refusals: dict[str, TopicRefusal] = {}
        self._earlier: dict[str, TopicRefusal] = {}
        self.warnings: list[str] = []
        """What the last look found that a person should know."""

    @property
    def wanted(self) -> Settings:
        """Return what is wanted of the topics, as it could be read last."""
        if self._wanted is None:
            raise InvalidError("nothing was looked at yet", code="K448")
        return self._wanted

    def terms(self, topic: str) -> AttachTerms:
        """Return what the check has to know of a topic."""
        policy = self.wanted.topic_config(topic).cleanup_policy
        return AttachTerms(policy, self._settings.address, self._settings.keep_sources_ms)

    def ask_again(self, topic: str) -> None:
        """Ask at the next look whether ``topic`` still refuses."""
        self.refusals.pop(topic, None)

    def look(self, now_ms: int) -> None:
        """Look at everything; InvalidError when nothing of what is asked for was ever there.

        RefusedError when the address has become another cluster's. Errors are the client's and the
        decision log's, and leave what was seen before.
        """
        settings, is_first = self._settings, not self.cluster_id
        warnings: list[str] = []
        cluster_id = self._cluster.read_cluster_id()
        if self.cluster_id not in ("", cluster_id):
            raise RefusedError(
                "the address is another cluster's by now; nothing is done to it. "
                f"bootstrap_server={settings.address} cluster_id={cluster_id} "
                f"before={self.cluster_id}",
                code="K418",
            )
        attached = {
            each.name: each
            for each in self._log.partitions(cluster_id)
            if not settings.topics or each.name.partition.topic in settings.topics
        }
        live = [each for each in attached.values() if each.detached_ms is None]
        names = {*settings.topics, *(each.name.partition.topic for each in live)}
        ids = self._cluster.read_topic_ids(names)
        missing = sorted(names - ids.keys() - {each.name.partition.topic for each in live})
        if missing and is_first:
            raise InvalidError(f"no such topic in the cluster. topics={missing}", code="K114")
        if missing:
            warnings.append(f"there is no such topic any more. topics={missing}")
        facts = self._cluster.read_facts(sorted(ids)) if ids else None
        topics = () if facts is None else facts.topics
        chosen = self._chosen(cluster_id, topics, live, warnings)
        if is_first and not chosen:
            raise InvalidError(
                "nothing of that is attached by this decision log; name topics with --topic, or "
                "attach one by keeplast clean. "
                f"topics={list(settings.topics) or 'all'} partitions={list(settings.partitions)} "
                f"cluster_id={cluster_id}",
                code="K445",
            )
        self._read_wanted(topics, warnings)
        self._facts, self.cluster_id, self.warnings = facts, cluster_id, warnings
        self._check(facts, now_ms)
        self.partitions = {each.partition: each for each in chosen}
        self.look_again(self.partitions, now_ms)

    def look_again(self, partitions: Iterable[TopicPartition], now_ms: int) -> None:
        """Read again what the metadata topic says of ``partitions``, and how far they go."""
        facts = self._facts
        if facts is None or facts.metadata_topic is None:
            return
        seen = [
            each
            for each in (self.partitions.get(partition) for partition in set(partitions))
            if each is not None and each.topic is not None and each.topic.name not in self.refusals
        ]
        count = facts.metadata_topic.partition_count
        metadata_partitions = sorted(
            {
                metadata_partition(each.name.partition.topic_id, each.partition.partition, count)
                for each in seen
            }
        )
        topics = {each.topic.name: each.topic for each in seen if each.topic is not None}
        ranges = {name: self._cluster.read_ranges(topic) for name, topic in topics.items()}
        folded = self._folds.fold(self.cluster_id, facts.metadata_topic, metadata_partitions)
        refusing = refusal_words(check_faults(folded.faults))
        if refusing is not None:
            # A broker that starts stops there: that is trouble of them all, not of one partition.
            for topic in facts.topics:
                self._refuse(topic.name, refusing, now_ms)
            return
        for each in seen:
            held = ranges[each.partition.topic]
            if each.partition.partition < len(held):
                self.partitions[each.partition] = SeenPartition(
                    each.name, each.topic, held[each.partition.partition],
                    folded.cache.partitions.get(each.name.partition, PartitionCache()),
                )  # fmt: skip

    def _chosen(
        self, cluster_id: str, topics: Sequence[TopicFacts], live: Sequence[Attached],
        warnings: list[str],
    ) -> list[SeenPartition]:  # fmt: skip
        """Return the partitions that the loop is about, of topics that are there and gone."""
        numbers = self._settings.partitions
        found: dict[TopicPartition, SeenPartition] = {}
        by_name = {each.name: each for each in topics}
        for each in live:
            at = each.name.partition
            topic = by_name.get(at.topic)
            is_there = topic is not None and topic.topic_id == at.topic_id
            if numbers and at.partition not in numbers:
                continue
            name = TopicPartition(at.topic, at.partition)
            if is_there or name not in found:
                found[name] = SeenPartition(each.name, topic if is_there else None)
        for topic in topics:
            here = [n for n in range(topic.partition_count) if not numbers or n in numbers]
            new = [
                SeenPartition(AttachedName(cluster_id, name_of(topic, n)), topic)
                for n in here
                if (seen := found.get(TopicPartition(topic.name, n))) is None or seen.topic is None
            ]
            if self._settings.topics:
                found |= {each.partition: each for each in new}
            elif new and len(new) < len(here):
                warnings.append(
                    f"{topic.name} has partitions that are not attached, which are left alone; "
                    f"name it with --topic to have them compacted. count={len(new)}"
                )
        return [each for _, each in sorted(found.items())]

    def _read_wanted(self, topics: Sequence[TopicFacts], warnings: list[str]) -> None:
        try:
            self._wanted = self._settings.settings_of(topics)
        except (CompactionError, OSError) as error:
            if self._wanted is None:
                raise
            warnings.append(f"what was read last stays: {error_text(error)}")

    def _check(self, facts: ClusterFacts | None, now_ms: int) -> None:
        """Ask of each topic whether it refuses, unless that was found lately."""
        topics = () if facts is None else facts.topics
        self._earlier, self.refusals = self.refusals, {}
        if facts is None:
            return
        everywhere = list(check_cluster(facts, self._settings.address))
        for topic in topics:
            known = self._earlier.get(topic.name)
            if known is not None and 0 < known.until_ms - now_ms <= known.pause_ms:
                self.refusals[topic.name] = known
                continue
            policy = self.wanted.topic_config(topic.name).cleanup_policy
            own = check_topic(topic, policy, self._settings.address)
            reason = refusal_words([*everywhere, *own])
            if reason is not None:
                self._refuse(topic.name, reason, now_ms)

    def _refuse(self, topic: str, reason: str, now_ms: int) -> None:
        known = self._earlier.get(topic)
        count = 1 if known is None else known.count + 1
        pause_ms = retry_ms(count, self._settings.interval_ms)
        self.refusals[topic] = TopicRefusal(reason, count, pause_ms, now_ms + pause_ms)


def settled_refusals(
    before: Mapping[str, TopicRefusal], after: Mapping[str, TopicRefusal]
) -> list[str]:
    """Return a line for each topic that began to refuse, refuses for another reason, or no more."""
    lines = [
        f"{name} is refused, asked again in {each.pause_ms / 1000:g} s: {each.reason}"
        for name, each in sorted(after.items())
        if name not in before or before[name].reason != each.reason
    ]
    return lines + [f"{name} refuses no more" for name in sorted(before.keys() - after.keys())]


def refusal_words(findings: Iterable[AttachFinding]) -> str | None:
    """Return the first finding that refuses, with its remedy, None when none does."""
    for each in findings:
        if each.severity is Severity.REFUSES:
            remedy = f"; {each.remedy}" if each.remedy else ""
            return f"{each.words} ({each.rule}){remedy}"
    return None
