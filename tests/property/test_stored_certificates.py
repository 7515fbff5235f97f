"""When a certificate about a store is issued no object has one of the keys; else one is.

Random logs that are copied piece by piece, rounds, undos, collections and log starts at random
times, rounds that end with their process between two changes of the metadata, deletes of some keys
behind them. The keys are looked for byte by byte, in every object, batches decompressed.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from keeplast.errors import RefusedError
from keeplast.format.compression import decompress
from keeplast.format.filename import LOG
from keeplast.format.message_set import read_batches
from keeplast.model.strategy import Strategy
from keeplast.model.topic_config import CleanerConfig, TopicConfig
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN
from keeplast.service.erasure.certificate import CertifiedPlace
from keeplast.service.erasure.erasure_answer import ErasureAnswer, ErasureKeys
from keeplast.service.erasure.erasure_book import (
    MetadataShelf,
    add_request,
    keys_of_file,
    keys_of_requests,
)
from keeplast.service.erasure.store_certificate import store_place
from keeplast.service.erasure.store_erasing import find_store_traces
from keeplast.signing import SignatureCheck, Signer
from keeplast.tier.metadata.database import open_database
from keeplast.tier.metadata.kept_text import ERASURES, KeptText
from tests.property.test_certificates import (
    END_MS,
    HASHER,
    NAMES,
    SECOND,
    attempt,
    delete,
    other_bytes,
)
from tests.support.broker_directory import BrokerDirectory
from tests.support.key_pair import write_operator_files
from tests.support.log_script import START_MS, Operation, scripts, write_script
from tests.support.partition_maker import PARTITION
from tests.support.turns import examples
from tests.unit.store.test_tier_undo import Crash, crashing_at

GRACE_MS = 3 * SECOND
CLEANER = CleanerConfig(producer_id_expiration_ms=10**15)
TOPICS = st.builds(
    TopicConfig,
    cleanup_policy=st.just(frozenset({"compact"})),
    segment_bytes=st.sampled_from([14, 1 << 20]),
    tier_chunk_bytes=st.sampled_from([14, 1 << 20]),
    strategy=st.sampled_from([Strategy.OFFSET, Strategy.TIMESTAMP]),
    delete_retention_ms=st.sampled_from([0, 40 * SECOND]),
    undo_retention_ms=st.sampled_from([0, 50 * SECOND]),
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["round", "round", "undo", "collect", "crash"]),
        st.integers(0, 60),
    ),
    max_size=4,
)


class Store(BrokerDirectory):
    """A log of a data directory in a store, its rounds, and what is asked about it."""

    def __init__(self, root: Path, script: tuple[Operation, ...], topic: TopicConfig) -> None:
        super().__init__(root, topic)
        write_script(script, self.path, replace(topic, segment_bytes=1 << 20))
        self.at(START_MS)
        self.import_all()
        self._owners = 0

    def at(self, now_ms: int) -> None:
        self.clock.advance(now_ms - self.clock.now_ms())

    def round(self) -> None:
        report = self.tiered.clean(
            PARTITION, cleaner=CLEANER, grace_ms=GRACE_MS, force=True, expired=True,
            memory_bytes=MEMORY_BYTES_MIN,
        )  # fmt: skip
        assert report.failure is None

    def begin_anew(self) -> None:
        """Go on as a process that has just begun, and remembers nothing."""
        self._owners += 1
        self.tiered = self.opened(f"owner {self._owners}")
        self.tiered.own(PARTITION, takes_over=True)

    def step(self, what: str, number: int) -> None:
        """Let something happen; ``number`` is the change of the metadata before which it dies."""
        match what:
            case "round":
                self.round()
            case "undo":
                # Refused once a request wants keys to be gone, and by what was written since.
                with contextlib.suppress(RefusedError):
                    self.tiered.undo.put_back(PARTITION, grace_ms=GRACE_MS)
            case "collect":
                self.tiered.collect(PARTITION)
            case "crash":
                try:
                    with crashing_at(self, number):
                        self.round()
                except Crash:
                    self.begin_anew()

    def ask(self, keys: ErasureKeys, now_ms: int) -> ErasureAnswer:
        return find_store_traces(
            self.tiered, [PARTITION], CLEANER, now_ms, keys, memory_bytes=MEMORY_BYTES_MIN
        )

    def has(self, key: bytes) -> bool:
        """Look for a key byte by byte in every object, compressed batches decompressed."""
        for stored in self.objects.list(""):
            data = bytes(self.objects.read_range(stored.key, 0, stored.size_bytes))
            if key in data:
                return True
            if stored.key.endswith(LOG):
                for batch in read_batches(data):
                    if key in bytes(decompress(batch.codec, bytes(batch.payload()))):  # type: ignore[union-attr]
                        return True
        return False

    def place(self) -> CertifiedPlace:
        return store_place(self.tiered, [PARTITION])


@settings(max_examples=examples(15, long=1500))
@given(
    script=scripts(),
    chosen=st.sets(st.sampled_from(sorted(NAMES)), min_size=1).map(frozenset),
    topic=TOPICS,
    before=STEPS,
    behind=STEPS,
    is_deleted=st.booleans(),
)
def test_a_certificate_is_issued_exactly_when_no_object_has_a_key(
    script: tuple[Operation, ...],
    chosen: frozenset[int],
    topic: TopicConfig,
    before: Sequence[tuple[str, int]],
    behind: Sequence[tuple[str, int]],
    is_deleted: bool,
) -> None:
    # A key in somebody's value or header is not searched for, and would be found byte by byte.
    assume(not any(name in data for name in NAMES.values() for data in other_bytes(script)))
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        operator = write_operator_files(root / "apart")
        signer, check = Signer(operator.sign_key), SignatureCheck(operator.public_key)
        store = Store(root, script, topic)
        assume(store.state.routes)
        now_ms = START_MS
        for what, number in before:
            now_ms += 10 * SECOND
            store.at(now_ms)
            store.step(what, number)
        plain = {number: NAMES[number] for number in chosen}
        keys = keys_of_file(plain, HASHER, ())
        shelf = MetadataShelf(
            "the store",
            KeptText(open_database(f"sqlite:///{root / 'meta.db'}"), store.clock, ERASURES),
        )
        request = add_request(shelf, keys, (), store.ask(keys, now_ms))
        blind = keys_of_requests([request], HASHER)
        is_issued = attempt(store, request, keys, blind, signer, check, plain, now_ms)
        if is_deleted:
            delete(store.path, replace(topic, segment_bytes=1 << 20), chosen)
            store.import_all()
        for what, number in behind:
            now_ms += 10 * SECOND
            store.at(now_ms)
            store.step(what, number)
            is_issued = attempt(store, request, keys, blind, signer, check, plain, now_ms)
        for turn in range(4) if is_deleted else ():
            store.at(END_MS + turn * 100 * SECOND)
            store.round()
            store.tiered.collect(PARTITION, garbage_age_ms=GRACE_MS)
            now_ms = store.clock.now_ms()
            is_issued = attempt(store, request, keys, blind, signer, check, plain, now_ms)
        if is_deleted:
            # What a crash has left goes when it is old enough, by the object store's clock.
            answer = store.ask(keys, now_ms)
            assert is_issued or answer.problems
            assert not answer.there
