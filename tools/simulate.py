"""Simulates the tier: hosts, an object store and a database, with everything that goes wrong.

    python tools/simulate.py --seeds 0:10000 --jobs 2
    python tools/simulate.py --seed 4711 --trace     one run again, with every operation
    python tools/simulate.py --world owners --seeds 0:10000    a broker's directory beside a store
    python tools/simulate.py --world attached --seeds 0:10000  a live cluster's tiered topic

Ends with 1 when a seed fails, after a command that repeats it, and when something never happened
that a guard is for. What happens in a run is told in tests/support/tier_world.py, owners_world.py
and live_world.py, and in docs/design/tiering.md and attached-scenarios.md.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support import live_world, owners_world, tier_world  # noqa: E402 - after the path is set
from tests.support.live_world_mood import LiveTally  # noqa: E402
from tests.support.owners_mood import OwnersTally  # noqa: E402
from tests.support.tier_world import Failure  # noqa: E402
from tests.support.tier_world_cluster import Tally  # noqa: E402
from tests.support.tier_world_stores import open_database_in_memory  # noqa: E402

CHUNK = 10
PROGRESS_SECONDS = 10.0
FAILURES_MAX = 5
ENOUGH_RUNS = 200
"""So many runs have everything in them that a guard is for; fewer may not."""


@dataclass(frozen=True, slots=True)
class World:
    """What is simulated: one run of a seed, and what runs are counted in."""

    simulate: Callable[..., Any]
    new_tally: Callable[[], Any]


WORLDS = {
    "cluster": World(tier_world.simulate, Tally),
    "owners": World(owners_world.simulate, OwnersTally),
    "attached": World(live_world.simulate, LiveTally),
}


def run_seeds(chunk: tuple[str, range]) -> tuple[Any, list[str]]:
    """Run seeds of a world in this process; returns what was survived and what failed."""
    world, seeds = WORLDS[chunk[0]], chunk[1]
    engine = open_database_in_memory()
    tally, failures = world.new_tally(), list[str]()
    for seed in seeds:
        try:
            tally.add(world.simulate(seed, engine))
        except Failure as failure:
            failures.append(str(failure))
    engine.dispose()
    return tally, failures


def results(name: str, seeds: range, jobs: int) -> Iterator[tuple[Any, list[str]]]:
    """Yield the results of chunks of seeds as they end."""
    chunks = [(name, seeds[at : at + CHUNK]) for at in range(0, len(seeds), CHUNK)]
    if jobs == 1:
        yield from map(run_seeds, chunks)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(run_seeds, chunks)


def main() -> int:
    """Run and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--world", choices=sorted(WORLDS), default="cluster", help="default cluster"
    )
    parser.add_argument("--seeds", default="0:200", metavar="FIRST:END", help="default 0:200")
    parser.add_argument("--jobs", type=int, default=1, help="processes, default 1")
    parser.add_argument("--seed", type=int, default=None, help="this one only")
    parser.add_argument("--trace", action="store_true", help="with --seed: every operation")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        try:
            told = print if arguments.trace else None
            print(WORLDS[arguments.world].simulate(arguments.seed, told=told))
        except Failure as failure:
            print(failure)
            return 1
        return 0
    first, _, end = arguments.seeds.partition(":")
    seeds = range(int(first), int(end))
    tally, failures = WORLDS[arguments.world].new_tally(), list[str]()
    started = shown = time.monotonic()
    for made, failed in results(arguments.world, seeds, arguments.jobs):
        tally.add(made)
        failures += failed
        for each in failed:
            print(each, flush=True)
        if len(failures) >= FAILURES_MAX:
            break
        if time.monotonic() - shown > PROGRESS_SECONDS:
            shown = time.monotonic()
            rate = tally.runs / (shown - started)
            print(
                f"{tally.runs:,} of {len(seeds):,} runs, {tally.progress()}, {rate:.1f} runs/s",
                file=sys.stderr, flush=True,
            )  # fmt: skip
    print(tally)
    print(f"{len(failures)} of {tally.runs + len(failures):,} runs failed")
    missing = tally.never_happened() if tally.runs >= ENOUGH_RUNS else ()
    for what in missing:
        print(f"never happened: {what}")
    return 1 if failures or missing else 0


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The same seed is the same run, in every process.
        os.execve(
            sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": "0"}
        )
    sys.exit(main())
