"""Contestants take turns on fresh copies; who fails is out; a run goes on where it was ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from benchmarks import peers
from benchmarks.peer_report import GOALS, Taken
from benchmarks.workload import Workload
from keeplast.format.compression import Codec

SMALL = peers.Directory(
    Workload("small", 100, 10, Codec.NONE, 64 << 10, segment_bytes=32 << 10), partitions=2
)
KAFKA, OURS = "Kafka, one thread", "keeplast, one core"
TOOK = {"seconds": 1.0, "cpu_seconds": 1.0}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two contestants that clean nothing, the second of which fails when its name is there."""
    asked: list[str] = []

    def contestant(name: str) -> Any:
        def take(directory: peers.Directory, place: Path) -> dict[str, Any]:
            assert 2 == len(list(place.glob("bench-*")))
            asked.append(name)
            if name == "fails":
                raise RuntimeError("no room")
            return TOOK

        return take

    names = (KAFKA, OURS, "fails")
    monkeypatch.setattr(peers, "CONTESTANTS", {name: contestant(name) for name in names})
    return asked


def test_contestants_take_turns(tmp_path: Path, asked: list[str]) -> None:
    taken = list(peers.run([SMALL], [KAFKA, OURS], 5, tmp_path, []))
    assert [KAFKA, OURS] * 5 == asked
    assert [0, 0, 1, 1, 2, 2, 3, 3, 4, 4] == [one.turn for one in taken]


def test_a_contestant_that_fails_is_not_tried_again(tmp_path: Path, asked: list[str]) -> None:
    taken = list(peers.run([SMALL], [KAFKA, "fails"], 3, tmp_path, []))
    assert [KAFKA, "fails", KAFKA, KAFKA] == asked
    assert ["failed"] == [one.failure for one in taken if one.failure is not None]


def test_a_known_figure_is_not_measured_again(tmp_path: Path, asked: list[str]) -> None:
    known = [Taken("small", name, 1, 1, 1, turn=turn) for turn in (0, 1) for name in (KAFKA, OURS)]
    list(peers.run([SMALL], [KAFKA, OURS], 3, tmp_path, known))
    assert [KAFKA, OURS] == asked


def test_what_a_goal_compares_is_measured_side_by_side() -> None:
    order = list(peers.CONTESTANTS)
    for goal in GOALS:
        assert 1 == abs(order.index(goal.faster) - order.index(goal.slower)), goal


def test_results_of_another_scale_or_machine_are_left(tmp_path: Path) -> None:
    out, now = tmp_path / "peers.json", peers.document([], 0.5)
    one = Taken("small", "Kafka, two threads", 1, 1, 1, seconds=1.0)
    assert [] == peers.known(out, now, [])
    for changed, kept in (
        ({}, [one]),
        ({"scale": 1.0}, []),
        ({"version": 2}, []),
        ({"machine": {**now["machine"], "cpus": 999}}, []),
    ):
        out.write_text(json.dumps({**now, "taken": [to_builtins(one)], **changed}))
        assert kept == peers.known(out, now, [one.contestant])
    out.write_text(json.dumps({**now, "taken": [to_builtins(replace(one, failure="failed"))]}))
    assert [] == peers.known(out, now, [one.contestant])
