"""Which rounds fit on a disk together, and that some of it stays free."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from keeplast.cleaner.plan import RoundPlan
from keeplast.errors import RefusedError
from keeplast.log.files import FileSystem
from keeplast.run.committer import Work
from keeplast.run.rounds import disk_needed_bytes
from keeplast.survey.survey import Survey

RESERVE_BYTES_MIN = 64 << 20
RESERVE_SHARE = 50
"""One in so many free bytes stays free, and 64 MiB at least."""


class Room:
    """What rounds may take of the volumes that ``files`` shows."""

    def __init__(self, files: FileSystem) -> None:
        """Take the files."""
        self._files = files

    def free(self, place: Path) -> int:
        """Return the bytes that may be written on the volume of ``place``; below 0 for none."""
        free = self._files.free_bytes(place)
        return free - max(free // RESERVE_SHARE, RESERVE_BYTES_MIN)

    def check(self, survey: Survey, plan: RoundPlan, source: Path, target: Path) -> None:
        """Refuse when not even one group fits, or not the whole log at a target."""
        needed = disk_needed_bytes(survey, plan, is_in_place=target == source)
        room = self.free(target)
        if needed > room:
            raise RefusedError(
                "not enough free disk; free some, or use --to another volume. "
                f"path={target} needed_bytes={needed} usable_bytes={max(room, 0)}"
            )

    def next_chunk(self, waiting: list[Work]) -> tuple[list[Work], list[Work]]:
        """Return the rounds whose output fits on disk together, and those that must wait.

        A round that is too large even alone runs alone, in waves.
        """
        chunk: list[Work] = []
        used = 0
        for i, (run, round_) in enumerate(waiting):
            if not round_.task.writes or round_.task.target != round_.task.path:
                chunk.append((run, round_))
                continue
            room = self.free(round_.task.target)
            needed = round_.bytes_to_stage()
            if chunk and used + needed > room:
                return chunk, waiting[i:]
            round_.task = replace(round_.task, wave_bytes_max=room if needed > room else None)
            chunk.append((run, round_))
            used += needed
        return chunk, []
