"""How the logs of a data directory stand, for commands that look and change nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from keeplast.cli.show.output import say
from keeplast.inspect.status import TombstoneReading
from keeplast.service.directory_look import look_at_directory
from keeplast.service.status import find_last_rounds, read_kept_entries

if TYPE_CHECKING:
    from keeplast.cli.show.progress import ProgressEvents
    from keeplast.config.selection import Selection
    from keeplast.log.files import FileSystem
    from keeplast.model.reader_wait import GroupReader
    from keeplast.service.status import DirectoryStatus


def find_standing(
    selection: Selection,
    files: FileSystem,
    now_ms: int,
    *,
    tombstones: TombstoneReading,
    round_seconds: float | None,
    receipt: Path | None,
    events: ProgressEvents,
    brokers: GroupReader | None = None,
) -> DirectoryStatus:
    """Return the status of the partitions that were selected, as a daemon would find them."""
    look = look_at_directory(
        selection, files, now_ms, tombstones=tombstones, round_seconds=round_seconds,
        planned=events.planned, progressed=events.progressed, brokers=brokers,
    )  # fmt: skip
    for warning in look.warnings:
        say(warning, kind="warning")
    entries = read_kept_entries(files, look.root, receipt)
    return look.joined(files, find_last_rounds(entries))
