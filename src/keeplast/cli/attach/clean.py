"""``keeplast attach clean`` and ``plan``: a round in a live remote tier, or what it would be."""

from __future__ import annotations

from keeplast.cli.attach.options import (
    AttachedCleanOptions,
    ClusterOptions,
    RoundChoice,
    TierOptions,
    WantedOptions,
)
from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.parameters import Json
from keeplast.cli.plan import Exact


@command(
    first=("bootstrap_server", "store", "storage"),
    example="keeplast attach clean --bootstrap-server localhost:9092 --store sqlite:///decisions.db"
    " --storage aiven:s3://bucket --topic orders",
)
def clean(options: AttachedCleanOptions, as_json: Json = False) -> Result:
    """Do one round for each partition of tiered topics, in the remote tier, under live brokers.

    Brokers go on serving the topic; what they serve changes at once, and what was replaced stays
    until `attach collect`. What `attach check` refuses of brokers, topic and metadata topic is
    refused before anything is written and before each decision; what it refuses of the remote tier
    ends the round where it lies. The newest segments stay as brokers copied them.
    """
    from keeplast.cli.attach.rounds import clean_topics

    return clean_topics(options, as_json=as_json)


@command(
    first=("bootstrap_server", "store", "storage"),
    example="keeplast attach plan --bootstrap-server localhost:9092 --store sqlite:///decisions.db"
    " --storage local:/mnt/tier --topic orders",
)
def plan(
    cluster: ClusterOptions,
    tier: TierOptions,
    wanted: WantedOptions,
    choice: RoundChoice,
    exact: Exact = False,
    as_json: Json = False,
) -> Result:
    """Say what `attach clean` would do, and what it would cost; changes nothing.

    With `--exact` all that a round would read is read, on the threads of this host, and the bytes
    and records that would go are counted.
    """
    from keeplast.cli.attach.rounds import plan_topics

    return plan_topics(cluster, tier, wanted, choice, exact=exact, as_json=as_json)
