"""What ``explain`` tells of a record comes true: random logs, and a clock that runs on.

Rounds are run a moment before each time that was told, and at it. What was to go then is there
before and gone behind it; what was to stay is there in the end.
"""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from keeplast.errors import RefusedError
from keeplast.inspect.explain import AskedKey, KeyExplanation, explain_key, explain_keys
from keeplast.inspect.fates import Outlook
from keeplast.log.files import LocalFiles
from keeplast.log.holds import write_holds
from keeplast.model.hold import Hold
from keeplast.model.offsets import INT64_MAX
from keeplast.model.strategy import Strategy
from keeplast.model.topic_config import CleanerConfig, TopicConfig
from keeplast.read.log_reader import read_segment
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN, Workspace
from keeplast.run.coordinator import Coordinator
from keeplast.run.events import NoEvents
from keeplast.run.local_runner import LocalRunner
from keeplast.survey.request import MEMORY_BYTES_DEFAULT, CleanRequest, PartitionRequest
from tests.support.committed_offsets import commit_offsets
from tests.support.log_script import KEYS, START_MS, Operation, scripts, write_script
from tests.support.manual_clock import ManualClock
from tests.support.partition_maker import PARTITION

W = Workspace(MEMORY_BYTES_DEFAULT)
SECOND = 1000
TOPICS = st.builds(
    TopicConfig,
    cleanup_policy=st.just(frozenset({"compact"})),
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


class Log:
    """A log on disk, and rounds on it at any time."""

    def __init__(self, root: Path, script: tuple[Operation, ...], topic: TopicConfig) -> None:
        self.path = root / str(PARTITION)
        write_script(script, self.path, replace(topic, segment_bytes=1 << 20))
        cleaner = CleanerConfig(producer_id_expiration_ms=INT64_MAX)
        self.partition = PartitionRequest(PARTITION, self.path, topic, cleaner)

    def round(self, now_ms: int, uncleanable: int | None = None) -> None:
        request = CleanRequest(
            (self.partition,), uncleanable_offset=uncleanable, memory_bytes=MEMORY_BYTES_MIN,
            force=True, expired=True, rolls_idle=True,
        )  # fmt: skip
        with LocalRunner(1) as runner:
            coordinator = Coordinator(runner, ManualClock(now_ms), LocalFiles(), NoEvents())
            (report,) = coordinator.clean(request).partitions
        for each in report.rounds:
            assert each.failure is None, each.failure

    def rounds(self, now_ms: int) -> None:
        """Do all that may be done at one time: a round, and what that one has made possible."""
        for _ in range(2):
            self.round(now_ms)

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

    def explain_together(self, now_ms: int) -> dict[bytes, KeyExplanation]:
        request = CleanRequest((self.partition,), rolls_idle=True)
        return explain_keys(self.partition, request, LocalFiles(), now_ms, NAMES, W, lambda _: None)


def fates(found: KeyExplanation) -> object:
    records = [(each.record.offset, each.record.is_tombstone, each.fate) for each in found.records]
    return records, found.winners, found.reaches


@settings(max_examples=40)
@given(
    script=scripts(),
    topic=TOPICS,
    earlier=st.one_of(st.none(), st.integers(0, 60)),
    held=st.one_of(st.none(), st.tuples(st.integers(0, 60), st.integers(1, 90))),
    now_ms=st.integers(START_MS, START_MS + 130 * SECOND),
    rolls=st.booleans(),
    has_read=st.booleans(),
)
def test_what_was_told_of_every_record_comes_true(
    script: tuple[Operation, ...],
    topic: TopicConfig,
    earlier: int | None,
    held: tuple[int, int] | None,
    now_ms: int,
    rolls: bool,
    has_read: bool,
) -> None:
    """Readers are waited for who have read all, or nothing.

    What is told of a record is when a round may take it; whether one is begun for the part of a
    segment that they have read, is not.
    """
    with tempfile.TemporaryDirectory() as root:
        log = Log(Path(root), script if rolls else script[:-1], topic)
        log_end = log.explain(NAMES[0], now_ms).log_end
        commit_offsets(Path(root), "g", {PARTITION: log_end if has_read else 0})
        if earlier is not None:
            # Where that is beyond what may be cleaned there was no round.
            with contextlib.suppress(RefusedError):
                log.round(now_ms - 5 * SECOND, earlier)
        if held is not None:
            offset, span = held
            hold = Hold("h", PARTITION, offset, now_ms, now_ms + span * SECOND)
            write_holds(LocalFiles(), Path(root), [hold])
        told = {key: log.explain(key, now_ms) for key in NAMES}
        together = log.explain_together(now_ms)
        assert {key: fates(each) for key, each in told.items()} == {
            key: fates(each) for key, each in together.items()
        }
        for key, each in told.items():
            assert [r.record.offset for r in each.records] == sorted(log.offsets(key))
        check_next_round(log, told, now_ms)
        check_later_rounds(log, told, now_ms)


def check_next_round(log: Log, told: dict[bytes, KeyExplanation], now_ms: int) -> None:
    log.round(now_ms)
    for key, each in told.items():
        expected = {
            found.record.offset
            for found in each.records
            if found.fate.outlook is not Outlook.GOES_NEXT
        }
        assert expected == log.offsets(key), (key, each)


def check_later_rounds(log: Log, told: dict[bytes, KeyExplanation], now_ms: int) -> None:
    fates = [
        (key, found.record.offset, found.fate)
        for key, each in told.items()
        for found in each.records
        if found.fate.outlook is not Outlook.GOES_NEXT
    ]
    times = {fate.from_ms for _, _, fate in fates if fate.from_ms is not None}
    times |= {reach.at_ms for each in told.values() for reach in each.reaches if reach.at_ms}
    there = {key: log.offsets(key) for key in told}
    for time in sorted(times):
        if time > now_ms:
            log.rounds(time - 1)
            there = {key: log.offsets(key) for key in told}
        for key, offset, fate in fates:
            if fate.from_ms == time:
                assert offset in there[key], (time, key, offset, fate, told[key])
        log.rounds(time)
        there = {key: log.offsets(key) for key in told}
        for key, offset, fate in fates:
            if fate.from_ms == time:
                assert offset not in there[key], (time, key, offset, fate, told[key])
    for key, offset, fate in fates:
        if fate.from_ms is None:
            assert offset in there[key], (key, offset, fate, told[key])
