"""What is published of a partition in a store: its place in the loop, and what lies in objects.

A look says how the partition stands, its history what the loop has done with it; nothing is read
here.
"""

from __future__ import annotations

from dataclasses import replace

from keeplast.service.schedule import TurnHistory
from keeplast.service.snapshot import PartitionCondition, PartitionFacts, TierFacts
from keeplast.store.look import RemoteLook
from keeplast.survey.request import PartitionRequest
from keeplast.survey.wording import decision_words
from keeplast.tier.state.partition_state import PartitionState as Stored


def elsewhere_facts(
    request: PartitionRequest, history: TurnHistory, state: Stored, reason: str
) -> PartitionFacts:
    """Return what is published of a partition that is left alone, for ``reason``."""
    return PartitionFacts(
        request.partition, request.path, PartitionCondition.ELSEWHERE, reason,
        log_start=state.log_start, log_end=state.remote_end,
        rounds=history.rounds, last_round=history.last_round,
        last_round_ms=history.last_round_ms,
        tier=TierFacts(state.owner, state.leader_epoch, state.remote_bytes, 0, 0),
    )  # fmt: skip


def own_facts(
    request: PartitionRequest,
    history: TurnHistory,
    look: RemoteLook,
    declined: str | None,
    *,
    looked_ms: int,
) -> PartitionFacts:
    """Return what is published of a partition that is worked on here.

    ``declined`` is why a round that looked worth it found nothing to do, None where none did.
    """
    is_eligible = look.is_eligible and declined is None
    reason = decision_words(look.decision, names_options=False) if declined is None else declined
    facts = PartitionFacts(
        request.partition, request.path,
        PartitionCondition.ELIGIBLE if is_eligible else PartitionCondition.NOT_DUE, reason,
        rounds=history.rounds, last_round=history.last_round,
        last_round_ms=history.last_round_ms,
        failures=history.failures, retry_at_ms=history.retry_at_ms,
    )  # fmt: skip
    return with_look(facts, look, looked_ms)


def with_look(facts: PartitionFacts, look: RemoteLook, looked_ms: int) -> PartitionFacts:
    """Return ``facts`` with what a look at ``looked_ms`` found of the log and its objects."""
    state = look.state
    return replace(
        facts,
        log_start=state.log_start,
        log_end=state.remote_end,
        figures=look.figures,
        surveyed_ms=looked_ms,
        is_expired_round=bool(look.expired),
        tier=TierFacts(
            state.owner, state.leader_epoch, state.remote_bytes, len(look.orphans),
            look.orphan_bytes,
        ),
    )  # fmt: skip
