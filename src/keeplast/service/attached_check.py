"""Whether the tiered topics of a live cluster may be compacted where they lie, and what to change.

Changes nothing: a principal that may describe and read is enough, and each permission that is
missing is named. Brokers that do not answer, and a storage that fails, are rows with their errors.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial

from keeplast.attach.answers.shown_logs import decision_log_at
from keeplast.attach.held.metadata_view import fold_known
from keeplast.attach.held.publication import known_ids
from keeplast.clock import SystemClock
from keeplast.cluster.check import (
    AttachFinding,
    Severity,
    check_cluster,
    check_copied,
    check_faults,
    check_groups,
    check_marks,
    check_rights,
    check_topic,
)
from keeplast.cluster.client import ClusterClient
from keeplast.cluster.layouts.layout import RemoteLayout
from keeplast.cluster.live_cluster import ClusterFacts, Right, TopicFacts, is_refused
from keeplast.cluster.metadata_cache import PartitionCache, name_of
from keeplast.cluster.storage_check import check_storage, newest_served
from keeplast.config.precedence import Settings
from keeplast.errors import RefusedError
from keeplast.format.remote_log_metadata import RemoteLogSegment
from keeplast.model.text import format_counted, shown_url
from keeplast.model.topic_config import TopicConfig
from keeplast.service.place_check import CheckState, PartCheck, PlaceCheck, tried
from keeplast.service.store_check import check_clock
from keeplast.tier.metadata.database import is_missing, sqlite_path
from keeplast.tier.metadata.decisions import DecisionLog

Folding = Callable[[], AbstractContextManager[Callable[[int], object]]]
_STATES = {Severity.REFUSES: CheckState.PROBLEM, Severity.WARNS: CheckState.WARNING}


def check_attached(
    client: ClusterClient,
    topics: Sequence[str],
    log: DecisionLog | None,
    layout: RemoteLayout | None,
    settings_of: Callable[[Sequence[TopicFacts]], Settings],
    *,
    address: str,
    storage: str,
    folding: Folding,
) -> PlaceCheck:
    """Return how the chosen topics stand, every tiered one without a choice.

    ``log`` and ``layout`` are looked at where they are given: without a log, what it knows is
    another compactor's. InvalidError for a topic that is not there.
    """
    checks: list[PartCheck] = []
    served: list[RemoteLogSegment] = []
    try:
        facts = client.read_facts(topics)
        checks += map(_as_check, check_cluster(facts, address))
        found, served = _metadata_findings(client, facts, log, folding)
        checks += map(_as_check, found)
    except RefusedError:
        missing = client.missing_rights(topics)
        if not missing:
            raise
        facts = ClusterFacts(client.read_cluster_id(), (), (), None)
        checks += map(_as_check, check_rights(missing, address))
    if layout is not None:
        checks += _storage_checks(layout, storage, served)
    checks += _topic_checks(client, facts, settings_of(facts.topics), address)
    words = f"{format_counted(len(facts.brokers), 'broker')}" if facts.brokers else "not looked at"
    head = PartCheck("cluster", CheckState.OK, f"{facts.cluster_id}: {words}")
    verdicts = topic_verdicts(facts, checks)
    return PlaceCheck(
        (head, *verdicts, *checks), tuple(each.name for each in facts.topics), facts.cluster_id,
        tuple(each.broker_id for each in facts.brokers),
    )  # fmt: skip


@contextlib.contextmanager
def decisions_there(store: str | None) -> Iterator[tuple[DecisionLog | None, Sequence[PartCheck]]]:
    """Open the decision log at a URL to look at it; None where it cannot be, and why."""
    if store is None:
        yield None, ()
        return
    if is_missing(store):
        words = f"there is none yet; the first round makes it: {shown_url(store)}"
        yield None, (PartCheck("decisions", CheckState.ABSENT, words),)
        return
    with ExitStack() as stack:
        opened = decision_log_at(store, SystemClock(), only_looks=True)
        log = tried("decisions", lambda: stack.enter_context(opened))
        if log is None or isinstance(log, PartCheck):
            yield None, () if log is None else (log,)
            return
        clock = check_clock(log.hold_rows.now_ms, is_shared=sqlite_path(store) is None)
        yield log, (PartCheck("decisions", CheckState.OK, shown_url(store)), clock)


def _as_check(found: AttachFinding) -> PartCheck:
    return PartCheck(found.rule, _STATES[found.severity], found.words, found.topic, found.remedy)


def topic_verdicts(facts: ClusterFacts, checks: Sequence[PartCheck]) -> Iterator[PartCheck]:
    """Yield the topics that may be attached: nothing refuses them, or all topics."""
    refused = {each.topic for each in checks if each.state is CheckState.PROBLEM}
    if None in refused:
        return
    for topic in facts.topics:
        if topic.name not in refused:
            words = f"may be attached: {format_counted(topic.partition_count, 'partition')}"
            yield PartCheck("topic", CheckState.OK, words, topic.name)
    if facts.brokers and not facts.topics:
        words = "no tiered topic; name one with --topic to see what it takes"
        yield PartCheck("topic", CheckState.ABSENT, words)


def _storage_checks(
    layout: RemoteLayout, storage: str, served: Sequence[RemoteLogSegment]
) -> Sequence[PartCheck]:
    found = tried("storage", lambda: [*map(_as_check, check_storage(layout, storage, served))])
    if isinstance(found, PartCheck):
        return [found]
    if any(each.state is CheckState.PROBLEM for each in found):
        return found
    words = f"{shown_url(storage)}: written, read, listed and removed a probe"
    return [PartCheck("storage", CheckState.OK, words), *found]


def _topic_checks(
    client: ClusterClient, facts: ClusterFacts, settings: Settings, address: str
) -> Iterator[PartCheck]:
    for topic in facts.topics:
        config = settings.topic_config(topic.name)
        yield from map(_as_check, check_topic(topic, config.cleanup_policy, address))
        yield from map(_as_check, check_groups(_unknown(client, config), topic.name, address))


def _metadata_findings(
    client: ClusterClient, facts: ClusterFacts, log: DecisionLog | None, folding: Folding
) -> tuple[list[AttachFinding], list[RemoteLogSegment]]:
    """Return what the metadata topic's records say against the topics of ``facts``.

    And one segment of each topic that brokers serve.
    """
    if facts.metadata_topic is None:
        return [], []
    with folding() as progressed:
        folded = fold_known(client, facts, facts.metadata_topic, log, progressed)
    own = (
        set()
        if log is None
        else {name for each in log.partitions(facts.cluster_id) for name in known_ids(log, each)}
    )
    names = {each.name for each in facts.topics}
    found = [*check_faults(folded.faults), *check_marks(folded.cache, names, own)]
    for topic in facts.topics:
        known = [
            folded.cache.partitions.get(name_of(topic, each), PartitionCache())
            for each in range(topic.partition_count)
        ]
        if any(each.segments or each.highest >= 0 for each in known):
            found += check_copied(topic, client.read_ranges(topic), known)
    return found, newest_served(folded.cache, names)


def _unknown(client: ClusterClient, config: TopicConfig) -> list[Right]:
    """Return the rights that the principal lacks to read the groups that tombstones wait for."""
    groups = config.tombstones_wait_for_groups if config.is_compacted else ()
    return [
        Right("Describe", group=each)
        for each in dict.fromkeys(groups)
        if is_refused(partial(client.read_group_offsets, each))
    ]
