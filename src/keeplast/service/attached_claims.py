"""How the loop claims attached partitions, and what it shows of each.

The rule: **a process that loses a race says so once, and leaves the partition alone for a pause
that grows**. Two processes that fought would fence each other without end. A partition is taken
from a process that may still run only when that was asked for, and once.

What is shown of a partition joins its look with what the loop has done with it; nothing is read for
that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from msgspec.structs import replace

from keeplast.attach.held.metadata_view import AttachTerms, KeptFolds
from keeplast.attach.held.ownership import Owner, OwnerObject
from keeplast.attach.held.publication import Publisher, claim, is_free
from keeplast.attach.rounds.attached_files import attached_path
from keeplast.attach.upkeep.replaced_segments import repaired
from keeplast.clock import Clock
from keeplast.cluster.layouts.layout import RemoteLayout
from keeplast.cluster.live_cluster import LiveCluster
from keeplast.cluster.metadata_cache import partition_status
from keeplast.errors import ConflictError, CorruptError, FencedError, RefusedError, UnavailableError
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import TopicConfig
from keeplast.service.attached_sight import AttachedSettings, SeenPartition
from keeplast.service.live import TierNarrator
from keeplast.service.schedule import RETRY_MS_MAX, TurnHistory, retry_ms
from keeplast.service.snapshot import PartitionFacts, TierFacts
from keeplast.service.status import State
from keeplast.survey.request import PartitionRequest
from keeplast.tier.metadata.decisions import DecisionLog
from keeplast.tier.state.attached import Attached


def request_of(seen: SeenPartition) -> PartitionRequest:
    """Return what stands for a partition where a loop asks for a request."""
    return PartitionRequest(seen.partition, attached_path(seen.name.partition), TopicConfig())


def left_facts(
    seen: SeenPartition,
    history: TurnHistory,
    state: State,
    reason: str,
    attached: Attached | None = None,
    *,
    retry_at_ms: int | None = None,
) -> PartitionFacts:
    """Return what is published of a partition that is left alone, for ``reason``."""
    request = request_of(seen)
    facts = PartitionFacts(
        request.partition, request.path, state, reason,
        rounds=history.rounds, last_round=history.last_round,
        last_round_ms=history.last_round_ms, retry_at_ms=retry_at_ms,
    )  # fmt: skip
    return with_brokers(facts, seen, attached)


def with_brokers(
    facts: PartitionFacts, seen: SeenPartition, attached: Attached | None
) -> PartitionFacts:
    """Return ``facts`` with what brokers serve, and what waits for its objects to go."""
    if seen.topic is None or seen.log is None:
        return facts
    found = partition_status(seen.topic, seen.partition.partition, seen.log, seen.cache)
    is_held = attached is not None and attached.held_since_ms is not None
    return replace(
        facts, log_start=seen.log.start, log_end=seen.log.end,
        tier=TierFacts(
            str(attached.holder) if attached is not None and is_held else "",
            0 if attached is None else attached.epoch,
            found.served.bytes, found.deleting.count, found.deleting.bytes,
            sum(last - first + 1 for first, last in found.holes),
        ),
    )  # fmt: skip


OWNERS_PROBED = 5


class AttachedClaims:
    """Claims partitions of one cluster for this process."""

    def __init__(
        self, cluster: LiveCluster, log: DecisionLog, layout: RemoteLayout, clock: Clock,
        settings: AttachedSettings, narrator: TierNarrator, folds: KeptFolds,
    ) -> None:  # fmt: skip
        """Hold nothing yet; ``folds`` are those of ``log``."""
        self._cluster = cluster
        self._log = log
        self._layout = layout
        self._clock = clock
        self._settings = settings
        self._narrator = narrator
        self._folds = folds
        self._claimed: set[TopicPartition] = set()
        self._lost: dict[TopicPartition, tuple[int, int, str]] = {}
        """How often a race was lost in a row, until when the partition is left alone, and why."""
        self._held_back: dict[TopicPartition, tuple[int, int, str]] = {}
        """Likewise, where brokers may not have heard of what could be collected."""

    def elsewhere(
        self, seen: SeenPartition, attached: Attached | None, now_ms: int
    ) -> tuple[str, int | None] | None:
        """Return who has a partition, and until when it is left to him; None when it is free."""
        _, until_ms, reason = self._lost.get(seen.partition, (0, 0, ""))
        if 0 < until_ms - now_ms <= RETRY_MS_MAX:
            return reason, until_ms
        if attached is None or self._may_take(seen.partition) or is_free(self._log, attached):
            return None
        return f"another process has it: {attached.holder}", None

    @contextmanager
    def held(self, seen: SeenPartition, terms: AttachTerms) -> Iterator[Publisher | None]:
        """Claim a partition and end what was left undone; None when another process was faster."""
        publisher = self._claim(seen, terms)
        if publisher is None:
            yield None
            return
        self._claimed.add(seen.partition)
        self._lost.pop(seen.partition, None)

        def kept(error: Exception) -> None:
            # This process may claim it again, and another one learns when this one is over.
            self._narrator.warned(f"{seen.partition} could not be given back: {error}")

        with repaired(publisher, kept):
            yield publisher

    def lose(self, partition: TopicPartition, reason: str) -> None:
        """Leave a partition to the faster process; the reason is reported unless it was before."""
        count, _, reported = self._lost.get(partition, (0, 0, ""))
        pause_ms = min(retry_ms(count + 1, self._settings.interval_ms), RETRY_MS_MAX)
        self._lost[partition] = count + 1, self._clock.now_ms() + pause_ms, reason
        if reported != reason:
            self._narrator.left_alone(partition, f"{reason}; again in {pause_ms / 1000:g} s")

    def hold_back(self, partition: TopicPartition, reason: str | None) -> None:
        """Collect a partition later, because of ``reason``, which is reported when it is new."""
        if reason is None:
            self._held_back.pop(partition, None)
            return
        count, _, reported = self._held_back.get(partition, (0, 0, ""))
        pause_ms = min(retry_ms(count + 1, self._settings.interval_ms), RETRY_MS_MAX)
        self._held_back[partition] = count + 1, self._clock.now_ms() + pause_ms, reason
        if reported != reason:
            self._narrator.warned(f"{partition}: nothing is deleted yet: {reason}")

    def is_held_back(self, partition: TopicPartition) -> bool:
        """Say whether a partition is to be collected later."""
        until_ms = self._held_back.get(partition, (0, 0, ""))[1]
        return 0 < until_ms - self._clock.now_ms() <= RETRY_MS_MAX

    def try_again(self, partition: TopicPartition) -> None:
        """Forget that a race was lost, and that brokers lagged."""
        self._lost.pop(partition, None)
        self._held_back.pop(partition, None)

    def keep(self, partitions: set[TopicPartition]) -> None:
        """Forget all partitions but these."""
        for kept in (self._lost, self._held_back):
            for gone in kept.keys() - partitions:
                del kept[gone]

    def require_storage(self, cluster_id: str) -> None:
        """Raise UnavailableError if the remote tier does not answer or has no owner object.

        An empty directory in the place of a volume is not a remote tier.
        """
        store_id = self._log.store_id()
        # Where an id was given out an owner object was put before; a first claim may have been cut
        # off in front of it.
        begun = self._log.counts.with_ids(cluster_id)
        found: list[Owner | None] = []
        for each in self._log.partitions(cluster_id):
            if each.detached_ms is None and each.row_id in begun and len(found) < OWNERS_PROBED:
                with suppress(CorruptError, RefusedError):
                    found.append(OwnerObject(self._layout, each.name, store_id).read())
        if found and all(each is None for each in found):
            raise UnavailableError(
                "the remote tier has none of the owner objects that were put there; is its volume "
                f"mounted, and --storage right? looked_for={len(found)}",
                code="K435",
            )

    def _may_take(self, partition: TopicPartition) -> bool:
        return self._settings.takes_over and partition not in self._claimed

    def _claim(self, seen: SeenPartition, terms: AttachTerms) -> Publisher | None:
        partition, name = seen.partition, seen.name
        try:
            return claim(
                self._cluster, self._log, self._layout, name.partition, name.cluster_id, terms,
                takes_over=self._may_take(partition), folds=self._folds,
            )  # fmt: skip
        except (ConflictError, FencedError) as error:
            self.lose(partition, str(error))
        except RefusedError:
            known = self._log.find(name)
            if known is None or is_free(self._log, known):
                raise
            self.lose(partition, f"another process has it: {known.holder}")
        return None
