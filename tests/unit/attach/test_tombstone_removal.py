"""Below which offset tombstones go, by what may still be read of what they delete."""

from __future__ import annotations

import re
from typing import Any

import pytest
from msgspec.structs import replace

from keeplast.attach.rules import tombstone_removal
from keeplast.attach.rules.sources import Sources, source_of
from keeplast.attach.rules.swap import Swap
from keeplast.attach.rules.tombstone_removal import (
    LOOKS,
    REMEMBERED_MS,
    RemovalTerms,
    expires_below,
    exposed_from,
    removal_terms,
    require_settled,
)
from keeplast.cleaner.reasons import SourcesEnd, SourcesLimit
from keeplast.cluster.late_copies import COPY_MS
from keeplast.cluster.metadata_cache import PartitionCache
from keeplast.errors import ConflictError
from keeplast.format.remote_log_metadata import (
    EpochStart,
    RemoteLogSegment,
    RemoteLogSegmentId,
    RemoteLogSegmentState,
)
from keeplast.model.partition import INT64_MAX
from keeplast.model.topic_config import Strategy, TopicConfig
from keeplast.tier.state.attached import AttachedName, Decision, DecisionState, mark_of
from tests.support.attached_world import PARTITION, moved

NOW_MS = 10_000_000
TERMS = RemovalTerms(delete_retention_ms=1_000, local_ms=500)
TOPIC = TopicConfig(delete_retention_ms=1_000)
LOCAL = {"local.retention.ms": "500", "retention.ms": "-1"}
_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


def segment(number: int, start: int, end: int, *, broker: int = 1, at_ms: int = 0) -> Any:
    return RemoteLogSegment(
        id=RemoteLogSegmentId(PARTITION, number.to_bytes(16, "big")), start_offset=start,
        end_offset=end, broker_id=broker, max_timestamp_ms=at_ms, event_timestamp_ms=at_ms,
        epochs=(EpochStart(0, start),), size_bytes=100, custom_metadata=None,
        state=RemoteLogSegmentState.COPY_SEGMENT_STARTED,
    )  # fmt: skip


def cache_of(*finished: RemoteLogSegment, begun: tuple[RemoteLogSegment, ...] = ()) -> Any:
    found = PartitionCache()
    for each in finished:
        found.apply(each)
        found.apply(replace(moved(each, _FINISHED), broker_id=each.broker_id))
    for each in begun:
        found.apply(each)
    return found


def decision(first_dirty: int, **changes: Any) -> Decision:
    """Return one that settled just now, at the time of the tests."""
    made = Decision(
        id="d", name=AttachedName("c", PARTITION), epoch=1, state=DecisionState.COLLECTED,
        sources=(segment(90, 0, 9),), outputs=(segment(91, 0, 9, broker=mark_of(1)),),
        cleaned_to=100, metadata_partition=0, floor_offset=0, decided_ms=0,
        published_ms=NOW_MS - 1_500, collected_ms=NOW_MS - 1_000, first_dirty=first_dirty,
    )  # fmt: skip
    return replace(made, **changes)


SOURCES = Sources(
    (source_of(segment(1, 0, 99)),), 100, SourcesLimit(100, SourcesEnd.MARGIN)
)  # fmt: skip


def below(*decisions: Decision, cache: Any = None, log_start: int = 0) -> int | None:
    known = cache_of(segment(1, 0, 99)) if cache is None else cache
    return expires_below(
        TERMS, SOURCES, known, decisions, log_start=log_start, first_dirty=80, now_ms=NOW_MS
    )


def test_tombstones_that_were_clean_before_the_round_may_go() -> None:
    assert 80 == below()
    assert 80 == below(decision(0))


@pytest.mark.parametrize(
    "changes",
    [
        {"state": DecisionState.DECIDED, "published_ms": None, "collected_ms": None},
        {"state": DecisionState.PUBLISHED, "collected_ms": None},
        {"state": DecisionState.COLLECTING, "collected_ms": None},
        {"collected_ms": NOW_MS - 999},
        {"published_ms": NOW_MS - 1_499},
        {"sources": (replace(segment(90, 0, 9), max_timestamp_ms=NOW_MS - 1_499),)},
    ],
)  # fmt: skip
def test_what_was_dirty_in_a_round_whose_sources_were_read_lately_stays(changes: Any) -> None:
    assert 40 == below(decision(40, **changes), decision(60))


def test_a_round_with_an_unknown_dirty_start_keeps_all() -> None:
    assert 0 == below(decision(0, collected_ms=NOW_MS - 1))


def test_where_the_log_start_has_cut_a_segment_nothing_gets_a_horizon() -> None:
    assert below(log_start=0) is not None
    sources = replace(SOURCES, segments=(source_of(segment(1, 10, 99)),))
    assert None is expires_below(
        TERMS, sources, cache_of(), (), log_start=5, first_dirty=80, now_ms=NOW_MS
    )  # fmt: skip


def test_what_a_leader_may_finish_yet_and_what_is_hidden_keeps_what_lies_above() -> None:
    served = segment(1, 0, 99, broker=mark_of(1))
    young = segment(2, 30, 45, at_ms=NOW_MS - COPY_MS + 1)
    assert 30 == below(cache=cache_of(served, begun=(young,)))
    old = replace(young, event_timestamp_ms=NOW_MS - COPY_MS)
    assert 80 == below(cache=cache_of(served, begun=(old,)))
    ours = replace(young, broker_id=mark_of(2))
    assert 80 == below(cache=cache_of(served, begun=(ours,)))
    hidden = segment(3, 20, 29)
    assert 20 == below(cache=cache_of(hidden, served))
    assert INT64_MAX == exposed_from(cache_of(served), NOW_MS)


def test_a_copy_that_comes_meanwhile_stops_the_swap() -> None:
    served, output = segment(1, 0, 99), segment(5, 0, 99, broker=mark_of(1))
    swap = Swap(PARTITION, (served,), (output,), 100, first_dirty=80, expires_below=60)
    quiet = cache_of(served)
    require_settled(quiet, swap, (), log_start=0, now_ms=NOW_MS)
    begun = cache_of(served, begun=(segment(2, 30, 45, at_ms=NOW_MS),))
    with pytest.raises(ConflictError, match=re.escape("offset=30 expires_below=60")):
        require_settled(begun, swap, (), log_start=0, now_ms=NOW_MS)
    require_settled(begun, replace(swap, expires_below=30), (), log_start=0, now_ms=NOW_MS)
    over = cache_of(output, segment(2, 30, 120))
    with pytest.raises(ConflictError, match="offset=30"):
        require_settled(over, swap, (output,), log_start=0, now_ms=NOW_MS)


def test_terms_follow_from_local_retention_and_from_how_often_brokers_look() -> None:
    often = {"log.retention.check.interval.ms": "7"}
    slow = {"log.retention.check.interval.ms": "900"}
    found = removal_terms(TOPIC, LOCAL, [often, slow])
    assert RemovalTerms(1_000, 500 + LOOKS * 900) == found
    unknown = removal_terms(TOPIC, LOCAL, [often, {}])
    assert RemovalTerms(1_000, 500 + LOOKS * tombstone_removal.CHECK_MS_DEFAULT) == unknown
    as_total = {"local.retention.ms": "-2", "retention.ms": "70"}
    assert RemovalTerms(1_000, 70 + LOOKS * 7) == removal_terms(TOPIC, as_total, [often])


@pytest.mark.parametrize(
    ("config", "settings"),
    [
        (TOPIC, {"local.retention.ms": "-2", "retention.ms": "-1"}),
        (TOPIC, {"local.retention.ms": "-1", "retention.ms": "70"}),
        (TOPIC, {}),
        (TOPIC, {"local.retention.ms": str(REMEMBERED_MS)}),
        (replace(TOPIC, delete_retention_ms=INT64_MAX), LOCAL),
        (replace(TOPIC, strategy=Strategy.TIMESTAMP), LOCAL),
    ],
)
def test_tombstones_stay_where_it_is_unknown_when_a_value_is_gone(
    config: TopicConfig, settings: dict[str, str]
) -> None:
    assert None is removal_terms(config, settings, [{}])
    assert None is expires_below(
        None, SOURCES, cache_of(), (), log_start=0, first_dirty=80, now_ms=NOW_MS
    )
