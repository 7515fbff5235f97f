"""``keeplast attach``: tiered topics of a live Kafka cluster, looked at from outside.

Nothing is written to the cluster, and nothing to its remote tier.
"""

from __future__ import annotations

import typer

from keeplast.cli.attach.check import check
from keeplast.cli.attach.status import status

attach = typer.Typer(
    name="attach",
    help="Tiered topics of a live Kafka cluster: what brokers serve, and whether they could be "
    "compacted where they lie. Only looks.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (check, status):
    attach.command()(command)
