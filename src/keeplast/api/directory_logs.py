"""``keeplast.DirectoryLogs``: the logs of a data directory, to ask about all of them.

The rule: a module of ``run`` or ``service`` is named in full where a verb calls it, and is imported
then (:func:`~keeplast.errors.module_when_named`). To import all takes longer than most verbs do.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

import keeplast.run
import keeplast.service
from keeplast.api.place import (
    AskedPlace,
    KeptRounds,
    PlanReport,
    SearchTerms,
    Shelves,
    UndoneRounds,
    UndoTerms,
)
from keeplast.cleaner.log_order import Order
from keeplast.clock import SystemClock
from keeplast.config.layers import Layer, PartitionChoice, SettingSources, flag_texts
from keeplast.config.place_properties import PlaceKind
from keeplast.config.selection import Selection, choose_partition, select_partitions
from keeplast.config.setting_rows import assumed_defaults, assumed_sentence
from keeplast.errors import RefusedError, error_text
from keeplast.log.data_directory import DataDirectory, PartitionEntry, open_data_directory
from keeplast.log.files import FilesRecipe, FileSystem, LocalFiles
from keeplast.log.lock import locked
from keeplast.log.paths import is_object_path, place_path, shown
from keeplast.log.root_files import RECEIPTS_NAME, read_holds
from keeplast.log.undo_files import read_kept
from keeplast.model.hold import HoldBook, HoldPoint
from keeplast.model.partition import TopicPartition
from keeplast.survey.report import CleanReport, failures
from keeplast.survey.request import CleanRequest
from keeplast.tier.objects.places import recipe_of

if TYPE_CHECKING:
    import keeplast.run.coordinator
    import keeplast.run.expiry
    import keeplast.run.foresight
    import keeplast.run.holds
    import keeplast.run.target
    import keeplast.run.undo
    import keeplast.run.undoing
    import keeplast.service.directory_answer
    import keeplast.service.directory_loop
    import keeplast.service.directory_work
    import keeplast.service.erasure.certificate
    import keeplast.service.erasure.certificate_check
    import keeplast.service.erasure.directory_erasing
    import keeplast.service.erasure.erasing
    import keeplast.service.place_check
    import keeplast.service.place_loop
    import keeplast.service.place_settings
    import keeplast.service.read_place
    import keeplast.service.receipts
    import keeplast.service.snapshot
    import keeplast.service.status
    import keeplast.service.verifying
    from keeplast.api.round_terms import AskedRounds, WorkTerms
    from keeplast.inspect.explain import AskedKey
    from keeplast.model.erasure_request import ErasureRequest, KeyHasher
    from keeplast.rewrite.task import Runner
    from keeplast.run.coordinator import Coordinator
    from keeplast.run.events import Events
    from keeplast.run.expiry import DeleteRecordsReport
    from keeplast.service.directory_work import DirectoryWork
    from keeplast.service.erasure.certificate import SearchedPlace
    from keeplast.service.erasure.certificate_check import PartitionStanding
    from keeplast.service.erasure.directory_erasing import AskedErasure
    from keeplast.service.erasure.erasure_answer import ErasureAnswer, ErasureKeys
    from keeplast.service.explained import KeyAnswer
    from keeplast.service.live import TierNarrator
    from keeplast.service.place_check import PlaceCheck
    from keeplast.service.place_loop import LoopTerms, OpenLoop, PlaceView, ViewTerms
    from keeplast.service.place_settings import ChangeTerms, ConfiguredPlace, PlaceSettings
    from keeplast.service.read_place import ReadPlace, ReadTerms
    from keeplast.service.status import PlaceStatus, StatusTerms
    from keeplast.service.upkeep import DeletionTerms
    from keeplast.service.verifying import VerifyAnswer, VerifyTerms


@dataclass(frozen=True, slots=True)
class DirectoryLogs(AskedPlace):
    """A data directory, a broker's ``log.dirs`` or a copy of it; a path alone means the same.

    ``config`` are settings by Kafka's names, as ``--config`` gives them, and ``config_file``, the
    broker's ``server.properties`` in ``broker_config``, the environment and the directory's own
    metadata log count as for every command. ``object_options`` are those of the object store of an
    ``s3://`` directory; what changes logs is refused there. ``settings`` are those of a place's
    table, which beat the directory's file.
    """

    data_dir: str | Path
    config: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    config_file: Path | None = field(default=None, kw_only=True)
    broker_config: Path | None = field(default=None, kw_only=True)
    object_options: Mapping[str, str] = field(default_factory=dict, kw_only=True, repr=False)
    settings: Layer | None = field(default=None, kw_only=True, repr=False)

    kind = PlaceKind.DIRECTORY

    @property
    def address(self) -> str:
        """Return the path, or the URL of an object store."""
        return shown(str(self.path))

    @property
    def path(self) -> Path:
        """Return where it is."""
        return place_path(str(self.data_dir))

    @property
    def sources(self) -> SettingSources:
        """Return who says what its topics are."""
        return SettingSources(
            flags=flag_texts(self.config),
            config_file=self.config_file,
            broker_config=self.broker_config,
            place=self.settings,
        )

    def recipe(self) -> FilesRecipe:
        """Return how its files are opened, here and by tasks."""
        options = self.object_options if is_object_path(self.path) else {}
        return recipe_of((self.path,), options)

    def status(self, scope: PartitionChoice, terms: StatusTerms) -> PlaceStatus:
        """Look without the directory's lock; a broker or a loop may be at work."""
        self.refuse({"status --exact": terms.open_runner is not None})
        files = self.recipe().open()
        selection = select_partitions(self.path, files, scope, self.sources)
        look = keeplast.service.snapshot.look_at_directory(
            selection, files, terms.at_ms, tombstones=terms.tombstones,
            round_seconds=terms.round_seconds, planned=terms.planned,
            progressed=terms.progressed, brokers=terms.brokers,
        )  # fmt: skip
        found = look.joined(
            files,
            keeplast.service.status.find_last_rounds(
                keeplast.service.status.read_kept_entries(files, look.root, terms.receipt)
            ),
        )
        return dataclasses.replace(found, warnings=(*selection.warnings, *look.warnings))

    def add_hold(
        self,
        name: str,
        topics: Sequence[str],
        numbers: Sequence[int],
        point: HoldPoint,
        age_ms: int,
    ) -> HoldBook:
        """Hold partitions at a point; a loop may be at work meanwhile."""
        files, clock = LocalFiles(), SystemClock()
        directory = open_data_directory(self.path, files)
        entries = keeplast.run.holds.choose_entries(directory, topics, numbers)
        added = keeplast.run.holds.add_holds(directory, entries, name, point, age_ms, files, clock)
        return HoldBook.of(added, clock.now_ms())

    def holds(self) -> HoldBook:
        """Return every hold of the directory."""
        files = LocalFiles()
        found = sorted(read_holds(files, open_data_directory(self.path, files).root))
        return HoldBook.of(found, SystemClock().now_ms())

    def release_hold(self, name: str) -> HoldBook:
        """End a hold."""
        files = LocalFiles()
        released = keeplast.run.holds.release_holds(
            open_data_directory(self.path, files), name, files
        )
        return HoldBook.of(released, SystemClock().now_ms())

    def plan(
        self, scope: PartitionChoice, terms: AskedRounds, work: WorkTerms, *, exact: bool = False
    ) -> PlanReport:
        """Plan without the directory's lock; a broker may be running."""
        act = partial(keeplast.run.coordinator.Coordinator.plan, exact=exact)
        return PlanReport(self._rounds(scope, terms, work, act, writes=False))

    def clean(self, scope: PartitionChoice, terms: AskedRounds, work: WorkTerms) -> CleanReport:
        """Clean in place or to a target; RefusedError while a broker has the directory."""
        return self._rounds(
            scope, terms, work, keeplast.run.coordinator.Coordinator.clean, writes=True
        )

    def expire(self, scope: PartitionChoice, terms: AskedRounds, work: WorkTerms) -> CleanReport:
        """Expire under the directory's lock; RefusedError while a broker has the directory."""
        terms.require_no_rounds(self.address)
        return self._rounds(
            scope, terms, work, keeplast.run.coordinator.Coordinator.expire, writes=True
        )

    def delete_records(
        self, partition: TopicPartition, before_offset: int, terms: DeletionTerms
    ) -> DeleteRecordsReport:
        """Move the log start, under the directory's lock."""
        files = LocalFiles()
        request, warnings = choose_partition(self.path, files, partition, self.sources)
        for warning in warnings:
            terms.warned(warning)
        return keeplast.run.expiry.delete_records(
            request, files, before_offset=before_offset, high_watermark=terms.high_watermark,
            is_unsafe=terms.is_unsafe, removes=terms.removes, writes=terms.writes,
            warned=terms.warned,
        )  # fmt: skip

    def _rounds(
        self,
        scope: PartitionChoice,
        terms: AskedRounds,
        work: WorkTerms,
        act: Callable[[Coordinator, CleanRequest], CleanReport],
        *,
        writes: bool,
    ) -> CleanReport:
        """Return the report of ``act`` on the chosen partitions, refused and skipped ones included.

        Mistakes in settings and targets are found before a runner is opened.
        """
        asked = terms.directory
        recipe = recipe_of((self.path, asked.target), self.object_options)
        files = recipe.open()
        selection = select_partitions(
            self.path, files, scope, self.sources, key_map_bytes=work.key_map_bytes
        )
        for warning in selection.warnings:
            work.events.warned(warning)
        assumed = _assumed(selection, work, expires=asked.retention, is_forced=terms.force)
        report = CleanReport(())
        if selection.partitions:
            request = CleanRequest(
                selection.partitions, now_ms=asked.now_ms, high_watermark=asked.high_watermark,
                log_start_offset=asked.log_start_offset,
                first_dirty_offset=asked.first_dirty_offset,
                uncleanable_offset=asked.uncleanable_offset, is_unsafe=asked.is_unsafe,
                memory_bytes=work.memory_bytes, rounds=asked.rounds, roll_active=asked.roll_active,
                rolls_idle=asked.order is Order.OVERDUE_FIRST, retention=asked.retention,
                force=terms.force, expired=terms.expired, order=asked.order, target=asked.target,
                overwrites=asked.overwrites, receipt=work.receipt, shape=work.shape,
                task_memory_bytes=work.task_memory_bytes,
            )  # fmt: skip
            if writes:
                keeplast.run.target.check_places(request, files)
            with _coordinator(work, files, recipe) as coordinator:
                report = act(coordinator, request)
            if writes and request.receipt is not None and not any(failures(report)):
                keeplast.run.foresight.leave_receipt(
                    files, request.receipt, [each.path for each in request.partitions]
                )
        together = sorted(
            (*report.partitions, *selection.decided), key=lambda each: (each.topic, each.partition)
        )
        return replace(
            report, partitions=tuple(together), warnings=selection.warnings, assumed=assumed
        )

    @contextlib.contextmanager
    def loop(self, scope: PartitionChoice, terms: LoopTerms, work: WorkTerms) -> Iterator[OpenLoop]:
        """Read settings and partitions for the first time; the work takes the lock."""
        self.refuse_host_terms(terms)
        files = LocalFiles()

        def select() -> Selection:
            return select_partitions(
                self.path, files, scope, self.sources, key_map_bytes=work.key_map_bytes
            )

        first = select()
        root = first.directory.root
        keeplast.run.foresight.prove_receipt(
            files, work.receipt, [each.path for each in first.partitions]
        )
        request = CleanRequest(
            (), memory_bytes=work.memory_bytes, task_memory_bytes=work.task_memory_bytes,
            shape=work.shape, order=terms.order, rolls_idle=terms.order is Order.OVERDUE_FIRST,
        )  # fmt: skip
        settings = keeplast.service.directory_work.DirectorySettings(
            root=root, select=select, request=request, retries=terms.retries,
            is_watched=terms.is_watched, receipt=work.receipt,
            unanswered=terms.unanswered,
        )  # fmt: skip

        def start(runner: Runner, narrator: TierNarrator, events: Events) -> DirectoryWork:
            clock = SystemClock()
            coordinator = keeplast.run.coordinator.Coordinator(
                runner, clock, files, events, brokers=work.brokers
            )
            return keeplast.service.directory_work.DirectoryWork(
                coordinator, clock, files, settings, narrator=narrator
            )

        yield keeplast.service.place_loop.OpenLoop(
            name=str(root), receipt=work.receipt or root / RECEIPTS_NAME, start=start,
            view=lambda asked: self.view(scope, asked),
            assumed=_assumed(first, work, expires=True),
        )  # fmt: skip

    def view(self, scope: PartitionChoice, terms: ViewTerms) -> PlaceView:
        """Return what shows the directory; a broker, or a loop, may be running."""
        return keeplast.service.directory_loop.directory_view(
            self.path, self.recipe().open(), scope, self.sources, terms
        )

    def check(self, topics: Sequence[str] = ()) -> PlaceCheck:
        """Look at rights, lock, disk, clock and policies; a broker may be running."""
        self.require_no_topics(topics)
        return keeplast.service.place_check.check_directory(
            self.path, self.recipe().open(), self.sources
        )

    def effective_settings(self, topic: str | None = None) -> PlaceSettings:
        """Read every source."""
        return keeplast.service.place_settings.directory_settings(
            self.path, self.recipe().open(), self.sources, topic
        )

    def configure(
        self,
        changes: Mapping[str, str | None],
        scope: PartitionChoice,
        terms: ChangeTerms,
        work: WorkTerms,
    ) -> ConfiguredPlace:
        """Write into the settings file; what runs takes it from its next round on."""
        return keeplast.service.place_settings.configure_directory(
            self.path, LocalFiles(), changes, scope, self.sources, terms
        )

    def kept_rounds(self, scope: PartitionChoice) -> KeptRounds:
        """Return the rounds that lie next to their logs; takes no lock."""
        _, entries, files = self._undo_entries(scope)
        damaged: list[Path] = []
        warnings: list[str] = []
        for path in (entry.path for entry in entries):
            kept = read_kept(files, path)
            damaged += [path / name for name in kept.damaged]
            try:
                kept.require_lists(path)
            except RefusedError as error:
                warnings.append(error_text(error))
        found = tuple(
            each for entry in entries for each in keeplast.run.undo.find_undo(files, entry)
        )
        return KeptRounds(found, tuple(damaged), tuple(warnings))

    def undo(self, scope: PartitionChoice, terms: UndoTerms) -> UndoneRounds:
        """Put back rounds, under the directory's lock; refused while it is in use."""
        directory, entries, files = self._undo_entries(scope)
        with locked(directory.root, writes=terms.writes):
            line_to = terms.receipt
            if terms.writes and line_to is None:
                line_to = keeplast.service.receipts.with_room(files, directory.root / RECEIPTS_NAME)
            report = keeplast.run.undoing.undo_each(
                files, entries, SystemClock(), rounds=terms.rounds, receipt=line_to,
                writes=terms.writes, finished=terms.finished, warned=terms.events.warned,
                events=terms.events,
            )  # fmt: skip

            def receipts() -> Iterable[object]:
                given = terms.receipt
                given = given if given is not None and files.exists(given) else None
                return keeplast.service.status.read_kept_entries(files, directory.root, given)

            return UndoneRounds.of(report, receipts)

    def drop_kept(self, scope: PartitionChoice, *, takes_over: bool = False) -> Mapping[str, int]:
        """Remove the kept rounds, under the directory's lock."""
        directory, entries, files = self._undo_entries(scope)
        with locked(directory.root):
            return {
                str(entry.partition): keeplast.run.undo.drop_kept(files, entry) for entry in entries
            }

    def _undo_entries(
        self, scope: PartitionChoice
    ) -> tuple[DataDirectory, Sequence[PartitionEntry], FileSystem]:
        files = LocalFiles()
        keeplast.run.undo.refuse_stores(self.path)
        directory = open_data_directory(self.path, files)
        return directory, keeplast.run.undo.choose_undo(directory, scope.includes), files

    def verify(self, scope: PartitionChoice, terms: VerifyTerms) -> VerifyAnswer:
        """Judge logs by what they were before, or by a receipt; takes no lock.

        No other process may write to them meanwhile.
        """
        after = () if terms.after is None else (place_path(str(terms.after)),)
        places = (self.path, *after)
        files = recipe_of(places, self.object_options).open()
        return keeplast.service.verifying.verify_directories(
            places, files, scope, self.sources, terms
        )

    def explain(self, asked: AskedKey, scope: PartitionChoice, terms: SearchTerms) -> KeyAnswer:
        """Explain a key in each chosen log, without the directory's lock."""
        recipe = self.recipe()
        files = recipe.open()
        selection = select_partitions(self.path, files, scope, self.sources)
        return keeplast.service.directory_answer.answer_from_directory(
            selection, files, terms.at_ms, asked, scope=scope, receipt=terms.receipt,
            planned=terms.planned, progressed=terms.progressed, brokers=terms.brokers,
            runner=terms.runner, recipe=recipe,
        )  # fmt: skip

    @contextlib.contextmanager
    def shelves(self, requests: Path | None) -> Iterator[Shelves]:
        """Open the directory's list of requests, or a file outside of it."""
        yield Shelves(
            *keeplast.service.erasure.directory_erasing.directory_shelves(self.path, requests)
        )

    def require_whole(self) -> None:
        """Raise InvalidError for one partition's directory."""
        keeplast.service.erasure.directory_erasing.require_on_disk(self.path)
        keeplast.service.erasure.directory_erasing.require_whole(self.path, LocalFiles())

    def require_elsewhere(self, path: Path) -> None:
        """Raise InvalidError for a file in the directory, which brokers read."""
        keeplast.service.erasure.directory_erasing.require_outside(self.path, path, "out")

    def find_traces(self, asked: AskedErasure, terms: SearchTerms) -> ErasureAnswer:
        """Search logs and the files next to them; takes no lock."""
        files = LocalFiles()
        selection = keeplast.service.erasure.directory_erasing.select_topics(
            self.path, files, asked.topics, self.sources, leaves_missing=bool(asked.reapplied)
        )
        return keeplast.service.erasure.erasing.find_traces(
            selection, files, terms.at_ms, asked.keys, planned=terms.planned,
            progressed=terms.progressed, runner=terms.runner, brokers=terms.brokers,
        )  # fmt: skip

    def clean_traces(
        self, asked: AskedErasure, answer: ErasureAnswer, terms: AskedRounds, work: WorkTerms
    ) -> CleanReport:
        """Close active segments, clean, drop expired data; RefusedError while a broker is there.

        The report is the worst of the rounds', or the last one where the work was ended.
        """
        files = LocalFiles()
        selection = keeplast.service.erasure.directory_erasing.select_topics(
            self.path, files, asked.topics, self.sources, leaves_missing=bool(asked.reapplied)
        )
        reports = keeplast.service.erasure.directory_erasing.clean_traces(
            selection, answer, partial(_coordinator, work, files), receipt=work.receipt,
            is_stopped=lambda: work.switch.is_stopped,
        )  # fmt: skip
        failed = [each for each in reports if any(failures(each))]
        return reports[-1] if work.switch.is_stopped or not failed else failed[0]

    def search_all(
        self, request: ErasureRequest, keys: ErasureKeys, terms: SearchTerms
    ) -> SearchedPlace:
        """Search for what a certificate rests on, receipts included."""
        files = LocalFiles()
        selection = keeplast.service.erasure.directory_erasing.select_topics(
            self.path, files, request.topics, self.sources
        )
        return keeplast.service.erasure.certificate.search_directory(
            selection, files, terms.at_ms, keys, receipt=terms.receipt, planned=terms.planned,
            progressed=terms.progressed, runner=terms.runner,
        )  # fmt: skip

    def compare(
        self, statement: Mapping[str, Any], hasher: KeyHasher | None, terms: SearchTerms
    ) -> Sequence[PartitionStanding]:
        """Say how what lies in the directory now stands to a certificate."""
        return keeplast.service.erasure.certificate_check.compare_directory(
            statement, self.path, LocalFiles(), hasher, receipt=terms.receipt,
            progressed=terms.progressed,
        )  # fmt: skip

    def read_place(self, scope: PartitionChoice, terms: ReadTerms) -> ReadPlace:
        """Return the directory to read states from; a broker may be running."""
        places = (self.path, *terms.also)
        options = self.object_options if any(map(is_object_path, places)) else {}
        return keeplast.service.read_place.directory_read(self.path, self.sources, options, terms)


@contextlib.contextmanager
def _coordinator(
    work: WorkTerms, files: FileSystem, recipe: FilesRecipe | None = None
) -> Iterator[Coordinator]:
    """Open a runner, and what does rounds with it; who asks to end is heard."""
    with work.open_runner() as runner:
        coordinator = keeplast.run.coordinator.Coordinator(
            runner, SystemClock(), files, work.events, recipe, work.brokers
        )
        with work.switch.heard(coordinator.stop):
            yield coordinator


def _assumed(
    selection: Selection, work: WorkTerms, *, expires: bool, is_forced: bool = False
) -> dict[str, str]:
    """Say which defaults rounds rest on because no source gives them, and return them."""
    topics = {each.partition.topic: each.topic for each in selection.partitions}
    assumed = assumed_defaults(selection.settings, topics, is_forced=is_forced, expires=expires)
    if assumed:
        work.noted(assumed_sentence(assumed))
    return assumed
