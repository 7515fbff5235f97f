"""What the commands on attached partitions do, one partition after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from keeplast.attach.held.kept_folds import KeptFolds
from keeplast.attach.held.metadata_view import AttachTerms
from keeplast.attach.held.publication import Publisher, claim
from keeplast.attach.held.words import Words, clear_outputs, sweep_outputs, words_of_live
from keeplast.attach.upkeep.collection import WhyWait, collect
from keeplast.attach.upkeep.orphans import collect_gone, orphans_of_gone, unknown_of_live
from keeplast.attach.upkeep.repair import repair
from keeplast.cli.attach.options import (
    AttachedCall,
    ClusterOptions,
    DecisionOptions,
    OrphansWish,
)
from keeplast.cli.frame.command import Result
from keeplast.cli.frame.exit_codes import DONE, error_exit_code
from keeplast.cli.show.attach import attached_parts
from keeplast.cli.show.output import print_result
from keeplast.cluster.client import ClusterClient
from keeplast.cluster.layouts.layout import FoundSegment, RemoteLayout
from keeplast.errors import CompactionError, ConflictError, InvalidError, error_text
from keeplast.format.identifier import encode_id
from keeplast.tier.metadata.decisions import DecisionLog
from keeplast.tier.state.attached import Attached

Row = dict[str, object]
Step = Callable[[Publisher], Mapping[str, object]]
GoneStep = Callable[
    [ClusterClient, DecisionLog, RemoteLayout, Attached, KeptFolds], Mapping[str, object]
]
"""What is done for a partition whose topic is gone, or is hidden from the principal."""


def collection_step(grace_ms: int, why_wait: WhyWait | None = None) -> Step:
    """Return what collects a partition's replaced segments."""

    def act(publisher: Publisher) -> Mapping[str, object]:
        repaired = repair(publisher)
        found = collect(publisher, grace_ms, why_wait=why_wait)
        return {
            "published": repaired.published + repaired.published_again,
            "discarded": repaired.discarded, "collected_segments": found.segments,
            "collected_bytes": found.bytes, "waiting": found.waiting,
            **({} if found.due_ms is None else {"waiting_until_ms": found.due_ms}),
            **({} if found.held_back is None else {"held_back": found.held_back}),
        }  # fmt: skip

    return act


def forget_gone(
    client: ClusterClient, log: DecisionLog, layout: RemoteLayout, each: Attached, folds: KeptFolds
) -> Mapping[str, object]:
    """End a partition in the decision log, when brokers say that its topic is gone."""
    if client.find_topic_id(each.name.partition.topic) == each.name.partition.topic_id:
        raise ConflictError(f"the topic is there again; try again. partition={each.name}")
    log.forget(each)
    return {"is_detached": True}


def orphans_of_gone_step(wish: OrphansWish, grace_ms: int, *, takes_over: bool) -> GoneStep:
    """Return what lists, or removes, what a topic that is gone has left."""

    def act(
        client: ClusterClient, log: DecisionLog, layout: RemoteLayout, each: Attached,
        folds: KeptFolds,
    ) -> Mapping[str, object]:  # fmt: skip
        if wish is OrphansWish.LIST:
            found = orphans_of_gone(client, log, layout, each, grace_ms, folds)
        else:
            found = collect_gone(
                client, log, layout, each, grace_ms, folds, takes_over=takes_over,
                takes_served=wish is OrphansWish.COLLECT_SERVED,
            )  # fmt: skip
        is_list = wish is OrphansWish.LIST
        verb, gone = (
            ("orphan", found.named) if is_list else ("collected", found.named + found.served)
        )
        still = found.served if is_list else ()
        return {
            f"{verb}_segments": len(gone), f"{verb}_bytes": _bytes_of(gone),
            "still_served_segments": len(still), "still_served_bytes": _bytes_of(still),
            **_word_counts(found.words, wish), "waiting": len(found.waiting),
            **_unknown(found.unknown),
            "is_detached": (held := log.find(each.name)) is None or held.detached_ms is not None,
        }  # fmt: skip

    return act


def with_unknown(step: Step, wish: OrphansWish) -> Step:
    """Return ``step``, and behind it what lies there and nobody names."""

    def act(publisher: Publisher) -> Mapping[str, object]:
        found = step(publisher)
        removes = wish is not OrphansWish.LIST
        words = words_of_live(publisher, removes=removes)
        if removes:
            # As a round does at its beginning: there may be none for long. Words that are due are
            # counted before, since it removes them too; what it marks waits.
            sweep_outputs(publisher)
            words = replace(words, waiting=words_of_live(publisher, removes=False).waiting)
        return {**found, **_word_counts(words, wish), **_unknown(unknown_of_live(publisher))}

    return act


def _word_counts(words: Words, wish: OrphansWish) -> Row:
    name = "unwritten" if wish is OrphansWish.LIST else "unwritten_removed"
    return {name: len(words.due), "unwritten_waiting": len(words.waiting)}


def _unknown(found: tuple[FoundSegment, ...]) -> Row:
    return {"unknown_segments": len(found), "unknown_bytes": _bytes_of(found)}


def _bytes_of(found: tuple[FoundSegment, ...]) -> int:
    return sum(each.size_bytes for each in found)


def repair_step(accepts_metadata: bool) -> Step:
    """Return what ends what was left undone."""

    def act(publisher: Publisher) -> Mapping[str, object]:
        found = repair(publisher, accepts_metadata=accepts_metadata)
        # Also where no decision is open: a batch that came late may have hidden what is whole.
        publisher.mend(publisher.look())
        return {
            "published": found.published, "published_again": found.published_again,
            "discarded": found.discarded,
        }  # fmt: skip

    return act


def detach_step(grace_ms: int, why_wait: WhyWait | None = None) -> Step:
    """Return what gives a partition up when nothing of it waits."""
    collects = collection_step(grace_ms, why_wait)

    def act(publisher: Publisher) -> Mapping[str, object]:
        found = dict(collects(publisher))
        if not found["waiting"]:
            clear_outputs(publisher)
            publisher.detach()
        return {**found, "is_detached": not found["waiting"]}

    return act


def each_attached(
    call: AttachedCall,
    step: Step,
    *,
    as_json: bool,
    accepts_metadata: bool = False,
    of_gone: GoneStep | None = None,
) -> Result:
    """Claim each chosen partition, do ``step`` and give it back; the greatest exit code counts.

    Of a topic that was deleted there is nothing to do, but ``of_gone``: its brokers remove what
    they knew of.
    """
    client = call.cluster.connect()
    layout = call.tier.open_layout()
    code, rows = DONE, []
    with call.tier.open_log() as log:
        cluster_id = client.read_cluster_id()
        chosen = _chosen(log, cluster_id, call.cluster.topics)
        folds = KeptFolds(log.folds)
        ids = client.read_topic_ids({each.name.partition.topic for each in chosen})
        names = sorted({each.name.partition.topic for each in chosen if not _is_gone(each, ids)})
        settings = call.wanted.settings_of(client.read_facts(names).topics if names else ())
        for each in chosen:
            row = _row(each)
            try:
                if _is_gone(each, ids):
                    row |= {"is_gone": True, "is_detached": False}
                    row |= {} if of_gone is None else of_gone(client, log, layout, each, folds)
                    rows.append(row)
                    continue
                policy = settings.topic_config(each.name.partition.topic).cleanup_policy
                publisher = claim(
                    client, log, layout, each.name.partition, cluster_id,
                    AttachTerms(policy, call.cluster.bootstrap_server),
                    takes_over=call.take_over, accepts_metadata=accepts_metadata,
                    folds=folds,
                )  # fmt: skip
                try:
                    row |= {"epoch": publisher.epoch, **step(publisher)}
                finally:
                    publisher.close()
            except (CompactionError, OSError) as error:
                code = max(code, error_exit_code(error))
                row["error"] = error_text(error)
            rows.append(row)
    return told(code, rows, as_json)


def set_paused(
    cluster: ClusterOptions, decisions: DecisionOptions, *, is_paused: bool, as_json: bool
) -> Result:
    """Pause or resume the chosen partitions; nobody is fenced by it."""
    client = cluster.connect()
    with decisions.open_log() as log:
        cluster_id = client.read_cluster_id()
        rows = []
        for each in _chosen(log, cluster_id, cluster.topics):
            log.set_paused(each, is_paused=is_paused)
            rows.append(_row(each) | {"is_paused": is_paused})
    return told(DONE, rows, as_json)


def _chosen(log: DecisionLog, cluster_id: str, topics: tuple[str, ...]) -> list[Attached]:
    attached = [each for each in log.partitions(cluster_id) if each.detached_ms is None]
    missing = sorted(set(topics) - {each.name.partition.topic for each in attached})
    if missing or not attached:
        raise InvalidError(
            "nothing of that is attached by this decision log; correct --store or --topic. "
            f"topics={missing or 'all'} cluster_id={cluster_id}"
        )
    return [each for each in attached if not topics or each.name.partition.topic in topics]


def _is_gone(each: Attached, ids: Mapping[str, bytes]) -> bool:
    """Say whether the topic that was attached is no more, or another one has its name."""
    return ids.get(each.name.partition.topic) != each.name.partition.topic_id


def _row(each: Attached) -> Row:
    at = each.name.partition
    return {"topic": at.topic, "topic_id": encode_id(at.topic_id), "partition": at.partition}


def told(code: int, rows: list[Row], as_json: bool) -> Result:
    """Return a command's result; it is shown, unless it is asked for as JSON."""
    if not as_json:
        print_result(*attached_parts(rows))
    return code, {"partitions": rows}
