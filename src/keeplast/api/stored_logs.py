"""``keeplast.StoredLogs``: the logs of a tiered store, to ask about all of them."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from keeplast.api.directory_logs import DirectoryLogs
from keeplast.api.open_store import open_store
from keeplast.api.place import (
    UNHEARD,
    AskedPlace,
    KeptRounds,
    PlaceEvents,
    PlanReport,
    SearchTerms,
    Shelves,
    UndoneRounds,
    UndoTerms,
)
from keeplast.api.round_terms import AskedRounds, WorkTerms
from keeplast.clock import SystemClock
from keeplast.config.layers import PartitionChoice, SettingSources, flags_layer
from keeplast.config.mapping import cleaner_config, topic_config
from keeplast.config.place_properties import PlaceKind
from keeplast.config.setting_rows import assumed_of_kept, assumed_sentence
from keeplast.config.sources import read_layers, read_spoken_settings
from keeplast.errors import InvalidError
from keeplast.inspect.explain import AskedKey
from keeplast.log.files import LocalFiles
from keeplast.model.erasure_request import ErasureRequest, KeyHasher
from keeplast.model.hold import GroupReader, HoldBook, HoldPoint
from keeplast.model.partition import TopicPartition
from keeplast.model.text import shown_url
from keeplast.model.topic_config import CleanerConfig
from keeplast.run.expiry import DeleteRecordsReport
from keeplast.run.foresight import prove_receipt
from keeplast.run.undoing import undo_partitions
from keeplast.service.copying import (
    CopyAnswer,
    CopyTerms,
    WrittenLogs,
    copy_directory,
    write_logs,
)
from keeplast.service.erasure.certificate import SearchedPlace
from keeplast.service.erasure.certificate_check import PartitionStanding, given_receipts_behind
from keeplast.service.erasure.directory_erasing import AskedErasure
from keeplast.service.erasure.erasure_answer import ErasureAnswer, ErasureKeys
from keeplast.service.erasure.store_erasing import (
    clean_store_traces,
    compare_store,
    find_store_traces,
    search_store,
)
from keeplast.service.explained import KeyAnswer
from keeplast.service.place_check import PlaceCheck
from keeplast.service.place_loop import LoopTerms, OpenLoop, PlaceView, ViewTerms
from keeplast.service.place_settings import ChangeTerms, ConfiguredPlace, PlaceSettings
from keeplast.service.read_place import ReadPlace, ReadTerms, store_read
from keeplast.service.receipts import open_receipt, receipt_to
from keeplast.service.status import PlaceStatus, StatusTerms
from keeplast.service.store_answer import answer_from_store
from keeplast.service.store_check import check_store, verify_store
from keeplast.service.store_choice import (
    StoreSettings,
    choose_partitions,
    choose_topics,
)
from keeplast.service.store_facts import store_status
from keeplast.service.store_loop import (
    host_retention,
    host_settings,
    local_places,
    store_view,
    store_work,
)
from keeplast.service.store_shelf import store_shelf
from keeplast.service.store_upkeep import (
    clean_store,
    collect_store,
    expire_store,
    forget_store,
    plan_store,
    restore_store,
    truncate_store,
)
from keeplast.service.stored_settings import configure_store, store_settings
from keeplast.service.upkeep import (
    DeletionTerms,
    Orphans,
    RepairTerms,
    UpkeepReport,
    UpkeepTerms,
)
from keeplast.service.verifying import VerifyAnswer, VerifyTerms, read_judged_rounds
from keeplast.store.tiered_store import (
    GARBAGE_AGE_MS_DEFAULT,
    GRACE_MS_DEFAULT,
    TieredStore,
)
from keeplast.store.undo import UndoneStore
from keeplast.survey.receipt_book import read_entries, read_receipts
from keeplast.survey.report import CleanReport
from keeplast.tier.metadata.database import exposed_mode

EMPTY = "the store has no partitions; keeplast copy --new takes some in"


@dataclass(frozen=True, slots=True)
class StoredLogs(AskedPlace):
    """The store whose metadata is at the URL ``store``; :func:`keeplast.open_store` works on it.

    ``object_options`` are the object store's, ``broker`` what a broker's ``server.properties`` says
    (:func:`keeplast.broker_settings`). ``owner`` is the name under which erasure changes
    partitions, None the host's; with ``takes_over`` it takes them from another process.
    ``grace_ms`` is how long replaced segments stay for readers. ``sources`` are where the cleaner's
    settings are looked for, None for ``broker`` alone. ``objects`` is where a new store keeps its
    objects. ``data_dir`` is a broker's directory on this host: a loop copies from it, and it is
    shown next to the store. ``garbage_age_ms`` is how old an object without a row must be.
    """

    store: str = field(repr=False)
    object_options: Mapping[str, str] = field(default_factory=dict, kw_only=True, repr=False)
    broker: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    owner: str | None = field(default=None, kw_only=True)
    takes_over: bool = field(default=False, kw_only=True)
    grace_ms: int = field(default=GRACE_MS_DEFAULT, kw_only=True)
    events: PlaceEvents = field(default=UNHEARD, kw_only=True, repr=False)
    sources: SettingSources | None = field(default=None, kw_only=True, repr=False)
    data_dir: Path | None = field(default=None, kw_only=True)
    garbage_age_ms: int = field(default=GARBAGE_AGE_MS_DEFAULT, kw_only=True)
    objects: str | None = field(default=None, kw_only=True, repr=False)

    kind = PlaceKind.STORE

    @property
    def cleaner(self) -> CleanerConfig:
        """Return the cleaner's settings; those of topics are kept with the partitions."""
        if self.sources is None:
            return cleaner_config({}, cluster=self.broker)
        return read_spoken_settings(LocalFiles(), self.sources).cleaner_config()

    @property
    def all_sources(self) -> SettingSources:
        """Return where settings are looked for: in the environment where nothing is named."""
        return self.sources or SettingSources()

    @property
    def unheeded(self) -> tuple[str, ...]:
        """Name the topics' settings of ``--config``: rounds go by those kept with partitions."""
        return tuple(
            "a store keeps its topics' settings, and this one has no effect; change it with "
            f"keeplast configure. --config={key}"
            for key in flags_layer(self.all_sources.flags).every_topic
        )

    @property
    def address(self) -> str:
        """Return the URL of the metadata, without a password."""
        return shown_url(self.store)

    @property
    def owner_name(self) -> str:
        """Return who owns what is changed: this host unless another name was given."""
        return self.owner or socket.gethostname()

    def opened(
        self, brokers: GroupReader | None = None, *, only_looks: bool = False, makes: bool = False
    ) -> TieredStore:
        """Open the store; InvalidError when there is none and it is not to be made."""
        mode = exposed_mode(self.store)
        if mode is not None and not only_looks:
            self.events.warned(
                "others than its owner could open the metadata store, which has the key of its "
                "filters; their rights are taken away. "
                f"store={shown_url(self.store)} mode={mode:04o}"
            )
        return open_store(
            self.store, self.objects if makes else None, owner=self.owner_name,
            topic_of=partial(topic_config, cluster=self.broker), options=self.object_options,
            brokers=brokers, only_looks=only_looks,
        )  # fmt: skip

    def status(self, scope: PartitionChoice, terms: StatusTerms) -> PlaceStatus:
        """Look at rows, and with ``data_dir`` at a host's own logs; owns nothing."""
        self.refuse_status_terms(terms)
        self.refuse({"status --exact": terms.open_runner is not None})
        places = local_places(self.data_dir)
        with self.opened(terms.brokers, only_looks=True) as opened:
            chosen = choose_partitions(opened, scope)
            given_up = [each for each in opened.forgotten() if scope.includes(each)]
            found = store_status(
                opened, chosen, given_up, self.cleaner, places, wants_erased=terms.erased_by
            )
        return dataclasses.replace(found, warnings=() if chosen else (EMPTY,))

    def add_hold(
        self,
        name: str,
        topics: Sequence[str],
        numbers: Sequence[int],
        point: HoldPoint,
        age_ms: int,
    ) -> HoldBook:
        """Hold partitions at a point, for the rounds of every host."""
        with self.opened() as opened:
            added = opened.holds.add(opened.holds.choose(topics, numbers), name, point, age_ms)
            return HoldBook.of(added, opened.holds.now_ms())

    def holds(self) -> HoldBook:
        """Return every hold of the store."""
        with self.opened(only_looks=True) as opened:
            return HoldBook(opened.holds.all(), opened.holds.now_ms())

    def release_hold(self, name: str) -> HoldBook:
        """End a hold."""
        with self.opened() as opened:
            released = opened.holds.release(name)
            return HoldBook.of(released, opened.holds.now_ms())

    def plan(
        self, scope: PartitionChoice, terms: AskedRounds, work: WorkTerms, *, exact: bool = False
    ) -> PlanReport:
        """Plan from rows and indexes; owns nothing. InvalidError with ``exact``."""
        terms.require_no_directory(self.address)
        if exact:
            raise InvalidError(
                "a plan of a store counts nothing: its bounds are exact and the rest is not "
                f"estimated; leave --exact out. place={self.address}",
                code="K103",
            )
        with self.opened(work.brokers, only_looks=True) as opened:
            chosen = choose_partitions(opened, scope)
            reports = plan_store(opened, chosen, force=terms.force, expired=terms.expired)
            assumed = self._assumed(opened, chosen, work, is_forced=terms.force)
            return PlanReport(CleanReport(reports, self._warned(opened, chosen, work), assumed))

    def clean(self, scope: PartitionChoice, terms: AskedRounds, work: WorkTerms) -> CleanReport:
        """Do a round of each partition, as its owner; several at once, as many as there is work."""
        terms.require_no_directory(self.address)
        receipt = open_receipt(work.receipt, work.events.warned)
        with self.opened(work.brokers) as opened:
            chosen = choose_partitions(opened, scope)
            assumed = self._assumed(opened, chosen, work, is_forced=terms.force)
            warnings = self._warned(opened, chosen, work)
            with work.open_runner() as runner:
                settings = self._settings(scope, work, takes_over=terms.takes_over)
                reports = clean_store(
                    opened, chosen, runner, settings, receipt, force=terms.force,
                    expired=terms.expired, progressed=work.progressed,
                    finished=work.events.finished,
                )  # fmt: skip
        return CleanReport(reports, warnings, assumed)

    def _settings(
        self, scope: PartitionChoice, work: WorkTerms, *, takes_over: bool
    ) -> StoreSettings:
        """Return what rounds of the store go by, by hand and in a loop."""
        return StoreSettings(
            name=self.address, owner=self.owner_name, is_about=scope.includes,
            cleaner=lambda: self.cleaner, takes_over=self.takes_over or takes_over,
            memory_bytes=work.memory_bytes, task_memory_bytes=work.task_memory_bytes,
            shape=work.shape, grace_ms=self.grace_ms,
        )  # fmt: skip

    @contextlib.contextmanager
    def loop(self, scope: PartitionChoice, terms: LoopTerms, work: WorkTerms) -> Iterator[OpenLoop]:
        """Open the store; partitions are claimed by the work, a partition at a time."""
        files = LocalFiles()
        prove_receipt(files, work.receipt)
        host = host_settings(terms, self.data_dir, work.shape, files)
        settings = replace(
            self._settings(scope, work, takes_over=terms.takes_over), data_dir=self.data_dir,
            retention=host_retention(self.data_dir, self.all_sources), retries=terms.retries,
            garbage_age_ms=self.garbage_age_ms, receipt=work.receipt, unanswered=terms.unanswered,
        )  # fmt: skip
        settings.cleaner()
        with self.opened(work.brokers) as opened:
            chosen = choose_partitions(opened, scope)
            for warning in (*(() if chosen else (EMPTY,)), *self.unheeded):
                self.events.warned(warning)

            yield OpenLoop(
                name=self.address, receipt=work.receipt,
                start=partial(store_work, opened, settings, host, files),
                view=lambda asked: self._view(scope, asked, self.data_dir or terms.host_dir),
                assumed=self._assumed(opened, chosen, work, is_forced=False, expires=True),
            )  # fmt: skip

    def view(self, scope: PartitionChoice, terms: ViewTerms) -> PlaceView:
        """Return what shows the store, and next to it the logs in ``data_dir``."""
        return self._view(scope, terms, self.data_dir)

    def _view(self, scope: PartitionChoice, terms: ViewTerms, local: Path | None) -> PlaceView:
        return store_view(
            self.address, partial(self.opened, only_looks=True), scope, self.all_sources,
            lambda: self.cleaner, local, terms,
        )  # fmt: skip

    def _warned(
        self, opened: TieredStore, chosen: Sequence[TopicPartition], work: WorkTerms
    ) -> tuple[str, ...]:
        found = (*opened.hazards(chosen), *self.unheeded)
        for warning in found:
            work.events.warned(warning)
        return found

    def _assumed(
        self,
        opened: TieredStore,
        chosen: Sequence[TopicPartition],
        work: WorkTerms,
        *,
        is_forced: bool = False,
        cleans: bool = True,
        expires: bool = False,
    ) -> dict[str, str]:
        """Say which defaults work rests on because no source gives them, and return them.

        Rounds ``cleans``, by their settings; without, retention removes, by its own.
        """
        if self.broker:
            return {}
        layers = () if self.sources is None else read_layers(LocalFiles(), self.sources)
        assumed = assumed_of_kept(
            (opened.state(each).settings for each in chosen), layers, is_forced=is_forced,
            cleans=cleans, expires=expires,
        )  # fmt: skip
        if assumed:
            work.noted(assumed_sentence(assumed))
        return assumed

    def expire(self, scope: PartitionChoice, terms: AskedRounds, work: WorkTerms) -> CleanReport:
        """Expire each partition in one transaction; a process of this owner goes on with it."""
        terms.require_no_rounds(self.address)
        terms.require_no_directory(self.address)
        receipt = open_receipt(work.receipt, work.events.warned)
        with self.opened() as opened:
            chosen = choose_partitions(opened, scope)
            assumed = self._assumed(opened, chosen, work, cleans=False, expires=True)
            reports = expire_store(
                opened, chosen, takes_over=self.takes_over or terms.takes_over,
                grace_ms=self.grace_ms, receipt=receipt,
            )  # fmt: skip
        return CleanReport(reports, assumed=assumed)

    def delete_records(
        self, partition: TopicPartition, before_offset: int, terms: DeletionTerms
    ) -> DeleteRecordsReport:
        """Move the log start in one transaction; a process of this owner goes on with it."""
        self.refuse(
            {
                "delete-records --remove": terms.removes,
                "delete-records --high-watermark": terms.high_watermark is not None,
                "delete-records --despite log-bounds": terms.is_unsafe,
            }
        )
        receipt = open_receipt(terms.receipt, self.events.warned) if terms.writes else None
        scope = PartitionChoice(topics=(partition.topic,), partitions=(partition.partition,))
        with self.opened(only_looks=not terms.writes) as opened:
            (at,) = choose_partitions(opened, scope)
            return opened.removals.delete_records(
                at, before_offset, writes=terms.writes,
                takes_over=self.takes_over or terms.takes_over, grace_ms=self.grace_ms,
                receipt=receipt,
            )  # fmt: skip

    def collect(
        self,
        scope: PartitionChoice,
        terms: UpkeepTerms,
        *,
        orphans: Orphans | None = None,
    ) -> UpkeepReport:
        """Collect as the partitions' owner, those included that were given up."""
        self.refuse({"collect --orphans": orphans is not None})
        with self.opened() as opened:
            return collect_store(opened, scope, self._owned(terms), self.garbage_age_ms)

    def repair(self, scope: PartitionChoice, terms: RepairTerms) -> UpkeepReport:
        """Cut logs, or say what restored metadata lack; what is not agreed to is only planned."""
        self.refuse({"repair --rebuild": terms.rebuilds})
        terms.require_one(scope, self.address)
        if terms.truncate_to is not None:
            receipt = open_receipt(terms.receipt, self.events.warned)
            with self.opened() as opened:
                return truncate_store(
                    opened, scope, self._owned(terms), terms.truncate_to,
                    grace_ms=self.grace_ms, receipt=receipt,
                )  # fmt: skip
        with self.opened() as opened:
            accepts = terms.accepts_metadata and terms.is_agreed
            return restore_store(opened, accepts_metadata=accepts)

    def detach(self, scope: PartitionChoice, terms: UpkeepTerms) -> UpkeepReport:
        """Give partitions up: what they hold is lost; without ``terms.is_agreed`` only planned."""
        receipt = open_receipt(terms.receipt, self.events.warned)
        with self.opened() as opened:
            return forget_store(
                opened, scope, self._owned(terms), grace_ms=self.grace_ms, receipt=receipt
            )

    def _owned(self, terms: UpkeepTerms) -> UpkeepTerms:
        return replace(terms, takes_over=self.takes_over or terms.takes_over)

    def check(self, topics: Sequence[str] = ()) -> PlaceCheck:
        """Look at the database, rights and conditions of the objects, the clock and settings."""
        self.require_no_topics(topics)
        return check_store(
            self.store, self.object_options, partial(topic_config, cluster=self.broker),
            lambda: self.cleaner, SystemClock(),
        )  # fmt: skip

    def effective_settings(self, topic: str | None = None) -> PlaceSettings:
        """Read what is kept with the partitions, and the cleaner's settings of every source."""
        with self.opened(only_looks=True) as opened:
            return store_settings(opened, LocalFiles(), self.all_sources, topic)

    def configure(
        self,
        changes: Mapping[str, str | None],
        scope: PartitionChoice,
        terms: ChangeTerms,
        work: WorkTerms,
    ) -> ConfiguredPlace:
        """Change what is kept with each partition, as its owner; records are counted first."""
        with self.opened() as opened:
            return configure_store(
                opened, changes, scope,
                replace(terms, takes_over=self.takes_over or terms.takes_over),
                open_runner=work.open_runner, memory_bytes=work.memory_bytes,
                progressed=work.events.progressed,
            )  # fmt: skip

    def kept_rounds(self, scope: PartitionChoice) -> KeptRounds:
        """Return the rounds that rows keep; reads no object."""
        with self.opened(only_looks=True) as opened:
            chosen = choose_partitions(opened, scope)
            return KeptRounds(tuple(each for at in chosen for each in opened.undo.rounds(at)))

    def undo(self, scope: PartitionChoice, terms: UndoTerms) -> UndoneRounds:
        """Let the replaced segments of rounds be read again, each in one transaction."""
        files = LocalFiles()
        writer = receipt_to(files, terms.receipt) if terms.writes else None
        with self.opened() as opened:
            chosen = choose_partitions(opened, scope)
            newest = [each for at in chosen for each in opened.undo.rounds(at)[:1]]
            terms.events.planned(sum(each.bytes for each in newest))
            place = UndoneStore(
                opened.undo, self.grace_ms, self.takes_over or terms.takes_over, terms.writes,
                writer, terms.events.progressed,
            )  # fmt: skip
            report = undo_partitions(place, chosen, rounds=terms.rounds, finished=terms.finished)
        if terms.receipt is None:
            return UndoneRounds(report)
        return UndoneRounds.of(report, partial(read_entries, terms.receipt, files))

    def drop_kept(self, scope: PartitionChoice, *, takes_over: bool = False) -> Mapping[str, int]:
        """Let kept rounds go; their objects go with a collection, when their grace has passed."""
        with self.opened() as opened:
            return {
                str(each): opened.undo.drop(each, takes_over=self.takes_over or takes_over)
                for each in choose_partitions(opened, scope)
            }

    def verify(self, scope: PartitionChoice, terms: VerifyTerms) -> VerifyAnswer:
        """Judge rows, and what is live by reading all of it; owns nothing."""
        self.refuse_directory_terms(terms)
        judged = read_judged_rounds(terms, LocalFiles())
        with self.opened(only_looks=True) as opened:
            return verify_store(opened, choose_partitions(opened, scope), judged, terms)

    def explain(self, asked: AskedKey, scope: PartitionChoice, terms: SearchTerms) -> KeyAnswer:
        """Explain a key in live segments and replaced ones."""
        receipts = () if terms.receipt is None else read_receipts(terms.receipt, LocalFiles())
        with self.opened(terms.brokers, only_looks=True) as opened:
            return answer_from_store(
                opened, choose_partitions(opened, scope), self.cleaner,
                terms.at_ms, asked, receipts=receipts, planned=terms.planned,
                progressed=terms.progressed, runner=terms.runner,
            )  # fmt: skip

    @contextlib.contextmanager
    def shelves(self, requests: Path | None) -> Iterator[Shelves]:
        """Open the list in the store's metadata, or a file."""
        with store_shelf(self.store, None) as own:
            if requests is None:
                yield Shelves(own, own)
                return
            with store_shelf(self.store, requests) as shelf:
                yield Shelves(shelf, own)

    def find_traces(self, asked: AskedErasure, terms: SearchTerms) -> ErasureAnswer:
        """Search live segments and replaced ones."""
        with self.opened(terms.brokers) as opened:
            return find_store_traces(
                opened, choose_topics(opened, asked.topics),
                self.cleaner, terms.at_ms, asked.keys,
                planned=terms.planned, progressed=terms.progressed, runner=terms.runner,
            )  # fmt: skip

    def clean_traces(
        self, asked: AskedErasure, answer: ErasureAnswer, terms: AskedRounds, work: WorkTerms
    ) -> CleanReport:
        """Do rounds as the partitions' owner, and collect what may go."""
        return CleanReport(
            clean_store_traces(
                lambda: self.opened(work.brokers), answer.partitions_with_traces(),
                takes_over=self.takes_over or terms.takes_over, grace_ms=self.grace_ms,
                receipt=open_receipt(work.receipt, work.events.warned), cleaner=self.cleaner,
            )
        )  # fmt: skip

    def search_all(
        self, request: ErasureRequest, keys: ErasureKeys, terms: SearchTerms
    ) -> SearchedPlace:
        """Search for what a certificate rests on, the list of objects included."""
        with self.opened(terms.brokers) as opened:
            return search_store(
                opened, request.topics, self.cleaner, terms.at_ms,
                keys, receipt=terms.receipt, planned=terms.planned, progressed=terms.progressed,
                runner=terms.runner,
            )  # fmt: skip

    def compare(
        self, statement: Mapping[str, Any], hasher: KeyHasher | None, terms: SearchTerms
    ) -> Sequence[PartitionStanding]:
        """Say how what the store has now stands to a certificate."""
        behind = given_receipts_behind(statement, LocalFiles(), terms.receipt)
        with self.opened(only_looks=True) as opened:
            return compare_store(
                statement, opened, hasher, behind=behind, progressed=terms.progressed
            )

    def read_place(self, scope: PartitionChoice, terms: ReadTerms) -> ReadPlace:
        """Return the store to read states from; rounds may go on meanwhile."""
        self.refuse_more_directories(terms)
        if self.sources is not None and self.sources.flags:
            raise InvalidError(
                "the settings of what is in a store are kept with it; leave --config out, or "
                f"change them with keeplast configure. place={self.address}",
                code="K130",
            )
        return store_read(self.store, self.broker, self.object_options, terms.brokers)

    def export_logs(
        self,
        scope: PartitionChoice,
        to: Path,
        *,
        planned: Callable[[int], None] = lambda count: None,
        progressed: Callable[[int], None] = lambda count: None,
    ) -> WrittenLogs:
        """Write what is live as files; rounds may go on meanwhile."""
        with self.opened(only_looks=True) as opened:
            chosen = choose_partitions(opened, scope)
            return write_logs(opened, chosen, to, planned=planned, progressed=progressed)

    def copy(self, source: AskedPlace, scope: PartitionChoice, terms: CopyTerms) -> CopyAnswer:
        """Copy as the partitions' owner; with ``terms.takes_new`` a missing store is made."""
        if not isinstance(source, DirectoryLogs):
            raise InvalidError(
                f"a copy begins with a data directory; name one. place={source.address}",
                code="K160",
            )
        return copy_directory(
            source.path, source.sources, partial(self.opened, makes=terms.takes_new), scope,
            replace(terms, takes_over=self.takes_over or terms.takes_over),
            grace_ms=self.grace_ms, warned=self.events.warned,
        )  # fmt: skip
