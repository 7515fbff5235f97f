"""``keeplast.StoredLogs``: the logs of a tiered store, for who asks about all of them."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from keeplast.api.open_store import open_store
from keeplast.api.place import AskedPlace, Failed, SearchTerms, Shelves
from keeplast.config.choice import PartitionChoice
from keeplast.config.mapping import cleaner_config, topic_config
from keeplast.inspect.explain import AskedKey
from keeplast.log.files import LocalFiles
from keeplast.model.erasure_request import ErasureRequest
from keeplast.model.hold import Hold, HoldPoint
from keeplast.model.keyed_hash import KeyHasher
from keeplast.model.reader_wait import GroupReader
from keeplast.service.erasure.certificate_check import PartitionStanding, given_receipts_behind
from keeplast.service.erasure.certificate_issue import SearchedPlace
from keeplast.service.erasure.erasure_answer import ErasureAnswer, ErasureKeys
from keeplast.service.erasure.erasure_call import AskedErasure
from keeplast.service.erasure.store_certificate import compare_store, search_store
from keeplast.service.erasure.store_erasing import clean_store_traces, find_store_traces
from keeplast.service.explained import KeyAnswer
from keeplast.service.read_place import ReadPlace, store_read
from keeplast.service.receipts import receipt_to
from keeplast.service.store_answer import answer_from_store
from keeplast.service.store_choice import choose_partitions, choose_topics
from keeplast.service.store_shelf import store_shelf
from keeplast.store.tiered_store import GRACE_MS_DEFAULT, TieredStore
from keeplast.survey.receipt_book import read_receipts


@dataclass(frozen=True, slots=True)
class StoredLogs(AskedPlace):
    """The store whose metadata is at the URL ``store``; :func:`keeplast.open_store` works on it.

    ``object_options`` are the object store's, ``broker`` what a broker's ``server.properties`` says
    (:func:`keeplast.broker_settings`). ``owner`` is the name under which erasure changes
    partitions, None the host's; with ``takes_over`` it takes them from another process.
    ``grace_ms`` is how long what is replaced stays for readers.
    """

    store: str = field(repr=False)
    object_options: Mapping[str, str] = field(default_factory=dict, kw_only=True, repr=False)
    broker: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    owner: str | None = field(default=None, kw_only=True)
    takes_over: bool = field(default=False, kw_only=True)
    grace_ms: int = field(default=GRACE_MS_DEFAULT, kw_only=True)

    def opened(
        self, brokers: GroupReader | None = None, *, only_looks: bool = False
    ) -> TieredStore:
        """Open the store; InvalidError when there is none."""
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
    ) -> tuple[Hold, ...]:
        """Hold partitions at a point, for the rounds of every host."""
        with self.opened() as opened:
            return opened.holds.add(opened.holds.choose(topics, numbers), name, point, age_ms)

    def holds(self) -> tuple[Hold, ...]:
        """Return every hold of the store."""
        with self.opened(only_looks=True) as opened:
            return tuple(sorted(each.hold for each in opened.holds.all()))

    def release_hold(self, name: str) -> tuple[Hold, ...]:
        """End a hold."""
        with self.opened() as opened:
            return opened.holds.release(name)

    def explain(self, asked: AskedKey, scope: PartitionChoice, terms: SearchTerms) -> KeyAnswer:
        """Explain a key in live segments and replaced ones."""
        receipts = () if terms.receipt is None else read_receipts(terms.receipt, LocalFiles())
        with self.opened(terms.brokers, only_looks=True) as opened:
            return answer_from_store(
                opened, choose_partitions(opened, scope), cleaner_config({}, cluster=self.broker),
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
                cleaner_config({}, cluster=self.broker), terms.at_ms, asked.keys,
                planned=terms.planned, progressed=terms.progressed, runner=terms.runner,
            )  # fmt: skip

    def clean_traces(
        self, asked: AskedErasure, answer: ErasureAnswer, terms: SearchTerms
    ) -> Failed:
        """Do rounds as the partitions' owner, and collect what may go."""
        return tuple(
            clean_store_traces(
                lambda: self.opened(terms.brokers), answer.partitions_with_traces(),
                takes_over=self.takes_over, grace_ms=self.grace_ms,
                receipt=receipt_to(LocalFiles(), terms.receipt),
                cleaner=cleaner_config({}, cluster=self.broker),
            )
        )  # fmt: skip

    def search_all(
        self, request: ErasureRequest, keys: ErasureKeys, terms: SearchTerms
    ) -> SearchedPlace:
        """Search for what a certificate rests on, the list of objects included."""
        with self.opened(terms.brokers) as opened:
            return search_store(
                opened, request.topics, cleaner_config({}, cluster=self.broker), terms.at_ms,
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
