"""What a metadata store does, on whichever database: who may change what, and what is live then.

A test class inherits :class:`MetadataContract` and gives the fixture ``url``.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Iterator

import pytest
from msgspec.structs import replace
from sqlalchemy import select

from keeplast.errors import ConflictError, FencedError
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.model.hold import KeptPoint
from keeplast.model.partition import TopicPartition
from keeplast.tier.metadata import schema
from keeplast.tier.metadata.database import open_database
from keeplast.tier.metadata.hold_rows import StoredPoint
from keeplast.tier.metadata.metadata_store import MetadataStore
from keeplast.tier.metadata.rows import KEPT_MS, PRUNED_MAX
from keeplast.tier.state.continuity import Visits
from keeplast.tier.state.holder import Lease
from keeplast.tier.state.kept_rounds import Keeping
from keeplast.tier.state.partition_state import PartitionState
from keeplast.tier.state.segment import RemoteFile, RemoteSegment, Route, SegmentKind, SegmentState
from tests.support.manual_clock import ManualClock
from tests.support.waiting import SECONDS_MAX, run_at_once

PARTITION = TopicPartition("t", 0)
TOPIC_ID = "0" * 32
NOW_MS = 1_700_000_000_000
LINEAGE = (LeaderEpoch(0, 0),)
GRACE_MS = 1000


def new_id() -> str:
    return secrets.token_hex(16)


def segment(
    base: int, last: int, *, epoch: int = 0, kind: SegmentKind = SegmentKind.RAW, number: int = 0
) -> RemoteSegment:
    return RemoteSegment(
        new_id(), base, last, (LeaderEpoch(epoch, base),), 100, -1, NOW_MS, kind,
        epoch, number, {epoch: 0}, {".log": RemoteFile(100, 1)},
    )  # fmt: skip


class Opened:
    """A store with one partition, owned at epoch 0."""

    def __init__(self, url: str) -> None:
        self.clock = ManualClock(NOW_MS)
        self.engine = open_database(url)
        self.store = MetadataStore(self.engine, self.clock)
        self.store.create(PARTITION, TOPIC_ID, log_start=0, settings={"cleanup.policy": "compact"})
        self.store.take_over(PARTITION, epoch=0, owner="a", lineage=LINEAGE, log_end=0)

    def copy(self, made: RemoteSegment, *, epoch: int = 0) -> None:
        self.store.commit_copy(PARTITION, new_id(), epoch=epoch, segment=made, lineage=LINEAGE)

    def routes(self) -> list[tuple[int, int, str]]:
        return [(r.base_offset, r.last_offset, r.segment_id) for r in self.state().routes]

    def state(self) -> PartitionState:
        return self.store.load(PARTITION)


class MetadataContract:
    """The contract; not collected by itself."""

    @pytest.fixture
    def opened(self, url: str) -> Iterator[Opened]:
        made = Opened(url)
        yield made
        made.store.close()

    def test_a_lease_is_of_the_leader_that_takes_over_and_only_that_one_renews_it(
        self, opened: Opened
    ) -> None:
        store, row_id = opened.store, opened.state().row_id
        assert store.leases.find(row_id) is None
        state = store.take_over(
            PARTITION, epoch=1, owner="b", lineage=LINEAGE, log_end=0, lease_ms=5000,
            acknowledged=3,
        )  # fmt: skip
        first = store.leases.find(row_id)
        assert first == Lease(1, store.holder.id, 5000, 3, 0)
        assert state.fence == first.fence
        store.leases.renew(PARTITION, epoch=1, lease_ms=5000, acknowledged=7)
        store.leases.renew(PARTITION, epoch=1, lease_ms=5000, acknowledged=6)
        assert Lease(1, store.holder.id, 5000, 7, 2) == store.leases.find(row_id)
        # Nothing that anybody decides by has changed.
        assert state.version == opened.state().version
        other = MetadataStore(opened.engine, opened.clock)
        for late, epoch in ((store, 0), (other, 1)):
            with pytest.raises(FencedError):
                late.leases.renew(PARTITION, epoch=epoch, lease_ms=5000, acknowledged=9)
        assert Lease(1, store.holder.id, 5000, 7, 2) == store.leases.find(row_id)
        # Who takes over without a lease leaves one without a holder.
        state = other.take_over(PARTITION, epoch=2, owner="c", lineage=LINEAGE, log_end=0)
        left = store.leases.find(row_id)
        assert left is not None
        assert left.fence != state.fence

    def test_a_lease_goes_with_its_partition(self, opened: Opened) -> None:
        store, row_id = opened.store, opened.state().row_id
        store.take_over(PARTITION, epoch=1, owner="b", lineage=LINEAGE, log_end=0, lease_ms=5000)
        store.removals.forget(opened.state(), new_id(), grace_ms=0)
        store.removals.remove(opened.state())
        assert store.leases.find(row_id) is None

    def test_of_a_hold_and_a_swap_that_would_pass_it_one_happens(self, opened: Opened) -> None:
        """Who locks the partition's row first is seen by the other."""
        for turn in range(6):
            start = 10 * turn
            source = segment(start, start + 9)
            opened.copy(source)
            known, gate = opened.state(), threading.Barrier(2, timeout=SECONDS_MAX)
            done: list[str] = []

            def swap(
                source: RemoteSegment = source, gate: threading.Barrier = gate,
                done: list[str] = done,
            ) -> None:  # fmt: skip
                gate.wait()
                with contextlib.suppress(ConflictError):
                    opened.store.commit_swap(
                        PARTITION, new_id(), epoch=0, sources=[source.segment_id],
                        outputs=[segment(source.base_offset, source.last_offset)],
                        grace_ms=GRACE_MS, cleaned_for=source.last_offset + 1,
                    )  # fmt: skip
                    done.append("swap")

            def hold(
                known: PartitionState = known, turn: int = turn,
                gate: threading.Barrier = gate, done: list[str] = done,
            ) -> None:  # fmt: skip
                point = StoredPoint(known, KeptPoint(10 * turn + 5, 10 * turn + 5))
                gate.wait()
                with contextlib.suppress(ConflictError):
                    opened.store.hold_rows.add_stored([point], f"h{turn}", 60_000)
                    done.append("hold")

            run_at_once((swap, hold))
            assert 1 == len(done), done
            is_held = bool(opened.state().holds)
            assert (["hold"] == done, start + 10) == (is_held, opened.state().remote_end)
            if is_held:
                opened.store.hold_rows.release_stored(f"h{turn}")

    def test_copied_segments_are_read_in_order(self, opened: Opened) -> None:
        first, second = segment(0, 9), segment(10, 24)
        opened.copy(first)
        opened.copy(second)
        assert [(0, 9, first.segment_id), (10, 24, second.segment_id)] == opened.routes()
        state = opened.state()
        assert state.segments[first.segment_id] == first
        assert (25, 200, 0) == (state.remote_end, state.remote_bytes, state.first_dirty())

    def test_a_hole_is_refused_and_nothing_changes(self, opened: Opened) -> None:
        opened.copy(segment(0, 9))
        before = opened.state()
        late = segment(11, 20)
        with pytest.raises(ConflictError):
            opened.store.commit_copy(PARTITION, new_id(), epoch=0, segment=late, lineage=LINEAGE)
        assert before.routes == opened.state().routes

    def test_an_older_leader_changes_nothing(self, opened: Opened) -> None:
        """ST-3, ST-4, ST-5, I-19: by epoch, never by who it is."""
        opened.copy(segment(0, 9))
        opened.store.take_over(PARTITION, epoch=3, owner="b", lineage=LINEAGE, log_end=10)
        before = opened.state()
        late = segment(10, 20)
        with pytest.raises(FencedError):
            opened.copy(late)
        with pytest.raises(FencedError):
            opened.store.publish(PARTITION, new_id(), epoch=0, cleaned_to=10)
        with pytest.raises(FencedError):
            opened.store.start_delete(PARTITION, epoch=0, segment_id=before.routes[0].segment_id)
        with pytest.raises(FencedError):
            opened.store.take_over(PARTITION, epoch=2, owner="a", lineage=LINEAGE, log_end=10)
        with pytest.raises(FencedError):
            opened.store.take_over(PARTITION, epoch=3, owner="a", lineage=LINEAGE, log_end=10)
        assert before == opened.state()
        opened.store.take_over(PARTITION, epoch=5, owner="a", lineage=LINEAGE, log_end=10)
        with pytest.raises(FencedError):
            opened.store.publish(PARTITION, new_id(), epoch=0, cleaned_to=10)

    def test_a_second_process_of_the_owner_fences_the_first(self, opened: Opened, url: str) -> None:
        """Each process that comes is a holder of its own, at the epoch that the owner has."""
        opened.copy(segment(0, 9))
        second = MetadataStore(open_database(url), opened.clock)
        try:
            found = second.take_over(PARTITION, epoch=0, owner="a", lineage=LINEAGE, log_end=10)
            assert (0, "a", second.holder) == (found.leader_epoch, found.owner, found.holder)
            assert 1 == len(found.publications)
            late = segment(10, 20)
            with pytest.raises(FencedError, match=f"owner=a epoch=0 process={second.holder.pid}"):
                opened.copy(late)
            with pytest.raises(FencedError):
                opened.store.publish(PARTITION, new_id(), epoch=0, cleaned_to=10)
            with pytest.raises(FencedError):
                opened.store.check_owner(PARTITION, epoch=0)
            assert found == opened.state()
            second.publish(PARTITION, new_id(), epoch=0, cleaned_to=10)
        finally:
            second.close()

    def test_a_process_that_gave_back_is_succeeded_and_the_first_stays_fenced_until_then(
        self, opened: Opened, url: str
    ) -> None:
        second = MetadataStore(open_database(url), opened.clock)
        try:
            held = second.take_over(PARTITION, epoch=0, owner="a", lineage=LINEAGE, log_end=0)
            second.give_back()
            free = opened.state()
            assert (NOW_MS, None) == (held.held_since_ms, free.held_since_ms)
            assert (held.fence, held.version + 1) == (free.fence, free.version)
            with pytest.raises(FencedError):
                opened.copy(segment(0, 9))
            opened.store.take_over(
                PARTITION, epoch=0, owner="a", lineage=LINEAGE, log_end=0, instead_of=free
            )
            opened.copy(segment(0, 9))
            second.give_back()
            assert opened.state().held_since_ms == NOW_MS
        finally:
            second.close()

    def test_of_two_that_succeed_one_holder_one_is_refused(self, opened: Opened, url: str) -> None:
        second = MetadataStore(open_database(url), opened.clock)
        third = MetadataStore(open_database(url), opened.clock)
        try:
            seen = opened.state()
            second.take_over(
                PARTITION, epoch=0, owner="a", lineage=LINEAGE, log_end=0, instead_of=seen
            )
            with pytest.raises(ConflictError):
                third.take_over(
                    PARTITION, epoch=0, owner="a", lineage=LINEAGE, log_end=0, instead_of=seen
                )
            assert second.holder == opened.state().holder
        finally:
            second.close()
            third.close()

    def test_one_transaction_is_done_in_the_name_of_the_holder_of_the_partition(
        self, opened: Opened, url: str
    ) -> None:
        second = MetadataStore(open_database(url), opened.clock)
        try:
            holder = opened.state().holder
            second.configure(PARTITION, epoch=0, settings={"x": "1"}, holder=holder)
            with pytest.raises(FencedError):
                second.configure(PARTITION, epoch=0, settings={"x": "2"})
            assert ({"x": "1"}, holder) == (opened.state().settings, opened.state().holder)
            opened.copy(segment(0, 9))
        finally:
            second.close()

    def test_swap_replaces_and_the_sources_wait_out_the_grace(self, opened: Opened) -> None:
        sources = [segment(0, 9), segment(10, 19), segment(20, 29)]
        for made in sources:
            opened.copy(made)
        output = segment(0, 19, kind=SegmentKind.CLEANED, number=1)
        opened.store.commit_swap(
            PARTITION, new_id(), epoch=0, sources=[s.segment_id for s in sources[:2]],
            outputs=[output], grace_ms=GRACE_MS,
        )  # fmt: skip
        assert [(0, 19, output.segment_id), (20, 29, sources[2].segment_id)] == opened.routes()
        gone = sources[0].segment_id
        assert {s.segment_id for s in sources[:2]} == {
            orphan.segment.segment_id for orphan in opened.store.orphans(PARTITION)
        }
        assert not opened.store.start_delete(PARTITION, epoch=0, segment_id=gone)
        opened.clock.advance(GRACE_MS)
        assert opened.store.start_delete(PARTITION, epoch=0, segment_id=gone)
        opened.store.finish_delete(PARTITION, epoch=0, segment_id=gone)
        assert opened.store.known_ids(PARTITION)[gone] == SegmentState.DELETED
        assert not opened.store.start_delete(PARTITION, epoch=0, segment_id=output.segment_id)

    @pytest.mark.parametrize(
        ("base", "last", "sources"),
        [(0, 18, [0, 1]), (1, 19, [0, 1]), (0, 29, [0, 2]), (0, 9, [0, 0, 1])],
    )
    def test_outputs_that_do_not_cover_their_sources_are_refused(
        self, opened: Opened, base: int, last: int, sources: list[int]
    ) -> None:
        """ST-7: what the decision rested on must still be there."""
        made = [segment(0, 9), segment(10, 19), segment(20, 29)]
        for each in made:
            opened.copy(each)
        before = opened.state()
        output = segment(base, last, kind=SegmentKind.CLEANED)
        with pytest.raises(ConflictError):
            opened.store.commit_swap(
                PARTITION, new_id(), epoch=0, sources=[made[i].segment_id for i in sources],
                outputs=[output], grace_ms=GRACE_MS,
            )  # fmt: skip
        assert before.routes == opened.state().routes

    def test_a_commit_happens_once_and_can_be_looked_up(self, opened: Opened) -> None:
        """ST-8: an answer that was lost is found by the id, and the commit is not repeated."""
        made = segment(0, 9)
        commit = new_id()
        assert opened.store.find_commit(commit) is None
        opened.store.commit_copy(PARTITION, commit, epoch=0, segment=made, lineage=LINEAGE)
        version = opened.store.find_commit(commit)
        assert version == opened.state().version
        with pytest.raises(ConflictError):
            opened.store.commit_copy(PARTITION, commit, epoch=0, segment=made, lineage=LINEAGE)
        assert version == opened.state().version

    def test_copy_below_the_first_dirty_offset_is_clipped(self, opened: Opened) -> None:
        opened.copy(segment(0, 9))
        opened.store.publish(PARTITION, new_id(), epoch=0, cleaned_to=10)
        again = segment(5, 14)
        opened.copy(again)
        assert (10, 14, again.segment_id) == opened.routes()[-1]

    def test_expiry_moves_the_log_start_and_frees_what_lies_below(self, opened: Opened) -> None:
        made = [segment(0, 9), segment(10, 19)]
        for each in made:
            opened.copy(each)
        with pytest.raises(ConflictError):
            opened.store.commit_expiry(
                PARTITION, new_id(), epoch=0, log_start=9, segments=[made[0].segment_id],
                grace_ms=GRACE_MS,
            )  # fmt: skip
        opened.store.commit_expiry(
            PARTITION, new_id(), epoch=0, log_start=12, segments=[made[0].segment_id],
            grace_ms=GRACE_MS,
        )  # fmt: skip
        state = opened.state()
        assert (12, (Route(10, 19, made[1].segment_id),)) == (state.log_start, state.routes)
        assert (12, 100) == (state.first_dirty(), state.remote_bytes)

    def test_an_id_is_used_once(self, opened: Opened) -> None:
        """I-9, also when the segment is long gone."""
        first, second = segment(0, 9), segment(10, 19)
        opened.copy(first)
        with pytest.raises(ConflictError):
            opened.copy(replace(second, segment_id=first.segment_id))
        opened.store.commit_expiry(
            PARTITION, new_id(), epoch=0, log_start=10, segments=[first.segment_id], grace_ms=0
        )
        assert opened.store.start_delete(PARTITION, epoch=0, segment_id=first.segment_id)
        opened.store.finish_delete(PARTITION, epoch=0, segment_id=first.segment_id)
        with pytest.raises(ConflictError):
            opened.copy(replace(second, segment_id=first.segment_id))

    def test_old_commits_and_deleted_segments_are_forgotten_after_a_week(
        self, opened: Opened
    ) -> None:
        """What may still be asked for stays: newer commits, live segments, those that wait."""
        made = [segment(10 * i, 10 * i + 9) for i in range(3)]
        first, live = new_id(), made[2]
        opened.store.commit_copy(PARTITION, first, epoch=0, segment=made[0], lineage=LINEAGE)
        for each in made[1:]:
            opened.copy(each)
        gone = [each.segment_id for each in made[:2]]
        opened.store.commit_expiry(
            PARTITION, new_id(), epoch=0, log_start=20, segments=gone, grace_ms=0
        )
        assert opened.store.start_delete(PARTITION, epoch=0, segment_id=gone[0])
        opened.store.finish_delete(PARTITION, epoch=0, segment_id=gone[0])
        opened.clock.advance(KEPT_MS)
        second = new_id()
        opened.store.publish(PARTITION, second, epoch=0, cleaned_to=20)
        assert opened.store.find_commit(first) is not None
        assert opened.store.start_delete(PARTITION, epoch=0, segment_id=gone[1])
        opened.clock.advance(1)
        opened.store.finish_delete(PARTITION, epoch=0, segment_id=gone[1])
        assert {gone[1]: SegmentState.DELETED, live.segment_id: SegmentState.LIVE} == (
            opened.store.known_ids(PARTITION)
        )
        before = opened.state()
        opened.store.publish(PARTITION, new_id(), epoch=0, cleaned_to=25)
        assert [None, before.version - 2] == [
            opened.store.find_commit(first), opened.store.find_commit(second)
        ]  # fmt: skip
        assert (before.routes, before.segments.keys()) == (
            opened.state().routes, opened.state().segments.keys()
        )  # fmt: skip

    def test_rows_of_the_past_are_bounded_however_many_there_are(self, opened: Opened) -> None:
        """Each change takes away more than it adds, of its own partition."""
        for _ in range(3 * PRUNED_MAX):
            opened.store.publish(PARTITION, new_id(), epoch=0, cleaned_to=0)
        opened.clock.advance(KEPT_MS + 1)
        counts = []
        for _ in range(4):
            opened.store.publish(PARTITION, new_id(), epoch=0, cleaned_to=0)
            with opened.engine.connect() as connection:
                counts.append(len(connection.execute(select(schema.COMMITS.c.id)).all()))
        assert [2 * PRUNED_MAX + 1, PRUNED_MAX + 2, 3, 4] == counts

    def test_a_decision_by_other_settings_is_refused(self, opened: Opened) -> None:
        source, old = segment(0, 9), {"cleanup.policy": "compact"}
        opened.copy(source)
        opened.store.configure(PARTITION, epoch=0, settings={"cleanup.policy": "delete"})
        before = opened.state()
        with pytest.raises(ConflictError, match="settings"):
            opened.store.commit_swap(
                PARTITION, new_id(), epoch=0, sources=[source.segment_id],
                outputs=[segment(0, 9)], grace_ms=0, settings=old,
            )  # fmt: skip
        with pytest.raises(ConflictError, match="settings"):
            opened.store.publish(PARTITION, new_id(), epoch=0, cleaned_to=10, settings=old)
        with pytest.raises(ConflictError, match="settings"):
            opened.store.commit_expiry(
                PARTITION, new_id(), epoch=0, log_start=10, segments=[source.segment_id],
                grace_ms=0, settings=old,
            )  # fmt: skip
        assert before == opened.state()
        opened.store.publish(
            PARTITION, new_id(), epoch=0, cleaned_to=10, settings={"cleanup.policy": "delete"}
        )

    def test_new_leader_goes_on_where_the_old_one_was(self, opened: Opened) -> None:
        opened.copy(segment(0, 99))
        opened.store.publish(PARTITION, new_id(), epoch=0, cleaned_to=60)
        opened.store.publish(PARTITION, new_id(), epoch=0, cleaned_to=80)
        lineage = (LeaderEpoch(0, 0), LeaderEpoch(2, 100))
        state = opened.store.take_over(PARTITION, epoch=2, owner="b", lineage=lineage, log_end=100)
        assert state.first_dirty() == 80
        assert [dict(p.offsets) for p in state.publications] == [{0: 0}, {0: 80}, {0: 80, 2: 80}]

    def test_one_fact_is_made_once(self, opened: Opened) -> None:
        assert opened.store.fact("k", lambda: "first") == "first"
        assert opened.store.fact("k", lambda: "second") == "first"

    # What a user takes out.

    def test_a_log_that_is_cut_ends_there_at_a_new_epoch(self, opened: Opened) -> None:
        kept, across, gone = segment(0, 9), segment(10, 19), segment(20, 29)
        for each in (kept, across, gone):
            opened.copy(each)
        opened.store.publish(PARTITION, new_id(), epoch=0, cleaned_to=25)
        made = segment(10, 14)
        state = opened.store.removals.truncate(
            opened.state(), new_id(), cut=15, replaced=across.segment_id, made=made,
            grace_ms=GRACE_MS,
        )  # fmt: skip
        assert [(0, 9, kept.segment_id), (10, 14, made.segment_id)] == opened.routes()
        assert (15, 15, 1) == (state.remote_end, state.first_dirty(), state.leader_epoch)
        assert (200, LINEAGE) == (state.remote_bytes, state.lineage)
        waiting = {each.segment.segment_id for each in opened.store.orphans(PARTITION)}
        assert {across.segment_id, gone.segment_id} == waiting
        with pytest.raises(FencedError):
            opened.copy(segment(15, 19))
        opened.copy(segment(15, 29), epoch=1)
        assert 15 == opened.state().first_dirty()

    def test_a_cut_that_would_leave_a_hole_or_too_much_is_refused(self, opened: Opened) -> None:
        opened.copy(segment(0, 9))
        opened.copy(segment(10, 19))
        before = opened.state()
        for cut, replaced in ((15, None), (5, None), (25, None)):
            with pytest.raises(ConflictError):
                opened.store.removals.truncate(
                    before, new_id(), cut=cut, replaced=replaced, made=None, grace_ms=0
                )
        assert before == opened.state()

    def test_a_partition_that_was_given_up_begins_again_or_goes_with_all_of_its_rows(
        self, opened: Opened
    ) -> None:
        opened.copy(segment(0, 9))
        opened.store.publish(PARTITION, new_id(), epoch=0, cleaned_to=10)
        opened.store.remember(PARTITION, epoch=0, directory="d", visits=Visits())
        opened.store.removals.forget(opened.state(), new_id(), grace_ms=0)
        assert ((), (PARTITION,)) == (
            opened.store.partitions(), opened.store.partitions(is_forgotten=True)
        )  # fmt: skip
        with pytest.raises(FencedError):
            opened.copy(segment(10, 19))
        state = opened.store.removals.restart(
            opened.state(), new_id(), "1" * 32, log_start=3, settings={}
        )
        assert ((), (), 3, 3) == (
            state.routes, state.lineage, state.log_start, state.first_dirty(),
        )  # fmt: skip
        assert ("1" * 32, (PARTITION,)) == (state.topic_id, opened.store.partitions())
        with pytest.raises(ConflictError, match="not given up"):
            opened.store.removals.remove(state)
        opened.store.removals.forget(state, new_id(), grace_ms=0)
        opened.store.removals.remove(opened.state())
        assert () == opened.store.partitions(is_forgotten=True)
        opened.store.create(PARTITION, TOPIC_ID, log_start=0, settings={})

    def test_a_mark_only_grows(self, opened: Opened) -> None:
        assert (1, "a") == opened.store.raise_mark("a")
        assert (2, "b") == opened.store.raise_mark("b")
        assert (8, "c") == opened.store.raise_mark("c", 7)
        assert "8 c" == opened.store.find_fact("mark")

    def test_facts_are_made_once_raised_and_found_by_how_their_keys_begin(
        self, opened: Opened
    ) -> None:
        facts = opened.store.facts
        for key in ("receipts/b", "receipts/a", "receipts-host/a", "receipts%/a", "receipt"):
            assert key == facts.made(key, lambda key=key: key)  # type: ignore[misc]
        assert "receipts/a" == facts.made("receipts/a", lambda: "z")
        facts.raise_to(("receipts/a", "z"))
        facts.raise_to(("receipts/a", "y"))
        facts.raise_to(("receipts/none", "z"))
        assert {"receipts/a": "z", "receipts/b": "receipts/b"} == facts.under("receipts/", 10)
        assert {"receipts/a": "z"} == facts.under("receipts/", 1)
        assert {"receipts%/a": "receipts%/a"} == facts.under("receipts%", 10)
        assert None is facts.find("receipts/none")
        assert opened.store.holder.host == facts.host

    # What rounds have kept.

    def test_segments_that_a_round_kept_are_not_collected_and_come_back_in_one_commit(
        self, opened: Opened
    ) -> None:
        sources = [segment(0, 9), segment(10, 19)]
        for each in sources:
            opened.copy(each)
        before, keeping = opened.state(), Keeping(name := new_id(), name, 10 * GRACE_MS)
        first = segment(0, 9, kind=SegmentKind.CLEANED)
        second = segment(0, 19, kind=SegmentKind.CLEANED)
        for gone, made in (
            ([sources[0]], first),
            ([first, sources[1]], second),
        ):
            opened.store.commit_swap(
                PARTITION, new_id(), epoch=0, sources=[each.segment_id for each in gone],
                outputs=[made], grace_ms=0, cleaned_for=20, keeping=keeping,
            )  # fmt: skip
        opened.store.publish(
            PARTITION, new_id(), epoch=0, cleaned_to=20, began=opened.state(), keeping=keeping
        )
        state, (kept,) = opened.store.undo_rows.kept(PARTITION)
        assert [each.segment_id for each in sources] == kept.source_ids
        assert ([second.segment_id], (0, 20)) == (kept.output_ids, kept.first_dirty)
        assert [False, False, True] == [
            opened.store.start_delete(PARTITION, epoch=0, segment_id=each.segment_id)
            for each in (*sources, first)
        ]
        state = opened.state()
        heard: list[str | None] = []
        opened.store.undo_rows.put_back(
            state, new_id(), kept.number, grace_ms=0, allowed=heard.append
        )
        assert [None] == heard
        found = opened.state()
        assert (before.routes, before.segments) == (found.routes, found.segments)
        assert (0, before.cleaned_for) == (found.first_dirty(), found.cleaned_for)
        assert () == opened.store.undo_rows.kept(PARTITION)[1]
        assert opened.store.start_delete(PARTITION, epoch=0, segment_id=second.segment_id)
        with pytest.raises(ConflictError):
            opened.store.undo_rows.put_back(
                state, new_id(), kept.number, grace_ms=0, allowed=heard.append
            )

    def test_a_kept_round_goes_when_it_is_dropped_and_when_nothing_is_kept_after_it(
        self, opened: Opened
    ) -> None:
        made = segment(0, 9)
        opened.copy(made)
        for drops in (True, False):
            output = segment(0, 9, kind=SegmentKind.CLEANED)
            opened.store.commit_swap(
                PARTITION, new_id(), epoch=0, sources=[made.segment_id], outputs=[output],
                grace_ms=0, keeping=Keeping(name := new_id(), name, 10 * GRACE_MS),
            )  # fmt: skip
            if drops:
                assert 1 == opened.store.undo_rows.drop(PARTITION, epoch=0)
            else:
                last = segment(0, 9, kind=SegmentKind.CLEANED)
                opened.store.commit_swap(
                    PARTITION, new_id(), epoch=0, sources=[output.segment_id], outputs=[last],
                    grace_ms=0,
                )  # fmt: skip
            assert () == opened.store.undo_rows.kept(PARTITION)[1]
            assert 0 == opened.store.undo_rows.drop(PARTITION, epoch=0)
            assert opened.store.start_delete(PARTITION, epoch=0, segment_id=made.segment_id)
            made = output
