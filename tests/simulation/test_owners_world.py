"""A short set of runs of two owners of one log; ``make simulate`` runs as many as one likes.

And the simulation is worth something: without one of these guards it fails. Each case names a few
seeds, found by running from 0 on, of which one at least fails without it; with the guard in place
they pass. A change of the tier changes all runs: when none of them fails any more, the first seeds
are tried in turn, and one of those must.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import Engine

from keeplast.log.files import FileSystem
from keeplast.log.partition_log import SegmentFiles, load_aborted
from keeplast.store import intake as tier_directory
from keeplast.store import tiered_store
from keeplast.survey.bounds import LogBounds
from keeplast.tier.copy import importing
from keeplast.tier.metadata.collection import Marks
from keeplast.tier.objects import transfer
from keeplast.tier.state.partition_state import PartitionState
from tests.support import tier_world_tasks
from tests.support.owners_mood import OwnersTally
from tests.support.owners_world import simulate
from tests.support.simulated import Failure, Guard
from tests.support.turns import Turn

SEEDS = 150
CANDIDATES_MAX = 300


def test_a_store_next_to_a_broker_reads_as_the_broker_promised_or_refuses(
    engine: Engine, turn: Turn
) -> None:
    total, seeds = OwnersTally(), turn.seeds(SEEDS, 30)
    for seed in seeds:
        total.add(simulate(seed, engine))
    print(f"\n{total}")
    assert total.runs == len(seeds) > 0
    # What is rare does not come up in every share.
    assert total.never_happened() == () or len(seeds) < SEEDS


@pytest.mark.parametrize("seed", [3133, 3136, 3193])
def test_a_command_next_to_a_busy_broker_ends(engine: Engine, seed: int) -> None:
    assert simulate(seed, engine).runs == 1


def test_a_command_that_does_not_end_fails(monkeypatch: pytest.MonkeyPatch, engine: Engine) -> None:
    monkeypatch.setattr(tier_world_tasks, "STEPS_MAX", 40)
    with pytest.raises(Failure, match="import does not end"):
        simulate(7, engine)


def without_a_look_at_what_the_brokers_cleaner_did(patch: pytest.MonkeyPatch) -> None:
    """A copy goes on where the store ends, whatever is missing."""
    patch.setattr(importing, "find_hazard", lambda *args, **options: None)
    patch.setattr(importing, "find_foreign_cleaner", lambda *args, **options: None)


def with_transaction_indexes_that_are_trusted(patch: pytest.MonkeyPatch) -> None:
    """What was aborted is what lies next to a segment."""

    def copy(objects: Any, files: FileSystem, segment: SegmentFiles, **options: Any) -> Any:
        start = options.get("from_offset") or 0
        found = [each for each in load_aborted(segment, files) if each.last_offset >= start]
        return transfer.copy_segment(objects, files, segment, **{**options, "aborted": found})

    patch.setattr(importing, "copy_segment", copy)


def without_the_brokers_log_start(patch: pytest.MonkeyPatch) -> None:
    """What DeleteRecords took stays in the store."""

    def stay(store: Any, state: PartitionState, *args: Any, **options: Any) -> PartitionState:
        return state

    patch.setattr(tiered_store, "follow_log_start", stay)


def without_the_brokers_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """An import takes what not every replica has."""

    def bounds(*args: Any) -> LogBounds:
        return replace(tier_directory.directory_bounds(*args), high_watermark=1 << 40)

    patch.setattr(tiered_store, "directory_bounds", bounds)


def without_the_marks_of_the_objects(patch: pytest.MonkeyPatch) -> None:
    """Metadata that was restored from a backup is taken for the newest."""
    patch.setattr(Marks, "_holds", lambda marks: True)


GUARDS = (
    Guard(without_a_look_at_what_the_brokers_cleaner_did, (40, 59)),
    Guard(with_transaction_indexes_that_are_trusted, (25, 23)),
    Guard(without_the_brokers_log_start, (9, 8)),
    Guard(without_the_brokers_high_watermark, (10, 1)),
    Guard(without_the_marks_of_the_objects, (60, 61)),
)


@pytest.mark.parametrize("guard", GUARDS, ids=str)
def test_a_guard_that_is_gone_is_missed(engine: Engine, guard: Guard) -> None:
    guard.check_missed(simulate, engine, CANDIDATES_MAX)
