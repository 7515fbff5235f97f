"""What is published of an attached partition: its place in the loop, and what brokers have of it.

A look says how the partition stands, its history what the loop has done with it; nothing is read
here.
"""

from __future__ import annotations

from dataclasses import replace

from keeplast.attach.answers.look import AttachedOutlook
from keeplast.attach.rounds.attached_files import attached_path
from keeplast.cluster.status import partition_status
from keeplast.model.topic_config import TopicConfig
from keeplast.service.attached_sight import SeenPartition
from keeplast.service.schedule import TurnHistory
from keeplast.service.snapshot import PartitionCondition, PartitionFacts, TierFacts
from keeplast.survey.request import PartitionRequest
from keeplast.survey.wording import decision_words
from keeplast.tier.state.attached import Attached


def request_of(seen: SeenPartition) -> PartitionRequest:
    """Return what stands for a partition where a loop asks for a request."""
    return PartitionRequest(seen.partition, attached_path(seen.name.partition), TopicConfig())


def left_facts(
    seen: SeenPartition,
    history: TurnHistory,
    state: PartitionCondition,
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


def worked_facts(
    seen: SeenPartition,
    history: TurnHistory,
    look: AttachedOutlook,
    attached: Attached | None,
    declined: str | None,
    *,
    looked_ms: int,
) -> PartitionFacts:
    """Return what is published of a partition that is worked on here.

    ``declined`` is why a round that looked worth it was not done, None where none was.
    """
    is_eligible = look.is_eligible and declined is None
    request = request_of(seen)
    facts = PartitionFacts(
        request.partition, request.path,
        PartitionCondition.ELIGIBLE if is_eligible else PartitionCondition.NOT_DUE,
        decision_words(look.decision, names_options=False) if declined is None else declined,
        rounds=history.rounds, last_round=history.last_round,
        last_round_ms=history.last_round_ms,
        failures=history.failures, retry_at_ms=history.retry_at_ms,
    )  # fmt: skip
    return replace(with_brokers(facts, seen, attached), figures=look.figures, surveyed_ms=looked_ms)


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
