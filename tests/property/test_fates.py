"""What ``explain`` says of a record comes true: random logs, and a clock that runs on.

In directories and stores, behind rounds, some of which a crash has cut short, deletions of records,
undos, collections and log starts that move: of a live cluster see ``test_attached_fates``. Rounds
are run a moment before each time that was given, and at it. What was to go then is there before and
gone behind it; what was to stay is there in the end. So is what rounds keep for undo.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import keeplast
from keeplast.errors import RefusedError
from keeplast.format.compression import Codec
from keeplast.format.filename import LOG, REPLICATION_CHECKPOINT
from keeplast.format.message_set import read_batches
from keeplast.inspect.explain import (
    AskedKey,
    KeyExplanation,
    explain_key,
    explain_keys,
    rankings_of,
)
from keeplast.inspect.fates import Outlook
from keeplast.inspect.remains import Remains, RemainsKind, SearchedKey, find_kept
from keeplast.inspect.traces import find_past_rounds, records_taken
from keeplast.log.append import NewRecord
from keeplast.log.checkpoints import update_checkpoint
from keeplast.log.files import FileSystem, LocalFiles
from keeplast.log.recovery import recover_swap
from keeplast.log.root_files import write_holds
from keeplast.log.undo_files import read_kept
from keeplast.model.hold import Hold
from keeplast.model.partition import INT64_MAX
from keeplast.model.topic_config import CleanerConfig, Strategy, TopicConfig
from keeplast.read.log_reader import read_segment
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN, Workspace
from keeplast.run.coordinator import Coordinator
from keeplast.run.events import NoEvents
from keeplast.run.local_runner import LocalRunner
from keeplast.run.undoing import sweep_kept
from keeplast.store.explain import explain_stored
from keeplast.survey.receipt_book import RoundReceipt, read_receipts
from keeplast.survey.request import MEMORY_BYTES_DEFAULT, CleanRequest, PartitionRequest
from keeplast.tier.objects.filters import KEY_FACT, FilterKey
from keeplast.tier.objects.object_store import object_key
from keeplast.tier.state.segment import RemoteSegment
from tests.support.committed_offsets import commit_offsets
from tests.support.log_script import (
    KEYS,
    START_MS,
    Append,
    Operation,
    Roll,
    scripts,
    write_script,
)
from tests.support.manual_clock import ManualClock
from tests.support.observed_files import Crash, ObservedFiles, UnsyncedFiles
from tests.support.partition_maker import PARTITION
from tests.support.stored_log import GRACE_MS, StoredLog
from tests.support.turns import examples

W = Workspace(MEMORY_BYTES_DEFAULT)
SECOND = 1000
POLICIES = (frozenset({"compact"}), frozenset({"compact", "delete"}))
TOPICS = st.builds(
    TopicConfig,
    cleanup_policy=st.sampled_from(POLICIES),
    retention_ms=st.just(-1),
    undo_retention_ms=st.sampled_from([0, 0, 12 * SECOND]),
    min_compaction_lag_ms=st.sampled_from([0, 0, 15 * SECOND, 70 * SECOND]),
    max_compaction_lag_ms=st.sampled_from([INT64_MAX, 20 * SECOND]),
    delete_retention_ms=st.sampled_from([0, 7 * SECOND, 40 * SECOND]),
    segment_ms=st.sampled_from([5 * SECOND, 60 * SECOND, INT64_MAX]),
    strategy=st.sampled_from(Strategy),
    strategy_header=st.just("ver"),
    keep_versioned_tombstones=st.booleans(),
    tombstones_wait_for_groups=st.sampled_from([(), (), ("g",)]),
    tombstones_wait_max_ms=st.sampled_from([0, 20 * SECOND]),
)
NAMES = [b"" if number == 0 else b"key%d" % number for number in range(KEYS)]


Step = tuple[str, int]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("round"), st.integers(0, 60)),
        st.tuples(st.just("crash"), st.integers(0, 60)),
        st.tuples(st.just("delete"), st.integers(0, 100)),
    ),
    max_size=3,
)
"""What comes before a log is asked about: a round up to an offset, one that dies before its n-th
change of the disk, and a deletion of so many percent of the records."""


EXPIRING = st.builds(
    replace,
    TOPICS,
    retention_ms=st.sampled_from([0, 12 * SECOND, 90 * SECOND, INT64_MAX]),
    retention_bytes=st.sampled_from([-1, -1, 0, 250, 1500]),
)


STORED_TOPICS = st.builds(
    TopicConfig,
    cleanup_policy=st.sampled_from(POLICIES),
    retention_ms=st.just(-1),
    segment_bytes=st.sampled_from([14, 1 << 20]),
    tier_chunk_bytes=st.sampled_from([14, 1 << 20]),
    min_compaction_lag_ms=st.sampled_from([0, 0, 15 * SECOND, 70 * SECOND]),
    delete_retention_ms=st.sampled_from([0, 7 * SECOND, 40 * SECOND]),
    undo_retention_ms=st.sampled_from([0, 12 * SECOND]),
    strategy=st.sampled_from(Strategy),
    strategy_header=st.just("ver"),
    keep_versioned_tombstones=st.booleans(),
)
STORED_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["round", "round", "undo", "collect", "crash", "start"]),
        st.integers(0, 60),
    ),
    max_size=4,
)


class AskedLog(Protocol):
    """A log that is asked about its keys, and whose rounds are run at any time."""

    def round(self, now_ms: int) -> None: ...

    def rounds(self, now_ms: int) -> None:
        """Do all that may be done at one time: a round, and what that one has made possible."""

    def expire(self, now_ms: int) -> None:
        """Let go of what retention and the log start let go; no round is done."""

    def offsets(self, key: bytes) -> set[int]: ...

    def explain(self, key: bytes, now_ms: int) -> KeyExplanation: ...

    def may_go(self, found: KeyExplanation) -> set[int]:
        """Return what may be gone after the first round, and has another outlook than that."""


class Log:
    """A log on disk, and rounds on it at any time."""

    def __init__(
        self, root: Path, script: tuple[Operation, ...], topic: TopicConfig, *, removes: bool,
        has_receipts: bool = False,
    ) -> None:  # fmt: skip
        """With ``removes`` rounds take segments below the log start off the disk."""
        self.path = root / str(PARTITION)
        write_script(script, self.path, replace(topic, segment_bytes=1 << 20))
        cleaner = CleanerConfig(producer_id_expiration_ms=INT64_MAX)
        self.partition = PartitionRequest(PARTITION, self.path, topic, cleaner)
        self.removes = removes
        self.receipt = root / "receipts" if has_receipts else None
        self.log_end = self.explain(NAMES[0], START_MS).log_end

    def round(
        self, now_ms: int, uncleanable: int | None = None, files: FileSystem | None = None
    ) -> None:
        request = CleanRequest(
            (self.partition,), uncleanable_offset=uncleanable, memory_bytes=MEMORY_BYTES_MIN,
            force=True, expired=True, rolls_idle=True, retention=self.removes,
            receipt=self.receipt,
        )  # fmt: skip
        files = UnsyncedFiles() if files is None else files
        with LocalRunner(1, files=files) as runner:
            coordinator = Coordinator(runner, ManualClock(now_ms), files, NoEvents())
            (report,) = coordinator.clean(request).partitions
        for each in report.rounds:
            assert each.failure is None, each.failure

    def step(self, step: Step, now_ms: int) -> None:
        """Do what comes before a log is asked about."""
        match step:
            case "round", uncleanable:
                # Where that is beyond what may be cleaned there is no round.
                with contextlib.suppress(RefusedError):
                    self.round(now_ms, uncleanable)
            case "crash", at:
                with contextlib.suppress(Crash):
                    self.round(now_ms, files=ObservedFiles(crash_at=at))
            case "delete", percent if self.partition.topic.expires:
                # High watermarks are not written here, so that all that is there may go.
                keeplast.open_log(self.path).delete_records(
                    self.partition.topic, before_offset=self.log_end * percent // 100
                )

    def expire(self, now_ms: int) -> None:
        with LocalRunner(1, files=UnsyncedFiles()) as runner:
            coordinator = Coordinator(runner, ManualClock(now_ms), UnsyncedFiles(), NoEvents())
            (report,) = coordinator.expire(CleanRequest((self.partition,))).partitions
        assert report.expiry is None or report.expiry.failure is None, report.expiry

    def rounds(self, now_ms: int) -> None:
        for _ in range(2):
            self.round(now_ms)

    def receipts(self) -> Sequence[RoundReceipt]:
        """Return what rounds have written down, nothing while no line of it is whole."""
        if self.receipt is None or not self.receipt.exists():
            return ()
        if b"\n" not in self.receipt.read_bytes():
            return ()
        return read_receipts(self.receipt, LocalFiles())

    def offsets(self, key: bytes) -> set[int]:
        return {
            record.offset
            for path in self.path.glob("*.log")
            for batch in read_segment(LocalFiles(), path)
            if not batch.is_control
            for record in batch.records()
            if record.key == key
        }

    def explain(self, key: bytes, now_ms: int) -> KeyExplanation:
        request = CleanRequest((self.partition,), rolls_idle=True)
        return explain_key(
            self.partition, request, LocalFiles(), now_ms, AskedKey(key), W, lambda _: None
        )

    def require_readable(self, now_ms: int) -> None:
        """Do what is said where a crash has left half a swap: everything else can be read."""
        try:
            self.explain(NAMES[0], now_ms)
        except RefusedError as error:
            if "interrupted" not in str(error) or not list(self.path.glob("*.swap")):
                raise
            recover_swap(UnsyncedFiles(), self.path)

    def explain_together(self, now_ms: int) -> dict[bytes, KeyExplanation]:
        request = CleanRequest((self.partition,), rolls_idle=True)
        return explain_keys(self.partition, request, LocalFiles(), now_ms, NAMES, W, lambda _: None)

    def may_go(self, found: KeyExplanation) -> set[int]:
        """With its segment, and with a round that the expiry of another key brings about."""
        if not self.partition.topic.expires:
            return set()
        return {e.record.offset for e in found.records if e.record.offset < found.log_start}

    def kept_offsets(self, key: bytes) -> list[tuple[str, int]]:
        """Return round and offset of a key in what is kept and is no segment of the log."""
        live = {path.stat().st_ino for path in self.path.glob("*.log")}
        return sorted(
            (each.attempt, record.offset)
            for each in read_kept(LocalFiles(), self.path).files
            if each.kind == LOG and (self.path / each.name).stat().st_ino not in live
            for batch in read_segment(LocalFiles(), self.path / each.name)
            if not batch.is_control
            for record in batch.records()
            if record.key == key
        )


class InStore(StoredLog):
    """A log in a store, and rounds on it at any time; ``chunks`` are those of the last round."""

    chunks = 1

    def step(self, what: str, number: int, now_ms: int) -> None:
        if what != "start":
            super().step(what, number, now_ms)
        elif self.topic.expires:
            self.at(now_ms)
            state = self.state
            start = state.log_start + (state.remote_end - state.log_start) * number // 100
            self.tiered.removals.delete_records(PARTITION, start, grace_ms=GRACE_MS)
        assume(self.state.routes)

    def round(self, now_ms: int) -> None:
        self.at(now_ms)
        self.chunks = self.clean().chunks or 1

    def expire(self, now_ms: int) -> None:
        self.at(now_ms)
        self.tiered.expire(PARTITION, grace_ms=GRACE_MS)

    def rounds(self, now_ms: int) -> None:
        self.round(now_ms)
        # While a clock stands still no round follows for what another one has just stamped.
        self.begin_again()
        self.round(now_ms)

    def records(self, key: bytes, segment: RemoteSegment) -> set[int]:
        """Return the offsets of a key in one segment, by its bytes."""
        state = self.state
        name = object_key(
            PARTITION, state.topic_id, segment.segment_id, segment.base_offset, ".log"
        )
        data = self.objects.read_range(name, 0, segment.size_bytes)
        return {
            record.offset
            for batch in read_batches(bytes(data))
            if not batch.is_control
            for record in batch.records()
            if record.key == key
        }

    def offsets(self, key: bytes) -> set[int]:
        state = self.state
        found = [self.records(key, state.segments[each.segment_id]) for each in state.routes]
        return set().union(*found)

    def may_go(self, found: KeyExplanation) -> set[int]:
        """Return what goes with its segment, and what a later chunk of the same round may take.

        Each chunk is a round of its own: the second one takes what has its horizon from the first,
        where that horizon has passed by then. A clock that stands still leaves no other.
        """
        has_later_chunk = self.chunks > 1
        return {
            each.record.offset
            for each in found.records
            if each.record.offset < found.log_start
            or (has_later_chunk and each.fate.from_ms == found.now_ms)
        }

    def ask(self, key: bytes, now_ms: int) -> SearchedKey:
        look, parts = self.tiered.look(PARTITION), self.tiered.parts()
        fact = parts.metadata.find_fact(KEY_FACT)
        return explain_stored(
            look, parts.objects, AskedKey(key), now_ms, W,
            filter_key=None if fact is None else FilterKey.of_fact(fact),
            planned=lambda _: None, progressed=lambda _: None,
        )  # fmt: skip

    def explain(self, key: bytes, now_ms: int) -> KeyExplanation:
        """Return the answer; what it says of replaced segments is what is in them."""
        explained = self.ask(key, now_ms)
        orphans = self.tiered.look(PARTITION).orphans
        expected = sorted(
            (each.segment.segment_id, offset)
            for each in orphans
            if each.kept_by is None
            for offset in self.records(key, each.segment)
        )
        assert expected == offsets_in(explained.remains, RemainsKind.REPLACED)
        kept = sorted(
            (each.kept_by, offset)
            for each in orphans
            if each.kept_by is not None
            for offset in self.records(key, each.segment)
        )
        assert kept == offsets_in(explained.remains, RemainsKind.KEPT)
        return explained.found


def offsets_in(remains: Iterable[Remains], kind: RemainsKind) -> list[tuple[str, int]]:
    its = [each for each in remains if each.kind is kind]
    return sorted((each.name, record.offset) for each in its for record in each.records)


def fates(found: KeyExplanation) -> object:
    records = [(each.record.offset, each.record.is_tombstone, each.fate) for each in found.records]
    return records, found.winners, found.reaches


@settings(max_examples=examples(60, long=3000))
@given(
    script=scripts(),
    topic=TOPICS,
    earlier=STEPS,
    held=st.one_of(st.none(), st.tuples(st.integers(0, 60), st.integers(1, 90))),
    now_ms=st.integers(START_MS, START_MS + 130 * SECOND),
    rolls=st.booleans(),
    has_read=st.booleans(),
    removes=st.booleans(),
)
def test_the_fate_of_every_record_comes_true(
    script: tuple[Operation, ...],
    topic: TopicConfig,
    earlier: list[Step],
    held: tuple[int, int] | None,
    now_ms: int,
    rolls: bool,
    has_read: bool,
    removes: bool,
) -> None:
    """Readers are waited for who have read all, or nothing.

    What is said of a record is when a round may take it; whether one is begun for the part of a
    segment that they have read, is not.
    """
    with tempfile.TemporaryDirectory() as root:
        log = Log(Path(root), script if rolls else script[:-1], topic, removes=removes)
        commit_offsets(Path(root), "g", {PARTITION: log.log_end if has_read else 0})
        for number, step in enumerate(earlier):
            log.step(step, now_ms - 5 * SECOND * (len(earlier) - number))
        if held is not None:
            offset, span = held
            hold = Hold("h", PARTITION, offset, now_ms, now_ms + span * SECOND, offset)
            write_holds(LocalFiles(), Path(root), [hold])
        log.require_readable(now_ms)
        explained = {key: log.explain(key, now_ms) for key in NAMES}
        together = log.explain_together(now_ms)
        assert {key: fates(each) for key, each in explained.items()} == {
            key: fates(each) for key, each in together.items()
        }
        check_undo_copies(log)
        check_fates(log, now_ms)


def check_undo_copies(log: Log) -> None:
    """What is said of copies is what is in them; each goes at its date, and not before."""
    rankings = rankings_of(log.partition.topic, None)
    retention_ms = log.partition.topic.undo_retention_ms
    times: dict[str, int | None] = {}
    for key in NAMES:
        copies = find_kept(
            log.path, key, rankings, LocalFiles(), W, retention_ms=retention_ms,
            planned=lambda _: None, progressed=lambda _: None,
        )  # fmt: skip
        assert not any(each.problem for each in copies)
        assert log.kept_offsets(key) == offsets_in(copies, RemainsKind.KEPT), key
        times |= {each.name: each.until_ms for each in copies if each.records}
    for attempt, until_ms in times.items():
        if until_ms is not None:
            check_sweep(log, attempt, until_ms)


def check_sweep(log: Log, attempt: str, until_ms: int) -> None:
    """See on a copy of the directory that what a round has kept goes at its time."""
    with tempfile.TemporaryDirectory() as root:
        shutil.copytree(log.path.parent, root, dirs_exist_ok=True)
        copied = replace(log.partition, path=Path(root) / log.path.name)
        start = keeplast.open_log(copied.path).log_start_offset()
        groups = [
            group
            for wave in read_kept(LocalFiles(), copied.path).waves
            if wave.attempt == attempt
            for group in wave.groups
        ]
        # What the log start has passed goes at once, and with a part of a round all of it may.
        is_above = all(each.base_offset >= start for each in groups)
        for now_ms, is_there in ((until_ms - 1, True), (until_ms, False)):
            sweep_kept(LocalFiles(), copied, now_ms)
            left = {each.attempt for each in read_kept(LocalFiles(), copied.path).waves}
            if not is_there or is_above:
                assert is_there == (attempt in left), (attempt, now_ms, until_ms)


def check_fates(log: AskedLog, now_ms: int) -> None:
    """What is said now of every record comes true."""
    explained = {key: log.explain(key, now_ms) for key in NAMES}
    for key, each in explained.items():
        assert [r.record.offset for r in each.records] == sorted(log.offsets(key))
    check_next_round(log, explained, now_ms)
    check_later_rounds(log, explained, now_ms)


def check_next_round(log: AskedLog, explained: dict[bytes, KeyExplanation], now_ms: int) -> None:
    log.round(now_ms)
    for key, each in explained.items():
        expected = {
            found.record.offset
            for found in each.records
            if found.fate.outlook is not Outlook.GOES_NEXT
        }
        assert expected - log.may_go(each) <= log.offsets(key) <= expected, (key, each)


def check_later_rounds(log: AskedLog, explained: dict[bytes, KeyExplanation], now_ms: int) -> None:
    fates = [
        (key, found.record.offset, found.fate)
        for key, each in explained.items()
        for found in each.records
        if found.fate.outlook is not Outlook.GOES_NEXT
    ]
    may_go = {(key, offset) for key, each in explained.items() for offset in log.may_go(each)}
    times = {fate.from_ms for _, _, fate in fates if fate.from_ms is not None}
    times |= {reach.at_ms for each in explained.values() for reach in each.reaches if reach.at_ms}
    there = {key: log.offsets(key) for key in explained}
    for time in sorted(times):
        if time > now_ms:
            log.rounds(time - 1)
            there = {key: log.offsets(key) for key in explained}
        for key, offset, fate in fates:
            if fate.from_ms == time and (key, offset) not in may_go:
                assert offset in there[key], (time, key, offset, fate, explained[key])
        log.rounds(time)
        there = {key: log.offsets(key) for key in explained}
        for key, offset, fate in fates:
            if fate.from_ms == time:
                assert offset not in there[key], (time, key, offset, fate, explained[key])
    for key, offset, fate in fates:
        if fate.from_ms is None and (key, offset) not in may_go:
            assert offset in there[key], (key, offset, fate, explained[key])


@settings(max_examples=examples(30, long=2000))
@given(
    script=scripts(),
    topic=EXPIRING,
    earlier=STEPS,
    now_ms=st.integers(START_MS, START_MS + 130 * SECOND),
    replicated=st.none() | st.integers(0, 100),
)
def test_retention_takes_records_at_the_foreseen_time(
    script: tuple[Operation, ...],
    topic: TopicConfig,
    earlier: list[Step],
    now_ms: int,
    replicated: int | None,
) -> None:
    with tempfile.TemporaryDirectory() as root:
        log = Log(Path(root), script, topic, removes=False)
        for number, step in enumerate(earlier):
            log.step(step, now_ms - 5 * SECOND * (len(earlier) - number))
        log.require_readable(now_ms)
        if replicated is not None:
            watermark = log.log_end * replicated // 100
            update_checkpoint(
                LocalFiles(), Path(root), REPLICATION_CHECKPOINT, {PARTITION: watermark}
            )
        check_expiry(log, now_ms)


def check_expiry(log: AskedLog, now_ms: int) -> None:
    """A segment goes at its time, and not before; what has none stays for ever."""
    explained = {key: log.explain(key, now_ms) for key in NAMES}
    there = {
        (key, each.record.offset): each for key, part in explained.items() for each in part.records
    }
    times = {each.expiry.from_ms for each in there.values() if each.expiry is not None}
    for time in (*sorted(times), now_ms + 400 * 24 * 60 * 60 * SECOND):
        for at_ms in (time - 1, time):
            if at_ms < now_ms:
                continue
            log.expire(at_ms)
            left = {key: log.offsets(key) for key in explained}
            for (key, offset), each in there.items():
                goes = each.expiry is not None and each.expiry.from_ms <= at_ms
                assert (offset not in left[key]) == goes, (at_ms, key, each)


def in_store(
    root: str, script: tuple[Operation, ...], topic: TopicConfig, earlier: Sequence[Step],
    now_ms: int,
) -> InStore:  # fmt: skip
    """Return a stored log behind some steps, at ``now_ms``; something of it is stored all along."""
    log = InStore(Path(root), script, topic)
    for number, step in enumerate(earlier):
        log.step(*step, now_ms - 5 * SECOND * (len(earlier) - number))
    log.at(now_ms)
    return log


def keyed(key: bytes, value: bytes | None) -> Append:
    """Return a batch of one record."""
    record = NewRecord(key, value, START_MS)
    return Append((record,), Codec.NONE, None, is_transactional=False, is_append_time=False, gap=0)


@settings(max_examples=examples(25, long=2000))
@example(
    # The second chunk takes the tombstone that has its delete horizon from the first.
    script=(keyed(b"key1", None), Roll(), keyed(b"key2", b"v"), Roll()),
    topic=TopicConfig(
        cleanup_policy=frozenset({"compact"}), tier_chunk_bytes=14, delete_retention_ms=0
    ),
    earlier=[],
    now_ms=START_MS + 60 * SECOND,
)
@example(
    # The second round takes the tombstone; an undo in the same process puts it back.
    script=(keyed(b"key1", None), Roll()),
    topic=TopicConfig(
        cleanup_policy=frozenset({"compact"}), delete_retention_ms=0, undo_retention_ms=12 * SECOND
    ),
    earlier=[("round", 0), ("round", 0), ("undo", 0)],
    now_ms=START_MS + 60 * SECOND,
)
@given(
    script=scripts(),
    topic=STORED_TOPICS,
    earlier=STORED_STEPS,
    now_ms=st.integers(START_MS + 60 * SECOND, START_MS + 130 * SECOND),
)
def test_the_fate_of_every_stored_record_comes_true(
    script: tuple[Operation, ...], topic: TopicConfig, earlier: Sequence[Step], now_ms: int
) -> None:
    with tempfile.TemporaryDirectory() as root:
        check_fates(in_store(root, script, topic, earlier, now_ms), now_ms)


@settings(max_examples=examples(12, long=1000))
@given(
    script=scripts(),
    topic=st.builds(
        replace,
        STORED_TOPICS,
        retention_ms=st.sampled_from([0, 12 * SECOND, 90 * SECOND]),
        retention_bytes=st.sampled_from([-1, -1, 0, 250, 1500]),
    ),
    earlier=STORED_STEPS,
    now_ms=st.integers(START_MS + 60 * SECOND, START_MS + 130 * SECOND),
)
def test_remote_retention_takes_records_at_the_foreseen_time(
    script: tuple[Operation, ...], topic: TopicConfig, earlier: Sequence[Step], now_ms: int
) -> None:
    with tempfile.TemporaryDirectory() as root:
        check_expiry(in_store(root, script, topic, earlier, now_ms), now_ms)


@settings(max_examples=examples(30, long=2000))
@given(
    script=scripts(),
    topic=TOPICS,
    strategies=st.lists(st.sampled_from(Strategy), min_size=4, max_size=4),
    earlier=st.lists(STEPS, min_size=1, max_size=4),
    spans=st.lists(st.integers(1, 40), min_size=4, max_size=4),
)
def test_receipts_are_right_about_records_that_are_gone(
    script: tuple[Operation, ...],
    topic: TopicConfig,
    strategies: list[Strategy],
    earlier: list[list[Step]],
    spans: list[int],
) -> None:
    """What is taken by a round is ranked as its time wanted it: topics change their strategy."""
    with tempfile.TemporaryDirectory() as root:
        log = Log(Path(root), script, topic, removes=False, has_receipts=True)
        now_ms = START_MS + 60 * SECOND
        behind: dict[str, dict[bytes, set[int]]] = {}
        before: dict[bytes, set[int]] | None = {key: log.offsets(key) for key in NAMES}
        for steps, span, strategy in zip(earlier, spans, strategies, strict=False):
            now_ms += span * SECOND
            ranked = replace(topic, strategy=strategy)
            log.partition = replace(log.partition, topic=ranked)
            for step in (*steps, None):
                log.require_readable(now_ms)
                if step is None:
                    log.round(now_ms)
                else:
                    log.step(step, now_ms)
                is_whole = step is None or step[0] != "crash"
                after = {key: log.offsets(key) for key in NAMES}
                for each in log.receipts():
                    if each.name not in behind and is_whole:
                        assert records_taken(each) != 0 or before in (None, after)
                    behind.setdefault(each.name, after if is_whole else {})
                # In the middle of a swap a log is under another name, and what it had goes later.
                before = after if is_whole else None
        for key in NAMES:
            found = log.explain(key, now_ms)
            past = find_past_rounds(found, log.receipts())
            if past.last is not None and behind[past.last.name]:
                left = behind[past.last.name][key]
                assert [past.kept] == [each for each in left if each < past.last.end_offset]
