"""Lets go of a log in object storage what retention and its log start let go.

The order is the rule: one transaction moves the log start and stops the reading, then comes the
receipt, whose head is kept, and the objects go with a collection when the grace has passed. A crash
between the first two leaves an expiry without its line, and never a line of what did not happen.
"""

from __future__ import annotations

import secrets

from keeplast.model.topic_config import TopicConfig
from keeplast.run.expiry import expired_reports
from keeplast.run.receipt import Receipt, expiry_line
from keeplast.survey.kept_heads import keep_line
from keeplast.survey.report import ExpiryReport
from keeplast.survey.wording import sentences
from keeplast.tier.metadata.metadata_store import MetadataStore
from keeplast.tier.objects.object_store import ID_CHARS
from keeplast.tier.state.partition_state import PartitionState
from keeplast.tier.state.remote_retention import plan_remote_expiry


def expire_remote(
    store: MetadataStore,
    state: PartitionState,
    topic: TopicConfig,
    now_ms: int,
    *,
    grace_ms: int,
    log_start: int | None = None,
    local_only_bytes: int = 0,
    receipt: Receipt | None = None,
) -> ExpiryReport:
    """Expire as the owner and the holder that ``state`` names; FencedError when another one is.

    ``log_start`` is where the log is to start; without one it moves only with segments that go.
    ``local_only_bytes`` lie behind the remote end on the leader's disk. ``receipt`` takes a line
    when segments went.
    """
    plan = plan_remote_expiry(
        topic, state, now_ms, log_start=log_start, local_only_bytes=local_only_bytes
    )
    report = ExpiryReport(
        state.log_start, plan.log_start, segments=expired_reports(plan), notes=sentences(plan.notes)
    )
    gone = {segment.base for segment in report.segments}
    ids = [route.segment_id for route in state.routes if route.base_offset in gone]
    if ids or (log_start is not None and plan.log_start > state.log_start):
        store.commit_expiry(
            state.partition, secrets.token_hex(ID_CHARS // 2), epoch=state.leader_epoch,
            log_start=plan.log_start, segments=ids, grace_ms=grace_ms, holder=state.holder,
            settings=state.settings,
        )  # fmt: skip
    if ids and receipt is not None:
        keep_line(store.facts, receipt(expiry_line(state.partition, topic, now_ms, report)))
    return report
