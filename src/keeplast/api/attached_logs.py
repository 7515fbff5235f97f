"""``keeplast.AttachedLogs``: what a live cluster's remote tier has, for who asks about all of it.

What brokers alone have is in no answer. Only rounds claim a partition.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from keeplast.api.place import (
    UNHEARD,
    AskedPlace,
    PlaceEvents,
    SearchTerms,
    Shelves,
)
from keeplast.api.round_terms import AskedRounds, PlanReport, WorkTerms
from keeplast.attach.answers.shown_logs import decision_log_at
from keeplast.attach.held.kept_folds import fold_known
from keeplast.attach.held.publication import Publisher
from keeplast.attach.proof.verification import AttachedVerifier, AttachedVerifySettings
from keeplast.attach.upkeep.collection import GRACE_MS_DEFAULT, check_grace, collect
from keeplast.clock import SystemClock
from keeplast.cluster.broker_metrics import BrokerMetrics, metrics_urls
from keeplast.cluster.client import ClusterClient
from keeplast.cluster.facts import ASSUMED_OF_BROKERS, ClusterFacts, TopicFacts
from keeplast.cluster.layouts.layout import RemoteLayout
from keeplast.cluster.layouts.open import open_layout
from keeplast.cluster.metadata_log import FoldedMetadata
from keeplast.cluster.status import name_of
from keeplast.config.attached import wanted_settings
from keeplast.config.choice import PartitionChoice, SettingSources
from keeplast.config.layers import Layer, flag_texts
from keeplast.config.place_properties import PlaceKind
from keeplast.config.settings import Settings
from keeplast.config.sources import read_layers
from keeplast.errors import InvalidError, RefusedError, UnavailableError
from keeplast.inspect.explain import AskedKey
from keeplast.inspect.receipt_proof import with_check
from keeplast.inspect.verdicts import VerificationReport
from keeplast.log.files import LocalFiles
from keeplast.model.erasure_request import ErasureRequest
from keeplast.model.hold import HeldTopic, HoldBook, HoldPoint
from keeplast.model.keyed_hash import KeyHasher
from keeplast.model.partition import TopicPartition
from keeplast.model.redaction import shown_url
from keeplast.run.receipt import Receipt
from keeplast.service.attached_check import check_attached
from keeplast.service.attached_holding import hold_topics
from keeplast.service.attached_read import attached_read
from keeplast.service.attached_rounds import (
    AttachedRounds,
    AttachedTerms,
    Followed,
    nothing_follows,
)
from keeplast.service.cluster_answer import answer_from_cluster, choose_attached
from keeplast.service.erasure.attached_certificate import LiveTier, compare_attached, search_tier
from keeplast.service.erasure.attached_erasing import find_attached_traces
from keeplast.service.erasure.certificate_check import PartitionStanding, given_receipts_behind
from keeplast.service.erasure.certificate_issue import SearchedPlace
from keeplast.service.erasure.directory_erasing import ROUNDS_OF_NOW
from keeplast.service.erasure.erasure_answer import ErasureAnswer, ErasureKeys
from keeplast.service.erasure.erasure_call import AskedErasure
from keeplast.service.explained import KeyAnswer
from keeplast.service.place_check import CheckState, PartCheck, PlaceCheck, problem_of, tried
from keeplast.service.place_settings import PlaceSettings
from keeplast.service.read_place import ReadPlace, topics_read
from keeplast.service.receipts import receipt_to
from keeplast.service.store_check import check_clock
from keeplast.service.store_shelf import store_shelf
from keeplast.service.tombstone_dates import find_tombstones
from keeplast.service.verifying import (
    ChosenPartition,
    VerifyAnswer,
    VerifyTerms,
    judge_each,
    read_judged_rounds,
)
from keeplast.survey.kept_heads import read_kept_chain
from keeplast.survey.receipt_book import read_receipts
from keeplast.survey.report import CleanReport, PartitionReport, failures
from keeplast.tier.metadata.database import is_missing, sqlite_path
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

    @property
    def is_object_store(self) -> bool:
        """Return whether a deleted object is gone at once for its readers."""
        return not self.storage.startswith("local:")

    def layout(self) -> RemoteLayout:
        """Return how the tier's objects are read; InvalidError for what is not known."""
        if not self.storage:
            raise InvalidError(
                f"name where brokers keep segments: storage=PLUGIN:PLACE. place={self.address}"
            )
        check_grace(self.grace_ms, is_object_store=self.is_object_store)
        return open_layout(self.storage, self.storage_options)

    def settings_of(self, facts: ClusterFacts) -> Settings:
        """Return what the cluster's topics are meant to be."""
        return self._wanted(facts.topics)

    def _wanted(self, topics: Sequence[TopicFacts]) -> Settings:
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
        return InvalidError(f"name the decision log with --decisions URL. place={self.address}")

    def folded(
        self, client: ClusterClient, facts: ClusterFacts, log: DecisionLog | None
    ) -> FoldedMetadata:
        """Return what brokers know of the topics; RefusedError where there is no remote tier."""
        if facts.metadata_topic is None:
            raise RefusedError("nothing was ever copied to a remote tier here")
        with self.events.folding() as progressed:
            found = fold_known(client, facts, facts.metadata_topic, log, progressed)
        found.require_sound()
        return found

    @contextlib.contextmanager
    def live(self, topics: Sequence[str]) -> Iterator[LiveTier]:
        """Read what there is of ``topics``, of every tiered one without, beside the decisions."""
        layout = self.layout()
        with self.decisions() as log:
            client = self.connect()
            facts = client.read_facts(topics)
            yield LiveTier(
                client, facts, self.folded(client, facts, log), log, layout, self.settings_of(facts)
            )

    def add_hold(
        self,
        name: str,
        topics: Sequence[str],
        numbers: Sequence[int],
        point: HoldPoint,
        age_ms: int,
    ) -> HoldBook:
        """Hold partitions at a point, for the rounds of every host; attached or not yet."""
        layout, client = self.layout(), self.connect()
        facts = client.read_facts(topics)
        with self.decisions(makes=True) as log:
            added = hold_topics(
                client, facts, log, layout, self.settings_of(facts), SystemClock(), topics,
                numbers, name, point, age_ms, address=self.bootstrap_servers,
            )  # fmt: skip
            return HoldBook(tuple(map(HeldTopic, added)), log.hold_rows.now_ms())

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
            return HoldBook(tuple(map(HeldTopic, released)), log.hold_rows.now_ms())

    def plan(
        self, scope: PartitionChoice, terms: AskedRounds, work: WorkTerms, *, exact: bool = False
    ) -> PlanReport:
        """Plan, with what rounds would cost and when tombstones go; claims nothing."""
        with self._rounds(scope, terms, work, only_looks=True) as rounds, ExitStack() as stack:
            chosen = rounds.chosen(scope.partitions)
            folded = self.folded(rounds.client, rounds.facts, rounds.log)
            counting = None
            if exact:
                runner = stack.enter_context(work.open_runner())
                counting = (lambda _: nullcontext(runner)), work.events.progressed
            planned = [
                (TopicPartition(topic.name, number), *rounds.plan(
                    topic, number, folded.cache.partitions.get(name_of(topic, number)), counting))
                for topic, number in chosen
            ]  # fmt: skip
            ranges = {
                topic.name: rounds.client.read_ranges(topic)
                for topic in {each.name: each for each, _ in chosen}.values()
            }
            tombstones = find_tombstones(
                rounds.facts, ranges, folded.cache.partitions, rounds.log, rounds.settings,
                self.grace_ms, chosen,
            )  # fmt: skip
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
            return self._clean_each(rounds, rounds.chosen(scope.partitions), work, receipt)

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
        if terms.expired:
            raise self.refused("clean --expired")
        asked = AttachedTerms(
            force=terms.force, keyless=terms.keyless, memory_bytes=work.memory_bytes,
            task_memory_bytes=work.task_memory_bytes, shape=work.shape,
            keep_sources_ms=terms.keep_sources_ms, takes_over=terms.takes_over,
        )  # fmt: skip
        with self.decisions(makes=not only_looks, only_looks=only_looks) as log:
            client = self.connect()
            facts = client.read_facts(scope.topics)
            yield AttachedRounds(
                client, facts, self.settings_of(facts), self.layout(), log,
                self.bootstrap_servers, asked,
            )  # fmt: skip

    def _clean_each(
        self,
        rounds: AttachedRounds,
        chosen: Sequence[tuple[TopicFacts, int]],
        work: WorkTerms,
        receipt: Receipt | None,
        followed: Followed = nothing_follows,
    ) -> CleanReport:
        def progressed(read_bytes: int) -> None:
            work.events.progressed(read_bytes)
            work.switch.check()

        with work.open_runner() as runner:
            return CleanReport(
                rounds.clean_each(
                    chosen, runner, progressed=progressed, finished=work.events.finished,
                    receipt=receipt, followed=followed,
                )
            )  # fmt: skip

    def verify(self, scope: PartitionChoice, terms: VerifyTerms) -> VerifyAnswer:
        """Judge what consumers are given and what the tier's objects hold; claims nothing."""
        self.refuse_directory_terms(terms)
        files = LocalFiles()
        rounds, layout = read_judged_rounds(terms, files), self.layout()
        with self.decisions(only_looks=True) as log:
            client = self.connect()
            facts = client.read_facts(scope.topics)
            settings = self.settings_of(facts)
            chain = None
            if terms.receipt is not None:
                chain = read_kept_chain(terms.receipt, files, log.facts)
            verifier = AttachedVerifier(client, log, layout, terms.progressed, terms.planned)

            def judge(topic: TopicFacts, number: int) -> VerificationReport:
                at = TopicPartition(topic.name, number)
                wanted = AttachedVerifySettings(
                    topic=settings.topic_config(topic.name), memory_bytes=terms.memory_bytes,
                    receipts=tuple(each for each in rounds if each.partition == at),
                )  # fmt: skip
                report = verifier.verify(topic, number, wanted)
                return report if chain is None else with_check(report, chain)

            chosen = (
                ChosenPartition(
                    f"{topic.name}-{number}", TopicPartition(topic.name, number),
                    partial(judge, topic, number),
                )
                for topic, number in choose_attached(facts, scope.partitions)
            )  # fmt: skip
            return judge_each(chosen, terms, files, chain, settings.warnings)

    def check(self, topics: Sequence[str] = ()) -> PlaceCheck:
        """Look at brokers, topics and records of the metadata, at storage and decisions if named.

        InvalidError for a topic that is not there, and for a property that cannot be used.
        """
        if self.storage_options and not self.storage:
            raise InvalidError("options of a storage that is not named; give storage=PLUGIN:PLACE")
        layout = self.layout() if self.storage else None
        client = self.connect()
        decided: list[PartCheck] = []
        with ExitStack() as stack:
            log = None
            if self.store is not None:
                log = self._decisions_there(stack, self.store, decided)
            try:
                found = check_attached(
                    client, topics, log, layout, self.settings_of, address=self.bootstrap_servers,
                    storage=self.storage, folding=self.events.folding,
                )  # fmt: skip
            except (RefusedError, UnavailableError) as error:
                return PlaceCheck((problem_of("cluster", error), *decided))
        return replace(found, checks=(*found.checks, *decided))

    def _decisions_there(
        self, stack: ExitStack, store: str, decided: list[PartCheck]
    ) -> DecisionLog | None:
        """Open the decision log to look at it; None and a row where it cannot be."""
        shown = shown_url(store)
        if is_missing(store):
            words = f"there is none yet; the first round makes it: {shown}"
            decided.append(PartCheck("decisions", CheckState.ABSENT, words))
            return None
        log = tried(
            "decisions",
            lambda: stack.enter_context(decision_log_at(store, SystemClock(), only_looks=True)),
        )
        if log is None or isinstance(log, PartCheck):
            decided += [] if log is None else [log]
            return None
        decided.append(PartCheck("decisions", CheckState.OK, shown))
        is_shared = sqlite_path(store) is None
        decided.append(check_clock(log.hold_rows.now_ms, is_shared=is_shared))
        return log

    def effective_settings(self, topic: str | None = None) -> PlaceSettings:
        """Read what keeplast is to do, and of a topic what brokers say of its sizes."""
        facts = () if topic is None else self.connect().read_facts((topic,)).topics
        return PlaceSettings(self._wanted(facts))

    def explain(self, asked: AskedKey, scope: PartitionChoice, terms: SearchTerms) -> KeyAnswer:
        """Explain a key in what brokers serve, and in what was replaced, as of now."""
        if terms.now_ms is not None:
            raise InvalidError(
                f"attached topics are explained as of now; leave now_ms out. now_ms={terms.now_ms}"
            )
        receipts = () if terms.receipt is None else read_receipts(terms.receipt, LocalFiles())
        layout = self.layout()
        with decision_log_at(self.store, SystemClock(), only_looks=True) as log:
            client = self.connect()
            facts = client.read_facts(scope.topics)
            chosen = choose_attached(facts, scope.partitions)
            asked.require_one(len(chosen))
            cache = self.folded(client, facts, log).cache
            return answer_from_cluster(
                client, facts, cache, log, layout, self.settings_of(facts), chosen,
                SystemClock(), asked, grace_ms=self.grace_ms, receipts=receipts,
                planned=terms.planned, progressed=terms.progressed, runner=terms.runner,
            )  # fmt: skip

    @contextlib.contextmanager
    def shelves(self, requests: Path | None) -> Iterator[Shelves]:
        """Open the list beside the decisions, or a file."""
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
        urls = metrics_urls(self.broker_metrics)
        why_wait = BrokerMetrics(urls).why_wait if urls else None
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
                done.append(self._clean_each(rounds, chosen, work, receipt, collected))
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

    def read_place(self, scope: PartitionChoice, checkpoint: str | None) -> ReadPlace:
        """Return what brokers serve, as it is now, to read states from."""
        layout, topics = self.layout(), topics_read(scope.topics, checkpoint)
        with decision_log_at(self.store, SystemClock()) as log:
            client = self.connect()
            facts = client.read_facts(topics)
            return attached_read(
                client, facts, log, layout, self.settings_of(facts), scope, checkpoint, self.where
            )
