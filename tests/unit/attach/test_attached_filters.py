"""Filters let clean segments of an attached topic unread, and change nothing of what remains."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.attach.held.outputs import filter_name
from keeplast.attach.rounds import attached_place
from keeplast.cli.show.tables import filter_lines
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.format.record import Record
from keeplast.format.remote_log_metadata import RemoteLogSegmentId
from keeplast.log.append import NewRecord
from keeplast.model.topic_config import Shape, Strategy, TopicConfig
from keeplast.rewrite.task import SMALL_BYTES, FilterSpec
from keeplast.survey.report import CleanReport, PartitionReport, RoundReport
from keeplast.tier.metadata.decisions import DecisionLog
from keeplast.tier.objects.filters import FilterKey, SegmentBytes, decode_head, decode_words
from tests.support.attached_world import PARTITION
from tests.support.log_builder import LogBuilder
from tests.support.partition_maker import DAY_MS
from tests.support.verified_world import VerifiedWorld

TOPIC = TopicConfig(
    cleanup_policy=frozenset({"compact"}), segment_bytes=4000, index_interval_bytes=256
)
PERIODS, LATER = 6, 6
ROUNDS, EACH_ROUND = 6, 7


def write_log(root: Path, *, seed: int, transacts: bool = False) -> Path:
    """Write periods that have keys of their own each, and an end that has those of the last two.

    The first round finds all of it dirty, and makes no filters; the second one does.
    """
    dice = random.Random(seed)
    log = LogBuilder(root / "t-0", TOPIC)
    sending = log.producer(7)
    for period in range(PERIODS + 1):
        for number in range(40):
            log.now_ms += 1000
            of = period if period < PERIODS else dice.choice([PERIODS - 1, PERIODS - 2])
            value = None if dice.random() < 0.1 else b"v%d" % number + b"x" * dice.randrange(150)
            records = [
                NewRecord(b"k%d-%d" % (of, dice.randrange(300)), value, log.now_ms)
                for _ in range(dice.randrange(1, 4))
            ]
            if transacts and dice.random() < 0.3:
                sending.send_records(*records)
                (sending.commit if dice.random() < 0.7 else sending.abort)()
            else:
                log.append(*records)
    return log.finish()


class Filtered:
    """A world whose last segments come after the first round; ``fpp`` 0 is without filters."""

    def __init__(self, root: Path, directory: Path, fpp: float, left: int = LATER) -> None:
        """Copy all but the last ``left`` segments."""
        self.world = VerifiedWorld(root, directory, [LeaderEpoch(0, 0)], left=left)
        self.topic = replace(TOPIC, tier_filter_fpp=fpp)
        self.shape: Shape | None = None

    def clean(self, topic: TopicConfig | None = None) -> RoundReport:
        """Do a round up to the last segment but one."""
        return self.world.clean(topic or self.topic, margin=0, shape=self.shape)

    def copy_more(self, count: int = LATER // 2) -> None:
        """Let the leader copy so many of the segments that it still has."""
        copied_to = max(each.end_offset for each in self.world.tier.served())
        left = [each for each in pairwise(self.world.bases) if each[0] > copied_to]
        for base, following in left[:count]:
            self.world.tier.copy_one(self.world.directory, base, following - 1)

    def begin(self) -> None:
        """Do two rounds, of which the second one makes filters, and let more come."""
        self.clean()
        assert set() == self.filters()
        self.copy_more()
        self.clean()
        self.copy_more()

    def filters(self) -> set[str]:
        """Return the names of the filters that lie there."""
        return {each for each in self.world.tier.own() if each.startswith("filters/")}

    def logs(self) -> list[tuple[int, bytes]]:
        """Return what is served, byte for byte."""
        tier = self.world.tier
        return [(each.start_offset, tier.log_of(each)) for each in tier.served()]

    def records(self) -> list[Record]:
        """Return what readers get."""
        return list(self.world.tier.read().records())


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Filtered, Filtered]]:
    directory = write_log(tmp_path / "logs", seed=1)
    made = (
        Filtered(tmp_path / "with", directory, 0.01), Filtered(tmp_path / "without", directory, 0)
    )  # fmt: skip
    yield made
    for each in made:
        each.world.close()


def test_clean_segments_without_a_dirty_key_are_not_read_and_all_stays_the_same(
    pair: tuple[Filtered, Filtered],
) -> None:
    with_filters, without = pair
    for each in pair:
        each.begin()
    assert with_filters.logs() == without.logs()
    report, plain = with_filters.clean(), without.clean()
    assert report.filters is not None
    assert report.filters.skipped_segments >= 2
    assert report.filters.damaged == 0
    assert plain.filters is None
    assert report.stats is not None
    assert plain.stats is not None
    assert report.stats.bytes_read <= plain.stats.bytes_read - report.filters.skipped_bytes
    assert with_filters.logs() == without.logs()
    assert with_filters.records() == without.records()
    assert set() == without.filters()


@pytest.mark.rotates(5)
@pytest.mark.parametrize(
    ("seed", "transacts", "strategy", "local_ms", "shape"),
    [
        (2, True, Strategy.OFFSET, "1000", None),
        (3, False, Strategy.OFFSET, "1000", Shape.BUCKET),
        (4, False, Strategy.OFFSET, "-1", None),
        (5, False, Strategy.TIMESTAMP, "1000", Shape.BROADCAST),
        (6, False, Strategy.TIMESTAMP, "1000", None),
    ],
)  # fmt: skip
def test_what_time_changes_is_read_and_all_stays_the_same(
    tmp_path: Path,
    seed: int,
    transacts: bool,
    strategy: Strategy,
    local_ms: str,
    shape: Shape | None,
) -> None:
    """I-22. Tombstones get horizons and go by the same rounds, or do not count at all."""
    directory = write_log(tmp_path / "logs", seed=seed, transacts=transacts)
    pair = [Filtered(tmp_path / str(fpp), directory, fpp, EACH_ROUND) for fpp in (0.01, 0.0)]
    skipped = gone = 0
    for each in pair:
        each.topic = replace(each.topic, delete_retention_ms=DAY_MS, strategy=strategy)
        each.shape = shape
        each.world.cluster.settings["local.retention.ms"] = local_ms
    for _ in range(ROUNDS):
        reports = []
        for each in pair:
            reports.append(each.clean())
            each.world.collect()
            each.world.world.clock.advance(3 * DAY_MS)
            each.copy_more(1)
        report, plain = reports
        assert pair[0].logs() == pair[1].logs()
        assert report.reasons is not None
        assert report.end_offset == plain.end_offset
        skipped += 0 if report.filters is None else report.filters.skipped_segments
        gone += report.reasons.tombstone_records
        assert report.reasons == plain.reasons
    assert (gone > 0) == (strategy is Strategy.OFFSET and local_ms != "-1")
    assert (skipped > 0) == (not transacts)
    for each in pair:
        each.world.close()


def harm(paths: list[Path]) -> None:
    """Do something else to each: a byte, the end, all, another segment's filter, nothing left."""
    of_another = paths[0].read_bytes()
    for number, path in enumerate(paths):
        data = path.read_bytes()
        harmed = (data[:-1] + bytes([data[-1] ^ 1]), data[:-8], b"", of_another, None)
        content = harmed[number % len(harmed)]
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)


def test_a_filter_that_is_damaged_of_another_segment_or_gone_means_reading(
    pair: tuple[Filtered, Filtered],
) -> None:
    with_filters, without = pair
    for each in pair:
        each.begin()
    root = with_filters.world.tier.root / ".keeplast"
    before = with_filters.filters()
    assert len(before) >= 5
    harm(sorted(root / name for name in before))
    report = with_filters.clean()
    without.clean()
    assert with_filters.logs() == without.logs()
    assert report.filters is not None
    assert (0, 0) == (report.filters.skipped_segments, report.filters.found)
    assert report.filters.damaged > 0
    (said,) = filter_lines(CleanReport((PartitionReport("t", 0, (report,)),)))
    assert f"read instead: {report.filters.damaged}" in said
    # They were made again, with what was read.
    served = {filter_name(each.id) for each in with_filters.world.tier.served()}
    for name in served & before:
        data = (root / name).read_bytes()
        head = decode_head(data, name)
        decode_words(head, data[head.words_at :], name)
        named = RemoteLogSegmentId(PARTITION, bytes.fromhex(head.segment.segment_id))
        assert name == filter_name(named)
    assert served & before


def test_filters_of_another_decision_log_mean_reading(
    pair: tuple[Filtered, Filtered], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = pair
    made.begin()
    before = made.filters()
    monkeypatch.setattr(DecisionLog, "filter_key", lambda log: FilterKey(1, 2))
    report = made.clean()
    assert report.filters is not None
    assert (0, True) == (report.filters.skipped_segments, report.filters.damaged > 0)
    assert made.filters() & before


def test_none_is_larger_than_is_worth_it(
    pair: tuple[Filtered, Filtered], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = pair
    monkeypatch.setattr(attached_place, "KEPT_BYTES_MAX", 100)
    made.clean()
    made.copy_more()
    report = made.clean()
    assert set() == made.filters()
    assert report.filters is not None
    assert (0, 0) == (report.filters.written, report.filters.bytes_written)
    spec = FilterSpec(FilterKey(1, 2), 0.01, {}, bytes_max=1 << 20, share_max=0.5)
    sizes = [SMALL_BYTES, SMALL_BYTES + 1, 1 << 20, (1 << 20) + 1]
    takes = [
        [spec.takes(each, SegmentBytes("", size, None)) for each in sizes]
        for size in (1, 2 * SMALL_BYTES + 2, 1 << 30)
    ]
    assert [[True, False, False, False], [True, True, False, False], [True] * 3 + [False]] == takes


def test_filters_go_with_their_segments(pair: tuple[Filtered, Filtered]) -> None:
    made, _ = pair
    made.begin()
    before = made.filters()
    made.clean()
    replaced = {filter_name(each.id) for each in made.world.replaced()}
    assert replaced & before & made.filters()
    made.world.collect()
    served = {filter_name(each.id) for each in made.world.tier.served()}
    left = made.filters()
    assert left - before
    assert left <= served
    # A broker removed its segment, or a round that was overtaken left it.
    layout = made.world.tier.layout
    stray = filter_name(RemoteLogSegmentId(PARTITION, b"s" * 16))
    layout.put_new(stray, b"x")
    made.clean()
    assert left == made.filters()
    layout.put_new(stray, b"x")
    made.clean(replace(made.topic, tier_filter_fpp=0.0))
    assert set() == made.filters()
    layout.put_new(stray, b"x")
    made.world.world.claim().detach()
    assert set() == made.filters()
