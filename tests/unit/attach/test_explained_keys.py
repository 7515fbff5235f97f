"""What is said of a key in a live cluster's remote tier is what lies there, and comes true."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.attach.answers.explain import RemoteLog, explain_attached
from keeplast.attach.rounds.round import RoundWish, clean_to
from keeplast.cleaner.reasons import SourcesEnd, SourcesLimit, TransactionLimit
from keeplast.errors import ConflictError, InvalidError, RefusedError
from keeplast.format.message_set import read_batches
from keeplast.inspect.explain import AskedKey
from keeplast.inspect.fates import Outlook, Stay
from keeplast.inspect.remains import SearchedKey
from keeplast.inspect.traces import TraceKind, find_attached_trace
from keeplast.log.append import NewRecord
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import Strategy, TopicConfig
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN, Workspace
from keeplast.tier.state.attached import AttachedName
from tests.support.attached_world import CLUSTER_ID, PARTITION
from tests.support.flipped import flip
from tests.support.log_builder import LogBuilder
from tests.support.verified_world import VerifiedWorld
from tests.unit.attach.test_attached_rounds import LINEAGE, MERGING, TOPIC, write_history

KEYS = [b"k%d" % number for number in range(30)]
GRACE_MS = 1000
MARGIN = 8000


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_history(tmp_path_factory.mktemp("history"), count=140)


@pytest.fixture
def world(tmp_path: Path, history: Path) -> Iterator[VerifiedWorld]:
    """A partition of which nothing is compacted."""
    with closing(VerifiedWorld(tmp_path, history, LINEAGE)) as made:
        yield made


def explained(
    world: VerifiedWorld, key: bytes | None = None, topic: TopicConfig = MERGING, *,
    offset: int | None = None, workspace: Workspace | None = None,
) -> SearchedKey:  # fmt: skip
    cache, log = world.cluster.cache(), world.world.log()
    held = log.find(AttachedName(CLUSTER_ID, PARTITION))
    remote = RemoteLog(
        partition=TopicPartition(PARTITION.topic, PARTITION.partition), ends=world.cluster.log,
        cache=cache, cleaned_to=0 if held is None else clean_to(log, held, cache, 0),
        decisions=() if held is None else log.decisions(held),
    )  # fmt: skip
    return explain_attached(
        world.tier.layout, remote, RoundWish(topic=topic, margin_bytes=MARGIN), world.world.clock,
        AskedKey(key, offset), workspace or Workspace(MEMORY_BYTES_MIN), lambda _: None,
        grace_ms=GRACE_MS,
    )  # fmt: skip


def offsets(answer: SearchedKey, *outlooks: Outlook) -> list[int]:
    return [
        each.record.offset
        for each in answer.found.records
        if not outlooks or each.fate.outlook in outlooks
    ]


def copies(answer: SearchedKey) -> list[int]:
    return [record.offset for each in answer.remains for record in each.records]


def served(world: VerifiedWorld) -> dict[bytes | None, list[int]]:
    """Return the offsets of each key that brokers serve."""
    found: dict[bytes | None, list[int]] = {}
    for batch in world.tier.read().batches:
        for each in () if batch.is_control else batch.records():
            found.setdefault(each.key, []).append(each.offset)
    return found


def replaced(world: VerifiedWorld) -> dict[bytes | None, list[int]]:
    """Return the offsets of each key in what waits to be collected."""
    found: dict[bytes | None, list[int]] = {}
    for segment in world.replaced():
        for batch in read_batches(world.tier.log_of(segment)):
            for each in () if batch.is_control else batch.records():
                found.setdefault(each.key, []).append(each.offset)
    return found


@pytest.mark.parametrize("strategy", [Strategy.OFFSET, Strategy.TIMESTAMP])
def test_records_that_are_to_go_go_with_the_next_round_and_no_others(
    world: VerifiedWorld, strategy: Strategy
) -> None:
    topic, workspace = replace(MERGING, strategy=strategy), Workspace(MEMORY_BYTES_MIN)
    before = served(world)
    answer = {key: explained(world, key, topic, workspace=workspace) for key in KEYS}
    assert before == {key: offsets(each) for key, each in answer.items()}
    assert not any(copies(each) for each in answer.values())
    assert not world.clean(topic, margin=MARGIN).skipped
    after = served(world)
    goes = {key: offsets(each, Outlook.GOES_NEXT) for key, each in answer.items()}
    gone = {key: [n for n in before[key] if n not in after.get(key, [])] for key in KEYS}
    assert goes == gone
    assert any(gone.values())
    waiting = replaced(world)
    published = world.world.clock.now_ms()
    for key in KEYS:
        again = explained(world, key, topic, workspace=workspace)
        assert after.get(key, []) == offsets(again)
        assert not offsets(again, Outlook.GOES_NEXT)
        assert waiting.get(key, []) == copies(again)
        times = {each.until_ms for each in again.remains if each.records}
        assert all(at is not None and at <= published + GRACE_MS for at in times)
    world.collect()
    assert not any(copies(explained(world, key, topic, workspace=workspace)) for key in KEYS)


def test_a_tombstone_that_wins_stays_and_that_is_said(world: VerifiedWorld) -> None:
    world.clean(MERGING, margin=MARGIN)
    kinds: dict[bool, set[TraceKind]] = {True: set(), False: set()}
    workspace = Workspace(MEMORY_BYTES_MIN)
    for key in KEYS:
        answer = explained(world, key, workspace=workspace)
        winner = answer.found.winner
        assert winner is not None, key
        assert not winner.fate.has_horizon
        kinds[winner.record.is_tombstone].add(
            find_attached_trace(
                answer.found, is_in_replaced=bool(copies(answer)), is_partly_unseen=True
            ).kind
        )
    assert {True: {TraceKind.TOMBSTONE_STAYS}, False: {TraceKind.VALUE_WINS}} == kinds


def test_records_of_the_newest_segments_go_at_no_known_time(world: VerifiedWorld) -> None:
    answer = [explained(world, key) for key in KEYS[:6]]
    later = [
        each.fate
        for one in answer
        for each in one.found.records
        if each.fate.outlook is Outlook.GOES_LATER
    ]
    assert later
    for each in later:
        assert each.from_ms is None
        # A transaction whose end lies in the newest segments is open to a round, too.
        assert isinstance(each.limit, TransactionLimit) or (
            isinstance(each.limit, SourcesLimit) and SourcesEnd.MARGIN is each.limit.why
        )


def test_a_key_that_was_never_written_is_in_no_searched_object(world: VerifiedWorld) -> None:
    answer = explained(world, b"nobody")
    assert not answer.found.records
    end = world.tier.served()[-1].end_offset + 1
    assert any(f"offsets {end} to {world.cluster.log.end - 1}" in each for each in answer.unseen)
    unseen = find_attached_trace(answer.found, is_partly_unseen=bool(answer.unseen))
    assert (TraceKind.UNSEEN, None) == (unseen.kind, unseen.by_ms)
    world.cluster.log = replace(world.cluster.log, end=end)
    answer = explained(world, b"nobody")
    assert not answer.unseen
    assert TraceKind.IN_REPLACED is find_attached_trace(answer.found, is_in_replaced=True).kind


def test_an_offset_asks_about_its_record(world: VerifiedWorld) -> None:
    key, (first, *_) = next((key, found) for key, found in served(world).items() if key)
    assert key == explained(world, offset=first).found.key
    with pytest.raises(InvalidError, match="there is no record at this offset"):
        explained(world, offset=world.cluster.log.end + 7)


def test_a_segment_that_the_log_start_has_cut_stays(world: VerifiedWorld) -> None:
    first = world.tier.served()[0]
    start = first.start_offset + 7
    world.cluster.log = replace(world.cluster.log, start=start)
    stays: set[Stay | None] = set()
    for key in KEYS:
        for each in explained(world, key).found.records:
            if each.record.offset > first.end_offset:
                continue
            assert each.fate.outlook in (Outlook.STAYS, Outlook.WINS)
            is_below = each.record.offset < start
            expected = Stay.BELOW_LOG_START if is_below else Stay.CUT_SEGMENT
            assert each.fate.stay is (expected if each.fate.outlook is Outlook.STAYS else None)
            stays.add(each.fate.stay)
    assert {Stay.BELOW_LOG_START, Stay.CUT_SEGMENT} <= stays


def test_records_below_the_log_start_are_found(world: VerifiedWorld) -> None:
    second = world.tier.served()[1]
    lost = served(world)
    world.cluster.log = replace(world.cluster.log, start=second.start_offset)
    for key in KEYS[:8]:
        answer = explained(world, key)
        assert [n for n in lost[key] if n < second.start_offset] == copies(answer)
        assert {None} >= {each.until_ms for each in answer.remains}


def test_each_record_is_shown_once_where_a_new_leader_uploaded_over_the_end(
    world: VerifiedWorld, history: Path
) -> None:
    *_, last, newest = world.tier.served()
    batches = list(read_batches(world.tier.log_of(last)))
    first = batches[len(batches) // 2].base_offset
    world.tier.copy_over(history, first, newest.end_offset)
    expected = served(world)
    shadowed = {key: [n for n in found if first <= n] for key, found in expected.items()}
    for key in KEYS[:10]:
        answer = explained(world, key)
        assert expected[key] == offsets(answer)
        assert set(shadowed[key]) == set(copies(answer))


def test_a_missing_served_object_is_reported_with_the_partition(world: VerifiedWorld) -> None:
    world.file_of(world.tier.served()[1]).unlink()
    with pytest.raises(ConflictError, match=r"missing.*orders-0"):
        explained(world, KEYS[0])


def test_a_replaced_object_that_is_gone_meanwhile_is_left_out(world: VerifiedWorld) -> None:
    world.clean(MERGING, margin=MARGIN)
    for each in world.replaced():
        world.file_of(each).unlink()
    assert not copies(explained(world, KEYS[0]))


def test_a_damaged_replaced_object_is_reported_as_not_searched(world: VerifiedWorld) -> None:
    world.clean(MERGING, margin=MARGIN)
    flip(world.file_of(world.replaced()[0]), 70)
    unseen = explained(world, KEYS[0]).unseen
    assert any("which brokers read no more" in each for each in unseen)


def test_a_partition_of_which_nothing_is_read_is_refused(world: VerifiedWorld) -> None:
    end = world.tier.served()[-1].end_offset + 1
    world.cluster.log = replace(world.cluster.log, start=end, end=end + 5)
    with pytest.raises(RefusedError, match="nothing of the partition is in the remote tier"):
        explained(world, KEYS[0])


def test_what_a_round_has_left_holds_no_later_one_back_however_young_it_is(tmp_path: Path) -> None:
    """An output of which nothing is left has no timestamp, and counts as old as its upload."""
    log = LogBuilder(tmp_path / "logs" / "t-0", TOPIC)
    topic = replace(MERGING, segment_bytes=TOPIC.segment_bytes, min_compaction_lag_ms=60_000)
    for number in range(400):
        log.now_ms += 1000
        log.append(NewRecord(b"k%d" % (number % 3), b"x" * 90, log.now_ms))
    log.finish()
    world = VerifiedWorld(tmp_path, log.directory, LINEAGE[:1], left=8)
    try:
        world.world.clock.advance(log.now_ms - world.world.clock.now_ms() + 120_000)
        assert not world.clean(topic, margin=MARGIN).skipped
        assert any(each.max_timestamp_ms < 0 for each in world.compacted())
        for base, following in list(pairwise(world.bases))[-8:]:
            world.tier.copy_one(world.directory, base, following - 1)
        workspace = Workspace(MEMORY_BYTES_MIN)
        answer = {key: explained(world, key, topic, workspace=workspace) for key in KEYS[:3]}
        goes = {key: offsets(each, Outlook.GOES_NEXT) for key, each in answer.items()}
        assert all(goes.values())
        before = served(world)
        assert not world.clean(topic, margin=MARGIN).skipped
        after = served(world)
        assert goes == {key: [n for n in before[key] if n not in after[key]] for key in KEYS[:3]}
    finally:
        world.close()
