"""Simulates the tier: hosts, an object store and a database, with everything that goes wrong.

    python tools/simulate.py --seeds 0:10000 --jobs 2
    python tools/simulate.py --seed 4711 --trace     one run again, with every operation
    python tools/simulate.py --world owners --seeds 0:10000    a broker's directory next to a store
    python tools/simulate.py --world attached --seeds 0:10000  a live cluster's tiered topic
    python tools/simulate.py --world attached --seeds 0:500 --keep FILE   its counts as a line more
    python tools/simulate.py --add FILE…               what the ranges in files come to together

Ends with 1 when a seed fails, after a command that repeats it, and when something never happened
that a guard is for. What happens in a run stands in tests/support/tier_world.py, owners_world.py
and live_world.py, and in docs/contributing/design/tiering.md and attached-scenarios.md.
"""

from __future__ import annotations

import argparse
import datetime
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from keeplast.errors import InvalidError  # noqa: E402
from tests.support import live_world, owners_world, tier_world  # noqa: E402 - after the path is set
from tests.support.live_world_mood import LiveTally  # noqa: E402
from tests.support.owners_mood import OwnersTally  # noqa: E402
from tests.support.seed_ranges import SeedRange, add_up, line_of, read_ranges  # noqa: E402
from tests.support.simulated import Failure  # noqa: E402
from tests.support.tier_world_cluster import Tally  # noqa: E402
from tests.support.tier_world_stores import open_database_in_memory  # noqa: E402

CHUNK = 10
PROGRESS_SECONDS = 10.0
FAILURES_MAX = 5
ENOUGH_RUNS = 200
"""So many runs have everything in them that a guard is for; fewer may not."""


class World(Struct, frozen=True):
    """What is simulated: one run of a seed, and what runs are counted in."""

    simulate: Callable[..., Any]
    new_tally: Callable[[], Any]


WORLDS = {
    "cluster": World(tier_world.simulate, Tally),
    "owners": World(owners_world.simulate, OwnersTally),
    "attached": World(live_world.simulate, LiveTally),
}


Failed = tuple[int, str]
"""A seed, and the report of its failure."""


def run_seeds(chunk: tuple[str, range]) -> tuple[Any, list[Failed]]:
    """Run seeds of a world in this process; returns what was survived and what failed."""
    world, seeds = WORLDS[chunk[0]], chunk[1]
    engine = open_database_in_memory()
    tally, failures = world.new_tally(), list[Failed]()
    for seed in seeds:
        try:
            tally.add(world.simulate(seed, engine))
        except Failure as failure:
            failures.append((seed, str(failure)))
    engine.dispose()
    return tally, failures


def results(name: str, seeds: range, jobs: int) -> Iterator[tuple[Any, list[Failed]]]:
    """Yield the results of chunks of seeds as they end."""
    chunks = [(name, seeds[at : at + CHUNK]) for at in range(0, len(seeds), CHUNK)]
    if jobs == 1:
        yield from map(run_seeds, chunks)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(run_seeds, chunks)


def run_one(world: str, seed: int, *, traces: bool) -> int:
    """Run one seed; returns the exit code."""
    try:
        print(WORLDS[world].simulate(seed, trace=print if traces else None))
    except Failure as failure:
        print(failure)
        return 1
    return 0


def run_range(world: str, seeds: range, jobs: int, keeps: Path | None) -> int:
    """Run a range, and keep what it came to; returns the exit code."""
    tally, failures = WORLDS[world].new_tally(), list[Failed]()
    started = shown = time.monotonic()
    for made, failed in results(world, seeds, jobs):
        tally.add(made)
        failures += failed
        for _, failure in failed:
            print(failure, flush=True)
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
    if keeps is not None and tally.runs + len(failures) == len(seeds):
        wrong = tuple(sorted(seed for seed, _ in failures))
        found = SeedRange(world, seeds.start, seeds.stop, code(), today(), wrong, tally)
        with keeps.open("a") as file:
            file.write(line_of(found) + "\n")
    elif keeps is not None:
        print("nothing is kept of a range that was broken off")
    return say_missing(tally) or int(bool(failures))


def add_ranges(paths: Sequence[Path]) -> int:
    """Print what the ranges in files come to together; returns the exit code."""
    try:
        found = read_ranges(paths, {name: world.new_tally for name, world in WORLDS.items()})
        total = add_up(found)
    except (InvalidError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(total.tally)
    print("seeds that went well:", *(f"{first}:{end}" for first, end in total.spans))
    print("seeds that failed, and went well in no other range:", *(total.failed or ("none",)))
    print("commits:", *total.codes)
    return say_missing(total.tally) or int(bool(total.failed))


def say_missing(tally: Any) -> int:
    """Print what never happened that a guard is for, where there were runs enough for it."""
    missing = tally.never_happened() if tally.runs >= ENOUGH_RUNS else ()
    for what in missing:
        print(f"never happened: {what}")
    return int(bool(missing))


def code() -> str:
    """Return the commit that is run, with a plus where something was changed since."""
    asked = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--exclude=*"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def today() -> str:
    """Return the date."""
    return datetime.datetime.now(tz=datetime.UTC).date().isoformat()


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
    parser.add_argument("--keep", type=Path, metavar="FILE", help="append what the range came to")
    parser.add_argument("--add", type=Path, nargs="+", metavar="FILE", help="run nothing, add up")
    arguments = parser.parse_args()
    if arguments.add is not None:
        return add_ranges(arguments.add)
    if arguments.seed is not None:
        return run_one(arguments.world, arguments.seed, traces=arguments.trace)
    first, _, end = arguments.seeds.partition(":")
    seeds = range(int(first), int(end))
    return run_range(arguments.world, seeds, arguments.jobs, arguments.keep)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The same seed is the same run, in every process.
        os.execve(
            sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": "0"}
        )
    sys.exit(main())
