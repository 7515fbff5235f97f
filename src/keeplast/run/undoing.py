"""Undoes rounds of many partitions: the newest of each, or those that are named.

What one partition refuses keeps no other from it. Rounds that are named are undone once: who was
interrupted calls again with the same names, and what has come back by then is left alone, while
without names each call takes the round before. Who calls holds the directory's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from keeplast.clock import Clock
from keeplast.errors import CompactionError, RefusedError
from keeplast.log.data_directory import PartitionEntry
from keeplast.log.files import FileSystem
from keeplast.log.undo_files import read_kept
from keeplast.model.partition import TopicPartition
from keeplast.run.events import Events
from keeplast.run.readiness import prove_receipt
from keeplast.run.undo import UndoRound, undo_newest

Told = Callable[[TopicPartition, Sequence[UndoRound] | Exception], None]
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


class UndoPlace(Protocol):
    """Where partitions have rounds that can be undone."""

    @property
    def writes(self) -> bool:
        """Say whether it is done, and not only found out whether it can be."""
        ...

    def names(self, partition: TopicPartition) -> list[str]:
        """Return the rounds that are kept, the newest first."""
        ...

    def undo_newest(self, partition: TopicPartition, named: str | None) -> UndoRound | None:
        """Undo one, None where nothing is kept; RefusedError when that cannot be done.

        Also when the newest is not ``named``, None for any, where others may change the partition.
        """
        ...


def undo_each(
    files: FileSystem,
    entries: Sequence[PartitionEntry],
    clock: Clock,
    *,
    rounds: Collection[str] = (),
    receipt: Path | None,
    writes: bool = True,
    told: Told = lambda partition, done: None,
    warned: Callable[[str], None],
    events: Events | None = None,
) -> UndoReport:
    """Undo rounds of partitions of a directory, as :func:`undo_partitions` says.

    ``receipt`` takes a line of each, before anything of it comes back: RefusedError where none can
    be appended. ``events`` hear, round by round, how much is compared and how far that is.
    """
    if writes and receipt is not None:
        prove_receipt(files, receipt, [entry.path for entry in entries])
    place = _Directory(
        files, {entry.partition: entry for entry in entries}, clock, receipt, writes, warned, events
    )
    return undo_partitions(place, list(place.entries), rounds=rounds, told=told)


def undo_partitions(
    place: UndoPlace,
    partitions: Sequence[TopicPartition],
    *,
    rounds: Collection[str] = (),
    told: Told = lambda partition, done: None,
) -> UndoReport:
    """Undo the newest round of each partition, or those of ``rounds``, which are names.

    A place that does not write compares all bytes, of the newest round of each alone.
    """
    done: list[UndoRound] = []
    failed: list[tuple[TopicPartition, Exception]] = []
    missing = dict.fromkeys(rounds)
    for each in partitions:
        found: list[UndoRound] = []
        try:
            names = _named(place, each, rounds, missing) if rounds else [None]
            for name in names if place.writes else names[:1]:
                undone = place.undo_newest(each, name)
                found += [] if undone is None else [undone]
        except (CompactionError, OSError) as error:
            failed.append((each, error))
            done += found
            if found:
                told(each, found)
            told(each, error)
            continue
        done += found
        told(each, found)
    return UndoReport(tuple(done), tuple(failed), tuple(missing))


def _named(
    place: UndoPlace, partition: TopicPartition, rounds: Collection[str], missing: dict[str, None]
) -> Sequence[str | None]:
    """Return which rounds of a partition are to be undone, taking them out of ``missing``.

    One, which does nothing, where nothing is kept any more: what an interrupted call has left goes.
    RefusedError where a later round is not among them.
    """
    names = place.names(partition)
    wanted = [name for name in names if name in rounds]
    for name in wanted:
        missing.pop(name, None)
    if not names:
        return [next(iter(rounds))]
    if wanted != names[: len(wanted)]:
        (later,) = [name for name in names if name not in rounds][:1]
        raise RefusedError(
            "a later round has to be undone first; name it too, or leave this one. "
            f"round={wanted[-1]} later={later} partition={partition}"
        )
    return wanted


@dataclass(frozen=True, slots=True)
class _Directory:
    """The partitions of a directory whose lock is held: between two calls nothing changes."""

    files: FileSystem
    entries: dict[TopicPartition, PartitionEntry]
    clock: Clock
    receipt: Path | None
    writes: bool
    warned: Callable[[str], None]
    events: Events | None

    def names(self, partition: TopicPartition) -> list[str]:
        kept = read_kept(self.files, self.entries[partition].path)
        return [waves[0].attempt for waves in reversed(kept.rounds())]

    def undo_newest(self, partition: TopicPartition, named: str | None) -> UndoRound | None:
        return undo_newest(
            self.files, self.entries[partition], receipt=self.receipt, now_ms=self.clock.now_ms(),
            writes=self.writes, warned=self.warned, events=self.events,
        )  # fmt: skip
