"""What rounds keep of what they replace, and how the rounds of many partitions are undone.

A round in place keeps the replaced segments before anything is replaced, and durably. So what is in
place can be undone however the round ends; a round that never came so far has kept what is still
the log. The kept segments go when their time is over, when the log start passes them, and with the
partition. The caller holds the lock.

An undo of many partitions takes the newest round of each, or the named ones. A refusal of one
partition keeps no other from it. Named rounds are undone once: an interrupted caller calls again
with the same names, and the rounds that have come back by then are left alone. Without names each
call takes the round before. The caller holds the directory's lock.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from keeplast.clock import Clock
from keeplast.errors import CompactionError, RefusedError
from keeplast.format.filename import CLEANER_CHECKPOINT, LOG
from keeplast.log.checkpoints import cleaned_for, read_checkpoint
from keeplast.log.data_directory import PartitionEntry
from keeplast.log.files import FileSystem
from keeplast.log.partition_log import PartitionFiles, list_partition
from keeplast.log.undo_files import drop_rounds, drop_unnamed, keep_wave, read_kept, replace_list
from keeplast.model.partition import TopicPartition
from keeplast.model.undo import KeptGroup, KeptSegment, KeptWave, above_log_start
from keeplast.rewrite.task import StagedGroup, TaskResult
from keeplast.run.events import Events
from keeplast.run.foresight import prove_receipt
from keeplast.run.round_state import Round
from keeplast.run.undo import UndoRound, undo_newest
from keeplast.survey.bounds import actual_log_start, load_checkpoints
from keeplast.survey.request import PartitionRequest

ROUNDS_MAX = 256
"""Of so many rounds a partition keeps something at most: each look reads all of their lists."""


def keep_sources(
    files: FileSystem, round_: Round, result: TaskResult, now_ms: int
) -> KeptWave | None:
    """Keep what the newest wave of a round is about to replace; None where nothing is kept.

    RefusedError or OSError, and nothing is kept.
    """
    if not round_.site.keeps_sources:
        return None
    retention_ms = round_.plan.topic.undo_retention_ms
    path = round_.site.path
    kept = read_kept(files, path)
    numbers = [each.number for each in kept.files if each.kind is None]
    oldest = [waves[0].attempt for waves in kept.rounds()[: 1 - ROUNDS_MAX]]
    if oldest:
        drop_rounds(files, path, oldest)
    checkpoint = read_checkpoint(files, path.parent, CLEANER_CHECKPOINT)
    is_last = result.carry is None
    after = None
    if is_last and not round_.plan.is_expired_round:
        after = round_.survey.checkpoint_after(result.end_offset)
    wave = KeptWave(
        number=max(numbers, default=-1) + 1,
        attempt=round_.site.attempt,
        wave=len(round_.results),
        is_last=is_last,
        kept_at_ms=now_ms,
        until_ms=now_ms + retention_ms,
        checkpoint_before=checkpoint.get(round_.plan.partition),
        checkpoint_after=after,
        groups=_groups(files, path, round_.survey.listing, result),
        cleaned_for=None if round_.committed else cleaned_for(round_.survey.listing, files),
    )
    keep_wave(files, path, wave)
    return wave


def _groups(
    files: FileSystem, path: Path, listing: PartitionFiles, result: TaskResult
) -> tuple[KeptGroup, ...]:
    found = {each.base_offset: each for each in listing.segments}
    following = dict(itertools.pairwise(sorted(found)))
    staged: list[list[StagedGroup]] = []
    for each in result.staged:
        # Of a group's outputs only the first has sources.
        if each.sources or not staged:
            staged.append([])
        staged[-1].append(each)
    groups = []
    for outputs in staged:
        sources = tuple(
            KeptSegment(
                base, found[base].size_bytes, result.source_crcs.get(base), found[base].inode
            )
            for base in outputs[0].sources
        )
        is_left_alone = not outputs[0].files
        groups.append(
            KeptGroup(
                end_offset=following[outputs[0].sources[-1]],
                sources=sources,
                outputs=sources
                if is_left_alone
                else tuple(_output(files, path, each, result.output_crcs) for each in outputs),
                is_left_alone=is_left_alone,
            )
        )
    return tuple(groups)


def _output(
    files: FileSystem, path: Path, output: StagedGroup, crcs: Mapping[int, int]
) -> KeptSegment:
    name = next(file.name for file in output.files if file.kind == LOG)
    inode = files.stat(path / name).inode
    return KeptSegment(output.base_offset, output.size_bytes, crcs.get(output.base_offset), inode)


def sweep_kept(files: FileSystem, partition: PartitionRequest, now_ms: int | None) -> int:
    """Remove what is no longer to be kept of a partition; returns how many files went.

    Kept segments go whose time is over, that the log start has passed, or that no list names.
    Without ``now_ms`` all but the first go.
    """
    path = partition.path
    kept = read_kept(files, path)
    if not kept.files:
        return 0
    log_start = actual_log_start(
        partition.partition,
        load_checkpoints(files, path.parent),
        list_partition(path, files, if_empty=0),
    )
    over: set[str] = set()
    for wave in kept.waves:
        left = above_log_start(wave, log_start)
        retention_ms = partition.topic.undo_retention_ms
        if left is None or (now_ms is not None and wave.is_over(now_ms, retention_ms)):
            over.add(wave.attempt)
        elif left is not wave:
            replace_list(files, path, left)
    # What was undone or cut off in between has no groups left, and waits for its time alone.
    return drop_rounds(files, path, over) if over else drop_unnamed(files, path)


Finished = Callable[[TopicPartition, Sequence[UndoRound] | Exception], None]
"""Hears of each partition when it is done: its rounds, or why it is left as it is."""


class UndoReport(Struct, frozen=True):
    """What was undone, or with ``writes`` False could be.

    ``failed`` are partitions that were refused or could not be changed, each with why. ``missing``
    are the named rounds that no partition has kept anything of: they have come back before, their
    time is over, or they never were.
    """

    rounds: tuple[UndoRound, ...]
    failed: tuple[tuple[TopicPartition, Exception], ...] = ()
    missing: tuple[str, ...] = ()


class UndoPlace(Protocol):
    """Where partitions have rounds that can be undone."""

    @property
    def writes(self) -> bool:
        """Say whether it is done, and not only found out whether it can be."""

    def names(self, partition: TopicPartition) -> list[str]:
        """Return the rounds that are kept, the newest first."""

    def undo_newest(self, partition: TopicPartition, named: str | None) -> UndoRound | None:
        """Undo one, None where nothing is kept; RefusedError when that cannot be done.

        Also when the newest is not ``named``, None for any, where others may change the partition.
        """


def undo_each(
    files: FileSystem,
    entries: Sequence[PartitionEntry],
    clock: Clock,
    *,
    rounds: Collection[str] = (),
    receipt: Path | None,
    writes: bool = True,
    finished: Finished = lambda partition, done: None,
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
    return undo_partitions(place, list(place.entries), rounds=rounds, finished=finished)


def undo_partitions(
    place: UndoPlace,
    partitions: Sequence[TopicPartition],
    *,
    rounds: Collection[str] = (),
    finished: Finished = lambda partition, done: None,
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
                finished(each, found)
            finished(each, error)
            continue
        done += found
        finished(each, found)
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
            f"round={wanted[-1]} later={later} partition={partition}",
            code="K607",
        )
    return wanted


class _Directory(Struct, frozen=True):
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
