"""``keeplast attach hold``: keep every host's rounds of live topics from passing a point."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from keeplast.cli.attach.options import (
    ClusterAddress,
    ClusterOptions,
    DecisionOptions,
    TierOptions,
    WantedOptions,
    decision_log_there,
)
from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.parameters import Json
from keeplast.cli.hold import At, HeldPartitions, HeldTopics, HoldName, MaxAge

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from keeplast.tier.metadata.hold_rows import HeldTopic

hold = typer.Typer(
    name="hold",
    help="Keep rounds of live topics from cleaning past a point, for a while.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
EXAMPLE = "--bootstrap-server localhost:9092 --store sqlite:///decisions.db"


@hold.command()
@command(
    first=("bootstrap_server", "store", "topics"),
    example=f"keeplast attach hold add audit {EXAMPLE} --storage aiven:s3://bucket/prefix "
    "--topic orders --at now --max-age 7d",
)
def add(
    name: HoldName,
    cluster: ClusterAddress,
    tier: TierOptions,
    wanted: WantedOptions,
    topics: HeldTopics,
    at: At,
    max_age: MaxAge,
    partitions: HeldPartitions = (),
    as_json: Json = False,
) -> Result:
    """Keep attach clean and attach run of every host from passing a point of tiered topics.

    The states as of it and of every later point can then be told until the hold is over. Topics
    that nobody compacts yet can be held too, and are not attached by it. Refused where a round has
    passed the point already. Hosts may be at work, and none of them is fenced. A point that no
    round can reach yet is held from the last segment on that one can. Retention goes on.
    """
    from keeplast.cli.frame.exit_codes import DONE
    from keeplast.cli.hold import hold_documents, holds_table
    from keeplast.cli.show.output import print_result
    from keeplast.clock import SystemClock
    from keeplast.service.attached_holding import hold_topics

    client = cluster.connect()
    layout = tier.open_layout()
    facts = client.read_facts(topics)
    settings = wanted.settings_of(facts.topics)
    with tier.open_log() as log:
        added = hold_topics(
            client, facts, log, layout, settings, SystemClock(), topics, partitions, name, at,
            max_age, address=cluster.bootstrap_server,
        )  # fmt: skip
        now_ms = log.hold_rows.now_ms()
    if not as_json:
        print_result(holds_table(added, now_ms))
    return DONE, {"cluster_id": facts.cluster_id, "holds": hold_documents(added, now_ms)}


@hold.command(name="list")
@command(first=("bootstrap_server", "store"), example=f"keeplast attach hold list {EXAMPLE}")
def list_(cluster: ClusterOptions, decisions: DecisionOptions, as_json: Json = False) -> Result:
    """Show every hold of a cluster's topics; those that are over stay until the next is added."""
    from keeplast.cli.frame.exit_codes import DONE
    from keeplast.cli.hold import holds_table
    from keeplast.cli.show.output import print_result

    cluster_id = cluster.connect().read_cluster_id()
    with decision_log_there(decisions.store, only_looks=True) as log:
        assert log is not None
        found = [
            each
            for each in log.hold_rows.attached(cluster_id)
            if not cluster.topics or each.hold.partition.topic in cluster.topics
        ]
        now_ms = log.hold_rows.now_ms()
    if not as_json:
        print_result(holds_table([each.hold for each in found], now_ms))
    return DONE, {"cluster_id": cluster_id, "holds": _documents(found, now_ms)}


@hold.command()
@command(
    first=("bootstrap_server", "store"), example=f"keeplast attach hold release audit {EXAMPLE}"
)
def release(
    name: HoldName, cluster: ClusterAddress, decisions: DecisionOptions, as_json: Json = False
) -> Result:
    """End a hold before its time, for all partitions that it is of."""
    from keeplast.cli.frame.exit_codes import DONE
    from keeplast.cli.hold import hold_documents, released_words
    from keeplast.cli.show.output import print_result

    cluster_id = cluster.connect().read_cluster_id()
    with decision_log_there(decisions.store) as log:
        assert log is not None
        released = log.hold_rows.release_attached(cluster_id, name)
        now_ms = log.hold_rows.now_ms()
    if not as_json:
        print_result(released_words(name, released))
    return DONE, {"cluster_id": cluster_id, "released": hold_documents(released, now_ms)}


def _documents(found: Sequence[HeldTopic], now_ms: int) -> list[dict[str, Any]]:
    from keeplast.cli.hold import hold_documents

    rows = hold_documents([each.hold for each in found], now_ms)
    return [row | {"topic_id": each.topic_id} for row, each in zip(rows, found, strict=True)]
