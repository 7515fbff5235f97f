"""``keeplast.StoredLogs``: the logs of a tiered store, for who asks about all of them."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from keeplast.api.open_store import open_store
from keeplast.api.place import (
    UNHEARD,
    AskedPlace,
    KeptRounds,
    PlaceEvents,
    SearchTerms,
    Shelves,
    UndoneRounds,
    UndoTerms,
    undone_ms,
)
from keeplast.api.round_terms import AskedRounds, PlanReport, WorkTerms
from keeplast.clock import SystemClock
from keeplast.config.assumed import assumed_of_kept, assumed_sentence
from keeplast.config.choice import PartitionChoice, SettingSources
from keeplast.config.mapping import cleaner_config, topic_config
from keeplast.config.place_properties import PlaceKind
from keeplast.config.sources import read_cleaner_config, read_layers
from keeplast.errors import CompactionError, InvalidError
from keeplast.inspect.explain import AskedKey
from keeplast.inspect.receipt_proof import with_check
from keeplast.inspect.verdicts import VerificationReport
from keeplast.log.files import LocalFiles
from keeplast.model.erasure_request import ErasureRequest
from keeplast.model.hold import HeldTopic, HoldBook, HoldPoint
from keeplast.model.keyed_hash import KeyHasher
from keeplast.model.partition import TopicPartition
from keeplast.model.reader_wait import GroupReader
from keeplast.model.redaction import shown_url
from keeplast.model.topic_config import CleanerConfig
from keeplast.run.receipt import Receipt
from keeplast.run.undoing import undo_partitions
from keeplast.service.erasure.certificate_check import PartitionStanding, given_receipts_behind
from keeplast.service.erasure.certificate_issue import SearchedPlace
from keeplast.service.erasure.erasure_answer import ErasureAnswer, ErasureKeys
from keeplast.service.erasure.erasure_call import AskedErasure
from keeplast.service.erasure.store_certificate import compare_store, search_store
from keeplast.service.erasure.store_erasing import clean_store_traces, find_store_traces
from keeplast.service.explained import KeyAnswer
from keeplast.service.place_check import PlaceCheck
from keeplast.service.place_settings import ChangeTerms, ConfiguredPlace, PlaceSettings
from keeplast.service.read_place import ReadPlace, store_read
from keeplast.service.receipts import receipt_to
from keeplast.service.store_answer import answer_from_store
from keeplast.service.store_check import check_store
from keeplast.service.store_choice import choose_partitions, choose_topics
from keeplast.service.store_shelf import store_shelf
from keeplast.service.stored_settings import configure_store, store_settings
from keeplast.service.tier_pace import share_of
from keeplast.service.verifying import (
    ChosenPartition,
    VerifyAnswer,
    VerifyTerms,
    judge_each,
    read_judged_rounds,
)
from keeplast.store.tiered_store import GRACE_MS_DEFAULT, TieredStore
from keeplast.store.undo import UndoneStore
from keeplast.store.verification import judge_partition
from keeplast.survey.kept_heads import read_kept_chain
from keeplast.survey.receipt_book import read_entries, read_receipts
from keeplast.survey.receipt_clock import clock_notes
from keeplast.survey.report import CleanReport, PartitionReport, RoundReport, describe_error
from keeplast.survey.wording import sentences
from keeplast.tier.metadata.database import exposed_mode

ROUNDS_MAX = 32
"""How many partitions of a store are worked on at once, however many cores a cluster has."""


@dataclass(frozen=True, slots=True)
class StoredLogs(AskedPlace):
    """The store whose metadata is at the URL ``store``; :func:`keeplast.open_store` works on it.

    ``object_options`` are the object store's, ``broker`` what a broker's ``server.properties`` says
    (:func:`keeplast.broker_settings`). ``owner`` is the name under which erasure changes
    partitions, None the host's; with ``takes_over`` it takes them from another process.
    ``grace_ms`` is how long replaced segments stay for readers. ``sources`` are where the cleaner's
    settings are looked for, None for ``broker`` alone.
    """

    store: str = field(repr=False)
    object_options: Mapping[str, str] = field(default_factory=dict, kw_only=True, repr=False)
    broker: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    owner: str | None = field(default=None, kw_only=True)
    takes_over: bool = field(default=False, kw_only=True)
    grace_ms: int = field(default=GRACE_MS_DEFAULT, kw_only=True)
    events: PlaceEvents = field(default=UNHEARD, kw_only=True, repr=False)
    sources: SettingSources | None = field(default=None, kw_only=True, repr=False)

    kind = PlaceKind.STORE

    @property
    def cleaner(self) -> CleanerConfig:
        """Return the cleaner's settings; those of topics are kept with the partitions."""
        if self.sources is None:
            return cleaner_config({}, cluster=self.broker)
        return read_cleaner_config(LocalFiles(), self.sources)

    @property
    def address(self) -> str:
        """Return the URL of the metadata, without a password."""
        return shown_url(self.store)

    def opened(
        self, brokers: GroupReader | None = None, *, only_looks: bool = False
    ) -> TieredStore:
        """Open the store; InvalidError when there is none."""
        mode = exposed_mode(self.store)
        if mode is not None and not only_looks:
            self.events.warned(
                "others than its owner could open the metadata store, which has the key of its "
                "filters; their rights are taken away. "
                f"store={shown_url(self.store)} mode={mode:04o}"
            )
        return open_store(
            self.store, owner=self.owner or socket.gethostname(),
            topic_of=partial(topic_config, cluster=self.broker), options=self.object_options,
            brokers=brokers, only_looks=only_looks,
        )  # fmt: skip

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
            return HoldBook(tuple(map(HeldTopic, added)), opened.holds.now_ms())

    def holds(self) -> HoldBook:
        """Return every hold of the store."""
        with self.opened(only_looks=True) as opened:
            return HoldBook(opened.holds.all(), opened.holds.now_ms())

    def release_hold(self, name: str) -> HoldBook:
        """End a hold."""
        with self.opened() as opened:
            released = opened.holds.release(name)
            return HoldBook(tuple(map(HeldTopic, released)), opened.holds.now_ms())

    def plan(
        self, scope: PartitionChoice, terms: AskedRounds, work: WorkTerms, *, exact: bool = False
    ) -> PlanReport:
        """Plan from rows and indexes; owns nothing. InvalidError with ``exact``."""
        terms.require_no_directory(self.address)
        if exact:
            raise InvalidError(
                "a plan of a store counts nothing: its bounds are exact and the rest is not "
                f"estimated; leave --exact out. place={self.address}"
            )
        with self.opened(work.brokers, only_looks=True) as opened:
            chosen = choose_partitions(opened, scope)
            reports = tuple(
                PartitionReport(
                    each.topic, each.partition,
                    (opened.plan(each, force=terms.force, expired=terms.expired),),
                )
                for each in chosen
            )  # fmt: skip
            assumed = self._assumed(opened, chosen, work, is_forced=terms.force)
            return PlanReport(CleanReport(reports, opened.hazards(chosen), assumed))

    def clean(self, scope: PartitionChoice, terms: AskedRounds, work: WorkTerms) -> CleanReport:
        """Do a round of each partition, as its owner; several at once, as many as there is work."""
        terms.require_no_directory(self.address)
        receipt = self._receipt_to(work)
        with self.opened(work.brokers) as opened:
            chosen = choose_partitions(opened, scope)
            assumed = self._assumed(opened, chosen, work, is_forced=terms.force)
            warnings = opened.hazards(chosen)
            for warning in warnings:
                work.events.warned(warning)
            with work.open_runner() as runner:
                # A chosen shape cuts each round for all there is; else partitions go side by side.
                width = 1 if work.shape is not None else min(len(chosen), runner.slots, ROUNDS_MAX)
                cleaner = share_of(self.cleaner, runner, width)

                def progressed(read_bytes: int) -> None:
                    work.events.progressed(read_bytes)
                    work.switch.check()

                def do_round(each: TopicPartition) -> RoundReport:
                    try:
                        progressed(0)
                        return opened.clean(
                            each, lambda files: nullcontext(runner), progressed=progressed,
                            cleaner=cleaner,
                            takes_over=self.takes_over or terms.takes_over,
                            grace_ms=self.grace_ms, receipt=receipt, force=terms.force,
                            expired=terms.expired, memory_bytes=work.memory_bytes,
                            task_memory_bytes=work.task_memory_bytes, shape=work.shape,
                        )  # fmt: skip
                    except (CompactionError, OSError) as error:
                        return RoundReport(error=describe_error(error), failure=error)

                reports: list[PartitionReport] = []
                with ThreadPoolExecutor(max(width, 1), "keeplast-round") as pool:
                    for each, report in zip(chosen, pool.map(do_round, chosen), strict=True):
                        work.events.finished(each, report)
                        reports.append(PartitionReport(each.topic, each.partition, (report,)))
        return CleanReport(tuple(reports), warnings, assumed)

    def _assumed(
        self,
        opened: TieredStore,
        chosen: Sequence[TopicPartition],
        work: WorkTerms,
        *,
        is_forced: bool,
    ) -> dict[str, str]:
        """Say which defaults rounds rest on because no source gives them, and return them."""
        if self.broker:
            return {}
        layers = () if self.sources is None else read_layers(LocalFiles(), self.sources)
        assumed = assumed_of_kept(
            (opened.state(each).settings for each in chosen), layers, is_forced=is_forced,
            expires=False,
        )  # fmt: skip
        if assumed:
            work.noted(assumed_sentence(assumed))
        return assumed

    def _receipt_to(self, work: WorkTerms) -> Receipt | None:
        files = LocalFiles()
        for note in sentences(clock_notes(files, work.receipt, SystemClock().now_ms())):
            work.events.warned(note)
        return receipt_to(files, work.receipt)

    def check(self, topics: Sequence[str] = ()) -> PlaceCheck:
        """Look at the database, rights and conditions of the objects, the clock and settings."""
        self.require_no_topics(topics)
        return check_store(
            self.store, self.object_options, partial(topic_config, cluster=self.broker),
            lambda: self.cleaner, SystemClock(),
        )  # fmt: skip

    def effective_settings(self, topic: str | None = None) -> PlaceSettings:
        """Read what is kept with the partitions, and the cleaner's settings of every source."""
        sources = SettingSources() if self.sources is None else self.sources
        with self.opened(only_looks=True) as opened:
            return store_settings(opened, LocalFiles(), sources, topic)

    def configure(
        self,
        changes: Mapping[str, str | None],
        scope: PartitionChoice,
        terms: ChangeTerms,
        work: WorkTerms,
    ) -> ConfiguredPlace:
        """Change what is kept with each partition, as its owner; records are counted first."""
        takes_over = self.takes_over or terms.takes_over
        with self.opened() as opened:
            return configure_store(
                opened, changes, scope, replace(terms, takes_over=takes_over),
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
            report = undo_partitions(place, chosen, rounds=terms.rounds, told=terms.told)
        before: Mapping[str, int] = {}
        if report.missing and terms.receipt is not None:
            with contextlib.suppress(CompactionError, OSError):
                before = undone_ms(read_entries(terms.receipt, files))
        return UndoneRounds(report, before)

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
        files = LocalFiles()
        rounds = read_judged_rounds(terms, files)
        with self.opened(only_looks=True) as opened:
            chosen, parts = choose_partitions(opened, scope), opened.parts()
            chain = None
            if terms.receipt is not None:
                chain = read_kept_chain(terms.receipt, files, parts.metadata.facts)

            def judge(at: TopicPartition) -> VerificationReport:
                judged = judge_partition(
                    parts.metadata, parts.objects, at, terms.progressed, terms.planned
                )
                report = judged.report([each for each in rounds if each.partition == at])
                return report if chain is None else with_check(report, chain)

            return judge_each(
                (ChosenPartition(str(at), at, partial(judge, at)) for at in chosen), terms, files,
                chain,
            )  # fmt: skip

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
        faults = clean_store_traces(
            lambda: self.opened(work.brokers), answer.partitions_with_traces(),
            takes_over=self.takes_over or terms.takes_over, grace_ms=self.grace_ms,
            receipt=self._receipt_to(work), cleaner=self.cleaner,
        )  # fmt: skip
        return CleanReport(
            tuple(
                PartitionReport(
                    at.topic, at.partition,
                    (RoundReport(error=describe_error(error), failure=error),),
                )
                for at, error in faults
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

    def read_place(self, scope: PartitionChoice, checkpoint: str | None) -> ReadPlace:
        """Return the store to read states from; rounds may go on meanwhile."""
        return store_read(self.store, self.broker, self.object_options)
