"""Which rounds fit on a disk together, and that some of it stays free."""

from __future__ import annotations

from pathlib import Path

from keeplast.cleaner.plan import RoundPlan
from keeplast.errors import RefusedError
from keeplast.log.files import FileSystem
from keeplast.run.round_reports import disk_needed_bytes
from keeplast.run.round_state import Round
from keeplast.survey.survey import Survey

RESERVE_BYTES_MIN = 64 << 20
RESERVE_SHARE = 50
"""One in so many free bytes stays free, and 64 MiB at least."""


def usable_bytes(files: FileSystem, place: Path) -> int:
    """Return the bytes that may be written on the volume of ``place``; below 0 for none."""
    free = files.free_bytes(place)
    return free - max(free // RESERVE_SHARE, RESERVE_BYTES_MIN)


def check_room(
    files: FileSystem, survey: Survey, plan: RoundPlan, source: Path, target: Path
) -> None:
    """Raise RefusedError when not even one group fits, or not the whole log at a target."""
    needed = disk_needed_bytes(survey, plan, is_in_place=target == source)
    room = usable_bytes(files, target)
    if needed > room:
        raise RefusedError(
            "not enough free disk; free some, or use --to another volume. "
            f"path={target} needed_bytes={needed} usable_bytes={max(room, 0)}"
        )


def next_together(waiting: list[Round], files: FileSystem) -> tuple[list[Round], list[Round]]:
    """Return the rounds whose output fits on disk together, and those that must wait.

    A round that is too large even alone runs alone, in waves.
    """
    used = 0
    for i, round_ in enumerate(waiting):
        if not round_.site.shares_disk:
            continue
        room = usable_bytes(files, round_.site.target)
        needed = round_.bytes_to_stage()
        if i and used + needed > room:
            return waiting[:i], waiting[i:]
        round_.wave_bytes_max = room if needed > room else None
        used += needed
    return waiting, []
