"""The state of what a live cluster's remote tier serves, of now and as of points."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.api.open_log import OpenLog
from keeplast.attach.answers.shown_logs import earliest_as_of, shown_log
from keeplast.attach.held.publication import Publisher
from keeplast.attach.rounds import attached_place
from keeplast.attach.rounds.attached_files import attached_path
from keeplast.attach.rules.swap import Swap
from keeplast.errors import ConflictError, RefusedError, StoppedError
from keeplast.format.compression import Codec
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.format.message_set import read_batches
from keeplast.log.append import NewRecord
from keeplast.model.topic_config import TopicConfig
from keeplast.tier.objects.log_directory import LogDirectoryRecipe, ShownLog
from keeplast.tier.state.attached import Attached, AttachedName
from tests.support.attached_world import CLUSTER_ID, PARTITION
from tests.support.commanded_world import end_of
from tests.support.existing import existing
from tests.support.heard_calls import hear
from tests.support.log_builder import LogBuilder
from tests.support.verified_world import VerifiedWorld

TOPIC = TopicConfig(
    cleanup_policy=frozenset({"compact"}), segment_bytes=2000, index_interval_bytes=256
)
MARGIN = 3000
PLAIN = 90
"""Up to there the history has no transaction."""
State = dict[bytes, bytes | None]


def write_history(root: Path) -> Path:
    """Write batches of plain producers, and later of transactional ones too, no offset left out."""
    dice = random.Random(3)
    log = LogBuilder(root / "orders-0", TOPIC)
    sender = log.producer(7)
    is_open = False
    for number in range(200):
        log.now_ms += 1000
        record = NewRecord(
            b"k%d" % dice.randrange(25),
            None if dice.random() < 0.15 else b"v%d" % number + b"x" * dice.randrange(60),
            log.now_ms,
        )
        if log.log_end > PLAIN and dice.random() < 0.3:
            sender.send_records(record)
            is_open = True
        else:
            log.append(record, codec=dice.choice(list(Codec)))
        if is_open and dice.random() < 0.3:
            (sender.commit if dice.random() < 0.6 else sender.abort)()
            is_open = False
    if is_open:
        sender.commit()
    return log.finish()


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_history(tmp_path_factory.mktemp("history"))


@pytest.fixture
def world(tmp_path: Path, history: Path) -> Iterator[VerifiedWorld]:
    """A partition of which nothing is compacted, and whose last records no leader has copied."""
    with closing(VerifiedWorld(tmp_path, history, [LeaderEpoch(0, 0)], left=1)) as made:
        yield made


def known_of(world: VerifiedWorld) -> Attached | None:
    return world.world.log().find(AttachedName(CLUSTER_ID, PARTITION))


def shown(world: VerifiedWorld, *, has_log: bool = True) -> ShownLog:
    log, known = (world.world.log(), known_of(world)) if has_log else (None, None)
    return shown_log(
        world.tier.layout, PARTITION, world.cluster.log, world.cluster.cache(), log, known
    )


def shown_state(found: ShownLog, *, end_offset: int | None = None) -> State | None:
    """Return the state as it is shown, None when it is refused."""
    files = LogDirectoryRecipe(attached_path(PARTITION).parent, (found,)).open()
    try:
        return values(OpenLog(attached_path(PARTITION), files=files), end_offset=end_offset)
    except RefusedError:
        return None


def values(log: OpenLog, *, end_offset: int | None = None) -> State:
    return {key: each.value for key, each in log.state(TOPIC, end_offset=end_offset).items()}


def test_every_point_of_a_copied_log_has_the_state_of_its_directory(
    world: VerifiedWorld, history: Path
) -> None:
    found, end = shown(world), end_of(world)
    assert (0, f"offsets {end} to {world.cluster.log.end - 1}") == (
        found.earliest_as_of, found.behind[: len(f"offsets {end} to {world.cluster.log.end - 1}")],
    )  # fmt: skip
    directory = OpenLog(history)
    for at in [*range(0, end, 17), end - 1]:
        assert values(directory, end_offset=at) == shown_state(found, end_offset=at), at


def test_points_that_rounds_have_passed_are_refused_and_later_ones_shown(
    world: VerifiedWorld, history: Path
) -> None:
    directory = OpenLog(history)
    before = shown_state(shown(world))
    assert not world.clean(TOPIC, margin=MARGIN).skipped
    known = known_of(world)
    found = shown(world)
    assert known is not None
    assert 0 < found.earliest_as_of == known.cleaned_to < end_of(world)
    assert before == shown_state(found)
    for at in range(1, found.earliest_as_of, 13):
        assert shown_state(found, end_offset=at) is None, at
    answers = 0
    for at in range(found.earliest_as_of, end_of(world)):
        state = shown_state(found, end_offset=at)
        # No table knows of a transaction that has data in what was compacted.
        assert state in (None, values(directory, end_offset=at)), at
        answers += state is not None
    assert answers > (end_of(world) - found.earliest_as_of) // 2
    # Without the decision log it is unknown how far the round went.
    assert end_of(world) == shown(world, has_log=False).earliest_as_of


def test_a_round_that_was_cut_short_is_known_by_its_end(
    world: VerifiedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attached_place, "SWAP_SEGMENTS_MAX", 2)
    publish, ends = Publisher.decide_and_publish, []

    def once(self: Publisher, swap: Swap) -> None:
        ends.append(swap.cleaned_for)
        if len(ends) > 1:
            raise StoppedError("stopped behind the first swap")

    hear(monkeypatch, Publisher, "decide_and_publish", once)
    with pytest.raises(StoppedError):
        world.clean(TOPIC, margin=MARGIN)
    known, log = known_of(world), world.world.log()
    assert known is not None
    assert (0, 1) == (known.cleaned_to, len(log.decisions(known)))
    assert {shown(world).earliest_as_of} == set(ends)
    assert shown_state(shown(world), end_offset=shown(world).earliest_as_of - 1) is None
    # Of rounds by an earlier version nothing is known until a process claims the partition.
    older, cache = replace(known, cleaned_for=0), world.cluster.cache()
    assert end_of(world) == earliest_as_of(cache, log, older, log_start=0)
    with sqlite3.connect(world.world.root / "decisions.db") as database:
        database.execute("UPDATE attached SET cleaned_for = 0")
    monkeypatch.setattr(Publisher, "decide_and_publish", publish)
    world.world.claim()
    claimed = existing(known_of(world))
    assert end_of(world) == claimed.cleaned_for


def test_what_a_new_leader_copied_over_outputs_does_not_bring_earlier_states_back(
    world: VerifiedWorld, history: Path
) -> None:
    world.clean(TOPIC, margin=MARGIN)
    cleaned_to = shown(world).earliest_as_of
    expected = shown_state(shown(world))
    served = [each for each in world.tier.served() if each.end_offset < cleaned_to]
    last, newest = served[-1], world.tier.served()[-1]
    batches = list(read_batches(world.tier.log_of(last)))
    world.tier.copy_over(history, batches[len(batches) // 2].base_offset, newest.end_offset)
    found = shown(world)
    assert cleaned_to == found.earliest_as_of
    assert shown_state(found, end_offset=cleaned_to - 1) is None
    assert expected == shown_state(found)


def test_a_hole_and_an_object_that_is_missing_are_errors_and_no_shorter_state(
    world: VerifiedWorld,
) -> None:
    gone = world.tier.served()[1]
    world.file_of(gone).unlink()
    with pytest.raises(ConflictError, match="keeplast verify"):
        shown_state(shown(world))
    world.world.expire(gone)
    held = world.cluster.log
    world.cluster.log = replace(held, start=0)
    with pytest.raises(RefusedError, match=f"serves offsets {gone.start_offset} to"):
        shown(world)


def test_a_log_of_which_nothing_was_copied_is_empty_and_that_is_said(world: VerifiedWorld) -> None:
    start = end_of(world) + 1
    world.cluster.log = replace(world.cluster.log, start=start)
    found = shown(world)
    assert (start, start) == (found.log_start, found.earliest_as_of)
    assert found.behind.startswith(f"offsets {start} to")
    assert {} == shown_state(found) == shown_state(found, end_offset=start)
    world.cluster.log = replace(world.cluster.log, end=start)
    assert ("", {}) == (shown(world).behind, shown_state(shown(world)))
