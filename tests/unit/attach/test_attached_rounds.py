"""A round on a remote tier leaves what the key law leaves, in segments that brokers can serve."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from keeplast.attach.held.outputs import work_name
from keeplast.attach.held.stored_segment import check_stored
from keeplast.attach.rounds import hollow
from keeplast.attach.rounds.attached_files import attached_path
from keeplast.attach.rounds.attached_place import AttachedPlace, AttachedState
from keeplast.attach.rounds.missing_aborts import measure_sources
from keeplast.attach.rounds.round import do_round
from keeplast.attach.rules.sources import Sources, choose_sources, overlaid_from
from keeplast.cleaner.reasons import SourcesEnd, SourcesLimit
from keeplast.cluster.layouts.layout import AuxiliaryFile
from keeplast.cluster.layouts.local_storage import LocalStorage
from keeplast.cluster.metadata_cache import PartitionCache
from keeplast.errors import CompactionError, CorruptError, RefusedError, UnavailableError
from keeplast.format import offset_index, producer_snapshot, time_index, txn_index
from keeplast.format.compression import Codec
from keeplast.format.identifier import encode_id
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.format.message_set import read_batches
from keeplast.format.record import Record
from keeplast.format.remote_log_metadata import RemoteLogSegment, RemoteLogSegmentState
from keeplast.log.append import NewRecord
from keeplast.model.hold import GroupReader
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import Keyless, Shape, Strategy, TopicConfig
from keeplast.rewrite.task import StagedGroup
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN
from keeplast.run.local_runner import LocalRunner
from keeplast.survey.report import RoundReport
from keeplast.survey.request import CleanRequest, PartitionRequest
from tests.support.attached_tier import PARTITION, STARTED, AtOnce, AttachedTier, updated
from tests.support.flipped import flip
from tests.support.log_builder import START_MS, LogBuilder
from tests.support.manual_clock import ManualClock
from tests.support.versioned_log import version_bytes

TOPIC = TopicConfig(
    cleanup_policy=frozenset({"compact"}), segment_bytes=4000, index_interval_bytes=256
)
MERGING = replace(TOPIC, segment_bytes=12_000)
LINEAGE = (LeaderEpoch(0, 0), LeaderEpoch(2, 130), LeaderEpoch(5, 300))


def write_history(root: Path, **history: int | bool) -> Path:
    """Write the files of a history below ``root``; each history is made once in a process."""
    directory = root / "t-0"
    directory.mkdir(parents=True)
    for name, data in files_of_history(**history):
        (directory / name).write_bytes(data)
    return directory


@cache
def files_of_history(
    *, seed: int = 1, count: int = 260, keyless: bool = False, ends_early: bool = False,
    versions: bool = False,
) -> list[tuple[str, bytes]]:  # fmt: skip
    """Make batches of every codec by plain and transactional producers, with offsets left out.

    With ``ends_early`` the last offsets of segments are among those, as a broker's cleaner leaves
    it, and a leader epoch may begin there. With ``versions`` records have them in headers, not in
    the order of the log, and some in a form that is none.
    """
    dice = random.Random(seed)
    root = TemporaryDirectory()
    log = LogBuilder(Path(root.name) / "t-0", TOPIC)
    sending = log.producer(7), log.producer(8)
    is_open = [False, False]
    for number in range(count):
        log.leader_epoch = max(e.epoch for e in LINEAGE if e.start_offset <= log.log_end)
        log.now_ms += 1000
        records = [
            NewRecord(
                None if keyless and dice.random() < 0.1 else b"k%d" % dice.randrange(30),
                None if dice.random() < 0.15 else b"v%d" % number + b"x" * dice.randrange(40),
                log.now_ms,
                _versions(dice, number) if versions else (),
            )
            for n in range(dice.randrange(1, 6))
        ]  # fmt: skip
        who = dice.randrange(4)
        if who > 1:
            log.append(*records, codec=dice.choice(list(Codec)))
        else:
            sending[who].send_records(*records, codec=dice.choice(list(Codec)))
            is_open[who] = True
        for each in (0, 1):
            if is_open[each] and dice.random() < 0.4:
                (sending[each].commit if dice.random() < 0.6 else sending[each].abort)()
                is_open[each] = False
        if dice.random() < 0.05:
            log.log_end += 3
        if ends_early and number % 20 == 19:
            log.log_end += 15
            log.roll()
    for each in (0, 1):
        if is_open[each]:
            sending[each].commit()
    with root:
        return [(each.name, each.read_bytes()) for each in log.finish().iterdir()]


def _versions(dice: random.Random, number: int) -> tuple[tuple[bytes, bytes | None], ...]:
    """Return headers of a record: a version that may be any older one, several, or none."""
    one, other = (version_bytes(dice.randrange(-3, number + 1)) for _ in range(2))
    return dice.choice(
        [
            ((b"ver", one),), ((b"ver", one),), ((b"other", b"x"), (b"ver", one)),
            ((b"ver", other), (b"ver", one)), ((b"ver", other), (b"ver", b"short")),
            ((b"Ver", one),), ((b"ver", None),), (),
        ]
    )  # fmt: skip


def version_of(record: Record) -> int | None:
    """Return what a record's last header ``ver`` says, None when it is no number of 8 bytes."""
    found = [value for name, value in record.headers if name == b"ver"]
    value = found[-1] if found else None
    return None if value is None or len(value) != 8 else int.from_bytes(value, "big", signed=True)


class World:
    """A tier that a history was copied to, and who compacts it."""

    def __init__(
        self, root: Path, write: Callable[..., Path] = write_history, **history: int | bool
    ) -> None:
        """Copy a history."""
        self.tier = AttachedTier(root / "tier", LINEAGE)
        self.directory = write(root / "logs", **history)
        self.tier.copy(self.directory)
        self.publisher = AtOnce(self.tier)
        self.clock = ManualClock(START_MS + 10_000_000)

    def sources(self, margin: int = 8000, lineage: tuple[LeaderEpoch, ...] = LINEAGE) -> Sources:
        """Return what may be compacted."""
        found = choose_sources(
            self.tier.cache, log_start=0, margin_bytes=margin, lineage=lineage, now_ms=START_MS
        )
        return measure_sources(self.tier.layout, found)

    def clean(
        self,
        topic: TopicConfig = MERGING,
        *,
        keyless: Keyless = Keyless.FAIL,
        margin: int = 8000,
        cores: int = 1,
        shape: Shape | None = None,
        force: bool = True,
        receipt: list[bytes] | None = None,
        lineage: tuple[LeaderEpoch, ...] = LINEAGE,
        expires_below: int | None = None,
        brokers: GroupReader | None = None,
    ) -> RoundReport:
        """Do one round."""
        state = AttachedState(self.sources(margin, lineage), 0, self.publisher.cleaned_to)
        name = TopicPartition(PARTITION.topic, PARTITION.partition)
        request = CleanRequest(
            (PartitionRequest(name, attached_path(PARTITION), topic),), force=force,
            memory_bytes=MEMORY_BYTES_MIN, shape=shape,
        )  # fmt: skip
        place = AttachedPlace(
            self.tier.layout, state, self.publisher, request, self.clock, keyless=keyless,
            receipt=None if receipt is None else receipt.append, expires_below=expires_below,
            brokers=brokers,
        )  # fmt: skip
        with LocalRunner(cores, clock=self.clock) as runner:
            return do_round(place, lambda _: nullcontext(runner), self.clock, lambda _: None)


def by_key_law(records: Sequence[Record], end: int, *, keeps_keyless: bool = False) -> list[Record]:
    """Return what stays: below ``end`` the last record of each key alone, tombstones too."""
    last = {each.key: each.offset for each in records if each.offset < end}
    return [
        each
        for each in records
        if each.offset >= end
        or (last[each.key] == each.offset if each.key is not None else keeps_keyless)
    ]


def check_servable(world: World, before: Sequence[RemoteLogSegment], end: int) -> None:
    """Check of every segment that is served what a broker relies on."""
    tier = world.tier
    assert [] == tier.cache.holes(0)
    served = tier.served()
    assert before[-1].end_offset == served[-1].end_offset
    firsts: dict[int, int] = {}
    for each in before:
        for epoch in each.epochs:
            firsts.setdefault(epoch.epoch, epoch.start_offset)
    for each in served:
        reader = tier.layout.open(each)
        assert each.size_bytes == reader.log_bytes
        batches = list(read_batches(tier.log_of(each)))
        assert each.start_offset <= batches[0].base_offset
        times = [b.max_timestamp for b in batches if list(b.records())]
        assert max(times, default=-1) == each.max_timestamp_ms
        offsets = offset_index.decode(reader.read_auxiliary(AuxiliaryFile.OFFSET_INDEX) or b"")
        positions = {0}
        for batch in batches:
            positions.add(max(positions) + batch.size_bytes)
        assert set(offsets[:, 1].tolist()) <= positions
        stamps = time_index.decode(reader.read_auxiliary(AuxiliaryFile.TIME_INDEX) or b"")
        assert sorted(stamps[:, 0].tolist()) == stamps[:, 0].tolist()
        aborted = txn_index.decode(reader.read_auxiliary(AuxiliaryFile.TXN_INDEX) or b"")
        assert all(each.start_offset <= entry.last_offset <= each.end_offset for entry in aborted)
        (last,) = [b for b in before if b.end_offset == each.end_offset]
        if each.broker_id < 0:
            source = world.tier.layout.open(last)
            for kind in (AuxiliaryFile.SNAPSHOT, AuxiliaryFile.LEADER_EPOCHS):
                assert reader.read_auxiliary(kind) == source.read_auxiliary(kind)
            assert all(e.start_offset >= firsts[e.epoch] for e in each.epochs)


@pytest.mark.rotates(3)
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("cores", [1, 2])
def test_readers_get_the_records_of_the_key_law(tmp_path: Path, seed: int, cores: int) -> None:
    """AT-17: transactions lie over the bounds of segments."""
    world = World(tmp_path, seed=seed)
    before, segments = world.tier.read().records(), world.tier.served()
    end = world.sources().end
    report = world.clean(cores=cores)
    done = report.end_offset or 0
    assert 0 < done <= end
    assert by_key_law(before, done) == world.tier.read().records()
    assert len(world.tier.served()) < len(segments)
    check_servable(world, segments, done)
    assert done == world.publisher.cleaned_to
    world.publisher.collect()
    assert by_key_law(before, done) == world.tier.read().records()
    assert {each.id.segment_id for each in world.tier.served()} == world.tier.ids()
    assert [] == world.tier.own()


@pytest.mark.rotates(4)
@pytest.mark.parametrize("shape", [None, *Shape])
@pytest.mark.parametrize("cores", [1, 2])
def test_an_output_ends_where_its_sources_do_although_their_last_batch_does_not(
    tmp_path: Path, shape: Shape | None, cores: int
) -> None:
    """C8, AT-16: as where a broker has compacted the topic before it was tiered."""
    world = World(tmp_path, ends_early=True)
    before = world.tier.served()
    ends = [list(read_batches(world.tier.log_of(each)))[-1].last_offset for each in before]
    assert any(end < each.end_offset for end, each in zip(ends, before, strict=True))
    records = world.tier.read().records()
    done = world.clean(shape=shape, cores=cores).end_offset or 0
    assert by_key_law(records, done) == world.tier.read().records()
    check_servable(world, before, world.publisher.cleaned_to)
    for each in world.tier.served():
        check_stored(world.tier.layout, each)
        *_, last = read_batches(world.tier.log_of(each))
        if each.broker_id < 0:
            assert each.end_offset == last.last_offset
            assert each.epochs[-1].epoch == last.leader_epoch


@pytest.mark.parametrize("shape", [Shape.BROADCAST, Shape.BUCKET])
def test_every_shape_leaves_the_same(tmp_path: Path, shape: Shape) -> None:
    whole, cut = World(tmp_path / "whole"), World(tmp_path / "cut")
    whole.clean()
    cut.clean(shape=shape, cores=2)
    logs = [[world.tier.log_of(each) for each in world.tier.served()] for world in (whole, cut)]
    assert logs[0] == logs[1]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_second_round_takes_in_what_is_new_and_what_was_compacted(world: World) -> None:
    before, segments = world.tier.read().records(), world.tier.served()
    world.clean(margin=30_000)
    first = world.publisher.cleaned_to
    world.publisher.collect()
    report = world.clean(margin=4000)
    done = report.end_offset or 0
    assert 0 < first < done
    assert report.first_dirty == first
    assert by_key_law(before, done) == world.tier.read().records()
    check_servable(world, segments, done)


def test_a_clean_section_is_left_alone(world: World) -> None:
    world.clean(replace(TOPIC, segment_bytes=1 << 20))
    served = world.tier.served()
    report = world.clean(replace(TOPIC, segment_bytes=1 << 20), force=False)
    assert report.skipped
    assert served == world.tier.served()
    assert (report.reason or "").startswith("nothing to clean: ")


def test_tombstones_and_markers_stay_without_a_horizon(world: World) -> None:
    old = world.tier.read()
    markers = [b.base_offset for b in old.batches if b.is_control]
    world.clean()
    world.clock.advance(365 * 86_400_000)
    world.clean(margin=2000)
    new = world.tier.read()
    assert markers == [b.base_offset for b in new.batches if b.is_control]
    assert old.final_values() == new.final_values()
    tombstones = {r.key for r in old.records() if r.value is None} - set(old.final_values())
    kept = {r.key for r in new.records() if r.value is None}
    assert tombstones <= kept
    assert all(b.delete_horizon_ms is None for b in new.batches)


def test_records_without_a_key_are_refused_dropped_or_kept_as_asked(tmp_path: Path) -> None:
    for keyless in (Keyless.DROP, Keyless.RETAIN):
        world = World(tmp_path / keyless, keyless=True)
        before, ids = world.tier.read().records(), world.tier.ids()
        with pytest.raises(RefusedError, match="--keyless drop"):
            world.clean()
        assert [] == world.publisher.announced
        assert ids == world.tier.ids()
        assert [] == world.tier.own()
        done = world.clean(keyless=keyless).end_offset or 0
        expected = by_key_law(before, done, keeps_keyless=keyless is Keyless.RETAIN)
        assert expected == world.tier.read().records()


def test_a_late_record_loses_by_timestamp(world: World) -> None:
    before = world.tier.read().records()
    done = world.clean(replace(TOPIC, strategy=Strategy.TIMESTAMP)).end_offset or 0
    best: dict[bytes, tuple[int, int]] = {}
    for each in before:
        if each.offset < done and each.key is not None:
            rank = each.timestamp, each.offset
            best[each.key] = max(rank, best.get(each.key, rank))
    expected = [
        each
        for each in before
        if each.offset >= done or best[each.key or b""] == (each.timestamp, each.offset)
    ]
    assert expected == world.tier.read().records()


BY_HEADER = replace(MERGING, strategy=Strategy.HEADER, strategy_header="ver")


def by_versions(records: Sequence[Record], end: int) -> list[Record]:
    """Return what stays: below ``end`` of each key the greatest version, the later of two equal."""
    best: dict[bytes, tuple[bool, int, int]] = {}

    def rank(each: Record) -> tuple[bool, int, int]:
        version = version_of(each)
        return version is not None, version or 0, each.offset

    for each in records:
        if each.offset < end and each.key is not None:
            best[each.key] = max(rank(each), best.get(each.key, rank(each)))
    return [each for each in records if each.offset >= end or best[each.key or b""] == rank(each)]


@pytest.mark.rotates(4)
@pytest.mark.parametrize("shape", [None, *Shape])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_record_stays_by_the_version_in_its_header_and_not_by_its_place(
    tmp_path: Path, seed: int, shape: Shape | None
) -> None:
    """KIP-280: without a version, or with one that is no number, it ranks below all that have."""
    world = World(tmp_path, seed=seed, versions=True)
    before, segments = world.tier.read().records(), world.tier.served()
    done = world.clean(BY_HEADER, cores=2, shape=shape).end_offset or 0
    expected = by_versions(before, done)
    assert expected != by_key_law(before, done)
    assert expected == world.tier.read().records()
    check_servable(world, segments, done)
    # Some winner lies before a later record of its key, which went.
    last = {each.key: each.offset for each in before if each.offset < done}
    assert any(each.offset < last[each.key] for each in expected if each.offset < done)
    assert len(world.tier.served()) < len(segments)


def test_a_record_kept_by_its_version_in_an_earlier_round_stays_above_a_later_one(
    tmp_path: Path,
) -> None:
    """The second round ranks what is clean against what is new, though it has a lower offset."""
    world = World(tmp_path, seed=3, count=500, versions=True)
    before = world.tier.read().records()
    first = world.clean(BY_HEADER, margin=40_000).end_offset or 0
    done = world.clean(BY_HEADER).end_offset or 0
    assert 0 < first < done
    kept = by_versions(before, done)
    assert kept == world.tier.read().records()
    late = {each.key for each in before if first <= each.offset < done}
    assert any(each.offset < first and each.key in late for each in kept)
    world.publisher.collect()
    assert kept == world.tier.read().records()


def test_without_versions_a_round_by_header_leaves_what_one_by_offset_leaves(world: World) -> None:
    before = world.tier.read().records()
    done = world.clean(BY_HEADER).end_offset or 0
    assert by_key_law(before, done) == world.tier.read().records()


@pytest.mark.rotates(3)
@pytest.mark.parametrize("step", ["register", "announce", "decide"])
@pytest.mark.parametrize("swaps", [0, 1])
def test_a_round_that_fails_leaves_what_was_decided_and_nothing_else(
    tmp_path: Path, step: str, swaps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AT-33, AT-34: of several swaps, too."""
    monkeypatch.setattr("keeplast.attach.rounds.attached_place.SWAP_SEGMENTS_MAX", 4)
    world = World(tmp_path)
    before, segments = world.tier.read().records(), world.tier.served()
    world.publisher.fails_at, world.publisher.swaps_before_failure = step, swaps
    with pytest.raises(UnavailableError, match=step):
        world.clean()
    assert swaps == len(world.publisher.swaps)
    assert 0 == world.publisher.cleaned_to
    check_servable(world, segments, 0)
    world.publisher.collect()
    assert {each.id.segment_id for each in world.tier.cache.segments} == world.tier.ids()
    assert [] == world.tier.own()
    world.publisher.fails_at = None
    done = world.clean().end_offset or 0
    assert by_key_law(before, done) == world.tier.read().records()


def test_no_log_that_a_task_could_not_finish_stays(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AT-34."""
    ids = world.tier.ids()

    monkeypatch.setattr(
        type(world.tier.layout),
        "complete",
        Mock(side_effect=UnavailableError("the store has gone")),
    )
    with pytest.raises(UnavailableError):
        world.clean()
    assert ids == world.tier.ids()
    assert [] == world.tier.own()


def test_an_output_that_the_store_changed_is_not_published(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AT-16, AT-24: it is read again before anybody hears of it."""
    kept = type(world.tier.layout).complete

    def changes(layout: object, segment: RemoteLogSegment, *rest: object) -> None:
        kept(layout, segment, *rest)  # type: ignore[arg-type]
        name = f"{segment.start_offset:020d}-{encode_id(segment.id.segment_id)}.log"
        (path,) = world.tier.root.glob(f"kafka-tiered-storage/*/{name}")
        flip(path)

    monkeypatch.setattr(type(world.tier.layout), "complete", changes)
    with pytest.raises(CorruptError):
        world.clean()
    assert [] == world.publisher.announced


def test_each_wave_has_its_line_of_the_receipt(tmp_path: Path) -> None:
    lines: list[bytes] = []
    World(tmp_path).clean(receipt=lines)
    assert 1 == len(lines)


def test_sources_end_before_the_margin_a_hole_and_another_lineage(world: World) -> None:
    """AT-14."""
    segments = world.tier.served()
    found = world.sources(margin=8000)
    left = [each for each in segments if each.start_offset >= found.end]
    assert sum(each.size_bytes for each in left) >= 8000 > sum(e.size_bytes for e in left[1:])
    assert SourcesLimit(found.end, SourcesEnd.MARGIN) == found.limit
    assert () == world.sources(margin=1 << 30).segments
    assert len(segments) - 1 == len(world.sources(margin=0).segments)
    other = (LeaderEpoch(0, 0), LeaderEpoch(2, 131), LeaderEpoch(5, 300))
    strange = choose_sources(
        world.tier.cache, log_start=0, margin_bytes=0, lineage=other, now_ms=START_MS
    )
    assert strange.end <= 130
    hole = choose_sources(
        world.tier.cache, log_start=10**6, margin_bytes=0, lineage=LINEAGE, now_ms=START_MS
    )
    assert SourcesLimit(10**6, SourcesEnd.HOLE) == hole.limit


def served_but(story: AttachedTier, *missing: int) -> PartitionCache:
    """Return what brokers know of the remote tier when some of its segments were never copied."""
    cache = PartitionCache()
    for number, segment in enumerate(story.served()):
        if number not in missing:
            assert cache.apply(replace(segment, state=STARTED)) is None
            assert cache.apply(updated(segment, segment.state)) is None
    return cache


def test_a_hole_below_the_margin_is_what_ends_sources_not_the_margin(world: World) -> None:
    segments = world.tier.served()
    hole = segments[3]
    cache = served_but(world.tier, 3)

    def choose(margin: int) -> Sources:
        return choose_sources(
            cache, log_start=0, margin_bytes=margin, lineage=LINEAGE, now_ms=START_MS
        )

    behind = sum(each.size_bytes for each in segments[4:])
    for margin in (0, 1, behind):
        found = choose(margin)
        assert SourcesLimit(hole.start_offset, SourcesEnd.HOLE) == found.limit
        assert found.end < hole.start_offset
    # One byte more, and the margin begins before the hole.
    found = choose(behind + 1)
    assert SourcesLimit(found.end, SourcesEnd.MARGIN) == found.limit


def test_a_hole_in_front_of_the_last_segment_is_reported_where_that_is_all_of_the_margin(
    world: World,
) -> None:
    segments = world.tier.served()
    cache = served_but(world.tier, len(segments) - 2)
    found = choose_sources(cache, log_start=0, margin_bytes=0, lineage=LINEAGE, now_ms=START_MS)
    assert SourcesLimit(segments[-2].start_offset, SourcesEnd.HOLE) == found.limit


def test_another_lineage_below_the_margin_is_what_ends_sources(world: World) -> None:
    other = (LeaderEpoch(0, 0), LeaderEpoch(2, 131), LeaderEpoch(5, 300))
    found = choose_sources(
        world.tier.cache, log_start=0, margin_bytes=1, lineage=other, now_ms=START_MS
    )
    assert SourcesEnd.OTHER_LINEAGE is found.limit.why
    assert found.end <= found.limit.offset <= 130


def test_a_segment_that_delete_records_cut_stays_and_ends_no_round(world: World) -> None:
    """Newer epoch files begin at the log start; they know nothing of where the segment began."""
    cut, following, *_ = world.tier.served()
    assert cut.end_offset < LINEAGE[1].start_offset
    start = cut.start_offset + 1
    lineage = (LeaderEpoch(0, start), *LINEAGE[1:])
    found = choose_sources(
        world.tier.cache, log_start=start, margin_bytes=8000, lineage=lineage, now_ms=START_MS
    )
    assert following.id == found.segments[0].newest.id
    assert SourcesEnd.MARGIN == found.limit.why


def hollow_world(root: Path) -> World:
    """Return a tier of which a round leaves more than 20 segments without a record."""
    log = LogBuilder(root / "logs" / "t-0", TOPIC)
    for number in range(1200):
        log.now_ms += 1
        value = b"%d" % number + b"x" * 90
        log.append(NewRecord(b"k%d" % (number % 7), value, log.now_ms))
    log.finish()
    world = World(root / "other", count=1)
    world.tier = AttachedTier(root / "tier", LINEAGE[:1])
    world.publisher = AtOnce(world.tier)
    world.tier.copy(log.directory)
    return world


def test_segments_of_which_nothing_stays_become_one(tmp_path: Path) -> None:
    """A reader would give up on more than ten answers without a record in a row."""
    world = hollow_world(tmp_path)
    sources = choose_sources(
        world.tier.cache, log_start=0, margin_bytes=8000, lineage=LINEAGE[:1], now_ms=START_MS
    )  # fmt: skip
    assert len(sources.segments) > 20
    before, segments = world.tier.read().records(), world.tier.served()
    done = world.clean(TOPIC, lineage=LINEAGE[:1]).end_offset or 0
    assert by_key_law(before, done) == world.tier.read().records()
    made = [each for each in world.tier.served() if each.broker_id < 0]
    assert [True, False] == [each.max_timestamp_ms < 0 for each in made]
    check_servable(world, segments, done)
    world.publisher.collect()
    assert {each.id.segment_id for each in world.tier.served()} == world.tier.ids()
    assert [] == world.tier.own()


@pytest.mark.parametrize("joins", [0, 1])
def test_a_process_that_is_overtaken_while_segments_become_one_leaves_nothing(
    tmp_path: Path, joins: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who holds the partition then has removed what was there, and the word of it; what is
    written after that would never be found. Of several that are joined the earlier ones go, too."""
    monkeypatch.setattr("keeplast.attach.rounds.hollow.SOURCES_MAX", 8)
    world = hollow_world(tmp_path)
    before, ids = world.tier.read().records(), world.tier.ids()
    layout = world.tier.layout
    kept, join = type(layout).complete, hollow._join
    made: list[int] = []

    def joining(*args: Any) -> StagedGroup:
        made.append(len(made))
        return join(*args)

    def overtaken(self: LocalStorage, segment: RemoteLogSegment, *rest: Any) -> bytes | None:
        done = kept(self, segment, *rest)
        if len(made) == joins + 1:
            # The log and the word of it are gone; what lies next to it is written all the same.
            (log,) = world.tier.root.rglob(f"*-{encode_id(segment.id.segment_id)}.log")
            log.unlink()
            self.delete_own(work_name(segment.id))
            raise FileNotFoundError(2, "No such file or directory", str(log))
        return done

    monkeypatch.setattr("keeplast.attach.rounds.hollow._join", joining)
    monkeypatch.setattr(type(layout), "complete", overtaken)
    with pytest.raises((FileNotFoundError, CompactionError)):
        world.clean(TOPIC, lineage=LINEAGE[:1])
    assert joins + 1 == len(made)
    assert ids == world.tier.ids()
    assert [] == world.tier.own()
    assert before == world.tier.read().records()


def test_no_output_has_more_sources_than_a_batch_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AT-33: small segments of a quiet topic, which a large segment.bytes would all join."""
    monkeypatch.setattr("keeplast.attach.rounds.attached_place.SOURCES_MAX", 3)
    world = World(tmp_path)
    before, segments = world.tier.read().records(), world.tier.served()
    done = world.clean(replace(TOPIC, segment_bytes=1 << 30)).end_offset or 0
    assert by_key_law(before, done) == world.tier.read().records()
    check_servable(world, segments, done)
    (swap,) = world.publisher.swaps
    assert -(-len(swap.sources) // 3) == len(swap.outputs)


def test_an_upload_over_an_output_is_not_clean(world: World) -> None:
    world.clean()
    outputs = [each for swap in world.publisher.swaps for each in swap.outputs]
    assert overlaid_from(world.tier.cache, outputs, 0) is None
    over = outputs[1]
    again = replace(
        over, id=dataclasses.replace(over.id, segment_id=bytes([9]) * 16), broker_id=2,
        end_offset=over.end_offset + 1,
    )  # fmt: skip
    world.tier.upload(again)
    assert over.start_offset == overlaid_from(world.tier.cache, outputs, 0)
    assert overlaid_from(world.tier.cache, outputs[:1], 0) is None
    assert overlaid_from(world.tier.cache, outputs, over.start_offset) == over.start_offset


def test_an_output_cut_by_the_log_start_leaves_later_offsets_clean(world: World) -> None:
    world.clean()
    outputs = [each for swap in world.publisher.swaps for each in swap.outputs]
    again = replace(
        outputs[1], id=dataclasses.replace(outputs[1].id, segment_id=bytes([9]) * 16), broker_id=2
    )
    world.tier.upload(again)
    assert overlaid_from(world.tier.cache, outputs, again.start_offset + 1) is None


class Elected:
    """A log of which all but the end was copied and compacted, and then another leader came."""

    def __init__(self, root: Path, seed: int = 1) -> None:
        """Leave four closed segments to the new leader."""
        self.world = World(root, seed=seed, count=400)
        self.directory = self.world.directory
        bases = sorted(int(path.name[:20]) for path in self.directory.glob("*.log"))
        self.raw = self.world.tier.read().records()
        self.world.tier = AttachedTier(root / "elected", LINEAGE)
        self.world.publisher = AtOnce(self.world.tier)
        for base, following in pairwise(bases[:-4]):
            self.world.tier.copy_one(self.directory, base, following - 1)
        self.world.clean(margin=4000)
        self.outputs = [each for swap in self.world.publisher.swaps for each in swap.outputs]
        self.bases = bases

    def upload(self, first: int) -> None:
        """Let the new leader copy from ``first`` on, over what was there, and then the rest."""
        self.world.tier.copy_over(self.directory, first, self.bases[-3] - 1)
        for base, following in pairwise(self.bases[-3:]):
            self.world.tier.copy_one(self.directory, base, following - 1)

    def batch_in(self, segment: RemoteLogSegment, place: float) -> int:
        """Return where one of the raw batches of a segment begins."""
        found = [
            batch.base_offset
            for path in sorted(self.directory.glob("*.log"))
            for batch in read_batches(path.read_bytes())
            if segment.start_offset < batch.base_offset <= segment.end_offset
        ]
        return found[int(place * (len(found) - 1))]


@pytest.mark.rotates(5)
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("place", [-1, 0.0, 0.5, 1.0, 2])
def test_an_upload_over_a_round_by_a_new_leader_is_taken_by_the_next(
    tmp_path: Path, seed: int, place: float
) -> None:
    """R-4, AT-12: it begins inside an output, where one begins, or before one that is hidden."""
    elected = Elected(tmp_path, seed)
    world, last = elected.world, elected.outputs[-1]
    if place < 0:
        first = elected.batch_in(elected.outputs[-2], 0.5)
    elif place > 1:
        first = last.start_offset
    else:
        first = elected.batch_in(last, place)
    elected.upload(first)
    before, segments = world.tier.read().records(), world.tier.served()
    assert [] == world.tier.cache.holes(0)
    assert before[-1].offset > elected.bases[-2]
    done = world.clean(margin=0).end_offset or 0
    assert elected.bases[-3] <= done
    assert by_key_law(elected.raw, done) == world.tier.read().records()
    check_servable(world, segments, done)
    assert [] == [each for each in world.tier.served() if each.broker_id > 0][:-2]
    world.publisher.collect()
    assert {each.id.segment_id for each in world.tier.served()} == world.tier.ids()
    assert by_key_law(elected.raw, done) == world.tier.read().records()


@pytest.mark.rotates(4)
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("place", [-1, 0.0, 0.5, 1.0])
def test_a_segment_served_from_a_later_epoch_on_is_taken_from_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, place: float
) -> None:
    """Seeds 948 and 7470: a copy over outputs; the one that it begins in is announced again."""
    whole = World(tmp_path / "whole", seed=seed)
    elected = whole.tier.served()[4].start_offset
    lineage = (LeaderEpoch(0, 0), LeaderEpoch(2, elected))
    monkeypatch.setattr("tests.unit.attach.test_attached_rounds.LINEAGE", lineage)
    world = World(tmp_path, seed=seed)
    raw = world.tier.read().records()
    world.clean(TOPIC, lineage=lineage)
    world.publisher.collect()
    before, behind = [
        each for each in world.tier.served() if elected in (each.start_offset, each.end_offset + 1)
    ]
    firsts = [
        batch.base_offset
        for path in sorted(world.directory.glob("*.log"))
        for batch in read_batches(path.read_bytes())
        if before.start_offset < batch.base_offset < elected
    ]
    first = before.start_offset if place < 0 else firsts[int(place * (len(firsts) - 1))]
    copied = world.tier.copy_over(world.directory, first, behind.end_offset)
    world.tier.announce(updated(before, RemoteLogSegmentState.COPY_SEGMENT_FINISHED))
    assert [] == world.tier.cache.holes(0)
    assert (0, first) not in [
        (each.epoch, each.start_offset)
        for each in world.tier.cache.served()
        if each.segment.id == copied.id
    ]
    segments = world.tier.served()
    world.publisher.cleaned_to = first
    done = world.clean(TOPIC, lineage=lineage).end_offset or 0
    assert done > behind.end_offset
    assert by_key_law(raw, done) == world.tier.read().records()
    check_servable(world, segments, done)
    assert not {before.id, behind.id, copied.id} & {each.id for each in world.tier.served()}
    world.publisher.collect()
    assert {each.id.segment_id for each in world.tier.served()} == world.tier.ids()


@pytest.mark.rotates(3)
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("joins", [True, False])
def test_an_output_around_a_late_copy_is_written_again_and_ends_it(
    tmp_path: Path, seed: int, joins: bool
) -> None:
    """AT-10: a late copy ends inside of an output, also of one of which nothing goes."""
    world = World(tmp_path, seed=seed)
    world.clean()
    before = world.tier.read().records()
    outputs = [each for swap in world.publisher.swaps for each in swap.outputs]
    world.publisher.collect()
    longer = max(outputs, key=lambda each: each.size_bytes)
    batches = [
        batch
        for path in sorted(world.directory.glob("*.log"))
        for batch in read_batches(path.read_bytes())
        if longer.start_offset < batch.base_offset and batch.last_offset < longer.end_offset
    ]
    late = world.tier.copy_over(
        world.directory, batches[len(batches) // 3].base_offset,
        batches[len(batches) // 2].last_offset,
    )  # fmt: skip
    assert [] != world.tier.cache.holes(0)
    (source,) = [each for each in world.sources().segments if each.late]
    assert (longer.id, (late.id,)) == (source.newest.id, tuple(each.id for each in source.late))
    world.publisher.cleaned_to = late.start_offset
    world.clean(MERGING if joins else replace(MERGING, segment_bytes=14))
    assert [] == world.tier.cache.holes(0)
    assert before == world.tier.read().records()
    assert not {longer.id, late.id} & {each.id for each in world.tier.served()}
    world.publisher.collect()
    assert {each.id.segment_id for each in world.tier.served()} == world.tier.ids()


def test_a_part_is_measured_by_its_batches_alone(tmp_path: Path) -> None:
    """R-4: where a segment begins inside a batch of another, nothing is concluded."""
    elected = Elected(tmp_path)
    tier, last = elected.world.tier, elected.outputs[-1]
    (batch, *_) = [
        each
        for each in read_batches(tier.log_of(last))
        if each.last_offset > each.base_offset > last.start_offset
    ]
    elected.upload(batch.base_offset)
    over = max(tier.served(), key=lambda each: each.start_offset == batch.base_offset)
    found = choose_sources(
        tier.cache, log_start=0, margin_bytes=0, lineage=LINEAGE, now_ms=START_MS
    )
    (glued,) = [each for each in found.segments if len(each.parts) > 1]
    assert [last.id, over.id] == [each.id for each in glued.parts]
    shifted = replace(glued, parts=(last, replace(over, start_offset=batch.base_offset + 1)))
    strange = replace(found, segments=(*found.segments[: found.segments.index(glued)], shifted))
    measured = measure_sources(tier.layout, strange)
    assert SourcesLimit(glued.start_offset, SourcesEnd.SHADOWED) == measured.limit
    assert glued.start_offset == measured.end
    assert glued not in measured.segments


def test_a_log_of_one_margin_says_so(world: World) -> None:
    world.publisher.cleaned_to = world.sources().end
    report = world.clean(force=False)
    words = f"nothing to clean: from {world.sources().end} on the newest segments stay"
    assert (report.reason or "").startswith(words)


def test_a_snapshot_travels_as_it_is(world: World) -> None:
    world.clean()
    made = [each for each in world.tier.served() if each.broker_id < 0]
    for each in made:
        data = world.tier.layout.open(each).read_auxiliary(AuxiliaryFile.SNAPSHOT)
        assert producer_snapshot.decode(data or b"")
