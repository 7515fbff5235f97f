"""The cleaner-offset vector: KIP-1272's table, and every order of arrival."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from keeplast.errors import InvalidError
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.tier.state.partition_state import (
    Publication,
    advance,
    checkpoint,
    find_vector,
    take_over,
)

LINEAGE = (LeaderEpoch(0, 0), LeaderEpoch(1, 120))
LOG_END = 1000
A_100 = Publication(0, 1, {0: 100})
B_CLAIM = Publication(1, 0, {0: 100, 1: 100})
B_155 = Publication(1, 1, {0: 100, 1: 155})
A_LATE = Publication(0, 2, {0: 123})


@pytest.mark.parametrize("order", list(itertools.permutations([A_100, B_CLAIM, B_155, A_LATE])))
def test_st_1_kip_table_comes_out_the_same_in_every_order(order: Sequence[Publication]) -> None:
    """ST-1; the KIP's own table, "A becomes live and uploads its pending compaction"."""
    assert find_vector(order, LINEAGE, LOG_END) == {0: 100, 1: 155}
    assert checkpoint(order, LINEAGE, LOG_END) == 155


def test_a_late_one_counts_until_a_successor_is_known_and_never_after() -> None:
    assert find_vector([A_100, A_LATE], (), LOG_END) == {0: 123}
    assert find_vector([A_100, A_LATE, B_CLAIM], (), LOG_END) == {0: 100, 1: 100}


def test_st_18_epoch_without_work_carries_the_vector_on() -> None:
    lineage = (LeaderEpoch(0, 0), LeaderEpoch(1, 300), LeaderEpoch(2, 400))
    known = [Publication(0, 0, {0: 0}), Publication(0, 1, {0: 100})]
    for epoch in (1, 2):
        known.append(take_over(known, lineage, LOG_END, epoch=epoch, log_start=0))
    assert find_vector(known, lineage, LOG_END) == {0: 100, 1: 100, 2: 100}
    assert checkpoint(known, lineage, LOG_END) == 100


def test_st_19_truncation_below_the_checkpoint_takes_it_back() -> None:
    known = [Publication(0, 0, {0: 0}), Publication(0, 1, {0: 500})]
    lineage = (LeaderEpoch(0, 0), LeaderEpoch(1, 200))
    assert checkpoint(known, lineage, LOG_END) == 200
    claim = take_over(known, lineage, LOG_END, epoch=1, log_start=0)
    assert claim == Publication(1, 0, {0: 200, 1: 200})


def test_entry_of_an_epoch_that_left_the_lineage_ends_where_the_next_begins() -> None:
    known = [Publication(0, 0, {0: 50}), Publication(3, 0, {0: 50, 3: 90})]
    assert find_vector(known, (LeaderEpoch(0, 0), LeaderEpoch(5, 70)), LOG_END) == {0: 50, 3: 70}


def test_a_leader_only_moves_forward() -> None:
    known = [Publication(4, 0, {4: 10})]
    later = advance(known, epoch=4, cleaned_to=20)
    assert later == Publication(4, 1, {4: 20})
    with pytest.raises(InvalidError):
        advance([*known, later], epoch=4, cleaned_to=19)
    with pytest.raises(InvalidError):
        advance(known, epoch=5, cleaned_to=20)
    with pytest.raises(InvalidError):
        take_over(known, (), LOG_END, epoch=4, log_start=0)


def test_a_new_log_begins_at_its_start() -> None:
    assert take_over((), (), 10, epoch=7, log_start=3) == Publication(7, 0, {7: 3})
    assert checkpoint((), (), 10) is None


@pytest.mark.parametrize("offsets", [{}, {0: 1}, {1: 1, 2: 1}])
def test_publication_names_its_own_epoch_and_none_later(offsets: dict[int, int]) -> None:
    with pytest.raises(InvalidError):
        Publication(1, 0, offsets)


def history(dice: random.Random, length: int) -> list[Publication]:
    """Leaders that take over and clean, and zombies that go on from what they knew."""
    known: list[Publication] = []
    views: dict[int, list[Publication]] = {}
    while len(known) < length:
        zombies = sorted(views)[:-1]
        if not known or dice.random() < 0.3:
            epoch = max((p.epoch for p in known), default=-1) + dice.randint(1, 2)
            made = take_over(known, (), LOG_END, epoch=epoch, log_start=0)
            views[epoch] = [made]
        elif zombies and dice.random() < 0.4:
            epoch = dice.choice(zombies)
            last = views[epoch][-1].cleaned_to
            made = advance(views[epoch], epoch=epoch, cleaned_to=last + dice.randint(0, 50))
            views[epoch].append(made)
        else:
            epoch = max(views)
            last = views[epoch][-1].cleaned_to
            made = advance(views[epoch], epoch=epoch, cleaned_to=last + dice.randint(0, 50))
            views[epoch].append(made)
        known.append(made)
    return known


@pytest.mark.parametrize("seed", range(40))
def test_order_never_matters_and_more_only_lowers_what_a_successor_has_found(seed: int) -> None:
    """Exhaustive: every permutation, and every prefix of it, of up to six publications."""
    known = history(random.Random(seed), 3 + seed % 4)
    expected = find_vector(known, (), LOG_END)
    for order in itertools.permutations(known):
        assert expected == find_vector(order, (), LOG_END)
        before: dict[int, int] = {}
        for end in range(1, len(order) + 1):
            now = find_vector(order[:end], (), LOG_END)
            newest = max(p.epoch for p in order[: end - 1]) if end > 1 else 0
            for epoch, offset in before.items():
                # One that a later leader said knew nothing of has no entry: nothing of it counts.
                assert epoch == newest or now.get(epoch, -1) <= offset
            before = now


@pytest.mark.parametrize("seed", range(2))
def test_order_of_seven_never_matters(seed: int) -> None:
    known = history(random.Random(100 + seed), 7)
    expected = find_vector(known, (), LOG_END)
    for order in itertools.permutations(known):
        assert expected == find_vector(order, (), LOG_END)
