"""``keeplast tier expire`` and ``collect``: one step of the upkeep of each partition.

``keeplast tier run`` does them in a loop.
"""

from __future__ import annotations

from typing import Annotated

import typer

from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.packages import check_packages
from keeplast.cli.frame.parameters import BrokerConfig, Json
from keeplast.cli.tier.options import (
    ExpiryReceipt,
    GarbageAgeMs,
    GraceOptions,
    OwnedCall,
)


@command(
    first=("store", "topics", "grace_ms"), example="keeplast tier expire --store sqlite:///meta.db"
)
def expire(
    call: OwnedCall,
    grace: GraceOptions,
    broker_config: BrokerConfig = None,
    log_start: Annotated[
        int | None,
        typer.Option(
            "--log-start", metavar="OFFSET", min=0,
            help="Let the log of one partition start there, as DeleteRecords does; never back.",
        ),
    ] = None,
    receipt: ExpiryReceipt = None,
    as_json: Json = False,
) -> Result:  # fmt: skip
    """Let go what retention and the log start offset let go."""

    check_packages()
    from keeplast.cli.tier.steps import each_partition, expiry_step
    from keeplast.errors import InvalidError

    if log_start is not None and not (len(call.scope.topics) == len(call.scope.partitions) == 1):
        raise InvalidError("a log start is one partition's; name it with --topic and --partition")
    step = expiry_step(call, grace, receipt, log_start)
    return each_partition(
        call, step, as_json=as_json, broker_config=broker_config, assumes_retention=True
    )


@command(
    first=("store", "topics", "garbage_age_ms"),
    example="keeplast tier collect --store sqlite:///meta.db",
)
def collect(call: OwnedCall, garbage_age_ms: GarbageAgeMs = None, as_json: Json = False) -> Result:
    """Remove replaced segments whose grace has passed, and objects that nobody names."""
    check_packages()
    from keeplast.cli.tier.steps import collection_step, each_partition

    step = collection_step(call, garbage_age_ms)
    return each_partition(call, step, as_json=as_json, with_forgotten=True)
