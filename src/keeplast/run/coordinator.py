"""Decides rounds, gives waves to a runner, commits what comes back; the only writer of a log.

    survey, bound -> RoundPlan      here, for every partition
    index .. check                  in the runner, one wave of one partition a task
    commit                          here, wave by wave, ascending; the checkpoint once and last

A failure ends the partition's round and no other's: what the wave staged is removed, the
checkpoint stays. Another round follows while asked for and while the bound was not reached.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from keeplast.cleaner.plan import RoundPlan
from keeplast.clock import Clock
from keeplast.errors import CompactionError, StoppedError, UnavailableError
from keeplast.format.filename import CLEANER_CHECKPOINT
from keeplast.log.checkpoints import update_checkpoint
from keeplast.log.files import FilesRecipe, FileSystem, LocalRecipe
from keeplast.log.format_guard import check_understood
from keeplast.log.lock import is_locked, locked
from keeplast.log.recovery import recover_swap
from keeplast.rewrite.kernels import load_kernels
from keeplast.rewrite.runner import Runner
from keeplast.rewrite.task import PartitionTask, TaskResult
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN
from keeplast.run.commits import Commits, Ended
from keeplast.run.committer import Committer, Work
from keeplast.run.events import Events
from keeplast.run.expiry import expire_partition, failed_expiry
from keeplast.run.foresight import Foresight
from keeplast.run.place import (
    check_places,
    check_target_root,
    complete_target,
    copy_root_files,
    make_target,
    places_of,
    target_of,
)
from keeplast.run.readiness import prove_receipt, unready_roots
from keeplast.run.room import Room
from keeplast.run.rounds import (
    PartitionRun,
    Round,
    base_report,
    clean_report,
    in_order,
)
from keeplast.run.shield import shielded
from keeplast.survey.given import check_given, check_lifts, lift_notes
from keeplast.survey.horizons import HorizonBook
from keeplast.survey.log_bounds import Checkpoints, load_checkpoints
from keeplast.survey.notes import Lift
from keeplast.survey.receipt_book import clock_notes
from keeplast.survey.report import CleanReport
from keeplast.survey.request import CleanRequest, PartitionRequest
from keeplast.survey.rolling import roll_active, roll_idle
from keeplast.survey.survey import Survey, survey_partition

ROUNDS_MAX = 100_000


class Coordinator:
    """Cleans or plans the partitions of one request with one runner."""

    def __init__(
        self,
        runner: Runner,
        clock: Clock,
        files: FileSystem,
        events: Events,
        recipe: FilesRecipe | None = None,
    ) -> None:
        """Take the components; kernels are made ready here.

        ``recipe`` is how workers open what ``files`` shows; None says the host's disks.
        """
        self._runner = runner
        self._recipe = LocalRecipe() if recipe is None else recipe
        self._run = secrets.token_hex(8)
        self._clock = clock
        self._files = files
        self._events = events
        self._is_stopping = False
        self._horizons = HorizonBook(files)
        self._room = Room(files)
        self._foresight = Foresight(runner, files, clock)
        self._committer = Committer(
            clock, files, events, self._horizons, self._check_stop, run=self._run
        )  # fmt: skip
        self._holds: set[Path] = set()
        load_kernels(events.warned)

    def stop(self) -> None:
        """Ask for the end of the run at the next safe point; a signal handler may call it.

        What is not committed by then is removed, and its report has a StoppedError.
        """
        self._is_stopping = True

    @property
    def slots(self) -> int:
        """Return how many partitions are worked on at once."""
        return self._runner.slots

    @contextmanager
    def holding(self, root: Path) -> Iterator[None]:
        """Hold the lock of a data directory from call to call; RefusedError when it is in use."""
        with locked(root):
            self._holds.add(root)
            try:
                yield
            finally:
                self._holds.discard(root)

    def survey(
        self, partition: PartitionRequest, request: CleanRequest, checkpoints: Checkpoints
    ) -> Survey:
        """Return what :meth:`clean` would find of a partition after what it does before a round.

        Writes nothing. CorruptError, RefusedError or OSError when that cannot be said.
        """
        return self._survey(partition, request, checkpoints, foresees_roll=True)

    def _survey(
        self,
        partition: PartitionRequest,
        request: CleanRequest,
        checkpoints: Checkpoints,
        *,
        foresees_roll: bool,
    ) -> Survey:
        return survey_partition(
            partition, request, checkpoints, self._files, self._now_ms(request),
            foresees_roll=foresees_roll, book=self._horizons, clock_ms=self._clock.now_ms(),
        )  # fmt: skip

    def plan(self, request: CleanRequest, *, exact: bool = False) -> CleanReport:
        """Say what :meth:`clean` would do; writes nothing, takes no lock and says when one is held.

        ``exact`` reads everything as clean would and counts what would go; otherwise a small
        sample of bounded size is read and the report has an estimate. What would expire is told of
        the log as it is now: the round before that may shrink it.
        """
        for root in sorted({p.path.parent for p in request.partitions}):
            if is_locked(root):
                self._events.warned(
                    "a broker or another keeplast holds this directory; what is read may change "
                    f"meanwhile. path={root}"
                )
        runs = [PartitionRun(partition) for partition in request.partitions]
        works = [work for run in runs for work in self._begin(run, request, writes=False)]
        self._foresight.shape(works, request)
        if exact:
            self._run_waves(works, request)
        else:
            for run, round_ in works:
                run.rounds.append(self._foresight.planned(round_, request))
        if request.retention:
            for run in runs:
                self._expire(run, request, writes=False)
        return clean_report(runs)

    def clean(self, request: CleanRequest) -> CleanReport:
        """Clean every partition of the request; the report says what each round did or why not.

        RefusedError when a data directory is in use. Faults of one partition are in its report, and
        so is that it was stopped.
        """
        check_places(request, self._files)
        with ExitStack() as stack:
            stack.enter_context(self._locks(request))
            prove_receipt(self._files, request.receipt, places_of(request))
            check_given(request, partial(self._lifts, request))
            stack.enter_context(self._target(request))
            runs = [PartitionRun(partition) for partition in request.partitions]
            roots = {target_of(run.request, request).parent for run in runs}
            # A call that was stopped before it began tries nothing either.
            unready = {} if self._is_stopping else unready_roots(self._files, sorted(roots))
            behind = clock_notes(self._files, request.receipt, self._now_ms(request))
            for run in runs:
                run.notes += behind
                self._prepare(run, request, unready)
            later = replace(request, first_dirty_offset=None, target=None)
            rounds = ROUNDS_MAX if request.rounds is None else request.rounds
            for number in range(rounds):
                active = [run for run in runs if not run.is_done]
                if not active:
                    break
                current = request if number == 0 else later
                works = [work for run in active for work in self._begin(run, current, writes=True)]
                self._foresight.shape(works, current)
                self._run_waves(in_order(works, current.order), current)
            if request.retention:
                for run in runs:
                    self._expire(run, request, writes=True)
            return clean_report(runs)

    def expire(self, request: CleanRequest) -> CleanReport:
        """Remove what retention and the log start offset let go, and clean nothing.

        As a cleaner thread does behind its rounds for every compacted log that is not uncleanable.
        RefusedError when a data directory is in use; faults of one partition are in its report.
        """
        check_places(request, self._files)
        with self._locks(request):
            prove_receipt(self._files, request.receipt, places_of(request))
            runs = [PartitionRun(partition) for partition in request.partitions]
            for run in runs:
                try:
                    self._recover(run.request)
                except (CompactionError, OSError) as error:
                    run.expiry = failed_expiry(None, error)
                else:
                    self._expire(run, request, writes=True)
            return clean_report(runs)

    @contextmanager
    def _locks(self, request: CleanRequest) -> Iterator[None]:
        roots = sorted({partition.path.parent for partition in request.partitions})
        with ExitStack() as stack:
            for root in roots:
                if root not in self._holds:
                    stack.enter_context(locked(root, writes=request.target is None))
            yield

    def _lifts(self, request: CleanRequest, partition: PartitionRequest) -> tuple[Lift, ...]:
        checkpoints = load_checkpoints(self._files, partition.path.parent)
        return self.survey(partition, request, checkpoints).lifts

    @contextmanager
    def _target(self, request: CleanRequest) -> Iterator[None]:
        """Make and hold the target's data directory, if there is one."""
        roots = sorted({partition.path.parent for partition in request.partitions})
        with ExitStack() as stack:
            # A target that is a source is refused for each partition, with its reason.
            if request.target is not None and request.target.absolute() not in roots:
                check_target_root(self._files, request)
                self._files.make_directory(request.target)
                stack.enter_context(locked(request.target))
                copy_root_files(self._files, roots[0], request.target, request)
            yield

    def _prepare(
        self, run: PartitionRun, request: CleanRequest, unready: Mapping[Path, Exception]
    ) -> None:
        """Finish what a crash left; make the target, unless an earlier log has to leave it."""
        partition = run.request
        try:
            self._check_stop()
            problem = unready.get(target_of(partition, request).parent)
            if problem is not None:
                raise problem
            if request.target is not None:
                if make_target(self._files, partition, request, run=self._run):
                    self._events.warned(
                        f"removed what an unfinished clean --to had left of {partition.partition}"
                    )
                return
            self._recover(partition)
        except (CompactionError, OSError) as error:
            self._committer.fail(run, None, 0, error)

    def _recover(self, partition: PartitionRequest) -> None:
        check_understood(partition.path, self._files)
        with shielded():
            recovered = recover_swap(self._files, partition.path)
        if recovered:
            self._events.warned(
                f"finished or undid what an earlier run left in {partition.partition}: "
                f"{len(recovered)} files"
            )

    def _expire(self, run: PartitionRun, request: CleanRequest, *, writes: bool) -> None:
        """Expire a partition whose rounds went well: an uncleanable log keeps what it has."""
        if run.has_failed:
            return
        if self._is_stopping:
            run.expiry = failed_expiry(None, _stopped())
            return
        partition = run.request
        if writes:
            partition = replace(partition, path=target_of(partition, request))
        run.expiry = expire_partition(
            partition, request, self._files, self._now_ms(request),
            clock_ms=self._clock.now_ms(), writes=writes, warned=self._events.warned,
        )  # fmt: skip

    def _roll(self, run: PartitionRun, request: CleanRequest) -> None:
        """Leave the active segment as asked for, or because it is idle."""
        if request.roll_active:
            roll_active(self._files, run.request)
        elif request.rolls_idle:
            note = roll_idle(self._files, run.request, self._now_ms(request))
            run.notes += () if note is None else (note,)

    def _now_ms(self, request: CleanRequest) -> int:
        return self._clock.now_ms() if request.now_ms is None else request.now_ms

    def _begin(self, run: PartitionRun, request: CleanRequest, *, writes: bool) -> Iterator[Work]:
        """Survey a partition; yields its round, or nothing when there is a reason not to."""
        if run.is_done:
            return
        started = self._clock.seconds()
        survey: Survey | None = None
        try:
            self._check_stop()
            target = target_of(run.request, request) if writes else run.request.path
            is_first = not run.rounds
            checkpoints = load_checkpoints(self._files, run.request.path.parent)
            survey = self._survey(run.request, request, checkpoints, foresees_roll=is_first)
            if writes:
                check_lifts(survey.lifts, request, run.request.path)
                if survey.plan is not None:
                    self._room.check(survey, survey.plan, run.request.path, target)
                # At a target it is rolled when the round is there; in place before it, and not
                # before it is known that the round is not refused: that leaves all as it was.
                if is_first and request.target is None and _may_roll(survey, request):
                    self._roll(run, request)
                    survey = self._survey(run.request, request, checkpoints, foresees_roll=False)
            told = lift_notes(survey.lifts, writes=writes or request.is_unsafe)
            # What was done before the first round is told with it.
            survey = replace(survey, notes=(*run.notes, *told, *survey.notes))
            run.notes = ()
            if survey.plan is None:
                self._skip(run, survey, request, writes=writes)
                return
            task = self._task(run.request, survey.plan, target, request, writes=writes)
            round_ = Round(survey, survey.plan, task, self._clock.seconds() - started)
            self._events.planned(round_.bytes_to_read())
        except (CompactionError, OSError) as error:
            self._committer.fail(run, survey, 0, error)
            return
        yield run, round_

    def _task(
        self,
        partition: PartitionRequest,
        plan: RoundPlan,
        target: Path,
        request: CleanRequest,
        *,
        writes: bool,
    ) -> PartitionTask:
        return PartitionTask(
            number=0,
            plan=plan,
            path=partition.path,
            target=target,
            attempt=secrets.token_hex(8),
            hash_key=(secrets.randbits(64), secrets.randbits(64)),
            memory_bytes=max(request.memory_bytes // self._runner.slots, MEMORY_BYTES_MIN),
            wave_bytes_max=None,
            writes=writes,
            takes_crcs=writes and request.receipt is not None,
            io_bytes_per_second=partition.cleaner.io_limit,
            files=self._recipe,
        )

    def _skip(
        self, run: PartitionRun, survey: Survey, request: CleanRequest, *, writes: bool
    ) -> None:
        """End a partition that has no round; a checkpoint out of range is repaired all the same."""
        end_offset = survey.first_dirty.offset if survey.first_dirty.repairs else None
        if end_offset is not None:
            end_offset = survey.checkpoint_after(end_offset)
        if writes and request.target is not None:
            self._committer.copy(run.request, request)
        if writes and end_offset is not None:
            self._checkpoint(run, request, end_offset)
        if writes and request.target is not None:
            complete_target(self._files, target_of(run.request, request), run=self._run)
        report = replace(base_report(survey), skipped=True, end_offset=end_offset)
        run.is_done = True
        run.rounds.append(report)
        self._events.finished(run.request.partition, report)

    def _run_waves(self, works: list[Work], request: CleanRequest) -> None:
        """Run and commit wave after wave until every round has ended."""
        waiting = works
        while waiting:
            if self._is_stopping:
                for run, round_ in waiting:
                    self._committer.fail(run, round_.survey, len(round_.committed), _stopped())
                return
            chunk, rest = self._room.next_chunk(waiting)
            tasks = []
            for number, (_, round_) in enumerate(chunk):
                round_.task = replace(round_.task, number=number)
                tasks.append(round_.task)
            waiting = self._run_chunk(chunk, tasks, request) + rest

    def _run_chunk(
        self, chunk: list[Work], tasks: list[PartitionTask], request: CleanRequest
    ) -> list[Work]:
        """Run a wave of each round and commit it; returns the rounds that another wave follows."""
        left = dict(enumerate(chunk))
        again: list[Work] = []
        lost: Exception = UnavailableError("the runner lost the task of this partition")

        def end(ended: Iterable[Ended]) -> None:
            done: list[tuple[Work, TaskResult]] = []
            for result, error in ended:
                work = left.pop(result.number)
                run, round_ = work
                self._committer.collect(round_)
                if error is not None:
                    self._committer.fail(run, round_.survey, len(round_.committed), error)
                elif result.carry is not None:
                    round_.task = replace(round_.task, carry=result.carry)
                    again.append(work)
                else:
                    done.append((work, result))
            self._committer.finish(done)

        def commit(result: TaskResult) -> None:
            self._committer.commit(left[result.number][1], result, request)

        try:
            with Commits(commit) as commits:
                try:
                    for result in self._runner.run(tasks, self._progressed):
                        if len(tasks) == 1:
                            end([commits.do(result)])
                        else:
                            commits.begin(result)
                            end(commits.ended())
                except CompactionError as error:
                    lost = error  # the runner itself failed: what it has not given back is lost
                for ended in commits.rest():
                    end(ended)
        finally:
            # Also of those that an exception from outside, as of a signal, cuts off.
            for _, round_ in left.values():
                self._committer.collect(round_)
        for run, round_ in left.values():
            self._committer.fail(run, round_.survey, len(round_.committed), lost)
        return again

    def _progressed(self, read_bytes: int) -> None:
        """Pass progress on; workers call it window by window, and end there when asked to."""
        self._events.progressed(read_bytes)
        self._check_stop()

    def _check_stop(self) -> None:
        if self._is_stopping:
            raise _stopped()

    def _checkpoint(self, run: PartitionRun, request: CleanRequest, offset: int) -> None:
        root = run.request.path.parent if request.target is None else request.target
        change = {run.request.partition: offset}
        update_checkpoint(self._files, root, CLEANER_CHECKPOINT, change)


def _may_roll(survey: Survey, request: CleanRequest) -> bool:
    """Say whether the active segment is to be left; a torn one refuses that when it is asked."""
    has_any = survey.listing.active.size_bytes > 0
    return survey.roll is not None or (request.roll_active and has_any)


def _stopped() -> StoppedError:
    return StoppedError("stopped on request; what is in place is whole, run again to go on")
