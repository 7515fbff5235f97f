"""``keeplast attach``: tiered topics of a live Kafka cluster, compacted where they lie."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import typer

from keeplast.cli.frame.lazy import LazyGroup


class _Attach(LazyGroup):
    """The commands of a live cluster's tiered topics."""

    homes: ClassVar[Mapping[str, str]] = {
        "status": "keeplast.cli.attach.status:status",
        "run": "keeplast.cli.attach.run:run",
        "collect": "keeplast.cli.attach.upkeep:collect",
        "repair": "keeplast.cli.attach.upkeep:repair",
        "pause": "keeplast.cli.attach.upkeep:pause",
        "resume": "keeplast.cli.attach.upkeep:resume",
        "detach": "keeplast.cli.attach.upkeep:detach",
    }


attach = typer.Typer(
    name="attach",
    cls=_Attach,
    help="Tiered topics of a live Kafka cluster, compacted where they lie: brokers go on serving "
    "them, and nothing is installed there.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
