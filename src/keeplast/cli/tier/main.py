"""``keeplast tier``: partitions whose history is in object storage.

Every command names the metadata store; the objects' place is given once, to ``init``. A command
that changes a partition owns it: see ``--owner`` and ``--take-over``.
"""

from __future__ import annotations

import typer

from keeplast.cli.tier.accept import accept
from keeplast.cli.tier.data import copy, export, import_, init
from keeplast.cli.tier.explain import explain
from keeplast.cli.tier.look import status, verify
from keeplast.cli.tier.removal import forget, truncate
from keeplast.cli.tier.run import run
from keeplast.cli.tier.settings import configure
from keeplast.cli.tier.upkeep import clean, collect, expire

tier = typer.Typer(
    name="tier",
    help="Partitions whose history is in object storage (KIP-1272).",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
tier.command()(init)
tier.command("import")(import_)
for command in (
    copy, run, status, explain, configure, clean, expire, collect, verify, export, truncate, forget,
    accept,
):  # fmt: skip
    tier.command()(command)
