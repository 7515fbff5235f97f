"""When a certificate is issued no key is anywhere that it says was searched; else one is.

One law, in a directory, a store and a live cluster's remote tier: random logs, rounds, some of
which a crash cuts short, undos, collections, log starts that move, leaders that copy over the end,
and deletes of some keys. The keys are looked for byte by byte, in every file and object, batches
decompressed.
"""

from __future__ import annotations

import dataclasses
import random
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from keeplast.cluster.layouts.layout import FoundSegment, RemoteLayout
from keeplast.cluster.layouts.local_storage import SEGMENTS
from keeplast.cluster.live_cluster import LiveCluster
from keeplast.cluster.metadata_log import FoldedMetadata, fold_metadata
from keeplast.config.layers import ALL_PARTITIONS, Layer, SettingSources
from keeplast.config.precedence import Settings
from keeplast.config.selection import Selection, select_partitions
from keeplast.errors import RefusedError
from keeplast.format.compression import Codec, decompress
from keeplast.format.filename import LOG
from keeplast.format.message_set import Batch, read_batches
from keeplast.format.record import ControlType
from keeplast.format.remote_log_metadata import TopicIdPartition
from keeplast.log.append import LogAppender, NewRecord
from keeplast.log.files import LocalFiles
from keeplast.model.erasure_request import KeyHasher
from keeplast.model.topic_config import Strategy, TopicConfig
from keeplast.read.log_reader import read_segment
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN
from keeplast.run.coordinator import Coordinator
from keeplast.run.events import NoEvents
from keeplast.run.local_runner import LocalRunner
from keeplast.service.cluster_answer import AskedCluster
from keeplast.service.erasure.attached_erasing import attached_place, find_attached_traces
from keeplast.service.erasure.certificate import (
    CertifiedPlace,
    ReceiptStanding,
    directory_place,
    make_certificate,
)
from keeplast.service.erasure.certificate_check import read_certificate
from keeplast.service.erasure.erasing import find_traces
from keeplast.service.erasure.erasure_answer import ErasureAnswer, ErasureKeys
from keeplast.service.erasure.erasure_book import (
    FileShelf,
    MetadataShelf,
    RequestShelf,
    add_request,
    keys_of_file,
    keys_of_requests,
)
from keeplast.service.erasure.store_erasing import find_store_traces, store_place
from keeplast.service.search_tasks import SearchRunner
from keeplast.signing import SignatureCheck, Signer
from keeplast.survey.request import CleanRequest
from keeplast.tier.metadata.database import open_database
from keeplast.tier.metadata.facts import ERASURES, KeptText
from tests.support.attached_world import PARTITION as ATTACHED
from tests.support.key_pair import write_operator_files
from tests.support.log_builder import LogBuilder
from tests.support.log_script import (
    FIRST_PRODUCER_ID,
    KEYS,
    PRODUCERS,
    START_MS,
    Append,
    Operation,
    Roll,
    scripts,
    write_script,
)
from tests.support.manual_clock import ManualClock
from tests.support.partition_maker import PARTITION
from tests.support.stored_log import CLEANER, StoredLog
from tests.support.travelling import Travelling
from tests.support.turns import examples
from tests.support.verified_world import VerifiedWorld
from tests.unit.attach.test_attached_rounds import LINEAGE, TOPIC

SECOND = 1000
NAMES = {number: b"key%d" % number for number in range(1, KEYS)}
HASHER = KeyHasher(b"h" * 32)
TOPICS = st.builds(
    TopicConfig,
    cleanup_policy=st.just(frozenset({"compact"})),
    segment_bytes=st.sampled_from([14, 1 << 20]),
    tier_chunk_bytes=st.sampled_from([14, 1 << 20]),
    strategy=st.sampled_from([Strategy.OFFSET, Strategy.TIMESTAMP]),
    delete_retention_ms=st.sampled_from([0, 40 * SECOND]),
    undo_retention_ms=st.sampled_from([0, 50 * SECOND]),
)
Steps = Sequence[tuple[str, int, int]]


class Place(ABC):
    """Where keys are, what is asked about them, and the same byte by byte."""

    shelf: RequestShelf

    @abstractmethod
    def ask(self, keys: ErasureKeys, now_ms: int) -> ErasureAnswer: ...

    @abstractmethod
    def has(self, key: bytes) -> bool:
        """Look for a key byte by byte, decompressed."""

    @abstractmethod
    def place(self) -> CertifiedPlace: ...

    def check(self, statement: dict[str, Any]) -> None:  # noqa: B027
        """Check what a certificate says apart from the hashes."""


class Written(Place):
    """A place with a log of a script, to which deletes can be written."""

    @abstractmethod
    def step(self, what: str, number: int, now_ms: int) -> None:
        """Let something happen."""

    @abstractmethod
    def delete(self, numbers: frozenset[int]) -> None:
        """Delete keys by records that win by every strategy that is drawn."""


def has_key(key: bytes, batches: Iterable[Batch]) -> bool:
    return any(key in bytes(decompress(e.codec, bytes(e.payload()))) for e in batches)  # type: ignore[union-attr]


class InDirectory(Written):
    """One log of a data directory."""

    def __init__(self, root: Path, script: tuple[Operation, ...], topic: TopicConfig) -> None:
        self.root = root / "data"
        self.files = LocalFiles()
        self.shelf = FileShelf(self.files, self.root / "keeplast-erasures")
        self.topic = replace(topic, segment_bytes=1 << 20)
        set_ = {
            "cleanup.policy": "compact", "segment.bytes": 1 << 20,
            "compaction.strategy": topic.strategy,
            "delete.retention.ms": topic.delete_retention_ms,
            "undo.retention.ms": topic.undo_retention_ms,
        }  # fmt: skip
        flags = tuple(f"{key}={value}" for key, value in set_.items())
        self.sources = SettingSources(flags=flags, environment={})
        write_script(script, self.root / str(PARTITION), self.topic)

    @property
    def selection(self) -> Selection:
        return select_partitions(self.root, self.files, ALL_PARTITIONS, self.sources)

    def step(self, what: str, number: int, now_ms: int) -> None:
        """Do a round, whatever is drawn."""
        request = CleanRequest(
            self.selection.partitions, memory_bytes=MEMORY_BYTES_MIN, rounds=None, force=True,
            expired=True, rolls_idle=True,
        )  # fmt: skip
        with LocalRunner(1) as runner:
            coordinator = Coordinator(runner, ManualClock(now_ms), self.files, NoEvents())
            (report,) = coordinator.clean(request).partitions
        for each in report.rounds:
            assert each.failure is None, each.failure

    def ask(self, keys: ErasureKeys, now_ms: int) -> ErasureAnswer:
        return find_traces(self.selection, self.files, now_ms, keys, memory_bytes=MEMORY_BYTES_MIN)

    def place(self) -> CertifiedPlace:
        return directory_place(None)

    def has(self, key: bytes) -> bool:
        """Look for a key also in what is kept for undo."""
        for path in (self.root / str(PARTITION)).rglob("*"):
            if key in path.read_bytes():
                return True
            if LOG in path.name and has_key(key, read_segment(self.files, path)):
                return True
        return False

    def delete(self, numbers: frozenset[int]) -> None:
        write_deletes(self.root / str(PARTITION), self.topic, numbers)


class InStore(StoredLog, Written):
    """A log of a data directory in a store, and what becomes of it there."""

    def __init__(self, root: Path, script: tuple[Operation, ...], topic: TopicConfig) -> None:
        super().__init__(root, script, topic)
        self.shelf = MetadataShelf(
            "the store",
            KeptText(open_database(f"sqlite:///{root / 'meta.db'}"), self.clock, ERASURES),
        )

    def ask(self, keys: ErasureKeys, now_ms: int) -> ErasureAnswer:
        return find_store_traces(
            self.tiered, [PARTITION], CLEANER, now_ms, keys, memory_bytes=MEMORY_BYTES_MIN
        )

    def has(self, key: bytes) -> bool:
        for stored in self.objects.list(""):
            data = bytes(self.objects.read_range(stored.key, 0, stored.size_bytes))
            if key in data:
                return True
            if stored.key.endswith(LOG) and has_key(key, read_batches(data)):
                return True
        return False

    def place(self) -> CertifiedPlace:
        return store_place(self.tiered, [PARTITION])

    def delete(self, numbers: frozenset[int]) -> None:
        write_deletes(self.path, replace(self.topic, segment_bytes=1 << 20), numbers)
        self.import_all()


def write_deletes(directory: Path, topic: TopicConfig, numbers: frozenset[int]) -> None:
    """End what is open, and write tombstones that win by every strategy that is drawn."""
    with LogAppender(directory, LocalFiles(), topic=topic, leader_epoch=0) as log:
        for producer in range(PRODUCERS):
            log.append_marker(
                ControlType.ABORT,
                producer_id=FIRST_PRODUCER_ID + producer,
                producer_epoch=0,
                timestamp_ms=START_MS,
            )
        for number in sorted(numbers):
            log.append([NewRecord(NAMES[number], None, START_MS + 500 * SECOND)])
        log.roll()


def other_bytes(script: tuple[Operation, ...]) -> Iterator[bytes]:
    """Yield what records of a script have apart from their keys."""
    for operation in script:
        if isinstance(operation, Append):
            for record in operation.records:
                yield record.value or b""
                for name, value in record.headers:
                    yield from (name, value or b"")


class Asked:
    """A request that keys are gone: asked by the keys and by their hashes alone, and signed for."""

    def __init__(
        self, root: Path, place: Place, plain: dict[int, bytes], now_ms: int,
        topics: Sequence[str] = (),
    ) -> None:  # fmt: skip
        operator = write_operator_files(root / "apart")
        self.signer, self.check = Signer(operator.sign_key), SignatureCheck(operator.public_key)
        self.place, self.plain = place, plain
        keys = keys_of_file(plain, HASHER, topics)
        self.request = add_request(place.shelf, keys, topics, place.ask(keys, now_ms))
        self.keys = (keys, keys_of_requests([self.request], HASHER))

    def attempt(self, now_ms: int) -> bool:
        """Ask for a certificate, both ways; say whether there is one."""
        there = {number for number, key in self.plain.items() if self.place.has(key)}
        answers = [self.place.ask(each, now_ms) for each in self.keys]
        assert not any(answer.faults for answer in answers)
        # What a crash has left is reported as a problem, and whose keys are in it is not said.
        is_whole = not answers[0].problems
        lines = {each.line for each in answers[0].there if each.line is not None}
        assert lines == there if is_whole else lines <= there
        hashes = {HASHER.hash_of(self.plain[number]) for number in lines}
        assert hashes == {each.key_hash for each in answers[1].there}
        for answer in answers:
            try:
                data = make_certificate(
                    self.request, answer, self.place.place(), ReceiptStanding(None), self.signer,
                    nonce="00" * 16,
                )  # fmt: skip
            except RefusedError:
                assert there or not is_whole
            else:
                assert not there
                statement = read_certificate(data, self.check)
                assert sorted(self.request.keys) == statement["keys"]["hashes"]
                self.place.check(statement)
        return not there and is_whole


ROUNDS = st.lists(st.tuples(st.just("round"), st.just(0), st.integers(1, 300)), max_size=2)
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["round", "round", "undo", "collect", "crash"]), st.integers(0, 60),
        st.just(10),
    ),
    max_size=4,
)  # fmt: skip
PLACES: dict[str, tuple[Callable[..., Written], Any, int, int]] = {
    "directory": (InDirectory, ROUNDS, 25, 2000),
    "store": (InStore, CHANGES, 15, 1500),
}
"""A place, what happens there and behind how many seconds, and how many examples are drawn."""


@pytest.mark.parametrize("kind", PLACES)
def test_a_certificate_is_issued_exactly_when_no_key_is_there(kind: str) -> None:
    make, steps, count, long = PLACES[kind]

    @settings(max_examples=examples(count, long=long))
    @given(
        script=scripts(),
        chosen=st.sets(st.sampled_from(sorted(NAMES)), min_size=1).map(frozenset),
        topic=TOPICS,
        before=steps,
        behind=steps,
        is_deleted=st.booleans(),
    )
    # A crash before the dirty section moved: the tombstone is dirty once more when it may go.
    @example(
        script=(Roll(),),
        chosen=frozenset({1}),
        topic=TopicConfig(
            cleanup_policy=frozenset({"compact"}), strategy=Strategy.TIMESTAMP,
            delete_retention_ms=0, undo_retention_ms=0,
        ),
        before=[],
        behind=[("crash", 10, 10)],
        is_deleted=True,
    )  # fmt: skip
    def law(
        script: tuple[Operation, ...],
        chosen: frozenset[int],
        topic: TopicConfig,
        before: Steps,
        behind: Steps,
        is_deleted: bool,
    ) -> None:
        # A key in somebody's value or header is not searched for, and would be found byte by byte.
        assume(not any(name in data for name in NAMES.values() for data in other_bytes(script)))
        with tempfile.TemporaryDirectory() as folder:
            place, now_ms = make(Path(folder), script, topic), START_MS
            for what, number, seconds in before:
                now_ms += seconds * SECOND
                place.step(what, number, now_ms)
            plain = {number: NAMES[number] for number in chosen}
            asked = Asked(Path(folder), place, plain, now_ms)
            is_issued = asked.attempt(now_ms)
            if is_deleted:
                place.delete(chosen)
            # A round dates a tombstone, the next one takes it, and keeps what it replaced for
            # undo: that is gone with the last.
            ends = [("sweep", 0, 1_000), *[("sweep", 0, 100)] * 3] if is_deleted else []
            for what, number, seconds in (*behind, *ends):
                now_ms += seconds * SECOND
                place.step(what, number, now_ms)
                is_issued = asked.attempt(now_ms)
            if is_deleted:
                # What a crash has left goes when it is old enough, by the object store's clock.
                answer = place.ask(asked.keys[0], now_ms)
                assert is_issued or (kind == "store" and answer.problems)
                assert not answer.there

    law()


SERVED = {number: b"<key%02d>" % number for number in range(1, 13)}
MARGIN = 3000
SMALL = replace(TOPIC, segment_bytes=1500)
MERGED = replace(TOPIC, segment_bytes=4000)
KEPT = Settings(
    [
        Layer(
            "a test",
            topics={ATTACHED.topic: {"cleanup.policy": "compact", "segment.bytes": "1500"}},
        )
    ]
)


def write_history(root: Path, dice: random.Random) -> Path:
    """Write batches of every codec; some keys are only in the first ones, or in aborted ones."""
    log = LogBuilder(root / "t-0", SMALL)
    sending = log.producer(7)
    for number in range(70):
        log.leader_epoch = max(e.epoch for e in LINEAGE if e.start_offset <= log.log_end)
        log.now_ms += 1000
        first, last = (1, 4) if number < 10 else (4, 10)
        is_aborted = number >= 10 and dice.random() < 0.3
        if is_aborted:
            first, last = 8, 13
        records = [
            NewRecord(
                SERVED[dice.randrange(first, last)],
                None if dice.random() < 0.2 else b"v" * dice.randrange(60), log.now_ms,
            )
            for _ in range(dice.randrange(1, 4))
        ]  # fmt: skip
        if is_aborted:
            sending.send_records(*records, codec=dice.choice(list(Codec)))
            sending.abort()
        else:
            log.append(*records, codec=dice.choice(list(Codec)))
    log.roll()
    log.close()
    return log.directory


class InCluster(Place):
    """A partition of a live cluster in its remote tier."""

    def __init__(self, root: Path, seed: int) -> None:
        history = write_history(root / "logs", random.Random(seed))
        self.world = VerifiedWorld(root, history, LINEAGE)
        self.shelf = FileShelf(LocalFiles(), root / "requests")

    @property
    def known(self) -> FoldedMetadata:
        cluster = self.world.cluster
        return fold_metadata(cast(LiveCluster, cluster), cluster.metadata_topic, [0])

    def ask(
        self, keys: ErasureKeys, now_ms: int = 0, runner: SearchRunner | None = None,
        layout: RemoteLayout | None = None,
    ) -> ErasureAnswer:  # fmt: skip
        """Ask at the time of the world."""
        world = self.world
        return find_attached_traces(
            cast(AskedCluster, world.cluster), world.cluster.read_facts([ATTACHED.topic]),
            self.known.cache, world.world.log(),
            world.tier.layout if layout is None else layout, KEPT, world.world.clock, keys,
            grace_ms=1000, memory_bytes=MEMORY_BYTES_MIN, runner=runner,
        )  # fmt: skip

    def has(self, key: bytes) -> bool:
        return any(
            has_key(key, read_batches(path.read_bytes()))
            for path in (self.world.tier.root / SEGMENTS).rglob("*.log")
        )

    def place(self) -> CertifiedPlace:
        facts = self.world.cluster.read_facts([ATTACHED.topic])
        return attached_place(facts, self.known, self.world.world.log())

    def check(self, statement: dict[str, Any]) -> None:
        (part,) = statement["partitions"]
        assert part["searched_to"] == self.world.tier.served()[-1].end_offset + 1


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[InCluster]:
    place = InCluster(tmp_path, 5)
    yield place
    place.world.close()


def test_a_task_elsewhere_finds_what_this_process_finds(cluster: InCluster) -> None:
    cluster.world.clean(MERGED, margin=MARGIN)
    keys = keys_of_file(SERVED, HASHER, [ATTACHED.topic])
    for asked in (keys, dataclasses.replace(keys, plain=None)):
        travelling = Travelling()
        here, there = cluster.ask(asked), cluster.ask(asked, runner=travelling)
        assert (1, here.document()) == (travelling.items, there.document())
        assert here.searches[0].sums == there.searches[0].sums


def test_a_round_that_swaps_during_the_search_keeps_no_certificate_back(
    cluster: InCluster,
) -> None:
    rounds: list[str] = []
    tier = cluster.world.tier

    class Swapping:
        """The layout of a tier in which a round is done before the objects are listed."""

        def __getattr__(self, name: str) -> object:
            return getattr(tier.layout, name)

        def list(self, partition: TopicIdPartition) -> Iterator[FoundSegment]:
            if not rounds:
                rounds.append("done")
                cluster.world.clean(MERGED, margin=MARGIN)
            return tier.layout.list(partition)

    keys = keys_of_file({1: b"nobody", 2: SERVED[1]}, HASHER, [ATTACHED.topic])
    answer = cluster.ask(keys, layout=cast(RemoteLayout, Swapping()))
    assert (["done"], (), ()) == (rounds, answer.faults, answer.problems)
    after = cluster.ask(keys)
    assert {each.line for each in after.there} == {each.line for each in answer.there}
    assert answer.files_searched, "what the round wrote was not searched"


def act(world: VerifiedWorld, what: str) -> None:
    """Let something happen in the world."""
    served = world.tier.served()
    if what == "clean":
        world.clean(MERGED, margin=MARGIN)
    elif what == "collect":
        world.collect()
    elif what == "cut":
        world.cluster.log = replace(world.cluster.log, start=served[0].end_offset)
    elif what == "expire" and len(served) > 2:
        world.world.expire(served[0])
        world.tier.cache = world.cluster.cache()
    elif what == "overlay" and len(served) > 2:
        *_, last, newest = served
        batches = list(read_batches(world.tier.log_of(last)))
        if last.broker_id >= 0 and newest.broker_id >= 0:
            first = batches[len(batches) // 2].base_offset
            world.tier.copy_over(world.directory, first, newest.end_offset)


@settings(max_examples=examples(10, long=300))
@given(
    seed=st.integers(0, 1 << 32),
    steps=st.lists(
        st.sampled_from(["clean", "clean", "collect", "cut", "expire", "overlay"]), max_size=5
    ),
)
def test_a_certificate_of_a_cluster_is_issued_exactly_when_no_object_has_a_key(
    seed: int, steps: Sequence[str]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = InCluster(Path(folder), seed)
        try:
            for what in ("", *steps, "clean", "collect", "expire", "expire"):
                act(place.world, what)
                there = {number for number, name in SERVED.items() if place.has(name)}
                gone = {number: name for number, name in SERVED.items() if number not in there}
                for chosen in (gone, {**gone, min(SERVED): SERVED[min(SERVED)]}):
                    if chosen:
                        asked = Asked(Path(folder), place, chosen, 0, [ATTACHED.topic])
                        assert asked.attempt(0) == (not chosen.keys() & there), what
        finally:
            place.world.close()
