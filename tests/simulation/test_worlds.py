"""What holds of every simulated world."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from tests.support import live_world, owners_world, tier_world
from tests.support.simulated import Simulate

WORLDS: dict[str, Simulate] = {
    "cluster": tier_world.simulate,
    "owners": owners_world.simulate,
    "attached": live_world.simulate,
}


@pytest.mark.parametrize("world", WORLDS)
def test_a_seed_is_the_same_run_every_time(engine: Engine, world: str) -> None:
    traces: list[list[str]] = [[], []]
    for trace in traces:
        WORLDS[world](7, engine, trace=trace.append)
    assert traces[0] == traces[1]
    assert len(traces[0]) > 100
