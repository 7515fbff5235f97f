"""Undoes rounds of many partitions: the newest of each, or those that are named.

What one partition refuses keeps no other from it. Rounds that are named are undone once: who was
interrupted calls again with the same names, and what has come back by then is left alone, while
without names each call takes the round before. Who calls holds the directory's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from keeplast.clock import Clock
from keeplast.errors import CompactionError, RefusedError
from keeplast.log.data_directory import PartitionEntry
from keeplast.log.files import FileSystem
from keeplast.log.undo_files import read_kept
from keeplast.model.partition import TopicPartition
from keeplast.run.readiness import prove_receipt
from keeplast.run.undo import UndoRound, undo_newest

Told = Callable[[PartitionEntry, Sequence[UndoRound] | Exception], None]
"""Hears of each partition when it is done: its rounds, or why it is left as it is."""


@dataclass(frozen=True, slots=True)
class UndoReport:
    """What was undone, or with ``writes`` False could be.

    ``failed`` are partitions that were refused or could not be changed, each with why. ``missing``
    are the rounds that were named and of which no partition has kept anything: they have come back
    before, their time is over, or they never were.
    """

    rounds: tuple[UndoRound, ...]
    failed: tuple[tuple[TopicPartition, Exception], ...] = ()
    missing: tuple[str, ...] = ()


def undo_each(
    files: FileSystem,
    entries: Sequence[PartitionEntry],
    clock: Clock,
    *,
    rounds: Collection[str] = (),
    receipt: Path | None,
    writes: bool = True,
    told: Told = lambda entry, done: None,
    warned: Callable[[str], None],
) -> UndoReport:
    """Undo the newest round of each partition, or those of ``rounds``, which are names.

    ``receipt`` takes a line of each, before anything of it comes back: RefusedError where none can
    be appended. ``writes`` False compares all bytes, of the newest round of each alone.
    """
    if writes and receipt is not None:
        prove_receipt(files, receipt, [entry.path for entry in entries])
    done: list[UndoRound] = []
    failed: list[tuple[TopicPartition, Exception]] = []
    missing = dict.fromkeys(rounds)

    def undo(entry: PartitionEntry) -> UndoRound | None:
        return undo_newest(
            files, entry, receipt=receipt, now_ms=clock.now_ms(), writes=writes, warned=warned
        )

    for entry in entries:
        found: list[UndoRound] = []
        try:
            count = 1
            if rounds:
                count = _named(files, entry, rounds, missing)
            for _ in range(count if writes else min(count, 1)):
                each = undo(entry)
                found += [] if each is None else [each]
        except (CompactionError, OSError) as error:
            failed.append((entry.partition, error))
            done += found
            if found:
                told(entry, found)
            told(entry, error)
            continue
        done += found
        told(entry, found)
    return UndoReport(tuple(done), tuple(failed), tuple(missing))


def _named(
    files: FileSystem, entry: PartitionEntry, rounds: Collection[str], missing: dict[str, None]
) -> int:
    """Return how many rounds of a partition are to be undone, taking them out of ``missing``.

    One, which does nothing, where nothing is kept any more: what an interrupted call has left goes.
    RefusedError where a later round is not among them.
    """
    kept = read_kept(files, entry.path)
    names = [waves[0].attempt for waves in reversed(kept.rounds())]
    wanted = [name for name in names if name in rounds]
    for name in wanted:
        missing.pop(name, None)
    if not names:
        return 1
    if wanted != names[: len(wanted)]:
        (later,) = [name for name in names if name not in rounds][:1]
        raise RefusedError(
            "a later round has to be undone first; name it too, or leave this one. "
            f"round={wanted[-1]} later={later} path={entry.path}"
        )
    return len(wanted)
