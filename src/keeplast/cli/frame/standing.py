"""How the logs of a data directory stand, for commands that look and change nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from keeplast.cli.show.output import say
from keeplast.errors import CorruptError
from keeplast.inspect.status import TombstoneReading, find_statuses
from keeplast.log.lock import is_locked
from keeplast.service.set_aside import FAILING_NAME, FILE_NAME, read_set_aside
from keeplast.service.status import (
    daemon_pace,
    find_sizes,
    find_timestamp_ahead_max,
    join_status,
    read_round_receipts,
)
from keeplast.survey.request import CleanRequest

if TYPE_CHECKING:
    from keeplast.cli.show.progress import ProgressEvents
    from keeplast.config.selection import Selection
    from keeplast.log.files import FileSystem
    from keeplast.model.partition import TopicPartition
    from keeplast.service.set_aside import SetAside
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
) -> DirectoryStatus:
    """Return the status of the partitions that were selected, as a daemon would find them."""
    root, settings = selection.directory.root, selection.settings
    cleaner = settings.cleaner_config()
    request = CleanRequest(
        selection.partitions, now_ms, rolls_idle=True, expired=cleaner.has_expired_rounds
    )
    marks, failures = _marks(files, root, FILE_NAME), _marks(files, root, FAILING_NAME)
    sizes = find_sizes(selection.directory, files)
    if tombstones is not TombstoneReading.SKIP:
        events.planned(sum(sizes[each.partition] for each in selection.partitions))
    found = find_statuses(
        request,
        root,
        files,
        now_ms,
        timestamp_ahead_max_ms=lambda topic: find_timestamp_ahead_max(settings, topic),
        tombstones=tombstones,
        progressed=events.progressed,
    )
    return join_status(
        found,
        selection.decided,
        root=root,
        files=files,
        now_ms=now_ms,
        is_locked=is_locked(root),
        pace=daemon_pace(cleaner, round_seconds),
        marks=marks,
        failures=failures,
        receipts=read_round_receipts(files, root, receipt),
        sizes=[*sizes.values()],
    )


def _marks(files: FileSystem, root: Path, name: str) -> Mapping[TopicPartition, SetAside]:
    """Return which partitions failed by one of the daemon's files; a damaged one is told."""
    try:
        return read_set_aside(files, root, name)
    except CorruptError as error:
        say(f"{error}; nothing in it counts", kind="warning")
        return {}
