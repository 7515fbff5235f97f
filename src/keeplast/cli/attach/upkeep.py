"""``keeplast attach collect``, ``repair``, ``pause``, ``resume`` and ``detach``.

What is done to partitions that were attached, beside rounds. Each partition is one step; one that
fails leaves the others be.
"""

from __future__ import annotations

from typing import Annotated

import typer

from keeplast.cli.attach.options import (
    AttachedCall,
    BrokerMetricsUrls,
    ClusterOptions,
    DecisionOptions,
    KeepSources,
    OrphansWish,
    why_wait_of,
)
from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.parameters import Json
from keeplast.cli.frame.spans import SPAN_WORDS, span_ms
from keeplast.errors import InvalidError

GraceMs = Annotated[
    int | None,
    typer.Option(
        "--grace-ms", metavar="MS", parser=span_ms,
        help="How long replaced segments stay for readers that began before, and for you to look: "
        f"milliseconds, or {SPAN_WORDS}. Default: an hour; a minute at least on an object store.",
    ),
]  # fmt: skip
EXAMPLE = (
    "--bootstrap-server localhost:9092 --store sqlite:///decisions.db "
    "--storage aiven:s3://bucket/prefix"
)


@command(
    first=("bootstrap_server", "store", "storage"), example=f"keeplast attach collect {EXAMPLE}"
)
def collect(
    call: AttachedCall,
    grace_ms: GraceMs = None,
    keep_sources: KeepSources = None,
    broker_metrics: BrokerMetricsUrls = (),
    orphans: Annotated[
        OrphansWish | None,
        typer.Option(
            "--orphans",
            help="Also look for objects that no broker serves, of topics that are gone too: list "
            "says what there is; collect removes, of topics that are gone, what this decision log "
            "or the metadata topic names, and of others what a process began and never announced; "
            "collect-served also what the metadata topic still shows as served of topics that are "
            "gone: no other cluster may read this bucket. What nobody names stays.",
        ),
    ] = None,
    as_json: Json = False,
) -> Result:
    """Delete what was replaced, when its grace is over; nobody goes back after that.

    What is served instead is read from the remote tier first, whole. What a crash left is ended
    before, as `repair` does it.
    """
    from keeplast.attach.upkeep.collection import GRACE_MS_DEFAULT, check_grace
    from keeplast.cli.attach.steps import (
        collection_step,
        each_attached,
        orphans_of_gone_step,
        with_unknown,
    )

    grace = check_grace(
        GRACE_MS_DEFAULT if grace_ms is None else grace_ms,
        is_object_store=call.tier.is_object_store,
    )
    step = collection_step(max(grace, keep_sources or 0), why_wait_of(broker_metrics))
    if orphans is None:
        return each_attached(call, step, as_json=as_json)
    of_gone = orphans_of_gone_step(orphans, grace, takes_over=call.take_over)
    step = with_unknown(step, orphans)
    return each_attached(call, step, as_json=as_json, of_gone=of_gone)


@command(
    first=("bootstrap_server", "store", "storage"), example=f"keeplast attach repair {EXAMPLE}"
)
def repair(
    call: AttachedCall,
    accept_metadata: Annotated[
        bool,
        typer.Option(
            "--accept-metadata",
            help="The metadata topic is not the one that was seen before (restored, cut by an "
            "unclean leader), I have looked, and it is the right cluster's: publish again what it "
            "lost.",
        ),
    ] = False,
    rebuild: Annotated[
        bool,
        typer.Option(
            "--rebuild",
            help="The decision log of the topics that --topic names is lost, or an older backup, "
            "and no process that has it runs any more: own them by this --store, and write down "
            "again what the metadata topic says of them.",
        ),
    ] = False,
    grace_ms: GraceMs = None,
    as_json: Json = False,
) -> Result:
    """Publish what was decided and is not on the cluster, and take back what never was decided.

    Deletes nothing that anybody could still read. With `--rebuild` the grace is how long no
    compactor may have been at work.
    """
    from keeplast.attach.upkeep.collection import GRACE_MS_DEFAULT, check_grace
    from keeplast.cli.attach.rebuilding import rebuild_topics
    from keeplast.cli.attach.steps import each_attached, repair_step

    if rebuild:
        grace = check_grace(
            GRACE_MS_DEFAULT if grace_ms is None else grace_ms,
            is_object_store=call.tier.is_object_store,
        )
        return rebuild_topics(call, grace, accepts_metadata=accept_metadata, as_json=as_json)
    if grace_ms is not None:
        raise InvalidError(f"a repair has no grace; leave it out. --grace-ms={grace_ms}")
    step = repair_step(accept_metadata)
    return each_attached(call, step, as_json=as_json, accepts_metadata=accept_metadata)


@command(
    first=("bootstrap_server", "store", "storage"), example=f"keeplast attach detach {EXAMPLE}"
)
def detach(
    call: AttachedCall,
    grace_ms: GraceMs = None,
    broker_metrics: BrokerMetricsUrls = (),
    as_json: Json = False,
) -> Result:
    """Give partitions up: end what is decided, collect, and leave the topic to Kafka alone.

    What is compacted stays so. A partition whose replaced segments still wait for their grace is
    left attached; one whose topic was deleted is only forgotten.
    """
    from keeplast.attach.upkeep.collection import GRACE_MS_DEFAULT, check_grace
    from keeplast.cli.attach.steps import detach_step, each_attached, forget_gone

    grace = check_grace(
        GRACE_MS_DEFAULT if grace_ms is None else grace_ms,
        is_object_store=call.tier.is_object_store,
    )
    step = detach_step(grace, why_wait_of(broker_metrics))
    return each_attached(call, step, as_json=as_json, of_gone=forget_gone)


@command(
    first=("bootstrap_server", "store", "topics"),
    example="keeplast attach pause --bootstrap-server localhost:9092 --store sqlite:///decisions.db",
)
def pause(cluster: ClusterOptions, decisions: DecisionOptions, as_json: Json = False) -> Result:
    """Let no process on any host decide or delete anything more, until `resume`.

    What is decided already is published by whoever does it.
    """
    from keeplast.cli.attach.steps import set_paused

    return set_paused(cluster, decisions, is_paused=True, as_json=as_json)


@command(
    first=("bootstrap_server", "store", "topics"),
    example="keeplast attach resume --bootstrap-server localhost:9092 --store sqlite:///decisions.db",
)
def resume(cluster: ClusterOptions, decisions: DecisionOptions, as_json: Json = False) -> Result:
    """Let processes go on with partitions that were paused."""
    from keeplast.cli.attach.steps import set_paused

    return set_paused(cluster, decisions, is_paused=False, as_json=as_json)
