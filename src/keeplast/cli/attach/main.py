"""``keeplast attach``: tiered topics of a live Kafka cluster, compacted where they lie."""

from __future__ import annotations

import typer

from keeplast.cli.attach.check import check
from keeplast.cli.attach.clean import clean, plan
from keeplast.cli.attach.run import run
from keeplast.cli.attach.status import status
from keeplast.cli.attach.upkeep import collect, detach, pause, repair, resume
from keeplast.cli.attach.verify import verify

attach = typer.Typer(
    name="attach",
    help="Tiered topics of a live Kafka cluster, compacted where they lie: brokers go on serving "
    "them, and nothing is installed there.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (check, status, plan, clean, run, collect, verify, repair, pause, resume, detach):
    attach.command()(command)
