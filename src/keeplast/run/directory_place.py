"""Logs in directories as the place of rounds: on a broker's disks, or copied to a target.

Receipt and swap, a wave at a time, and then the checkpoint. Nothing is done that cannot be written
down, and a wave in place is never without its receipt. How files change is in
:mod:`keeplast.run.commit`; nothing else here touches a log. The first round writes the target, if
there is one; the others go on there, in place.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import secrets
import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from keeplast.cleaner.cleanable_range import require_unheld
from keeplast.clock import Clock
from keeplast.errors import CompactionError
from keeplast.format.filename import (
    CLEANED_FOR,
    CLEANER_CHECKPOINT,
    DELETED,
    parse_segment_file,
)
from keeplast.log.checkpoints import (
    RoundNote,
    cleaned_for,
    drop_note,
    find_witness,
    note_round,
    read_checkpoint,
    settle_note,
    update_checkpoint,
    write_note,
)
from keeplast.log.files import FilesRecipe, FileSystem
from keeplast.log.partition_log import list_partition
from keeplast.log.paths import child_path
from keeplast.log.root_files import holds_by_partition, read_holds
from keeplast.log.undo_files import drop_rounds
from keeplast.model.partition import TopicPartition
from keeplast.model.undo import KeptWave
from keeplast.rewrite.task import TaskResult
from keeplast.run.commit import (
    GiveUp,
    check_unchanged,
    commit_in_place,
    commit_to_target,
    complete_active,
    copy_partition,
    remove_files,
    settled,
    shielded,
)
from keeplast.run.events import Events
from keeplast.run.foresight import check_room
from keeplast.run.receipt import append_receipt, receipt_line, withdraw_receipt
from keeplast.run.round_state import PartitionRun, Round, Site, base_report
from keeplast.run.target import (
    check_target,
    complete_target,
    is_finished,
    replace_target,
    target_of,
)
from keeplast.run.undoing import keep_sources
from keeplast.survey.bounds import Checkpoints, check_lifts, lift_notes, load_checkpoints
from keeplast.survey.group_offsets import ReaderOffsets
from keeplast.survey.notes import Lift
from keeplast.survey.report import RoundReport
from keeplast.survey.request import CleanRequest, PartitionRequest
from keeplast.survey.rolling import roll_active, roll_at_target, roll_idle
from keeplast.survey.survey import Survey, survey_partition
from keeplast.survey.tombstone_horizons import HorizonBook, examination_of

ATTEMPT_BYTES = 8


class DirectoryPlace:
    """The directories of one request; ``writes`` False only counts what rounds would do."""

    def __init__(
        self,
        request: CleanRequest,
        files: FileSystem,
        recipe: FilesRecipe,
        clock: Clock,
        events: Events,
        horizons: HorizonBook,
        *,
        writer: str,
        writes: bool,
        wants_sample: bool = True,
        groups: ReaderOffsets | None = None,
    ) -> None:
        """Take the components; ``recipe`` is how workers open what ``files`` shows.

        ``writer`` is the name of the process that fills a target, which the target keeps.
        ``wants_sample`` False is for rounds without a look ahead. ``groups`` remembers what
        consumer groups have committed.
        """
        self._request = request
        self._later = replace(request, first_dirty_offset=None, target=None)
        self.files: Final = files
        self._recipe = recipe
        self._clock = clock
        self._events = events
        self._horizons = horizons
        self._groups = groups
        self._writer = writer
        self._writes = writes
        self._wants_sample = wants_sample
        # What writes nothing does not change them, and asks for those of one directory often.
        self.load: Final[Callable[..., Checkpoints]] = (
            load_checkpoints if writes else functools.cache(load_checkpoints)
        )
        self._receipts = threading.Lock()
        self._checkpoints = threading.Lock()

    def _request_of(self, run: PartitionRun) -> CleanRequest:
        """Return what a round is asked for: only the first has a start and a target."""
        return self._later if run.rounds else self._request

    def now_ms(self) -> int:
        """Return the time that the call is at."""
        return self._clock.now_ms() if self._request.now_ms is None else self._request.now_ms

    # Survey.

    def look(
        self, partition: PartitionRequest, checkpoints: Checkpoints, *, foresees_roll: bool = True
    ) -> Survey:
        """Survey a partition as the first round finds it."""
        return self._look(partition, self._request, checkpoints, foresees_roll=foresees_roll)

    def lifts_of(self, partition: PartitionRequest) -> tuple[Lift, ...]:
        """Return which limits of a partition the request lifts."""
        return self.look(partition, self.load(self.files, partition.path.parent)).lifts

    def _look(
        self,
        partition: PartitionRequest,
        request: CleanRequest,
        checkpoints: Checkpoints,
        *,
        foresees_roll: bool,
    ) -> Survey:
        return survey_partition(
            partition, request, checkpoints, self.files, self.now_ms(),
            foresees_roll=foresees_roll, book=self._horizons, clock_ms=self._clock.now_ms(),
            wants_sample=self._wants_sample, groups=self._groups,
        )  # fmt: skip

    def survey(self, run: PartitionRun) -> Survey:
        """Survey a directory; before the first round, as it will be when its active segment was
        left."""
        checkpoints = self.load(self.files, run.request.path.parent)
        request, is_first = self._request_of(run), not run.rounds
        return self._look(run.request, request, checkpoints, foresees_roll=is_first)

    # Plan.

    def announce(self, run: PartitionRun, survey: Survey) -> Survey:
        """Refuse lifts and too small a disk; then leave the active segment, if asked or idle."""
        request = self._request_of(run)
        if self._writes:
            source = run.request.path
            check_lifts(survey.lifts, request, source)
            if survey.plan is not None:
                target = target_of(run.request, request)
                check_room(self.files, survey, survey.plan, source, target)
            # At a target it is rolled when the round is there; in place before it, and not
            # before it is known that the round is not refused: that leaves all as it was.
            if not run.rounds and request.target is None and _may_roll(survey, request):
                checkpoints = load_checkpoints(self.files, source.parent)
                self._roll(run, request)
                survey = self._look(run.request, request, checkpoints, foresees_roll=False)
        lifted = lift_notes(survey.lifts, writes=self._writes or request.is_unsafe)
        # Work before the first round is reported with it.
        notes = (*run.notes, *lifted)
        run.notes = ()
        return replace(survey, notes=(*notes, *survey.notes)) if notes else survey

    def _roll(self, run: PartitionRun, request: CleanRequest) -> None:
        path, topic = run.request.path, run.request.topic
        if request.roll_active:
            roll_active(self.files, path, topic)
        elif request.rolls_idle:
            note = roll_idle(self.files, path, topic, self.now_ms())
            run.notes += () if note is None else (note,)

    def site(self, run: PartitionRun) -> Site:
        """Return the partition's directory, and its target when that is written."""
        request, source = self._request_of(run), run.request.path
        target = target_of(run.request, request) if self._writes else source
        # At a target nothing is lost: the source stays, also while later rounds go on there.
        keeps = run.request.topic.undo_retention_ms > 0 and self._request.target is None
        return Site(
            path=source,
            target=target,
            attempt=secrets.token_hex(ATTEMPT_BYTES),
            files=self._recipe,
            writes=self._writes,
            takes_crcs=self._writes and (request.receipt is not None or keeps),
            shares_disk=self._writes and target == source,
            keeps_sources=self._writes and keeps,
        )

    def skip(self, run: PartitionRun, survey: Survey) -> RoundReport:
        """Copy a log to the target as it is; repair a checkpoint that is out of range."""
        request = self._request_of(run)
        first_dirty = survey.section.first_dirty
        end_offset = first_dirty.offset if first_dirty.repairs else None
        if end_offset is not None:
            end_offset = survey.checkpoint_after(end_offset)
        if self._writes:
            place = target_of(run.request, request)
            if request.target is not None:
                give_up = self._give_up(run.request.partition, run.request.path.parent, place)
                copy_partition(self.files, run.request.path, place, self._writer, give_up)
            if end_offset is not None:
                change = {run.request.partition: end_offset}
                update_checkpoint(self.files, place.parent, CLEANER_CHECKPOINT, change)
            elif request.target is None and CLEANED_FOR in survey.listing.unknown:
                line = read_checkpoint(self.files, place.parent, CLEANER_CHECKPOINT)
                with contextlib.suppress(CompactionError, OSError):
                    drop_note(place, self.files, line.get(run.request.partition))
            if request.target is not None:
                complete_target(self.files, place, run=self._writer)
        return base_report(survey, skipped=True, end_offset=end_offset)

    # Commit.

    def publish(self, round_: Round, result: TaskResult) -> None:
        """Write a line of the receipt and put a wave in place; the line goes when it is not.

        ConflictError when a hold was added meanwhile that the round would pass. Its files are
        staged by now. A caller that adds a hold sees them, or what became of them, or its hold is
        seen here.
        """
        if not self._writes:
            return
        self._check_holds(round_)
        kept = keep_sources(self.files, round_, result, self._clock.now_ms())
        line = None
        try:
            if self._request.receipt is not None:
                line = self._note(round_, self._request.receipt)
            if round_.is_in_place:
                with shielded():
                    self._swap(round_, result)
            else:
                self._fill_target(round_, result)
        except (CompactionError, OSError):
            if kept is not None:
                self._forget(round_, kept)
            if line is not None and self._request.receipt is not None:
                self._withdraw(round_, self._request.receipt, line)
            if round_.is_in_place:
                # What is in place keeps it: its witness is gone.
                with contextlib.suppress(CompactionError, OSError):
                    listing = list_partition(round_.site.path, self.files, if_empty=0)
                    settle_note(listing, self.files)
            raise

    def _check_holds(self, round_: Round) -> None:
        plan, root = round_.plan, round_.site.path.parent
        holds = holds_by_partition(read_holds(self.files, root)).get(plan.partition, ())
        require_unheld(
            plan.partition, holds, self._clock.now_ms(), end=plan.bound,
            first_dirty=plan.first_dirty,
        )  # fmt: skip

    def _note(self, round_: Round, receipt: Path) -> bytes:
        """Write a wave down that is about to be put in place; returns its line."""
        clean_to = round_.survey.clean_to.offset
        line = receipt_line(round_, clean_to=clean_to, is_unsafe=self._request.is_unsafe)
        with self._receipts:
            return append_receipt(self.files, receipt, line)

    def _forget(self, round_: Round, kept: KeptWave) -> None:
        """Drop the kept segments of a wave that has nothing in place; else they go in their
        time.
        """
        with contextlib.suppress(CompactionError, OSError):
            check_unchanged(self.files, round_.survey.listing, round_.committed)
            drop_rounds(self.files, round_.site.path, {kept.attempt}, from_number=kept.number)

    def _withdraw(self, round_: Round, receipt: Path, line: bytes) -> None:
        """Take back the line of a wave that has nothing in place."""
        try:
            if round_.is_in_place:
                check_unchanged(self.files, round_.survey.listing, round_.committed)
            with self._receipts:
                withdraw_receipt(self.files, receipt, line)
        except (CompactionError, OSError) as error:
            self._events.warned(
                "the receipt keeps a line of a wave that may not have happened; the files decide. "
                f"path={receipt} error={error}"
            )

    def _swap(self, round_: Round, result: TaskResult) -> None:
        """Put a wave in place and remove what it replaces."""
        path, surveyed = round_.site.path, round_.survey.listing
        with settled(self.files, path, self._events.warned):
            self._note_end(round_, result)
            replaced = commit_in_place(self.files, path, result.staged)
        round_.committed.extend(result.staged)
        complete_active(self.files, surveyed)
        started = self._clock.seconds()
        remove_files(self.files, replaced, self._events.warned)
        round_.removal_seconds += self._clock.seconds() - started

    def _note_end(self, round_: Round, result: TaskResult) -> None:
        """Write down how far the round has looked, before anything goes for what it found."""
        listing = round_.survey.listing
        check_unchanged(self.files, listing, round_.committed)
        replaced = {base for each in result.staged if each.files for base in each.sources}
        if not replaced:
            return
        sizes = [(s.base_offset, s.size_bytes) for s in listing.segments]
        before = [each for each in sizes if each[0] in replaced]
        after = [(each.base_offset, each.size_bytes) for each in result.staged]
        is_first = not any(each.files for each in round_.committed)
        line = read_checkpoint(self.files, listing.path.parent, CLEANER_CHECKPOINT)
        checkpoint = line.get(round_.plan.partition)
        if checkpoint is not None and checkpoint > listing.active.base_offset:
            checkpoint = None  # another log's
        round_.noted_end = note_round(
            listing, self.files, result.end_offset,
            witness=find_witness(before, after) if is_first else None, checkpoint=checkpoint,
            flushes_name=False,
        )  # fmt: skip

    def _fill_target(self, round_: Round, result: TaskResult) -> None:
        """Complete the target; an earlier log goes when all of the new one lies next to it."""
        survey, site = round_.survey, round_.site
        give_up = self._give_up(round_.plan.partition, site.path.parent, site.target)
        if give_up is None:
            check_target(self.files, site.target, run=self._writer)
        surveyed = survey.listing
        if survey.roll is None:
            commit_to_target(self.files, site, result.staged, surveyed, give_up)
        else:
            on_disk = dataclasses.replace(surveyed, segments=surveyed.segments[:-1])
            commit_to_target(self.files, site, result.staged, on_disk, give_up)
            left = on_disk.active.base_offset
            if round_.plan.bound > left:
                replaced = {base for each in result.staged if each.files for base in each.sources}
                roll_at_target(
                    self.files, site.target, surveyed, survey.roll, round_.plan.topic,
                    is_replaced=left in replaced,
                )  # fmt: skip
        self._note_target(round_, result.end_offset)
        round_.committed.extend(result.staged)

    def _note_target(self, round_: Round, end_offset: int) -> None:
        """Write down at a target how far records have gone for others, where no checkpoint will say
        so.

        It takes the place of the source's note, whose witness is a segment of the source.
        """
        listing, partition = round_.survey.listing, round_.plan.partition
        line = read_checkpoint(self.files, listing.path.parent, CLEANER_CHECKPOINT).get(partition)
        if not round_.plan.is_expired_round:
            moved = round_.survey.checkpoint_after(end_offset)
            line = line if moved is None else moved
        end = max(end_offset, cleaned_for(listing, self.files) or 0)
        if line is None or line < end or CLEANED_FOR in listing.unknown:
            write_note(round_.site.target, self.files, RoundNote(end, None, None),
                       like=listing.segments[0].base_offset)  # fmt: skip

    def _give_up(self, partition: TopicPartition, root: Path, place: Path) -> GiveUp | None:
        """Return what removes the earlier log at ``place``; None when the place is ours already."""
        if not self._request.overwrites or not is_finished(self.files, place):
            return None

        def give_up(staged: Collection[str]) -> None:
            with self._checkpoints:
                replace_target(self.files, partition, root, place, run=self._writer, staged=staged)

        return give_up

    def abandon(self, round_: Round) -> None:
        """Remove what attempts staged under the name of this round's and no commit has renamed."""
        site = round_.site
        if not self._writes or not self.files.exists(site.target):
            return
        names = {name: parse_segment_file(name) for name in self.files.listdir(site.target)}
        ours = [
            child_path(site.target, name)
            for name, parsed in names.items()
            if (parsed is not None and (parsed.attempt or "").startswith(site.attempt))
            or name.endswith(f".{site.attempt}{DELETED}")
        ]
        remove_files(self.files, ours, self._events.warned)

    def checkpoint(self, rounds: Sequence[Round]) -> list[Exception | None]:
        """Write the checkpoints of a data directory at once, then mark targets complete.

        A file that cannot be written ends all of these rounds with its error.
        """
        if not self._writes:
            return [None] * len(rounds)
        offsets: dict[Path, dict[TopicPartition, int]] = {}
        for round_ in rounds:
            offset = round_.survey.checkpoint_after(round_.results[-1].end_offset)
            if not round_.plan.is_expired_round and offset is not None:
                changes = offsets.setdefault(round_.site.target.parent, {})
                changes[round_.plan.partition] = offset
        try:
            for root, changes in offsets.items():
                with self._checkpoints:
                    update_checkpoint(self.files, root, CLEANER_CHECKPOINT, changes)
        except (CompactionError, OSError) as error:
            return [error] * len(rounds)
        for round_ in rounds:
            changes = offsets.get(round_.site.target.parent, {})
            self._drop_note(round_, changes.get(round_.plan.partition))
        return [self._complete(round_) for round_ in rounds]

    def _drop_note(self, round_: Round, checkpoint: int | None) -> None:
        """Remove what the checkpoint says by now; a note that stays for once says no more."""
        if round_.is_in_place or CLEANED_FOR in round_.survey.listing.unknown:
            with contextlib.suppress(CompactionError, OSError):
                drop_note(round_.site.target, self.files, checkpoint, noted=round_.noted_end)

    def _complete(self, round_: Round) -> Exception | None:
        """End a round that is written down: from now on its log is where it was put."""
        if not round_.is_in_place:
            try:
                complete_target(self.files, round_.site.target, run=self._writer)
            except (CompactionError, OSError) as error:
                return error
        if round_.has_reached_bound:
            self._note_examined(round_)
        if not round_.is_in_place:
            round_.run.request = replace(round_.run.request, path=round_.site.target)
        return None

    def _note_examined(self, round_: Round) -> None:
        """Remember what the round has left; where that cannot be listed, the next one looks."""
        with contextlib.suppress(CompactionError, OSError):
            listed = list_partition(round_.site.path, self.files).segments
            left = [each for each in listed if each.base_offset < round_.plan.bound]
            self._horizons.examined(round_.site.path, examination_of(round_.plan), left)


def _may_roll(survey: Survey, request: CleanRequest) -> bool:
    """Say whether the active segment is to be left; a torn one refuses that when it is asked."""
    has_any = survey.listing.active.size_bytes > 0
    return survey.roll is not None or (request.roll_active and has_any)
