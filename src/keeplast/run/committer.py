"""Puts what came back from workers in place, and writes it down: receipt, checkpoint, report.

Receipt and swap, a wave at a time, and then the checkpoint: what cannot be written down is not
done, and what is in place is never without its receipt. What a failed or late attempt staged is
removed as soon as no commit can name it any more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

from keeplast.clock import Clock
from keeplast.errors import CompactionError
from keeplast.format.filename import CLEANER_CHECKPOINT, DELETED, parse_segment_file
from keeplast.log.checkpoints import update_checkpoint
from keeplast.log.files import FileSystem
from keeplast.log.recovery import recover_swap
from keeplast.model.partition import TopicPartition
from keeplast.rewrite.task import TaskResult
from keeplast.run.commit import (
    GiveUp,
    check_unchanged,
    commit_in_place,
    commit_to_target,
    complete_active,
    copy_partition,
)
from keeplast.run.events import Events
from keeplast.run.place import (
    check_target,
    complete_target,
    is_finished,
    replace_target,
    target_of,
)
from keeplast.run.receipt import append_receipt, receipt_line, withdraw_receipt
from keeplast.run.removal import remove_files
from keeplast.run.rounds import PartitionRun, Round, failed_report
from keeplast.run.shield import shielded
from keeplast.survey.horizons import HorizonBook
from keeplast.survey.report import RoundReport
from keeplast.survey.request import CleanRequest, PartitionRequest
from keeplast.survey.rolling import roll_at_target
from keeplast.survey.survey import Survey

Work = tuple[PartitionRun, Round]


class Committer:
    """Commits waves of rounds. :meth:`commit` may run for several partitions at once."""

    def __init__(
        self,
        clock: Clock,
        files: FileSystem,
        events: Events,
        horizons: HorizonBook,
        check_stop: Callable[[], None],
        *,
        run: str,
    ) -> None:
        """Take the components; ``check_stop`` raises when no further commit may begin.

        ``run`` is the name by which targets know who fills them.
        """
        self._run = run
        self._clock = clock
        self._files = files
        self._events = events
        self._horizons = horizons
        self._check_stop = check_stop
        self._receipts = threading.Lock()
        self._checkpoints = threading.Lock()

    def commit(self, round_: Round, result: TaskResult, request: CleanRequest) -> None:
        """Put one wave in place; commits of several partitions run side by side."""
        if result.error is not None:
            raise result.error
        self._check_stop()
        task = round_.task
        round_.results.append(result)
        started, removed = self._clock.seconds(), round_.removal_seconds
        line = None
        if task.writes and request.receipt is not None:
            line = self._note(round_, request.receipt, is_unsafe=request.is_unsafe)
        try:
            self._put_in_place(round_, result, request)
        except (CompactionError, OSError):
            if line is not None and request.receipt is not None:
                self._withdraw(round_, request.receipt, line)
            raise
        round_.driver_seconds += self._clock.seconds() - started
        round_.driver_seconds -= round_.removal_seconds - removed

    def _put_in_place(self, round_: Round, result: TaskResult, request: CleanRequest) -> None:
        task = round_.task
        if task.writes and task.target != task.path:
            partition = round_.plan.partition
            give_up = self._give_up(partition, task.path.parent, task.target, request)
            if give_up is None:
                check_target(self._files, task.target, run=self._run)
            self._commit_to_target(round_, result, give_up)
            round_.committed.extend(result.staged)
        elif task.writes:
            with shielded():
                self._swap(round_, result)

    def copy(self, partition: PartitionRequest, request: CleanRequest) -> None:
        """Copy a partition to the target as it is."""
        place = target_of(partition, request)
        give_up = self._give_up(partition.partition, partition.path.parent, place, request)
        copy_partition(self._files, partition.path, place, self._run, give_up)

    def _give_up(
        self, partition: TopicPartition, root: Path, place: Path, request: CleanRequest
    ) -> GiveUp | None:
        """Return what removes the earlier log at ``place``; None when the place is ours already."""
        if not request.overwrites or not is_finished(self._files, place):
            return None

        def give_up(staged: Collection[str]) -> None:
            with self._checkpoints:
                replace_target(self._files, partition, root, place, run=self._run, staged=staged)

        return give_up

    def _commit_to_target(self, round_: Round, result: TaskResult, give_up: GiveUp | None) -> None:
        survey, task = round_.survey, round_.task
        surveyed = survey.listing
        if survey.roll is None:
            commit_to_target(self._files, task, result, surveyed, give_up)
            return
        on_disk = replace(surveyed, segments=surveyed.segments[:-1])
        commit_to_target(self._files, task, result, on_disk, give_up)
        left = on_disk.active.base_offset
        if round_.plan.bound > left:
            replaced = {base for each in result.staged if each.files for base in each.sources}
            roll_at_target(
                self._files, task.target, surveyed, survey.roll, task.plan.topic,
                is_replaced=left in replaced,
            )  # fmt: skip

    def _note(self, round_: Round, receipt: Path, *, is_unsafe: bool) -> bytes:
        """Write a wave down that is about to be put in place; returns its line."""
        clean_to = round_.survey.clean_to.offset
        line = receipt_line(round_, clean_to=clean_to, is_unsafe=is_unsafe)
        with self._receipts:
            append_receipt(self._files, receipt, line)
        return line

    def _withdraw(self, round_: Round, receipt: Path, line: bytes) -> None:
        """Take the line of a wave back of which nothing is in place."""
        try:
            if round_.task.target == round_.task.path:
                check_unchanged(self._files, round_.survey.listing, round_.committed)
            with self._receipts:
                withdraw_receipt(self._files, receipt, line)
        except (CompactionError, OSError) as error:
            self._events.warned(
                "the receipt keeps a line of a wave that may not have happened; the files tell. "
                f"path={receipt} error={error}"
            )

    def finish(self, done: list[tuple[Work, TaskResult]]) -> None:
        """Write down rounds that are in place: checkpoints at once, and what to tell."""
        reports: list[tuple[Work, TaskResult, RoundReport]] = []
        offsets: dict[Path, dict[TopicPartition, int]] = {}
        for (run, round_), result in done:
            report, task = round_.report(), round_.task
            offset = round_.survey.checkpoint_after(result.end_offset)
            if task.writes and not round_.plan.is_expired_round and offset is not None:
                offsets.setdefault(task.target.parent, {})[run.request.partition] = offset
            reports.append(((run, round_), result, report))
        try:
            for root, changes in offsets.items():
                with self._checkpoints:
                    update_checkpoint(self._files, root, CLEANER_CHECKPOINT, changes)
        except (CompactionError, OSError) as error:
            for (run, round_), _, _ in reports:
                self.fail(run, round_.survey, len(round_.committed), error)
            return
        for work, result, report in reports:
            self._end(work, result, report)

    def _end(self, work: Work, result: TaskResult, report: RoundReport) -> None:
        """Mark a target complete, and tell of a round that is written down."""
        run, round_ = work
        task = round_.task
        try:
            if task.writes and task.target != task.path:
                complete_target(self._files, task.target, run=self._run)
        except (CompactionError, OSError) as error:
            self.fail(run, round_.survey, len(round_.committed), error)
            return
        is_done = result.end_offset >= round_.plan.bound
        if task.writes:
            if is_done:
                self._horizons.examined(task.path, round_.plan.now_ms)
            run.request = replace(run.request, path=task.target)
        run.is_done = is_done
        run.rounds.append(report)
        self._events.finished(run.request.partition, report)

    def _swap(self, round_: Round, result: TaskResult) -> None:
        """Put a wave in place and remove what it replaces.

        A disk that fails meanwhile leaves the partition to be finished or undone: now if it can.
        """
        path = round_.task.path
        try:
            replaced = commit_in_place(
                self._files, round_.task, result, round_.survey.listing, round_.committed
            )
        except OSError:
            try:
                recover_swap(self._files, path)
            except (CompactionError, OSError) as error:
                self._events.warned(
                    "the swap could be neither finished nor undone; the next clean, or a broker's "
                    f"start, does. path={path} error={error}"
                )
            raise
        round_.committed.extend(result.staged)
        complete_active(self._files, round_.survey.listing)
        started = self._clock.seconds()
        remove_files(self._files, replaced, self._events.warned)
        round_.removal_seconds += self._clock.seconds() - started

    def collect(self, round_: Round) -> None:
        """Remove what attempts of the current task staged and no commit has named."""
        task = round_.task
        if not task.writes or not self._files.exists(task.target):
            return
        names = {name: parse_segment_file(name) for name in self._files.listdir(task.target)}
        ours = [
            task.target / name
            for name, parsed in names.items()
            if (parsed is not None and (parsed.attempt or "").startswith(task.attempt))
            or name.endswith(f".{task.attempt}{DELETED}")
        ]
        remove_files(self._files, ours, self._events.warned)

    def fail(
        self, run: PartitionRun, survey: Survey | None, committed: int, error: Exception
    ) -> None:
        """End a partition's call with ``error``, after so many committed groups."""
        report = failed_report(survey, committed, error)
        run.is_done = True
        run.rounds.append(report)
        self._events.finished(run.request.partition, report)
