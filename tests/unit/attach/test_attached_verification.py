"""``verify`` of a live cluster holds on what rounds leave, and names each fault put into it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.attach.rules.sources import effective_log
from keeplast.attach.rules.tombstone_removal import CHECK_MS_DEFAULT, LOOKS
from keeplast.cluster.live_cluster import OffsetRange
from keeplast.cluster.metadata_cache import PartitionCache
from keeplast.cluster.topic_records import ConsumedRecord
from keeplast.errors import ConflictError
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.format.message_set import read_batches
from keeplast.format.remote_log_metadata import (
    RemoteLogSegment,
    RemoteLogSegmentId,
    RemoteLogSegmentState,
)
from keeplast.model.document import Verdict
from keeplast.model.topic_config import Strategy
from keeplast.survey.receipt_book import RoundReceipt, parse_entry
from tests.support.attached_tier import AttachedTier
from tests.support.attached_world import CLUSTER_ID, PARTITION, AttachedWorld, moved
from tests.support.flipped import flip
from tests.support.heard_calls import appending
from tests.support.verified_world import Consumers, VerifiedWorld, broken, edit, with_value, without
from tests.unit.attach.test_attached_rounds import LINEAGE, MERGING, write_history

LOCAL_MS = 1_000 + LOOKS * CHECK_MS_DEFAULT
"""How long local segments stay in the model cluster."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[VerifiedWorld]:
    """A partition of which nothing is compacted."""
    with closing(VerifiedWorld(tmp_path, write_history(tmp_path / "logs"), LINEAGE)) as made:
        yield made


@pytest.fixture
def cleaned(world: VerifiedWorld) -> VerifiedWorld:
    """The same, compacted; its sources wait for their grace."""
    assert not world.clean(MERGING).skipped
    return world


def test_it_holds_before_and_after_each_step_of_two_rounds(world: VerifiedWorld) -> None:
    untouched = world.verify(MERGING)
    assert Verdict.HOLDS is untouched.verdict, untouched
    assert any("has not attached it" in each for each in untouched.notes)
    compared = []
    for margin in (30_000, 8000):
        world.clean(MERGING, margin=margin)
        for is_collected in (False, True):
            if is_collected:
                world.collect()
            report = world.verify(MERGING)
            assert Verdict.HOLDS is report.verdict, report
            compared.append("were compared" in report.notes[-1])
    assert [True, False, True, False] == compared


def test_two_rounds_that_wait_are_held_against_what_was_there_first(world: VerifiedWorld) -> None:
    world.clean(MERGING, margin=30_000)
    world.clean(MERGING)
    report = world.verify(MERGING)
    assert Verdict.HOLDS is report.verdict, report
    first = world.tier.served()[0]
    copied = (number.to_bytes(16, "big") for number in range(1, world.tier.copied + 1))
    ids = set(copied)
    raw = next(each for each in world.cluster.cache().segments if each.id.segment_id in ids)
    assert first.broker_id < 0
    path = world.file_of(raw)
    assert any(edit(path, b"\x06k%d" % n, b"\x06q%d" % n) for n in range(10, 30))
    assert ["removed"] == broken(world.verify(MERGING))


@pytest.mark.parametrize("strategy", [Strategy.OFFSET, Strategy.TIMESTAMP])
def test_it_holds_by_the_strategy_of_the_rounds(world: VerifiedWorld, strategy: Strategy) -> None:
    topic = replace(MERGING, strategy=strategy)
    world.clean(topic)
    report = world.verify(topic)
    assert Verdict.HOLDS is report.verdict, report


def test_it_holds_by_the_header_of_the_rounds_and_is_broken_by_any_other(tmp_path: Path) -> None:
    world = VerifiedWorld(tmp_path, write_history(tmp_path / "logs", versions=True), LINEAGE)
    try:
        by_header = replace(MERGING, strategy=Strategy.HEADER, strategy_header="ver")
        # What is raw ranks, too: the less there is of it, the more follows from what was compacted.
        world.clean(by_header, margin=1)
        report = world.verify(by_header)
        assert Verdict.HOLDS is report.verdict, report
        assert ["removed"] == broken(world.verify(MERGING))
        assert ["removed"] == broken(world.verify(replace(by_header, strategy_header="other")))
        world.collect()
        assert Verdict.HOLDS is world.verify(by_header).verdict
    finally:
        world.close()


def test_a_tombstone_or_marker_that_was_due_is_no_fault_and_one_that_was_not_is_a_finding(
    world: VerifiedWorld,
) -> None:
    first = world.clean(MERGING, margin=30_000).end_offset or 0
    world.collect()
    there = deletes(world, first)
    assert min(there) > 0
    # Twice: a marker gets its horizon in the round behind that which removed the last of its data.
    for margin in (18_000, 8000):
        world.world.clock.advance(MERGING.delete_retention_ms + LOCAL_MS)
        world.collect()
        assert not world.clean(MERGING, margin=margin).skipped
        report = world.verify(MERGING)
        assert Verdict.HOLDS is report.verdict, report
    left = deletes(world, first)
    assert 0 == left[0]
    assert left[1] < there[1]
    with sqlite3.connect(world.world.root / "decisions.db") as database:
        database.execute("UPDATE decisions SET expires_below = 0")
    report = world.verify(MERGING)
    assert ["removed"] == broken(report)
    assert "before its time" in str(report)


def deletes(world: VerifiedWorld, below: int) -> tuple[int, int]:
    """Return how many tombstones, and how many markers, are served below an offset."""
    tombstones = markers = 0
    for batch in world.tier.read().batches:
        for each in batch.records():
            if each.offset < below:
                markers += batch.is_control
                tombstones += each.value is None and not batch.is_control
    return tombstones, markers


def test_a_log_start_within_a_segment_cuts_what_is_compared(cleaned: VerifiedWorld) -> None:
    first = cleaned.compacted()[0]
    cleaned.cluster.log = replace(cleaned.cluster.log, start=first.start_offset + 7)
    report = cleaned.verify(MERGING)
    assert Verdict.HOLDS is report.verdict, report
    assert any(f"offsets {first.start_offset + 7} to" in each for each in report.notes)


def test_a_missing_object_is_a_finding(cleaned: VerifiedWorld) -> None:
    cleaned.collect()
    victim = cleaned.compacted()[0]
    cleaned.file_of(victim).unlink()
    report = cleaned.verify(MERGING)
    assert "objects" in broken(report)
    (found,) = report.check("objects").findings
    assert "missing" in found.problem
    assert victim.start_offset == found.offset
    assert Verdict.UNJUDGED is report.check("keys").verdict


def test_a_missing_object_is_a_finding_though_brokers_still_have_it(
    cleaned: VerifiedWorld,
) -> None:
    """A broker's cache hides it."""
    readable = cleaned.tier.read()
    cleaned.tier.read = lambda: readable  # type: ignore[method-assign]
    cleaned.file_of(cleaned.compacted()[0]).unlink()
    assert ["objects"] == broken(cleaned.verify(MERGING))


@pytest.mark.parametrize("kind", ["index", "timeindex", "snapshot", "leader_epoch_checkpoint"])
def test_a_missing_file_next_to_a_log_is_a_finding(cleaned: VerifiedWorld, kind: str) -> None:
    cleaned.file_of(cleaned.compacted()[0]).with_suffix(f".{kind}").unlink()
    assert ["objects"] == broken(cleaned.verify(MERGING))


def test_a_flipped_byte_is_a_finding(cleaned: VerifiedWorld) -> None:
    path = cleaned.file_of(cleaned.compacted()[-1])
    flip(path)
    report = cleaned.verify(MERGING)
    assert "objects" in broken(report)
    assert "position" in report.check("objects").findings[0].problem


def test_an_index_that_lies_is_a_finding(cleaned: VerifiedWorld) -> None:
    victim = max(cleaned.compacted(), key=lambda each: each.size_bytes)
    flip(cleaned.file_of(victim).with_suffix(".index"), 7)
    assert ["indexes"] == broken(cleaned.verify(MERGING))


def test_a_shorter_and_valid_object_is_a_finding(cleaned: VerifiedWorld) -> None:
    cleaned.collect()
    victim = max(cleaned.compacted(), key=lambda each: each.size_bytes)
    path = cleaned.file_of(victim)
    path.write_bytes(path.read_bytes()[: len(_first_batch(path.read_bytes()))])
    report = cleaned.verify(MERGING)
    assert "objects" in broken(report)
    assert "size" in report.check("objects").findings[0].problem


def _first_batch(data: bytes) -> bytes:
    return data[: 12 + int.from_bytes(data[8:12], "big")]


def test_a_record_that_went_though_its_key_has_no_later_one_is_a_finding(
    cleaned: VerifiedWorld,
) -> None:
    """What a defect of the cleaner would do: a source had a key that nothing served has."""
    waiting = cleaned.replaced()
    assert waiting
    assert any(
        edit(cleaned.file_of(each), b"\x06k%d" % n, b"\x06q%d" % n)
        for each in waiting[:2]
        for n in range(10, 30)
    )
    report = cleaned.verify(MERGING)
    assert ["removed"] == broken(report)


def test_a_superseded_record_that_is_served_is_a_finding(cleaned: VerifiedWorld) -> None:
    cleaned.collect()
    done = 0
    for each in cleaned.compacted():
        path = cleaned.file_of(each)
        done += any(
            edit(path, b"\x06k%d" % n, b"\x06k%d" % (n - 1)) for n in range(29, 10, -1)
        )  # fmt: skip
    assert done
    assert ["keys"] == broken(cleaned.verify(MERGING))


def test_records_that_consumers_lack_or_get_changed_are_findings(cleaned: VerifiedWorld) -> None:
    offset = _plain_offset(cleaned)
    cleaned.consumers.changes = without(offset)
    report = cleaned.verify(MERGING)
    assert ["records", "transactions"] == broken(report)
    assert offset == report.check("records").findings[0].offset
    cleaned.consumers.changes = with_value(offset, b"another")
    report = cleaned.verify(MERGING)
    assert ["records", "transactions"] == broken(report)
    assert "another value" in report.check("records").findings[0].problem


def _plain_offset(world: VerifiedWorld) -> int:
    """Return the offset of a record outside of transactions in what is compacted."""
    end = world.compacted()[-1].end_offset
    return next(
        record.offset
        for batch in world.tier.read().batches
        if not batch.is_control and not batch.is_transactional
        for record in batch.records()
        if record.offset <= end
    )


def test_a_raw_record_that_no_object_has_is_a_finding(world: VerifiedWorld) -> None:
    def more(given: list[ConsumedRecord], _: bool) -> list[ConsumedRecord]:
        there = {each.offset for each in given}
        before = next(each for each in given if each.offset + 1 not in there)
        added = replace(before, offset=before.offset + 1)
        return sorted([*given, added], key=lambda each: each.offset)

    world.consumers.changes = more
    assert "records" in broken(world.verify(MERGING))


def test_an_aborted_record_that_a_consumer_is_given_is_a_finding(world: VerifiedWorld) -> None:
    everything: list[list[ConsumedRecord]] = []

    def keep(given: list[ConsumedRecord], is_committed: bool) -> list[ConsumedRecord]:
        if not is_committed:
            everything.append(given)
        return everything[-1]

    world.consumers.changes = keep
    report = world.verify(MERGING)
    assert ["transactions"] == broken(report)
    assert "aborted records" in report.check("transactions").findings[0].problem


def test_a_committed_record_that_a_consumer_is_not_given_is_a_finding(world: VerifiedWorld) -> None:
    readable = world.tier.read()
    committed = {each.offset for each in readable.records()}
    offset = next(
        record.offset
        for batch in readable.batches
        if batch.is_transactional and not batch.is_control
        for record in batch.records()
        if record.offset in committed
    )
    world.consumers.changes = lambda given, is_committed: [
        each for each in given if not is_committed or each.offset != offset
    ]
    report = world.verify(MERGING)
    assert ["transactions"] == broken(report)
    assert "are not given" in report.check("transactions").findings[0].problem


def test_records_that_brokers_still_have_locally_are_no_fault(world: VerifiedWorld) -> None:
    before = world.tier.read()
    world.clean(MERGING)
    world.tier.read = lambda: before  # type: ignore[method-assign]
    report = world.verify(MERGING)
    assert [] == broken(report)
    check = report.check("records")
    assert Verdict.UNJUDGED is check.verdict
    assert "local.retention" in check.reasons[0]


def test_a_swap_that_the_cluster_lost_is_a_finding(cleaned: VerifiedWorld) -> None:
    batch = cleaned.cluster.batches[-1]
    del cleaned.cluster.values[batch.start :]
    cleaned.tier.cache = cleaned.cluster.cache()
    report = cleaned.verify(MERGING)
    assert "swaps" in broken(report)
    problems = " ".join(each.problem for each in report.check("swaps").findings)
    assert "still serve a segment that was replaced" in problems
    assert "do not serve what was published" in problems


def test_a_mark_that_the_decision_log_does_not_know_is_a_finding(world: VerifiedWorld) -> None:
    name = RemoteLogSegmentId(PARTITION, bytes(range(1, 17)))
    foreign = replace(world.world.segment(0, 5, b"x"), broker_id=-1001, id=name)
    world.cluster.announce(foreign)
    report = world.verify(MERGING)
    assert ["swaps"] == broken(report)
    assert "does not know" in report.check("swaps").findings[0].problem


def test_a_hole_is_a_finding(world: VerifiedWorld) -> None:
    victim = world.tier.served()[1]
    world.cluster.announce(moved(victim, RemoteLogSegmentState.DELETE_SEGMENT_STARTED))
    world.tier.cache = world.cluster.cache()
    report = world.verify(MERGING)
    assert "served" in broken(report)
    assert victim.start_offset == report.check("served").findings[0].offset


def test_a_partition_that_changed_while_it_was_read_is_read_again(cleaned: VerifiedWorld) -> None:
    """Somebody collects and deletes a source while it is compared, or swaps what is read."""
    left = [1]

    def swap_once() -> None:
        if left:
            left.clear()
            cleaned.clean(MERGING, margin=2000)
            cleaned.collect()

    cleaned.consumers.before_reading = swap_once
    report = cleaned.verify(MERGING)
    assert [] == broken(report), report


def test_a_partition_that_changes_whenever_it_is_read_is_not_judged(
    cleaned: VerifiedWorld,
) -> None:
    def moves() -> None:
        cleaned.cluster.log = replace(cleaned.cluster.log, start=cleaned.cluster.log.start + 1)

    cleaned.consumers.before_reading = moves
    cleaned.file_of(cleaned.compacted()[-1]).unlink()
    with pytest.raises(ConflictError, match="verify again"):
        cleaned.verify(MERGING)


@pytest.mark.parametrize("place", [0.3, 1.0])
def test_an_upload_over_a_round_by_a_new_leader_is_no_fault(tmp_path: Path, place: float) -> None:
    """R-4; what the next round replaces lies over one another, and cannot be compared."""
    directory = write_history(tmp_path / "logs")
    world = VerifiedWorld(tmp_path, directory, LINEAGE, left=4)
    world.clean(MERGING, margin=2000)
    world.collect()
    last, bases = world.compacted()[-1], world.bases
    batches = [
        batch.base_offset
        for path in sorted(directory.glob("*.log"))
        for batch in read_batches(path.read_bytes())
        if last.start_offset < batch.base_offset <= last.end_offset
    ]
    world.tier.copy_over(directory, batches[int(place * (len(batches) - 1))], bases[-3] - 1)
    for base, following in pairwise(bases[-3:]):
        world.tier.copy_one(directory, base, following - 1)
    report = world.verify(MERGING)
    assert [] == broken(report), report
    assert not world.clean(MERGING, margin=0).skipped
    report = world.verify(MERGING)
    assert [] == broken(report), report
    assert "lay over one another" in report.check("removed").reasons[0]
    world.collect()
    report = world.verify(MERGING)
    assert Verdict.HOLDS is report.verdict, report
    world.close()


def test_nothing_is_written_by_it(cleaned: VerifiedWorld) -> None:
    root = cleaned.tier.root
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    values = list(cleaned.cluster.values)
    cleaned.verify(MERGING)
    assert before == {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    assert values == cleaned.cluster.values


def test_offsets_are_read_in_the_epoch_that_the_log_gives_them(tmp_path: Path) -> None:
    """A leader that was cut off copied offsets that another one wrote newly."""
    world = AttachedWorld(tmp_path, segments=0)
    cache = PartitionCache()

    def serve(segment: RemoteLogSegment) -> RemoteLogSegment:
        assert cache.apply(segment) is None
        assert cache.apply(moved(segment, RemoteLogSegmentState.COPY_SEGMENT_FINISHED)) is None
        return segment

    first = serve(world.segment(0, 9, b"", (0, 0)))
    stale = serve(world.segment(10, 29, b"", (0, 10)))
    newer = serve(world.segment(20, 39, b"", (1, 20)))
    lineage = [LeaderEpoch(0, 0), LeaderEpoch(1, 20)]
    found = effective_log(cache, lineage, 5)
    assert [(5, 9, first.id), (10, 19, stale.id), (20, 39, newer.id)] == [
        (each.start, each.end, each.segment.id) for each in found.ranges
    ]
    assert () == found.holes
    assert ((20, 29),) == found.doubtful
    world.close()


def test_an_empty_remote_tier_is_no_fault(tmp_path: Path) -> None:
    world = VerifiedWorld.__new__(VerifiedWorld)
    world.world = AttachedWorld(tmp_path, segments=0)
    world.cluster = world.world.cluster
    world.cluster.log = OffsetRange(0, 3)
    world.tier = AttachedTier(tmp_path / "tier")  # type: ignore[assignment]
    world.consumers = Consumers(world)
    report = world.verify(MERGING)
    assert Verdict.HOLDS is report.verdict
    assert ("nothing of it is in the remote tier",) == report.notes
    world.close()


def receipts_of(lines: list[bytes]) -> list[RoundReceipt]:
    found = [parse_entry(line) for line in lines]
    assert all(isinstance(each, RoundReceipt) for each in found)
    return [each for each in found if isinstance(each, RoundReceipt)]


def test_the_rounds_that_what_is_served_has_come_of_are_named(world: VerifiedWorld) -> None:
    lines: list[bytes] = []
    world.clean(MERGING, margin=30_000, receipt=appending(lines))
    (first,) = receipts_of(lines)
    report = world.verify(MERGING, [first])
    held = world.world.log().partitions(CLUSTER_ID)[0]
    assert (Verdict.HOLDS, (first.name,)) == (report.verdict, report.rounds)
    assert report.judged_by is not None
    assert ("verify of a cluster", held.epoch) == (report.judged_by.by, report.judged_by.epoch)
    assert f"clean below offset {report.judged_by.clean_to}:" in " ".join(report.notes)
    world.clean(MERGING, receipt=appending(lines))
    both = receipts_of(lines)
    names = (first.name, both[-1].name)
    assert names == world.verify(MERGING, both).rounds
    kept = {each: world.file_of(each).read_bytes() for each in world.replaced()}
    assert any(
        edit(world.file_of(each), b"\x06k%d" % n, b"\x06q%d" % n)
        for each in kept
        for n in range(10, 30)
    )
    # It is not known which of the two let a key go.
    report = world.verify(MERGING, both)
    assert (["removed"], names) == (broken(report), report.rounds)
    for each, data in kept.items():
        world.file_of(each).write_bytes(data)
    for each in world.compacted():
        world.file_of(each).unlink()
    # What the first round wrote was replaced, and is not what is missing.
    report = world.verify(MERGING, both)
    assert (Verdict.BROKEN, (both[-1].name,)) == (report.verdict, report.rounds)


def test_a_round_whose_object_is_missing_is_named_and_one_of_other_bytes_is_not(
    world: VerifiedWorld,
) -> None:
    lines: list[bytes] = []
    world.clean(MERGING, receipt=appending(lines))
    (found,) = receipts_of(lines)
    others = replace(
        found, attempt="another",
        outputs=tuple(replace(each, crc32c=(each.crc32c or 0) ^ 1) for each in found.outputs),
    )  # fmt: skip
    assert (found.name,) == world.verify(MERGING, [found, others]).rounds
    assert () == world.verify(MERGING, [others]).rounds
    for each in world.compacted():
        world.file_of(each).unlink()
    report = world.verify(MERGING, [others, found])
    assert (Verdict.BROKEN, (found.name,)) == (report.verdict, report.rounds)
