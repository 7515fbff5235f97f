"""``keeplast tier``: partitions whose history is in object storage.

Every command names the metadata store; the objects' place is given once, to ``init``. A command
that changes a partition owns it: see ``--owner`` and ``--take-over``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import typer

from keeplast.cli.frame.lazy import LazyGroup


class _Tier(LazyGroup):
    """The commands of a store."""

    homes: ClassVar[Mapping[str, str]] = {
        "init": "keeplast.cli.tier.data:init",
        "import": "keeplast.cli.tier.data:import_",
        "copy": "keeplast.cli.tier.data:copy",
        "run": "keeplast.cli.tier.run:run",
        "status": "keeplast.cli.tier.look:status",
        "expire": "keeplast.cli.tier.upkeep:expire",
        "collect": "keeplast.cli.tier.upkeep:collect",
        "export": "keeplast.cli.tier.data:export",
        "truncate": "keeplast.cli.tier.removal:truncate",
        "forget": "keeplast.cli.tier.removal:forget",
        "accept": "keeplast.cli.tier.accept:accept",
    }


tier = typer.Typer(
    name="tier",
    cls=_Tier,
    help="Partitions whose history is in object storage (KIP-1272).",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
