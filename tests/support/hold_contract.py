"""What holds of a store's partitions do, on whichever database the metadata is.

A test class inherits :class:`HoldContract` and gives the fixture ``url``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from sqlalchemy import select, update

from keeplast.errors import ConflictError, CorruptError, InvalidError, RefusedError
from keeplast.log.files import LocalFiles
from keeplast.model.hold import Hold, HoldPoint
from keeplast.model.partition import TopicPartition
from keeplast.run.receipt import append_receipt
from keeplast.store.tiered_store import TieredStore
from keeplast.survey.report import RoundReport
from keeplast.tier.metadata import schema
from keeplast.tier.metadata.database import open_database
from tests.support.log_builder import START_MS
from tests.support.store_world import StoreWorld

HOUR = 3_600_000


class HeldStore:
    """A store with ``t-0``, of four segments with the same five keys, opened as two hosts do."""

    def __init__(self, root: Path, url: str) -> None:
        self.world = StoreWorld(root, url)
        self.partition = self.world.log(0, 4)
        self.store = self.world.open()
        self.other = self.world.open("b")

    def hold(
        self, name: str = "h", age_ms: int = HOUR, *, store: TieredStore | None = None, **point: int
    ) -> Hold:
        """Hold the partition, as the other host by default."""
        chosen = self.other if store is None else store
        (added,) = chosen.holds.add([self.partition], name, HoldPoint(**point), age_ms)
        return added

    def clean(self, **options: Any) -> RoundReport:
        return self.store.clean(self.partition, force=True, **options)

    def meanwhile(self, happens: Callable[[], object]) -> Callable[[int], None]:
        """Return what lets something happen when a round reads for the first time."""
        done: list[object] = []

        def progressed(count: int) -> None:
            if not done:
                done.append(happens())

        return progressed

    def first_dirty(self) -> int:
        return self.store.state(self.partition).first_dirty()

    def close(self) -> None:
        for each in (self.store, self.other):
            each.__exit__(None, None, None)


class HoldContract:
    """The contract; not collected by itself."""

    @pytest.fixture
    def held(self, url: str, tmp_path: Path) -> Iterator[HeldStore]:
        made = HeldStore(tmp_path / "world", url)
        yield made
        made.close()

    def test_a_round_ends_where_another_hosts_hold_is_and_goes_on_when_it_is_over(
        self, held: HeldStore
    ) -> None:
        added = held.hold(offset=12)
        assert (12, START_MS, START_MS + HOUR) == (added.offset, added.since_ms, added.until_ms)
        report = held.clean()
        assert (10, 10) == (report.bound, report.end_offset)
        assert any("the state as of 12 is held by h until" in note for note in report.notes)
        assert held.clean().skipped
        held.world.clock.advance(HOUR)
        assert 20 == held.clean().end_offset

    def test_a_round_that_is_under_way_does_not_pass_a_new_hold(self, held: HeldStore) -> None:
        with pytest.raises(ConflictError, match="hold=h offset=12 bound=20"):
            held.clean(progressed=held.meanwhile(lambda: held.hold(offset=12)))
        assert 0 == held.first_dirty()
        assert 4 == len(held.store.state(held.partition).routes)
        assert 10 == held.clean().end_offset

    def test_a_point_that_a_round_has_passed_is_refused_and_the_next_ones_are_not(
        self, held: HeldStore
    ) -> None:
        assert 20 == held.clean().end_offset
        for offset in (0, 19):
            with pytest.raises(RefusedError, match=f"cleaned_to=20 end_offset={offset}"):
                held.hold(offset=offset)
        assert () == held.store.holds.all()
        assert 20 == held.hold(offset=20).offset

    def test_a_point_that_a_round_has_passed_that_was_cut_short_is_refused(
        self, held: HeldStore
    ) -> None:
        class CutError(Exception):
            """The process is over, behind the first commit."""

        publish = held.store.parts().metadata.publish
        held.store.parts().metadata.publish = Mock(side_effect=CutError)  # type: ignore[method-assign]
        with pytest.raises(CutError):
            held.clean()
        held.store.parts().metadata.publish = publish  # type: ignore[method-assign]
        assert 0 == held.first_dirty()
        with pytest.raises(RefusedError, match="cleaned_to=20"):
            held.hold(offset=12)

    def test_what_is_found_counts_only_while_nothing_was_cleaned(self, held: HeldStore) -> None:
        """A round ends between the look and the hold: it is looked at again, and refused."""
        rows = held.other.parts().metadata.hold_rows
        find = type(held.other.holds)._find
        cleaned: list[int] = []

        def find_late(*given: Any) -> Any:
            found = find(*given)
            if not cleaned:
                cleaned.append(held.clean().end_offset or 0)
            return found

        holds = held.other.holds
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(holds), "_find", find_late)
            with pytest.raises(RefusedError, match="cleaned_to=20 end_offset=12"):
                held.hold(offset=12)
        assert ([20], ()) == (cleaned, rows.stored())

    def test_a_name_is_of_one_hold_until_that_is_over(self, held: HeldStore) -> None:
        held.world.log(1, 2)
        held.hold(offset=12)
        other = [TopicPartition("t", 1)]
        with pytest.raises(RefusedError, match="there is a hold of this name"):
            held.store.holds.add(other, "h", HoldPoint(), HOUR)
        held.world.clock.advance(HOUR)
        assert 20 == held.hold().offset
        assert [20] == [each.hold.offset for each in held.store.holds.all()]

    def test_all_partitions_of_a_hold_are_released_by_its_name(self, held: HeldStore) -> None:
        held.world.log(1, 2)
        chosen = held.other.holds.choose(["t"], [])
        assert [20, 10] == [each.offset for each in held.other.holds.add(
            chosen, "now", HoldPoint(), HOUR
        )]  # fmt: skip
        with pytest.raises(InvalidError, match="there are: now"):
            held.store.holds.release("later")
        assert 2 == len(held.store.holds.release("now"))
        assert () == held.other.holds.all()
        with pytest.raises(InvalidError, match="there are: none"):
            held.other.holds.release("now")

    def test_a_hold_fences_no_owner_and_is_a_version_of_its_own(self, held: HeldStore) -> None:
        before = held.store.own(held.partition, takes_over=False)
        added = held.hold(offset=12)
        state = held.store.state(held.partition)
        assert (before.fence, before.version + 1) == (state.fence, state.version)
        assert (added,) == state.holds
        assert 10 == held.clean().end_offset
        held.other.holds.release("h")
        assert () == held.store.state(held.partition).holds
        assert 20 == held.clean().end_offset

    def test_a_partition_that_begins_again_has_no_hold(self, held: HeldStore) -> None:
        held.hold(offset=12)
        held.store.removals.forget(held.partition, grace_ms=0)
        assert () == held.other.holds.all()
        with pytest.raises(InvalidError, match="no such topic in the store"):
            held.other.holds.choose(["t"], [])

    def test_receipts_and_status_have_the_hold(self, held: HeldStore, tmp_path: Path) -> None:
        held.hold(offset=12)
        path = tmp_path / "receipt"
        held.clean(receipt=lambda line: append_receipt(LocalFiles(), path, line))
        lines = [json.loads(each) for each in path.read_text().splitlines()]
        expected = [{"name": "h", "offset": 12, "until_ms": START_MS + HOUR}]
        assert [expected] == [each["holds"] for each in lines]
        status = held.store.status(held.partition)
        assert (["h"], 10) == ([each.name for each in status.holds], status.cleanable_to)
        held.world.clock.advance(HOUR)
        assert ((), 20) == (
            held.store.status(held.partition).holds,
            held.store.status(held.partition).cleanable_to,
        )

    def test_an_unreadable_row_stops_rounds_and_is_named(self, held: HeldStore) -> None:
        held.hold(offset=12)
        engine = open_database(held.world.url)
        with engine.begin() as connection:
            connection.execute(update(schema.HOLDS).values(name="../x"))
        with pytest.raises(CorruptError, match="table=holds partition=t-0"):
            held.clean()
        with engine.connect() as connection:
            assert 1 == len(connection.execute(select(schema.HOLDS)).all())
        engine.dispose()
