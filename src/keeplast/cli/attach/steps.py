"""What the commands on attached partitions do, one partition after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from keeplast.attach.collection import collect
from keeplast.attach.kept_folds import KeptFolds
from keeplast.attach.metadata_view import AttachTerms
from keeplast.attach.publication import Publisher, claim
from keeplast.attach.repair import repair
from keeplast.cli.attach.options import AttachedCall, ClusterOptions, DecisionOptions
from keeplast.cli.frame.command import Result
from keeplast.cli.frame.exit_codes import DONE, error_exit_code
from keeplast.cli.show.attach import attached_parts
from keeplast.cli.show.output import print_result
from keeplast.errors import CompactionError, InvalidError, error_text
from keeplast.format.identifier import encode_id
from keeplast.tier.metadata.decisions import DecisionLog
from keeplast.tier.state.attached import Attached

Row = dict[str, object]
Step = Callable[[Publisher], Mapping[str, object]]


def collection_step(grace_ms: int) -> Step:
    """Return what collects a partition's replaced segments."""

    def act(publisher: Publisher) -> Mapping[str, object]:
        repaired = repair(publisher)
        found = collect(publisher, grace_ms)
        return {
            "published": repaired.published + repaired.published_again,
            "discarded": repaired.discarded, "collected_segments": found.segments,
            "collected_bytes": found.bytes, "waiting": found.waiting,
        }  # fmt: skip

    return act


def repair_step(accepts_metadata: bool) -> Step:
    """Return what ends what was left undone."""

    def act(publisher: Publisher) -> Mapping[str, object]:
        found = repair(publisher, accepts_metadata=accepts_metadata)
        return {
            "published": found.published, "published_again": found.published_again,
            "discarded": found.discarded,
        }  # fmt: skip

    return act


def detach_step(grace_ms: int) -> Step:
    """Return what gives a partition up when nothing of it waits."""
    collects = collection_step(grace_ms)

    def act(publisher: Publisher) -> Mapping[str, object]:
        found = dict(collects(publisher))
        if not found["waiting"]:
            publisher.detach()
        return {**found, "is_detached": not found["waiting"]}

    return act


def each_attached(
    call: AttachedCall,
    step: Step,
    *,
    as_json: bool,
    accepts_metadata: bool = False,
    forgets_gone: bool = False,
) -> Result:
    """Claim each chosen partition, do ``step`` and give it back; the greatest exit code counts.

    Of a topic that was deleted there is nothing to do: its brokers remove what they knew of.
    ``forgets_gone`` ends it in the decision log.
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
            if _is_gone(each, ids):
                if forgets_gone:
                    log.forget(each)
                rows.append(row | {"is_gone": True, "is_detached": forgets_gone})
                continue
            policy = settings.topic_config(each.name.partition.topic).cleanup_policy
            try:
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
