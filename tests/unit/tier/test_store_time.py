"""Whose clock a store removes by, and a host that has another one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from keeplast.config.mapping import topic_config
from keeplast.errors import UnavailableError
from keeplast.log.files import LocalFiles
from keeplast.store.tiered_store import TieredStore
from keeplast.tier.metadata.database import SKEW_MS_MAX, open_database
from keeplast.tier.metadata.metadata_store import MetadataStore
from keeplast.tier.objects.stores import open_objects
from tests.support.durations import DAY_MS
from tests.support.log_builder import START_MS
from tests.support.manual_clock import ManualClock, SharedTime
from tests.support.metadata_contract import GRACE_MS, NOW_MS, PARTITION, Opened, new_id, segment
from tests.support.store_world import StoreWorld

JUMPS = [SKEW_MS_MAX + 1, DAY_MS, 365 * DAY_MS]


class Host:
    """A host of a store whose database gives the time."""

    def __init__(self, world: StoreWorld, ahead_ms: int, owner: str = "a") -> None:
        self.clock = ManualClock(world.clock.now_ms() + ahead_ms)
        metadata = MetadataStore(open_database(world.url), self.clock, time=SharedTime(world.clock))
        self.store = TieredStore(
            metadata, open_objects(f"file://{world.root / 'objects'}"), owner=owner,
            topic_of=topic_config, clock=self.clock, files=LocalFiles(),
        )  # fmt: skip


@pytest.fixture
def world(tmp_path: Path) -> StoreWorld:
    made = StoreWorld(tmp_path)
    made.log(0, 3, {"cleanup.policy": "compact,delete", "retention.ms": str(DAY_MS)})
    return made


ACTS: dict[str, Callable[[TieredStore], object]] = {
    "clean": lambda store: store.clean(PARTITION, force=True),
    "expire": lambda store: store.expire(PARTITION, grace_ms=0),
    "collect": lambda store: store.collect(PARTITION, garbage_age_ms=0),
}


@pytest.mark.rotates(3)
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("ahead_ms", JUMPS)
@pytest.mark.parametrize("act", ACTS)
def test_a_host_whose_clock_is_wrong_removes_nothing_and_says_so(
    world: StoreWorld, act: str, ahead_ms: int, sign: int
) -> None:
    before = world.objects(0)
    with Host(world, sign * ahead_ms).store as store:
        state = store.own(PARTITION, takes_over=False)
        with pytest.raises(UnavailableError, match=f"ahead_seconds={sign * (ahead_ms // 1000)} "):
            ACTS[act](store)
        assert state == store.state(PARTITION)
    assert before == world.objects(0)


def test_expiry_goes_by_the_stores_time_within_the_bound(world: StoreWorld) -> None:
    """A host that is a little ahead, of a record that has a second left."""
    world.clock.advance(DAY_MS - 1000)
    with Host(world, SKEW_MS_MAX).store as store:
        assert () == store.expire(PARTITION).segments
    world.clock.advance(2000)
    with Host(world, -SKEW_MS_MAX).store as store:
        assert 3 == len(store.expire(PARTITION).segments)


def test_a_grace_ends_by_the_stores_time(tmp_path: Path) -> None:
    opened = Opened(f"sqlite:///{tmp_path / 'meta.db'}")
    time, host = ManualClock(NOW_MS), ManualClock(NOW_MS + SKEW_MS_MAX - GRACE_MS)
    store = MetadataStore(
        open_database(f"sqlite:///{tmp_path / 'meta.db'}"), host, opened.store.holder,
        SharedTime(time),
    )  # fmt: skip
    source = segment(0, 9)
    opened.copy(source)
    store.commit_swap(
        PARTITION, new_id(), epoch=0, sources=[source.segment_id], outputs=[segment(0, 9)],
        grace_ms=GRACE_MS,
    )  # fmt: skip
    time.advance(GRACE_MS - 1)
    assert not store.start_delete(PARTITION, epoch=0, segment_id=source.segment_id)
    time.advance(1)
    assert store.start_delete(PARTITION, epoch=0, segment_id=source.segment_id)
    store.close()
    opened.store.close()


@pytest.mark.parametrize("ahead_ms", [DAY_MS, -DAY_MS])
def test_a_clock_that_jumps_between_a_decision_and_its_transaction_is_noticed_there(
    tmp_path: Path, ahead_ms: int
) -> None:
    """A grace that began by a clock that was behind would be over when it is right again."""
    opened = Opened(f"sqlite:///{tmp_path / 'meta.db'}")
    time = ManualClock(NOW_MS)
    store = MetadataStore(opened.engine, opened.clock, opened.store.holder, SharedTime(time))
    made = [segment(0, 9), segment(10, 19)]
    for each in made:
        opened.copy(each)
    ids = [each.segment_id for each in made]
    opened.store.commit_expiry(
        PARTITION, new_id(), epoch=0, log_start=10, segments=ids[:1], grace_ms=0
    )
    before = opened.state()
    time.advance(ahead_ms)
    for change in (
        lambda: store.commit_swap(
            PARTITION, new_id(), epoch=0, sources=ids[1:], outputs=[segment(10, 19)], grace_ms=0
        ),
        lambda: store.commit_expiry(
            PARTITION, new_id(), epoch=0, log_start=20, segments=ids[1:], grace_ms=0
        ),
        lambda: store.start_delete(PARTITION, epoch=0, segment_id=ids[0]),
    ):
        with pytest.raises(UnavailableError, match="clock"):
            change()
    assert before == opened.state()
    opened.store.close()


def test_what_the_question_takes_is_no_difference(tmp_path: Path) -> None:
    """A host that is frozen between asking and the answer has the right time."""
    host, time = ManualClock(NOW_MS), ManualClock(NOW_MS)

    class Slow(SharedTime):
        def now_ms(self, connection: object) -> int:
            host.advance(DAY_MS)
            time.advance(DAY_MS // 2)
            return super().now_ms(connection)

    store = MetadataStore(open_database(f"sqlite:///{tmp_path / 'meta.db'}"), host, time=Slow(time))
    assert NOW_MS + DAY_MS // 2 == store.clock.now_ms()
    store.close()


def test_without_a_shared_clock_the_hosts_counts(tmp_path: Path) -> None:
    host = ManualClock(NOW_MS)
    store = MetadataStore(open_database(f"sqlite:///{tmp_path / 'meta.db'}"), host)
    host.advance(DAY_MS)
    assert NOW_MS + DAY_MS == store.clock.now_ms()
    store.close()


def test_the_loop_of_a_host_that_is_ahead_removes_nothing_and_says_why(
    world: StoreWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, ahead = world.objects(0), ManualClock(START_MS)
    monkeypatch.setattr("keeplast.tier.metadata.fencing.time_of", lambda *_: SharedTime(ahead))
    world.clock.advance(365 * DAY_MS)
    report, narrated, _ = world.run(expired=True)
    assert before == world.objects(0)
    assert 0 == report.rounds
    assert any("clock" in " ".join(line) for line in narrated.lines), narrated.lines
