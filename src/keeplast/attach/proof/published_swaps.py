"""Whether the swaps that a decision log has published still stand, and what they left behind.

The rule: **only what was published is held against the brokers' fold**. An output that a later swap
took the place of, or that the log's start has passed, is nobody's loss.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise

from keeplast.attach.held.ownership import OwnerObject
from keeplast.attach.rules.effective_log import EffectiveRange
from keeplast.attach.rules.swap import covered
from keeplast.cluster.layouts.layout import RemoteLayout
from keeplast.cluster.metadata_cache import PartitionCache
from keeplast.cluster.status import is_compactors
from keeplast.errors import CorruptError, RefusedError
from keeplast.format.identifier import encode_id
from keeplast.format.remote_log_metadata import (
    RemoteLogSegment,
    RemoteLogSegmentId,
    RemoteLogSegmentState,
)
from keeplast.inspect.verdicts import Findings
from keeplast.tier.metadata.decisions import DecisionLog
from keeplast.tier.state.attached import Attached, Decision, DecisionState, epoch_of_mark

_LIVE = (RemoteLogSegmentState.COPY_SEGMENT_STARTED, RemoteLogSegmentState.COPY_SEGMENT_FINISHED)
_PUBLISHED = (DecisionState.PUBLISHED, DecisionState.COLLECTING, DecisionState.COLLECTED)


def check_swaps(
    findings: Findings,
    layout: RemoteLayout,
    log: DecisionLog,
    cache: PartitionCache,
    known: Attached | None,
    decisions: Sequence[Decision],
    own_ids: Collection[bytes],
    log_start: int,
) -> None:
    """Tell of what brokers serve otherwise than was published, and of who else works here."""
    for each in cache.segments:
        if not is_compactors(each):
            continue
        is_later = known is not None and epoch_of_mark(each.broker_id) > known.epoch
        if is_later or each.id.segment_id not in own_ids:
            findings.add(
                "a compactor announced a segment that this decision log does not know: "
                f"{encode_id(each.id.segment_id)}", offset=each.start_offset,
            )  # fmt: skip
    if known is None:
        return
    published = [each for each in decisions if each.state in _PUBLISHED]
    replaced = {source.id for each in published for source in each.sources}
    for number, decision in enumerate(published):
        later = [each for other in published[number + 1 :] for each in other.outputs]
        for output in decision.outputs:
            if output.id in replaced or output.end_offset < log_start:
                continue
            # Who replaced it may be forgotten, when he was replaced himself; not who stands there.
            if not any(_covers(each, output) for each in later):
                _check_output(findings, cache, output, decision)
        for source in decision.sources:
            state = _state(cache, source)
            if state in _LIVE:
                findings.add(
                    "brokers still serve a segment that was replaced: "
                    f"{encode_id(source.id.segment_id)} decision={decision.id}",
                    offset=source.start_offset,
                )
    if known.detached_ms is None:
        _check_owner(findings, layout, log, known)


def sources_left(
    decisions: Sequence[Decision], log_start: int, findings: Findings
) -> list[EffectiveRange]:
    """Return what still lies there of the oldest sources; ranges ascend and do not overlap.

    A source that another listed swap has written has sources of its own for the same offsets. Of
    sources that lay over one another nobody knows any more which of them was served where: that
    is a reason in ``findings``.
    """
    waiting = [each for each in decisions if each.state is DecisionState.PUBLISHED]
    written = {output.id for each in waiting for output in each.outputs}
    left: dict[RemoteLogSegmentId, RemoteLogSegment] = {}
    for decision in waiting:
        if any(b.start_offset <= a.end_offset for a, b in pairwise(decision.sources)):
            first, last = covered(decision.sources)
            findings.cannot_judge(
                f"segments that were replaced from offset {first} to {last} lay over one another"
            )
            continue
        left |= {each.id: each for each in decision.sources if each.id not in written}
    found: list[EffectiveRange] = []
    for each in sorted(left.values(), key=lambda each: each.start_offset):
        start = max(each.start_offset, found[-1].end + 1 if found else 0)
        if log_start <= each.end_offset and start <= each.end_offset:
            found.append(EffectiveRange(start, each.end_offset, each))
    return found


def _check_output(
    findings: Findings, cache: PartitionCache, output: RemoteLogSegment, decision: Decision
) -> None:
    found = cache.find(output.id)
    name = f"{encode_id(output.id.segment_id)} decision={decision.id}"
    if found is None or found.state is not RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
        state = "gone" if found is None else found.state.name
        findings.add(
            f"brokers do not serve what was published: {name} state={state}",
            offset=output.start_offset,
        )
    elif _described(found) != _described(output):
        findings.add(
            f"brokers know another description of what was published: {name}",
            offset=output.start_offset,
        )


def _check_owner(
    findings: Findings, layout: RemoteLayout, log: DecisionLog, known: Attached
) -> None:
    try:
        owner = OwnerObject(layout, known.name, log.store_id()).read()
    except (CorruptError, RefusedError) as error:
        findings.add(str(error))
        return
    if owner is None:
        findings.add("the owner object is gone: nothing more can be decided or deleted")
    elif owner.epoch != known.epoch:
        findings.add(
            f"the owner object says epoch {owner.epoch}, the decision log {known.epoch}"
        )  # fmt: skip


def _covers(outer: RemoteLogSegment, inner: RemoteLogSegment) -> bool:
    return outer.start_offset <= inner.start_offset and inner.end_offset <= outer.end_offset


def _described(segment: RemoteLogSegment) -> object:
    return (
        segment.start_offset, segment.end_offset, segment.size_bytes, segment.epochs,
        segment.max_timestamp_ms, segment.custom_metadata,
    )  # fmt: skip


def _state(cache: PartitionCache, segment: RemoteLogSegment) -> RemoteLogSegmentState | None:
    found = cache.find(segment.id)
    return None if found is None else found.state
