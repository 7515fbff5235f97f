"""``keeplast tier run``: copy, clean, expire and collect whatever partitions of a store need it."""

from __future__ import annotations

from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.packages import check_packages
from keeplast.cli.frame.parameters import Json
from keeplast.cli.tier.options import TierRunOptions


@command(
    first=("store", "data_dir", "once"),
    example="keeplast tier run --store sqlite:///meta.db --data-dir DATA_DIR",
)
def run(options: TierRunOptions, as_json: Json = False) -> Result:
    """Copy, clean, expire and collect until SIGTERM or SIGINT, or with --once until nothing is due.

    For all partitions that nobody owns or this host does; another's only with --take-over, and who
    is fenced later leaves the partition alone. The partitions' settings are those in the store,
    `--config` is about the cleaner. A damaged partition is skipped and stops no other.
    """
    check_packages()
    from keeplast.cli.tier.loop import look_after

    return look_after(options, as_json=as_json)
