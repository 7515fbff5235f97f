"""What ``attach explain`` and ``attach erase`` say of keys comes true when the clock runs on.

Random logs in a remote tier, behind which lie rounds, collections, log starts that move, segments
that retention took, and new leaders that copied over the end. Then leaders copy on, of other keys
alone, and rounds are run at each time that was given, and for what a clock decides exactly a moment
before it. When a tombstone goes is given with what others may take for their part at most: it is
gone by then, and whether it goes no sooner than it may is the simulation's to prove.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import cast

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from keeplast.attach.rounds.round import clean_attached
from keeplast.attach.upkeep.replaced_segments import collect, repair
from keeplast.cleaner.reasons import SourcesEnd, SourcesLimit, TransactionLimit
from keeplast.cluster.group_offsets import BrokerGroups
from keeplast.cluster.live_cluster import LiveCluster, OffsetRange
from keeplast.cluster.metadata_cache import ClusterCache
from keeplast.cluster.metadata_log import fold_metadata
from keeplast.config.layers import Layer
from keeplast.config.precedence import Settings
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.format.message_set import read_batches
from keeplast.inspect.explain import AskedKey, FoundRecord, KeyExplanation
from keeplast.inspect.fates import Outlook, Stay
from keeplast.inspect.remains import Remains
from keeplast.model.erasure_request import KeyHasher
from keeplast.model.topic_config import Strategy
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN
from keeplast.run.local_runner import LocalRunner
from keeplast.service.cluster_answer import AskedCluster, answer_from_cluster, remote_log
from keeplast.service.erasure.attached_erasing import find_attached_traces
from keeplast.service.erasure.erasure_answer import ErasureAnswer
from keeplast.service.erasure.erasure_book import keys_of_file
from keeplast.service.explained import ExplainedPartition
from keeplast.survey.report import RoundReport
from tests.support.attached_world import PARTITION
from tests.support.placed_log import act_in_tier
from tests.support.turns import examples
from tests.support.verified_world import VerifiedWorld
from tests.support.written_log import KEYS, SECOND, WrittenLog

NAMES = {number: b"k%d" % number for number in range(KEYS)}
HASHER = KeyHasher(b"h" * 32)
GRACE_MS = 5 * SECOND
PIECES = 8
LAST_PIECES = 2
PIECE_RECORDS = 8
"""Segments that leaders copy later, of keys of their own: each about as long as what stays raw."""
TOPICS = st.fixed_dictionaries(
    {
        "cleanup.policy": st.just("compact"),
        "segment.bytes": st.just("300"),
        "compaction.strategy": st.sampled_from(["offset", "offset", "timestamp", "header"]),
        "compaction.strategy.header": st.just("ver"),
        "keep.versioned.tombstones": st.sampled_from(["true", "false"]),
        "delete.retention.ms": st.sampled_from(["0", "7000", "40000"]),
        "min.compaction.lag.ms": st.sampled_from(["0", "0", "30000", "90000"]),
        "tombstones.wait.for.groups": st.sampled_from(["", "", "g"]),
        "tombstones.wait.max.ms": st.sampled_from(["0", "20000"]),
    }
)
STEPS = st.lists(
    st.sampled_from(["clean", "clean", "collect", "copy", "cut", "expire", "overlay", "wait"]),
    max_size=6,
)


def write(world: WrittenLog, dice: random.Random) -> int:
    """Write a log and its later pieces; returns how many segments are those.

    What is undecided at the end of the log is decided in the first later piece.
    """
    world.go_on(dice, dice.randrange(30, 80), 0.4)
    if dice.random() < 0.7:
        for producer in (1, 2):
            world.end(producer, commits=True)
    world.log.roll()
    before = len(world.log.bases)
    for producer in (1, 2):
        world.end(producer, commits=dice.random() < 0.5)
    for _ in range(PIECES):
        for _ in range(PIECE_RECORDS):
            world.put(KEYS + world.log.log_end, deletes=False)
        world.log.roll()
    world.log.close()
    return len(world.log.bases) - before


class AskedLog:
    """An attached topic that is asked about its keys, and whose rounds are run at any time."""

    def __init__(
        self, world: WrittenLog, tier: VerifiedWorld, pieces: int, topic: Settings
    ) -> None:
        self.world = world
        self.tier = tier
        self.left = list(pairwise(tier.bases))[-pieces:]
        self.settings = topic
        self.clock = tier.world.clock
        self.collects_in_time = False
        """As dates take it: what a round has replaced goes behind its grace."""
        self.due_ms: list[int] = []

    def at(self, now_ms: int) -> None:
        """Let time pass, and collections come by where they are in time."""
        while self.due_ms and self.due_ms[0] <= now_ms:
            self.clock.advance(self.due_ms.pop(0) - self.clock.now_ms())
            self.collect()
        self.clock.advance(now_ms - self.clock.now_ms())

    def act(self, what: str) -> None:
        """Let something happen before the log is asked about; a copy is left for later."""
        if what == "clean":
            self.clean()
        elif what == "collect":
            self.collect()
        elif what == "wait":
            self.at(self.clock.now_ms() + 20 * SECOND)
        elif what != "copy":
            act_in_tier(self.tier, self.world, what)

    def clean(self) -> RoundReport:
        """Do a round of the product's own wish, as a process of its own."""
        tier, cluster = self.tier, cast(AskedCluster, self.tier.cluster)
        facts = tier.cluster.read_facts([PARTITION.topic])
        publisher = tier.world.claim()
        repair(publisher)
        _, wish = remote_log(
            cluster, BrokerGroups(cluster), facts, self.known(), tier.world.log(), self.settings,
            facts.topics[0], 0, self.clock.now_ms(),
        )  # fmt: skip
        wish = replace(wish, force=True, memory_bytes=MEMORY_BYTES_MIN)
        try:
            with LocalRunner(1, clock=self.clock) as runner:
                report = clean_attached(
                    publisher, wish, lambda _: nullcontext(runner), self.clock,
                    progressed=lambda _: None,
                )  # fmt: skip
            if self.collects_in_time and not report.skipped:
                self.due_ms.append(self.clock.now_ms() + GRACE_MS)
            return report
        finally:
            publisher.close()
            tier.tier.cache = tier.cluster.cache()

    def collect(self) -> None:
        """Collect what may be collected now."""
        publisher = self.tier.world.claim()
        collect(publisher, GRACE_MS)
        publisher.close()
        self.tier.tier.cache = self.tier.cluster.cache()

    def copy(self) -> None:
        """Let the leader copy one more segment."""
        base, following = self.left.pop(0)
        self.tier.tier.copy_one(self.tier.directory, base, following - 1)

    def known(self) -> ClusterCache:
        cluster = cast(LiveCluster, self.tier.cluster)
        return fold_metadata(cluster, self.tier.cluster.metadata_topic, [0]).cache

    def explain(self, key: bytes) -> ExplainedPartition:
        tier = self.tier
        facts = tier.cluster.read_facts([PARTITION.topic])
        answer = answer_from_cluster(
            cast(AskedCluster, tier.cluster), facts, self.known(), tier.world.log(),
            tier.tier.layout, self.settings, [(facts.topics[0], 0)], self.clock,
            AskedKey(key), grace_ms=GRACE_MS, memory_bytes=MEMORY_BYTES_MIN,
        )  # fmt: skip
        assert not answer.faults
        (part,) = answer.parts
        return part

    def erase(self) -> ErasureAnswer:
        tier = self.tier
        facts = tier.cluster.read_facts([PARTITION.topic])
        answer = find_attached_traces(
            cast(AskedCluster, tier.cluster), facts, self.known(), tier.world.log(),
            tier.tier.layout, self.settings, self.clock,
            keys_of_file(NAMES, HASHER, [PARTITION.topic]), grace_ms=GRACE_MS,
            memory_bytes=MEMORY_BYTES_MIN,
        )  # fmt: skip
        assert not answer.faults
        return answer

    def served(self) -> dict[bytes, set[int]]:
        """Return the offsets of each key in what brokers serve, byte by byte."""
        found: dict[bytes, set[int]] = {key: set() for key in NAMES.values()}
        # A segment that lies below the log start is read no more.
        first = min(
            each.start_offset
            for each in self.tier.tier.served()
            if each.end_offset >= self.tier.cluster.log.start
        )
        for batch in self.tier.tier.read().batches:
            for each in () if batch.is_control else batch.records():
                if each.key in found and each.offset >= first:
                    found[each.key].add(each.offset)
        return found

    def hidden(self, key: bytes) -> list[int]:
        """Return the offsets of a key in objects of which brokers do not serve them."""
        served, objects = self.served()[key], list[int]()
        for path in (self.tier.tier.root).glob("kafka-tiered-storage/*/*.log"):
            for batch in read_batches(path.read_bytes()):
                if not batch.is_control:
                    objects += [each.offset for each in batch.records() if each.key == key]
        for each in served:
            objects.remove(each)
        return sorted(objects)


Explained = dict[bytes, ExplainedPartition]


def of(explained: Explained, *outlooks: Outlook) -> list[tuple[bytes, FoundRecord]]:
    return [
        (key, each)
        for key, part in explained.items()
        for each in part.found.records
        if each.fate.outlook in outlooks
    ]


def check_there(log: AskedLog, explained: Explained, erased: ErasureAnswer) -> None:
    """What is shown is what lies there, by both commands."""
    served = log.served()
    places = {each.line: each.places for each in erased.keys}
    for number, key in NAMES.items():
        part = explained[key]
        offsets = [each.record.offset for each in part.found.records]
        assert offsets == sorted(served[key])
        assert log.hidden(key) == sorted(e.offset for each in part.remains for e in each.records)
        named = {each.title for each in part.remains if each.records}
        if not offsets and not named:
            assert () == places[number]
            continue
        (place,) = places[number]
        assert offsets == [offset for _, offset in place.offsets]
        assert {name.split(",")[0] for name in place.remains} == named
        goes = [each.fate.from_ms for each in part.found.records if each.fate.verdict is not None]
        times = [each for each in goes if each is not None]
        if offsets and len(times) == len(offsets):
            assert max(times) == place.may_go_ms
        elif offsets:
            assert place.may_go_ms is None
        assert decided(part.found) == place.is_decided


def decided(found: KeyExplanation) -> bool:
    """Say whether no value wins, and none may."""
    if any(each.fate.outlook is Outlook.UNDECIDED for each in found.records):
        return False
    winner = found.winners[found.topic.strategy]
    values = [e.record.offset for e in found.records if not e.record.is_tombstone]
    return winner not in values


def check_next_round(log: AskedLog, explained: Explained) -> None:
    """A round at the time of asking takes what was foreseen, and nothing else."""
    now_ms = log.clock.now_ms()
    log.clean()
    served = log.served()
    for key, part in explained.items():
        stays = {
            each.record.offset
            for each in part.found.records
            if each.fate.outlook is not Outlook.GOES_NEXT
            and not (each.fate.removal and each.fate.from_ms == now_ms)
        }
        goes = {
            each.record.offset
            for each in part.found.records
            if each.fate.outlook is Outlook.GOES_NEXT
        }
        assert stays <= served[key], (key, part.found)
        assert not goes & served[key], (key, part.found)


def check_copies(log: AskedLog, explained: Explained) -> None:
    """What a round has replaced is there until its time, and goes with a pass from then on."""
    copies = {
        (key, copy.name): copy
        for key, part in explained.items()
        for copy in part.remains
        if copy.records
    }
    times = sorted({each.until_ms for each in copies.values() if each.until_ms is not None})

    def there(copy: Remains) -> bool:
        return any(copy.name in path.name for path in objects(log))

    for at_ms in times:
        due = [each for each in copies.values() if each.until_ms == at_ms]
        if at_ms > log.clock.now_ms():
            log.at(at_ms - 1)
            log.collect()
            assert all(there(each) for each in due)
            log.at(at_ms)
        log.collect()
        assert not any(there(each) for each in due)


def objects(log: AskedLog) -> list[Path]:
    return list(log.tier.tier.root.glob("kafka-tiered-storage/*/*.log"))


def check_later_rounds(log: AskedLog, explained: Explained) -> None:
    """What has a time is there until then, and gone by then; what has none goes in the end."""
    later = of(explained, Outlook.GOES_LATER)
    exact = [(key, each) for key, each in later if each.fate.removal is None]
    removed = [(key, each) for key, each in later if each.fate.removal is not None]
    times = {each.fate.from_ms for _, each in later if each.fate.from_ms is not None}
    for at_ms in sorted(times):
        due = [(key, each) for key, each in exact if each.fate.from_ms == at_ms]
        gone = [(key, each) for key, each in removed if each.fate.from_ms == at_ms]
        if at_ms > log.clock.now_ms():
            if due:
                log.at(at_ms - 1)
                log.clean()
                served = log.served()
                for key, each in due:
                    assert each.record.offset in served[key], (key, each)
            log.at(at_ms)
        log.collect()
        if due:
            log.clean()
        elif gone:
            assert renew(log)
        served = log.served()
        for key, each in (*due, *gone):
            assert each.record.offset not in served[key], (key, each)


def renew(log: AskedLog) -> bool:
    """Do a round, and say whether there was one: there is as soon as a leader has copied on."""
    while log.left:
        log.copy()
        if not log.clean().skipped:
            return True
    return False


def check_in_the_end(log: AskedLog, explained: Explained, erased: ErasureAnswer) -> None:
    """Once leaders have copied all, what was to go has gone, of keys whose erasure had a date too.

    When a tombstone goes that no round had taken yet is known from the end of that round on.
    """
    while len(log.left) > LAST_PIECES:
        log.copy()
    log.at(log.clock.now_ms() + 200 * SECOND)
    log.clean()
    log.at(log.clock.now_ms() + GRACE_MS)
    log.collect()
    served = log.served()
    undecided = {key for key, _ in of(explained, Outlook.UNDECIDED)}
    for key, each in of(explained, *Outlook):
        fate, is_there = each.fate, each.record.offset in served[key]
        if fate.removal is not None and fate.removal.stays is None:
            continue
        if fate.outlook is Outlook.WINS and key in undecided:
            continue  # It wins of what is decided.
        if fate.outlook is Outlook.WINS or fate.stay in (Stay.NO_DIRTY_RECORD, Stay.CUT_SEGMENT):
            assert is_there, (key, each)
        elif fate.outlook is Outlook.GOES_LATER and (
            isinstance(fate.limit, TransactionLimit)
            or (isinstance(fate.limit, SourcesLimit) and fate.limit.why is SourcesEnd.MARGIN)
        ):
            assert not is_there, (key, each)
    again = {each.line: each.places for each in log.erase().keys}
    for asked in erased.keys:
        for place in asked.places:
            left = [offset for one in again[asked.line] for _, offset in one.offsets]
            if place.offsets and place.may_go_ms is not None:
                assert [] == left, asked
            elif place.offsets and not place.is_decided:
                assert left, asked
    check_tombstones(log, explained)


def check_tombstones(log: AskedLog, explained: Explained) -> None:
    """So long after the round that has taken it every tombstone has gone."""
    waits = [
        (key, each.record.offset, each.fate.removal.after_round_ms)
        for key, each in of(explained, *Outlook)
        if each.fate.removal is not None and each.fate.removal.after_round_ms is not None
    ]
    if waits and len(log.left) == LAST_PIECES:
        log.at(log.clock.now_ms() + max(after_ms for _, _, after_ms in waits))
        if renew(log):
            served = log.served()
            assert [] == [(key, offset) for key, offset, _ in waits if offset in served[key]]


@settings(max_examples=examples(12, long=1000))
@given(
    seed=st.integers(0, 1 << 32),
    topic=TOPICS,
    steps=STEPS,
    has_read=st.booleans(),
    waits=st.sampled_from([0, 10, 40]),
)
def test_the_fate_of_every_attached_record_comes_true(
    seed: int, topic: dict[str, str], steps: Sequence[str], has_read: bool, waits: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = WrittenLog.make(Path(folder) / "logs", Strategy(topic["compaction.strategy"]))
        pieces = write(world, random.Random(seed))
        tier = VerifiedWorld(Path(folder), world.log.directory, [LeaderEpoch(0, 0)], left=pieces)
        tier.cluster.log = OffsetRange(0, world.log.log_end)
        tier.cluster.groups = {"g": world.log.log_end if has_read else 0}
        made = Settings([Layer("a test", topics={PARTITION.topic: topic})])
        try:
            log = AskedLog(world, tier, pieces, made)
            log.at(world.log.now_ms)
            for what in steps:
                log.act(what)
            log.at(log.clock.now_ms() + waits * SECOND)
            explained = {key: log.explain(key) for key in NAMES.values()}
            erased = log.erase()
            check_there(log, explained, erased)
            log.collects_in_time = True
            check_next_round(log, explained)
            check_copies(log, explained)
            check_later_rounds(log, explained)
            check_in_the_end(log, explained, erased)
        finally:
            tier.close()
