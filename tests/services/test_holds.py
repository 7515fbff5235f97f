"""Holds on a real PostgreSQL: all that is so on SQLite, and a decision or a hold is first."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.attach.rules.swap import Swap
from keeplast.errors import ConflictError
from keeplast.model.hold import KeptPoint
from keeplast.tier.metadata.hold_rows import AttachedPoint
from tests.support.attached_world import AttachedWorld
from tests.support.hold_contract import HoldContract
from tests.support.waiting import SECONDS_MAX, run_at_once

pytestmark = [pytest.mark.services, pytest.mark.usefixtures("by_hand")]


class TestPostgreSQL(HoldContract):
    """With a clock that is moved by hand."""

    @pytest.fixture
    def url(self, database: str, tmp_path: Path) -> str:
        (tmp_path / "world").mkdir()
        return database


def test_of_a_hold_and_a_decision_that_would_pass_it_one_happens(
    new_database: Callable[[], str], tmp_path: Path
) -> None:
    """Who locks the partition's row first is seen by the other."""
    world = AttachedWorld(tmp_path, segments=8, url=new_database())
    publisher, other = world.claim(), world.log()
    for turn in range(4):
        swap = world.swap(publisher, turn, turn + 2)
        swap = replace(swap, cleaned_for=swap.outputs[-1].end_offset + 1)
        known = other.find(publisher.name)
        assert known is not None
        gate, done = threading.Barrier(2, timeout=SECONDS_MAX), list[str]()
        kept = KeptPoint(swap.outputs[-1].end_offset, swap.outputs[-1].end_offset)
        point = AttachedPoint(publisher.name, known, 0, known.seen, kept)

        def decide(
            swap: Swap = swap, gate: threading.Barrier = gate, done: list[str] = done
        ) -> None:
            gate.wait()
            with contextlib.suppress(ConflictError):
                publisher.decide_and_publish(swap)
                done.append("decided")

        def hold(
            point: AttachedPoint = point, gate: threading.Barrier = gate, done: list[str] = done
        ) -> None:
            gate.wait()
            with contextlib.suppress(ConflictError):
                other.hold_rows.add_attached([point], "h", 60_000)
                done.append("held")

        run_at_once((decide, hold))
        assert 1 == len(done), done
        if done == ["held"]:
            other.hold_rows.release_attached(publisher.name.cluster_id, "h")
            publisher.decide_and_publish(swap)
    publisher.close()
    world.close()
