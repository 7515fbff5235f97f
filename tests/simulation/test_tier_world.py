"""A short set of simulated clusters; ``make simulate`` runs as many as one likes."""

from __future__ import annotations

from sqlalchemy import Engine

from tests.support.tier_world import simulate
from tests.support.tier_world_cluster import Tally
from tests.support.turns import Turn

SEEDS = 40


def test_nothing_acknowledged_is_lost_whatever_happens(engine: Engine, turn: Turn) -> None:
    """I-7, I-9, I-14, I-17 to I-19, I-21, I-23, I-24, ST-3 to ST-5, ST-15, ST-20, ST-22."""
    total, seeds = Tally(), turn.seeds(SEEDS, 4)
    for seed in seeds:
        total.add(simulate(seed, engine))
    print(f"\n{total}")
    assert total.runs == len(seeds) > 0
    survived = (total.kills, total.power_losses, total.zombies_woken, total.leader_changes)
    assert min(survived) > 0
    rare = (total.clocks_set_wrong, total.refused_by_clock, total.expired_on_time)
    assert min(rare) > 0 or len(seeds) < SEEDS
