"""The front of rounds in directories: locks, targets, what a crash has left, and what expires.

Rounds themselves are on :mod:`keeplast.run.round`. Each change of a log comes through here, so that
one process at a time makes one, and only where every lifted limit was meant to be.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

from msgspec.structs import replace

from keeplast.clock import Clock
from keeplast.errors import CompactionError, StoppedError
from keeplast.log.files import FilesRecipe, FileSystem, LocalRecipe
from keeplast.log.lock import check_held, is_locked, locked
from keeplast.log.log_end import check_understood
from keeplast.log.recovery import is_settled, recover_swap
from keeplast.model.hold import GroupReader
from keeplast.rewrite.task import Runner
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN, Workspace
from keeplast.run.commit import shielded
from keeplast.run.directory_place import DirectoryPlace
from keeplast.run.events import Events
from keeplast.run.expiry import expire_partition, failed_expiry
from keeplast.run.foresight import cut, foreseen, prove_receipt, unready_roots
from keeplast.run.round import Rounds
from keeplast.run.round_state import PartitionRun, clean_report, failed_report
from keeplast.run.target import (
    check_places,
    check_target_root,
    copy_root_files,
    make_target,
    places_of,
    target_of,
)
from keeplast.run.undoing import sweep_kept
from keeplast.survey.bounds import Checkpoints, check_given, load_checkpoints
from keeplast.survey.group_offsets import GroupOffsets
from keeplast.survey.receipt_book import clock_notes
from keeplast.survey.report import CleanReport
from keeplast.survey.request import CleanRequest, PartitionRequest
from keeplast.survey.survey import Survey
from keeplast.survey.tombstone_horizons import HorizonBook


class Coordinator:
    """Cleans or plans the partitions of one request with one runner."""

    def __init__(
        self,
        runner: Runner,
        clock: Clock,
        files: FileSystem,
        events: Events,
        recipe: FilesRecipe | None = None,
        brokers: GroupReader | None = None,
        held: Iterable[Path] = (),
    ) -> None:
        """Take the components.

        ``recipe`` is how workers open what ``files`` shows; None says the host's disks. ``brokers``
        report what consumer groups have committed, None where files do. ``held`` are the data
        directories whose locks the caller holds.
        """
        self._runner = runner
        self._recipe = LocalRecipe() if recipe is None else recipe
        self._run = secrets.token_hex(8)
        self._clock = clock
        self._files = files
        self._events = events
        self._is_stopping = False
        self._horizons = HorizonBook(files)
        self._groups = GroupOffsets(files, brokers)
        self._held = frozenset(held)
        self._holds = set[Path]()

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
        return self._place(request, writes=False).look(partition, checkpoints)

    def _place(self, request: CleanRequest, *, writes: bool) -> DirectoryPlace:
        return DirectoryPlace(
            request, self._files, self._recipe, self._clock, self._events, self._horizons,
            writer=self._run, writes=writes, groups=self._groups,
            # Work is cut by a sample only where tasks share no memory (foresight.cut).
            wants_sample=not (writes and self._runner.shares_memory),
        )  # fmt: skip

    def _rounds(self, request: CleanRequest, place: DirectoryPlace) -> Rounds:
        return Rounds(
            request, place, lambda files: nullcontext(self._runner), self._clock, self._events,
            self._check_stop,
        )  # fmt: skip

    def plan(self, request: CleanRequest, *, exact: bool = False) -> CleanReport:
        """Say what :meth:`clean` would do; writes nothing, takes no lock and says when one is held.

        ``exact`` reads everything as clean would and counts what would go; otherwise a small sample
        of bounded size is read and the report has an estimate. The expired segments are those of
        the log as it is now: the round before that may shrink it.
        """
        for root in sorted({p.path.parent for p in request.partitions}):
            if is_locked(root):
                self._events.warned(
                    "a broker or another keeplast holds this directory; what is read may change "
                    f"meanwhile. path={root}"
                )
        runs = [PartitionRun(partition) for partition in request.partitions]
        place = self._place(request, writes=False)
        rounds = self._rounds(request, place)
        begun = rounds.begin(runs)
        if exact:
            rounds.do(begun)
        else:
            cut(begun, request, self._runner, self._files, self._clock)
            workspace = Workspace(MEMORY_BYTES_MIN)
            for round_ in begun:
                report = foreseen(round_, request, self._files, self._clock, workspace)
                round_.run.rounds.append(report)
        if request.retention:
            for run in runs:
                self._expire(run, request, writes=False, load=place.load)
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
            place = self._place(request, writes=True)
            check_given(request, place.lifts_of)
            stack.enter_context(self._target(request))
            rounds = self._rounds(request, place)
            runs = [PartitionRun(partition) for partition in request.partitions]
            # A call that was stopped before it began tries nothing either.
            tried = {
                target_of(run.request, request).parent for run in runs if not self._is_stopping
            }
            unready = unready_roots(self._files, sorted(tried), self._clock.now_ms())
            behind = (
                ()
                if request.receipt is None
                else clock_notes(self._files, request.receipt, self._now_ms(request))
            )
            for run in runs:
                run.notes += behind
                self._prepare(run, request, unready, rounds)
            rounds.clean(runs)
            for run in runs:
                if request.retention:
                    self._expire(run, request, writes=True)
                self._sweep(run, request)
            return clean_report(runs)

    def expire(self, request: CleanRequest) -> CleanReport:
        """Remove what retention and the log start offset let go, and clean nothing.

        As a cleaner thread does after its rounds for every compacted log that is not uncleanable.
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
                    self._sweep(run, request)
            return clean_report(runs)

    @contextmanager
    def _locks(self, request: CleanRequest) -> Iterator[None]:
        roots = sorted({partition.path.parent for partition in request.partitions})
        with ExitStack() as stack:
            for root in roots:
                if root in self._holds:
                    check_held(root)
                elif root not in self._held:
                    stack.enter_context(locked(root, writes=request.target is None))
            yield

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
        self,
        run: PartitionRun,
        request: CleanRequest,
        unready: Mapping[Path, Exception],
        rounds: Rounds,
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
            rounds.end(run, failed_report(None, 0, error))

    def _recover(self, partition: PartitionRequest) -> None:
        # Where nothing is recovered nothing is written: the survey asks before anything is.
        if is_settled(self._files, partition.path):
            return
        check_understood(partition.path, self._files)
        with shielded():
            recovered = recover_swap(self._files, partition.path)
        if recovered:
            self._events.warned(
                f"finished or undid what an earlier run left in {partition.partition}: "
                f"{len(recovered)} files"
            )

    def _expire(
        self,
        run: PartitionRun,
        request: CleanRequest,
        *,
        writes: bool,
        load: Callable[[FileSystem, Path], Checkpoints] = load_checkpoints,
    ) -> None:
        """Expire a partition whose rounds went well: an uncleanable log keeps what it has."""
        if run.has_failed:
            return
        if self._is_stopping:
            run.expiry = failed_expiry(None, _make_stop())
            return
        partition = run.request
        if writes and request.target is not None:
            partition = replace(partition, path=target_of(partition, request))
        run.expiry = expire_partition(
            partition, request, self._files, self._now_ms(request),
            clock_ms=self._clock.now_ms(), writes=writes, warned=self._events.warned,
            # A round that went well, or was not worth it, was surveyed by this call.
            is_understood=bool(run.rounds), load=load,
        )  # fmt: skip

    def _sweep(self, run: PartitionRun, request: CleanRequest) -> None:
        """Remove what was kept for undo and has had its time, by the machine's clock."""
        if request.target is not None or self._is_stopping:
            return
        try:
            sweep_kept(self._files, run.request, self._clock.now_ms())
        except (CompactionError, OSError) as error:
            if run.has_failed:
                return  # that says what is wrong with it
            self._events.warned(
                "what rounds have kept for undo stays longer than it is to; the next clean or run "
                f"removes it. path={run.request.path} error={error}"
            )

    def _now_ms(self, request: CleanRequest) -> int:
        return self._clock.now_ms() if request.now_ms is None else request.now_ms

    def _check_stop(self) -> None:
        if self._is_stopping:
            raise _make_stop()


def _make_stop() -> StoppedError:
    return StoppedError(
        "stopped on request; what is in place is whole, run again to go on", code="K237"
    )
