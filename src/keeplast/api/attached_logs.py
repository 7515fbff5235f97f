"""``keeplast.AttachedLogs``: what a live cluster's remote tier has, for who asks about all of it.

What brokers alone have is in no answer. Rounds under live brokers are the command line's: nothing
here claims a partition.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keeplast.api.place import AskedPlace, Failed, SearchTerms, Shelves
from keeplast.attach.answers.shown_logs import decision_log_at
from keeplast.attach.held.kept_folds import fold_known
from keeplast.attach.upkeep.collection import GRACE_MS_DEFAULT, check_grace
from keeplast.clock import SystemClock
from keeplast.cluster.client import ClusterClient
from keeplast.cluster.facts import ClusterFacts
from keeplast.cluster.layouts.layout import RemoteLayout
from keeplast.cluster.layouts.open import open_layout
from keeplast.cluster.metadata_log import FoldedMetadata
from keeplast.config.attached import wanted_settings
from keeplast.config.choice import PartitionChoice, SettingSources
from keeplast.config.settings import Settings
from keeplast.config.sources import read_layers
from keeplast.errors import InvalidError, RefusedError
from keeplast.inspect.explain import AskedKey
from keeplast.log.files import LocalFiles
from keeplast.model.erasure_request import ErasureRequest
from keeplast.model.hold import Hold, HoldPoint
from keeplast.model.keyed_hash import KeyHasher
from keeplast.model.redaction import shown_url
from keeplast.service.attached_holding import hold_topics
from keeplast.service.attached_read import attached_read
from keeplast.service.cluster_answer import answer_from_cluster, choose_attached
from keeplast.service.erasure.attached_certificate import LiveTier, compare_attached, search_tier
from keeplast.service.erasure.attached_erasing import find_attached_traces
from keeplast.service.erasure.certificate_check import PartitionStanding, given_receipts_behind
from keeplast.service.erasure.certificate_issue import SearchedPlace
from keeplast.service.erasure.erasure_answer import ErasureAnswer, ErasureKeys
from keeplast.service.erasure.erasure_call import AskedErasure
from keeplast.service.explained import KeyAnswer
from keeplast.service.read_place import ReadPlace, topics_read
from keeplast.service.store_shelf import store_shelf
from keeplast.survey.receipt_book import read_receipts
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

    @property
    def where(self) -> str:
        """Return how errors name the cluster."""
        return f"bootstrap_servers={shown_url(self.bootstrap_servers)}"

    def connect(self) -> ClusterClient:
        """Return a connection; InvalidError for a setting that cannot be used."""
        return ClusterClient(self.bootstrap_servers, self.client)

    def layout(self) -> RemoteLayout:
        """Return how the tier's objects are read; InvalidError for what is not known."""
        check_grace(self.grace_ms, is_object_store=not self.storage.startswith("local:"))
        return open_layout(self.storage, self.storage_options)

    def settings_of(self, facts: ClusterFacts) -> Settings:
        """Return what the cluster's topics are meant to be."""
        flags = tuple(f"{key}={value}" for key, value in self.config.items())
        sources = SettingSources(flags=flags, config_file=self.config_file)
        return wanted_settings(read_layers(LocalFiles(), sources), facts.topics)

    @contextlib.contextmanager
    def decisions(self, *, only_looks: bool = False) -> Iterator[DecisionLog]:
        """Open the decision log; InvalidError where none was named, or none is there."""
        with decision_log_at(self.store, SystemClock(), only_looks=only_looks) as log:
            if log is None:
                raise InvalidError(f"name the decision log. store=None {self.where}")
            yield log

    @contextlib.contextmanager
    def live(self, topics: Sequence[str]) -> Iterator[LiveTier]:
        """Read what there is of ``topics``, of every tiered one without, beside the decisions."""
        layout = self.layout()
        with self.decisions() as log:
            client = self.connect()
            facts = client.read_facts(topics)
            yield LiveTier(
                client, facts, folded(client, facts, log), log, layout, self.settings_of(facts)
            )

    def add_hold(
        self,
        name: str,
        topics: Sequence[str],
        numbers: Sequence[int],
        point: HoldPoint,
        age_ms: int,
    ) -> tuple[Hold, ...]:
        """Hold partitions at a point, for the rounds of every host; attached or not yet."""
        layout, client = self.layout(), self.connect()
        facts = client.read_facts(topics)
        with self.decisions() as log:
            return hold_topics(
                client, facts, log, layout, self.settings_of(facts), SystemClock(), topics,
                numbers, name, point, age_ms, address=self.bootstrap_servers,
            )  # fmt: skip

    def holds(self) -> tuple[Hold, ...]:
        """Return every hold of the cluster's topics."""
        cluster_id = self.connect().read_cluster_id()
        with self.decisions(only_looks=True) as log:
            return tuple(sorted(each.hold for each in log.hold_rows.attached(cluster_id)))

    def release_hold(self, name: str) -> tuple[Hold, ...]:
        """End a hold."""
        cluster_id = self.connect().read_cluster_id()
        with self.decisions() as log:
            return log.hold_rows.release_attached(cluster_id, name)

    def explain(self, asked: AskedKey, scope: PartitionChoice, terms: SearchTerms) -> KeyAnswer:
        """Explain a key in what brokers serve, and in what was replaced, as of now."""
        if terms.now_ms is not None:
            raise InvalidError(
                f"attached topics are explained as of now; leave now_ms out. now_ms={terms.now_ms}"
            )
        receipts = () if terms.receipt is None else read_receipts(terms.receipt, LocalFiles())
        layout = self.layout()
        with decision_log_at(self.store, SystemClock()) as log:
            client = self.connect()
            facts = client.read_facts(scope.topics)
            chosen = choose_attached(facts, scope.partitions)
            asked.require_one(len(chosen))
            cache = folded(client, facts, log).cache
            return answer_from_cluster(
                client, facts, cache, log, layout, self.settings_of(facts), chosen,
                SystemClock(), asked, grace_ms=self.grace_ms, receipts=receipts,
                planned=terms.planned, progressed=terms.progressed, runner=terms.runner,
            )  # fmt: skip

    @contextlib.contextmanager
    def shelves(self, requests: Path | None) -> Iterator[Shelves]:
        """Open the list beside the decisions, or a file."""
        if self.store is None:
            raise InvalidError(f"name the decision log. store=None {self.where}")
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

    def require_rounds(self) -> None:
        """Raise RefusedError: a round under live brokers claims partitions, and is watched."""
        raise RefusedError(
            "rounds of a live cluster's topics are not done from here; keeplast attach erase --now "
            f"does them. {self.where}"
        )

    def clean_traces(
        self, asked: AskedErasure, answer: ErasureAnswer, terms: SearchTerms
    ) -> Failed:
        """Do nothing, as for :meth:`require_rounds`."""
        self.require_rounds()
        return ()

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


def folded(client: ClusterClient, facts: ClusterFacts, log: DecisionLog | None) -> FoldedMetadata:
    """Return what brokers know of the topics; RefusedError where there is no remote tier."""
    if facts.metadata_topic is None:
        raise RefusedError("nothing was ever copied to a remote tier here")
    found = fold_known(client, facts, facts.metadata_topic, log)
    found.require_sound()
    return found
