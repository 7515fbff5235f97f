"""One look at a data directory, before it is joined to a status: by ``status``, or by the loop.

A look is a value: whoever has it may join it later and in another thread. It was made without the
directory's lock, or by the loop that holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from keeplast.cleaner.erasure import Pace
from keeplast.config.selection import Selection
from keeplast.config.settings import Settings
from keeplast.errors import CorruptError
from keeplast.inspect.status import LogStatus, TombstoneReading, find_statuses
from keeplast.log.files import FileSystem
from keeplast.log.lock import is_locked
from keeplast.model.partition import TopicPartition
from keeplast.model.reader_wait import GroupReader
from keeplast.service.set_aside import FAILING_NAME, FILE_NAME, SetAside, read_set_aside
from keeplast.service.status import (
    DirectoryStatus,
    LastRound,
    daemon_pace,
    find_sizes,
    find_timestamp_ahead_max,
    join_status,
)
from keeplast.survey.report import PartitionReport
from keeplast.survey.request import CleanRequest, PartitionRequest


@dataclass(frozen=True, slots=True)
class DirectoryLook:
    """What was found of each log at ``now_ms``; the arguments of ``join_status``.

    ``warnings`` are what else the user should know. ``settings`` are those that counted.
    """

    root: Path
    now_ms: int
    is_locked: bool
    pace: Pace
    found: tuple[tuple[PartitionRequest, LogStatus | Exception], ...]
    decided: tuple[PartitionReport, ...]
    marks: Mapping[TopicPartition, SetAside]
    failures: Mapping[TopicPartition, SetAside]
    sizes: Mapping[TopicPartition, int]
    settings: Settings
    warnings: tuple[str, ...] = ()

    def joined(
        self, files: FileSystem, last_rounds: Mapping[TopicPartition, LastRound]
    ) -> DirectoryStatus:
        """Return the status; reads the names of files of what is set aside, and nothing else."""
        return join_status(
            self.found,
            self.decided,
            root=self.root,
            files=files,
            now_ms=self.now_ms,
            is_locked=self.is_locked,
            pace=self.pace,
            marks=self.marks,
            failures=self.failures,
            last_rounds=last_rounds,
            sizes=[*self.sizes.values()],
        )


def look_at_directory(
    selection: Selection,
    files: FileSystem,
    now_ms: int,
    *,
    tombstones: TombstoneReading = TombstoneReading.SKIP,
    round_seconds: float | None = None,
    planned: Callable[[int], None] = lambda _: None,
    progressed: Callable[[int], None] = lambda _: None,
    brokers: GroupReader | None = None,
) -> DirectoryLook:
    """Look at the chosen partitions, without the lock; errors are those of the directory itself.

    ``planned`` and ``progressed`` hear of the bytes that counting tombstones goes through.
    ``brokers`` tell what consumer groups have committed, None where files do.
    """
    root, settings = selection.directory.root, selection.settings
    cleaner = settings.cleaner_config()
    request = CleanRequest(
        selection.partitions, now_ms, rolls_idle=True, expired=cleaner.has_expired_rounds
    )
    warnings: list[str] = []
    marks = _marks(files, root, FILE_NAME, warnings)
    failures = _marks(files, root, FAILING_NAME, warnings)
    sizes = find_sizes(selection.directory, files)
    if tombstones is not TombstoneReading.SKIP:
        planned(sum(sizes[each.partition] for each in selection.partitions))
    found = find_statuses(
        request,
        root,
        files,
        now_ms,
        timestamp_ahead_max_ms=lambda topic: find_timestamp_ahead_max(settings, topic),
        tombstones=tombstones,
        progressed=progressed,
        brokers=brokers,
    )
    return DirectoryLook(
        root, now_ms, is_locked(root), daemon_pace(cleaner, round_seconds), tuple(found),
        selection.decided, marks, failures, sizes, settings, tuple(warnings),
    )  # fmt: skip


def _marks(
    files: FileSystem, root: Path, name: str, warnings: list[str]
) -> Mapping[TopicPartition, SetAside]:
    """Return which partitions failed by one of the daemon's files; a damaged one is a warning."""
    try:
        return read_set_aside(files, root, name)
    except CorruptError as error:
        warnings.append(f"{error}; nothing in it counts")
        return {}
