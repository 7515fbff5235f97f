"""``keeplast.AttachedLogs``: the logs of a live cluster's remote tier, to ask about all of them.

What brokers alone have is in no answer. Only rounds claim a partition.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from keeplast.api.place import (
    UNHEARD,
    AskedPlace,
    PlaceEvents,
    PlanReport,
    SearchTerms,
    Shelves,
)
from keeplast.api.round_terms import AskedRounds, WorkTerms
from keeplast.attach.answers.shown_logs import (
    decision_log_at,
    find_shown_topics,
    naming_segments,
    reading_notes,
)
from keeplast.attach.held.metadata_view import fold_known
from keeplast.attach.held.publication import Publisher
from keeplast.attach.rounds.attached_files import ROOT
from keeplast.attach.upkeep.replaced_segments import GRACE_MS_DEFAULT, WhyWait, check_grace, collect
from keeplast.clock import SystemClock
from keeplast.cluster.broker_metrics import BrokerMetrics, metrics_urls
from keeplast.cluster.client import ClusterClient
from keeplast.cluster.group_offsets import BrokerGroups
from keeplast.cluster.layouts.layout import RemoteLayout
from keeplast.cluster.layouts.open import open_layout
from keeplast.cluster.layouts.paced import PaceLimits
from keeplast.cluster.live_cluster import (
    ASSUMED_OF_BROKERS,
    METADATA_TOPIC,
    ClusterFacts,
    TopicFacts,
)
from keeplast.cluster.metadata_log import FoldedMetadata
from keeplast.config.layers import Layer, PartitionChoice, SettingSources, flag_texts
from keeplast.config.mapping import wanted_settings
from keeplast.config.place_properties import PlaceKind
from keeplast.config.precedence import Settings
from keeplast.config.sources import read_layers
from keeplast.errors import InvalidError, RefusedError, UnavailableError
from keeplast.inspect.explain import AskedKey
from keeplast.log.files import LocalFiles
from keeplast.model.erasure_request import ErasureRequest, KeyHasher
from keeplast.model.hold import HoldBook, HoldPoint
from keeplast.model.partition import TopicPartition
from keeplast.model.text import shown_url
from keeplast.run.foresight import prove_receipt
from keeplast.run.receipt import Receipt
from keeplast.service.attached_calls import (
    AttachedRounds,
    AttachedTerms,
    hold_topics,
    verify_topics,
)
from keeplast.service.attached_check import check_attached, decisions_there
from keeplast.service.attached_report import cluster_status
from keeplast.service.attached_sight import AttachedSettings, LoopLimits
from keeplast.service.attached_upkeep import AttachedUpkeep, set_paused
from keeplast.service.cluster_answer import answer_from_cluster, choose_attached
from keeplast.service.cluster_loop import LookedCluster, attached_loop
from keeplast.service.erasure.attached_erasing import (
    LiveTier,
    compare_attached,
    find_attached_traces,
    search_tier,
)
from keeplast.service.erasure.certificate import SearchedPlace
from keeplast.service.erasure.certificate_check import PartitionStanding, given_receipts_behind
from keeplast.service.erasure.directory_erasing import ROUNDS_OF_NOW, AskedErasure
from keeplast.service.erasure.erasure_answer import ErasureAnswer, ErasureKeys
from keeplast.service.explained import KeyAnswer
from keeplast.service.place_check import PlaceCheck, problem_of
from keeplast.service.place_loop import LoopTerms, OpenLoop, PlaceView, ViewTerms
from keeplast.service.place_settings import PlaceSettings
from keeplast.service.read_place import ReadPlace, ReadTerms, checkpoint_topic, topics_read
from keeplast.service.receipts import open_receipt, receipt_to
from keeplast.service.status import PlaceStatus, StatusTerms
from keeplast.service.store_shelf import store_shelf
from keeplast.service.upkeep import Orphans, RepairTerms, UpkeepReport, UpkeepTerms
from keeplast.service.verifying import VerifyAnswer, VerifyTerms, read_judged_rounds
from keeplast.survey.receipt_book import read_receipts
from keeplast.survey.report import CleanReport, PartitionReport, failures
from keeplast.tier.metadata.database import is_missing
from keeplast.tier.metadata.decisions import DecisionLog


@dataclass(frozen=True, slots=True)
class AttachedLogs(AskedPlace):
    """The remote tier of a live cluster, by its brokers, the plugin's place and the decision log.

    ``storage`` is PLUGIN:PLACE with ``storage_options``; ``store`` is the URL of the decision log,
    without which a key can be explained and the latest state exported, and no more. ``client`` are
    the connection's settings (librdkafka's). ``config`` says what topics are meant to be, by
    Kafka's names, ``config_file`` by topic. ``grace_ms`` is how long replaced segments lie before
    they are collected.
    """

    bootstrap_servers: str
    storage: str = field(kw_only=True)
    storage_options: Mapping[str, str] = field(default_factory=dict, kw_only=True, repr=False)
    store: str | None = field(default=None, kw_only=True, repr=False)
    client: Mapping[str, str] = field(default_factory=dict, kw_only=True, repr=False)
    config: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    config_file: Path | None = field(default=None, kw_only=True)
    grace_ms: int = field(default=GRACE_MS_DEFAULT, kw_only=True)
    settings: Layer | None = field(default=None, kw_only=True, repr=False)
    accepts_untested: bool = field(default=False, kw_only=True)
    broker_metrics: tuple[str, ...] = field(default=(), kw_only=True)
    limits: LoopLimits = field(default=LoopLimits(), kw_only=True)
    events: PlaceEvents = field(default=UNHEARD, kw_only=True, repr=False)

    kind = PlaceKind.CLUSTER

    @property
    def address(self) -> str:
        """Return the brokers as a place's address."""
        return f"kafka://{shown_url(self.bootstrap_servers)}"

    @property
    def where(self) -> str:
        """Return how errors name the cluster."""
        return f"bootstrap_servers={shown_url(self.bootstrap_servers)}"

    def connect(self) -> ClusterClient:
        """Return a connection; InvalidError for a setting that cannot be used."""
        return ClusterClient(
            self.bootstrap_servers, self.client, accepts_untested=self.accepts_untested
        )

    def _read_facts(self, topics: Sequence[str]) -> tuple[ClusterClient, ClusterFacts]:
        """Return a connection, and what brokers say of ``topics``, of every tiered one without."""
        client = self.connect()
        return client, client.read_facts(topics)

    @property
    def is_object_store(self) -> bool:
        """Return whether a deleted object is gone at once for its readers."""
        return not self.storage.startswith("local:")

    def layout(self) -> RemoteLayout:
        """Return how the tier's objects are read; InvalidError for what is not known."""
        if not self.storage:
            raise InvalidError(
                f"name where brokers keep segments: storage=PLUGIN:PLACE. place={self.address}",
                code="K409",
            )
        check_grace(self.grace_ms, is_object_store=self.is_object_store)
        return open_layout(self.storage, self.storage_options)

    def wanted(self, topics: Sequence[TopicFacts]) -> Settings:
        """Return what the cluster's topics are meant to be."""
        sources = SettingSources(
            flags=flag_texts(self.config), config_file=self.config_file, place=self.settings
        )
        return wanted_settings(read_layers(LocalFiles(), sources), topics)

    @contextlib.contextmanager
    def decisions(self, *, only_looks: bool = False, makes: bool = False) -> Iterator[DecisionLog]:
        """Open the decision log; InvalidError where none was named, or it is missing.

        With ``makes`` a missing one is made.
        """
        with decision_log_at(self.store, SystemClock(), only_looks=only_looks, makes=makes) as log:
            if log is None:
                raise self._undecided()
            yield log

    def _undecided(self) -> InvalidError:
        return InvalidError(
            f"name the decision log with --decisions URL. place={self.address}", code="K408"
        )

    def folded(
        self, client: ClusterClient, facts: ClusterFacts, log: DecisionLog | None
    ) -> FoldedMetadata:
        """Return what brokers know of the topics; RefusedError where there is no remote tier."""
        if facts.metadata_topic is None:
            raise RefusedError(
                f"nothing was ever copied to a remote tier here: there is no {METADATA_TOPIC}. "
                f"place={self.address}",
                code="K407",
            )
        with self.events.folding() as progressed:
            found = fold_known(client, facts, facts.metadata_topic, log, progressed)
        found.require_sound()
        return found

    @contextlib.contextmanager
    def live(self, topics: Sequence[str]) -> Iterator[LiveTier]:
        """Read what there is of ``topics``, of every tiered one without, and the decisions."""
        layout = self.layout()
        with self.decisions() as log:
            client, facts = self._read_facts(topics)
            yield LiveTier(
                client,
                facts,
                self.folded(client, facts, log),
                log,
                layout,
                self.wanted(facts.topics),
            )

    def status(self, scope: PartitionChoice, terms: StatusTerms) -> PlaceStatus:
        """Look at what brokers serve and, where they are named, at decisions and storage."""
        self.refuse_status_terms(terms)
        client, facts = self._read_facts(scope.topics)
        looks_there = self.storage or self.storage_options or terms.open_runner is not None
        # After the cluster: where that is gone too, it is what is said.
        layout = self.layout() if looks_there else None
        with decision_log_at(self.store, SystemClock(), only_looks=True) as log:
            folded = self.folded(client, facts, log)
            if scope.topics or scope.partitions or terms.open_runner is not None:
                choose_attached(facts, scope.partitions)
            return cluster_status(
                client, facts, folded, log, layout, self.wanted(facts.topics), SystemClock(),
                self.bootstrap_servers, numbers=scope.partitions, grace_ms=self.grace_ms,
                open_runner=terms.open_runner, progressed=terms.progressed,
            )  # fmt: skip

    def add_hold(
        self,
        name: str,
        topics: Sequence[str],
        numbers: Sequence[int],
        point: HoldPoint,
        age_ms: int,
    ) -> HoldBook:
        """Hold partitions at a point, for the rounds of every host; attached or not yet."""
        layout = self.layout()
        client, facts = self._read_facts(topics)
        with self.decisions(makes=True) as log:
            added = hold_topics(
                client, facts, log, layout, self.wanted(facts.topics), SystemClock(), topics,
                numbers, name, point, age_ms, address=self.bootstrap_servers,
            )  # fmt: skip
            return HoldBook.of(added, log.hold_rows.now_ms())

    def holds(self) -> HoldBook:
        """Return every hold of the cluster's topics."""
        cluster_id = self.connect().read_cluster_id()
        with self.decisions(only_looks=True) as log:
            return HoldBook(log.hold_rows.attached(cluster_id), log.hold_rows.now_ms())

    def release_hold(self, name: str) -> HoldBook:
        """End a hold."""
        cluster_id = self.connect().read_cluster_id()
        with self.decisions() as log:
            released = log.hold_rows.release_attached(cluster_id, name)
            return HoldBook.of(released, log.hold_rows.now_ms())

    def plan(
        self, scope: PartitionChoice, terms: AskedRounds, work: WorkTerms, *, exact: bool = False
    ) -> PlanReport:
        """Plan, with what rounds would cost and when tombstones go; claims nothing."""
        with self._rounds(scope, terms, work, only_looks=True) as rounds, ExitStack() as stack:
            chosen = rounds.chosen(scope.partitions)
            cache = self.folded(rounds.client, rounds.facts, rounds.log).cache
            runner = stack.enter_context(work.open_runner()) if exact else None
            planned = rounds.plan_each(chosen, cache, runner, work.events.progressed)
            tombstones = rounds.find_tombstones(chosen, cache, self.grace_ms)
        return PlanReport(
            CleanReport(
                tuple(PartitionReport(at.topic, at.partition, (each,)) for at, each, _ in planned)
            ),
            [(at, cost) for at, _, cost in planned if cost is not None],
            tombstones,
            ASSUMED_OF_BROKERS,
        )

    def clean(self, scope: PartitionChoice, terms: AskedRounds, work: WorkTerms) -> CleanReport:
        """Do a round of each partition in the remote tier, under live brokers."""
        receipt = receipt_to(LocalFiles(), work.receipt)
        with self._rounds(scope, terms, work) as rounds:
            return rounds.clean_each(
                rounds.chosen(scope.partitions), work.open_runner, receipt, work.progressed,
                work.events.finished,
            )  # fmt: skip

    @contextlib.contextmanager
    def loop(self, scope: PartitionChoice, terms: LoopTerms, work: WorkTerms) -> Iterator[OpenLoop]:
        """Open the decision log; each partition is claimed for its own rounds."""
        self.refuse_host_terms(terms)
        files = LocalFiles()
        prove_receipt(files, work.receipt)
        self.wanted(())
        layout, client = self.layout(), self.connect()
        settings = AttachedSettings(
            address=self.bootstrap_servers, settings_of=self.wanted, topics=scope.topics,
            partitions=scope.partitions, interval_ms=self.limits.interval_ms,
            grace_ms=self.grace_ms, keep_sources_ms=terms.keep_sources_ms,
            why_wait=self._why_wait(), caps=self.limits.day, keyless=terms.keyless,
            takes_over=terms.takes_over, memory_bytes=work.memory_bytes,
            task_memory_bytes=work.task_memory_bytes, shape=work.shape, receipt=work.receipt,
        )  # fmt: skip
        with self.decisions(makes=True) as log:
            yield attached_loop(
                client, log, layout, settings, self.limits.pace, partial(self._looked, scope)
            )

    def view(self, scope: PartitionChoice, terms: ViewTerms) -> PlaceView:
        """Return what shows the topics; keys are found where the storage is known."""
        return self._looked(scope, lambda: self.limits.pace).view(terms)

    def _looked(self, scope: PartitionChoice, pace: Callable[[], PaceLimits]) -> LookedCluster:
        name = self.bootstrap_servers
        if self.store is not None:
            name += f", decided in {shown_url(self.store)}"
            if is_missing(self.store):
                raise InvalidError(
                    "there is no such decision log; correct --decisions, or leave it out to see "
                    f"what brokers serve alone. decisions={shown_url(self.store)}",
                    code="K408",
                )
        return LookedCluster(
            connect=self.connect, where=self.bootstrap_servers, name=name, scope=scope,
            wanted=self.wanted, layout=self.layout() if self.storage else None, pace=pace,
            decided=lambda: decision_log_at(self.store, SystemClock(), only_looks=True),
            grace_ms=self.grace_ms,
        )  # fmt: skip

    def _why_wait(self) -> WhyWait | None:
        """Return who is asked before a deletion; InvalidError for what is no URL."""
        urls = metrics_urls(self.broker_metrics)
        return BrokerMetrics(urls).why_wait if urls else None

    @contextlib.contextmanager
    def _upkeep(self, *, makes: bool = False) -> Iterator[AttachedUpkeep]:
        layout = self.layout()
        with self.decisions(makes=makes) as log:
            yield AttachedUpkeep(
                self.connect(),
                log,
                layout,
                self.wanted,
                self.bootstrap_servers,
                self.grace_ms,
                self._why_wait(),
            )

    def collect(
        self,
        scope: PartitionChoice,
        terms: UpkeepTerms,
        *,
        orphans: Orphans | None = None,
    ) -> UpkeepReport:
        """Collect what brokers serve no more, once its replacement was read whole."""
        receipt = open_receipt(terms.receipt, self.events.warned)
        with self._upkeep() as upkeep:
            return upkeep.collect(scope, terms, orphans, receipt)

    def repair(self, scope: PartitionChoice, terms: RepairTerms) -> UpkeepReport:
        """Publish what was decided, and take back what never was; or make the decisions again."""
        self.refuse({"repair --truncate-to": terms.truncate_to is not None})
        with self._upkeep(makes=terms.rebuilds) as upkeep:
            return upkeep.repair(scope, terms)

    def pause(self, scope: PartitionChoice, *, is_paused: bool = True) -> UpkeepReport:
        """Note in the decision log that no host may go on, or that all may; needs no storage."""
        with self.decisions() as log:
            return set_paused(self.connect(), log, scope, is_paused=is_paused)

    def detach(self, scope: PartitionChoice, terms: UpkeepTerms) -> UpkeepReport:
        """End what is decided, collect, and leave the topics to the brokers."""
        receipt = open_receipt(terms.receipt, self.events.warned)
        with self._upkeep() as upkeep:
            return upkeep.detach(scope, terms, receipt)

    @contextlib.contextmanager
    def _rounds(
        self,
        scope: PartitionChoice,
        terms: AskedRounds,
        work: WorkTerms,
        *,
        only_looks: bool = False,
    ) -> Iterator[AttachedRounds]:
        terms.require_no_directory(self.address)
        self.refuse({"clean --expired": terms.expired})
        asked = AttachedTerms(
            force=terms.force, keyless=terms.keyless, memory_bytes=work.memory_bytes,
            task_memory_bytes=work.task_memory_bytes, shape=work.shape,
            keep_sources_ms=terms.keep_sources_ms, takes_over=terms.takes_over,
        )  # fmt: skip
        with self.decisions(makes=True, only_looks=only_looks) as log:
            client, facts = self._read_facts(scope.topics)
            yield AttachedRounds(
                client, facts, self.wanted(facts.topics), self.layout(), log,
                self.bootstrap_servers, asked,
            )  # fmt: skip

    def verify(self, scope: PartitionChoice, terms: VerifyTerms) -> VerifyAnswer:
        """Judge what consumers are given and what the tier's objects hold; claims nothing."""
        self.refuse_directory_terms(terms)
        judged, layout = read_judged_rounds(terms, LocalFiles()), self.layout()
        with self.decisions(only_looks=True) as log:
            client, facts = self._read_facts(scope.topics)
            return verify_topics(
                client, facts, self.wanted(facts.topics), layout, log, judged,
                scope.partitions, terms,
            )  # fmt: skip

    def check(self, topics: Sequence[str] = ()) -> PlaceCheck:
        """Look at brokers, topics and records of the metadata, at storage and decisions if named.

        InvalidError for a topic that is not there, and for a property that cannot be used.
        """
        if self.storage_options and not self.storage:
            raise InvalidError(
                "options of a storage that is not named; give storage=PLUGIN:PLACE", code="K103"
            )
        layout = self.layout() if self.storage else None
        client = self.connect()
        with decisions_there(self.store) as (log, decided):
            try:
                found = check_attached(
                    client, topics, log, layout, self.wanted, address=self.bootstrap_servers,
                    storage=self.storage, folding=self.events.folding,
                )  # fmt: skip
            except (RefusedError, UnavailableError) as error:
                return PlaceCheck((problem_of("cluster", error), *decided))
        return replace(found, checks=(*found.checks, *decided))

    def effective_settings(self, topic: str | None = None) -> PlaceSettings:
        """Read what keeplast is to do, and of a topic what brokers say of its sizes."""
        facts = () if topic is None else self.connect().read_facts((topic,)).topics
        return PlaceSettings(self.wanted(facts))

    def explain(self, asked: AskedKey, scope: PartitionChoice, terms: SearchTerms) -> KeyAnswer:
        """Explain a key in what brokers serve, and in what was replaced, as of now."""
        if terms.now_ms is not None:
            raise InvalidError(
                f"attached topics are explained as of now; leave now_ms out. now_ms={terms.now_ms}",
                code="K103",
            )
        receipts = () if terms.receipt is None else read_receipts(terms.receipt, LocalFiles())
        layout = self.layout()
        with decision_log_at(self.store, SystemClock(), only_looks=True) as log:
            client, facts = self._read_facts(scope.topics)
            chosen = choose_attached(facts, scope.partitions)
            asked.require_one(len(chosen))
            cache = self.folded(client, facts, log).cache
            return answer_from_cluster(
                client, facts, cache, log, layout, self.wanted(facts.topics), chosen,
                SystemClock(), asked, grace_ms=self.grace_ms, receipts=receipts,
                planned=terms.planned, progressed=terms.progressed, runner=terms.runner,
            )  # fmt: skip

    @contextlib.contextmanager
    def shelves(self, requests: Path | None) -> Iterator[Shelves]:
        """Open the list next to the decisions, or a file."""
        if self.store is None:
            raise self._undecided()
        with store_shelf(self.store, requests) as shelf:
            yield Shelves(shelf, shelf)

    def find_traces(self, asked: AskedErasure, terms: SearchTerms) -> ErasureAnswer:
        """Search what brokers serve, and what waits to be collected; claims nothing."""
        with self.live(asked.topics) as tier:
            return find_attached_traces(
                tier.cluster, tier.facts, tier.folded.cache, tier.log, tier.layout, tier.settings,
                SystemClock(), asked.keys, grace_ms=self.grace_ms, planned=terms.planned,
                progressed=terms.progressed, runner=terms.runner,
            )  # fmt: skip

    def clean_traces(
        self, asked: AskedErasure, answer: ErasureAnswer, terms: AskedRounds, work: WorkTerms
    ) -> CleanReport:
        """Do rounds under live brokers, and collect after each; the report is the first with a
        failure, else the first.
        """
        why_wait = self._why_wait()
        grace_ms = check_grace(self.grace_ms, is_object_store=self.is_object_store)
        receipt = receipt_to(LocalFiles(), work.receipt)
        holding = frozenset(answer.partitions_with_traces())

        def collected(publisher: Publisher, line_to: Receipt | None) -> None:
            found = collect(publisher, grace_ms, receipt=line_to, why_wait=why_wait)
            if found.held_back is not None:
                work.events.warned(f"{publisher.name}: nothing is deleted: {found.held_back}")

        done: list[CleanReport] = []
        scope = PartitionChoice(topics=asked.topics)
        while len(done) < ROUNDS_OF_NOW and not work.switch.is_stopped:
            with self._rounds(scope, replace(terms, force=True), work) as rounds:
                chosen = [
                    (topic, number)
                    for topic, number in rounds.chosen(())
                    if TopicPartition(topic.name, number) in holding
                ]
                done.append(
                    rounds.clean_each(
                        chosen, work.open_runner, receipt, work.progressed, work.events.finished,
                        collected,
                    )
                )  # fmt: skip
        # Who asks to end before the first round gets the report of none.
        done = done or [CleanReport(())]
        return next((each for each in done if any(failures(each))), done[0])

    def search_all(
        self, request: ErasureRequest, keys: ErasureKeys, terms: SearchTerms
    ) -> SearchedPlace:
        """Search for what a certificate rests on, the list of objects included."""
        with self.live(request.topics) as tier:
            return search_tier(
                tier, SystemClock(), keys, grace_ms=self.grace_ms, receipt=terms.receipt,
                planned=terms.planned, progressed=terms.progressed, runner=terms.runner,
            )  # fmt: skip

    def compare(
        self, statement: Mapping[str, Any], hasher: KeyHasher | None, terms: SearchTerms
    ) -> Sequence[PartitionStanding]:
        """Say how what the remote tier has now stands to a certificate."""
        behind = given_receipts_behind(statement, LocalFiles(), terms.receipt)
        named = {str(each["topic"]) for each in statement["partitions"]}
        there = self.connect().read_topic_ids(named)
        with self.live(tuple(sorted(named & there.keys()))) as tier:
            return compare_attached(
                statement, tier, hasher, SystemClock(), behind=behind, progressed=terms.progressed
            )

    def read_place(self, scope: PartitionChoice, terms: ReadTerms) -> ReadPlace:
        """Return what brokers serve, as it is now, to read states from."""
        self.refuse_more_directories(terms)
        layout, topics = self.layout(), topics_read(scope.topics, terms.checkpoint)
        with decision_log_at(self.store, SystemClock(), only_looks=True) as log:
            client, facts = self._read_facts(topics)
            marking = checkpoint_topic(terms.checkpoint)
            with self.events.folding() as progressed:
                found = find_shown_topics(
                    client, facts, log, layout,
                    lambda each: scope.includes(each) or each.topic == marking, self.where,
                    progressed,
                )  # fmt: skip
            settings = self.wanted(facts.topics)
        return ReadPlace(
            {"path": str(ROOT)}, lambda _: settings.topic_config,
            shows=lambda options: options.of(found), groups=BrokerGroups(client),
            named=lambda: naming_segments(found),
            notes=tuple(reading_notes(found, has_log=self.store is not None)),
        )  # fmt: skip
