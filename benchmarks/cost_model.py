"""``python -m benchmarks.cost_model``: what a cluster would take, from measured slopes.

    core seconds = MiB x (seconds a MiB) + keys x (seconds a key) + partitions x (seconds each)
    hours        = core seconds / (cores x efficiency) / 3600

Seconds a MiB come from the series over the size of the log, seconds a key from the series over its
distinct keys, seconds a partition from the series over partitions: ``results/growth.json``, of each
point the best count of processor time. Shape
``partition``: nothing travels between tasks, so cores multiply as long as there are several
partitions a core.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from msgspec import Struct

from benchmarks.run import RESULTS

MIB = 1 << 20
TIB_IN_MIB = 1 << 20
EFFICIENCY = 0.75
"""Of Spark's cores, what the goal for SparkRunner leaves: start of tasks, Python workers, waits."""
CORES_AN_EXECUTOR = 4
TIB, PARTITIONS, KEYS = 100.0, 10_000, 1e11
"""What is predicted unless something else is asked for."""


class Slopes(Struct, frozen=True):
    """Processor seconds of one core."""

    seconds_a_mib: float
    seconds_a_key: float
    seconds_a_partition: float

    def core_seconds(self, *, mib: float, keys: float, partitions: float) -> float:
        """Return what so much work takes."""
        return (
            mib * self.seconds_a_mib
            + keys * self.seconds_a_key
            + partitions * self.seconds_a_partition
        )


def slopes_of(points: list[dict[str, Any]]) -> Slopes:
    """Return the slopes of a results file; what noise makes negative counts as nothing."""
    size = sorted(_series(points, "log size"), key=lambda p: int(p["log_bytes"]))
    few, many = size[0], size[-1]
    keys = sorted(_series(points, "distinct keys"), key=lambda p: int(p["keys"]))
    parts = sorted(_series(points, "partitions"), key=lambda p: int(p["label"]))
    more_keys = keys[-1]["keys"] - keys[0]["keys"]
    more_parts = int(parts[-1]["label"]) - int(parts[0]["label"])
    more_mib = (many["log_bytes"] - few["log_bytes"]) / MIB
    a_key = max(0.0, min(keys[-1]["work"]) - min(keys[0]["work"])) / more_keys
    grown = min(many["work"]) - min(few["work"]) - a_key * (many["keys"] - few["keys"])
    return Slopes(
        seconds_a_mib=max(0.0, grown) / more_mib,
        seconds_a_key=a_key,
        seconds_a_partition=max(0.0, min(parts[-1]["work"]) - min(parts[0]["work"])) / more_parts,
    )


def _series(points: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    found = [point for point in points if point["series"] == name]
    if len(found) < 2:
        raise SystemExit(f"the results have no series {name!r}: run benchmarks.growth first")
    return found


def table(
    slopes: Slopes, *, tib: float = TIB, partitions: int = PARTITIONS, keys: float = KEYS
) -> str:
    """Return the prediction for some numbers of executors as Markdown."""
    core_seconds = slopes.core_seconds(mib=tib * TIB_IN_MIB, keys=keys, partitions=partitions)
    lines = [
        f"One core: {1000 * slopes.seconds_a_mib:.2f} ms a MiB, "
        f"{1e9 * slopes.seconds_a_key:.0f} ns a distinct key, "
        f"{1000 * slopes.seconds_a_partition:.0f} ms a partition. "
        f"{tib:g} TiB in {partitions} partitions with {keys:.0e} distinct keys: "
        f"{core_seconds / 3600:.0f} core hours, {EFFICIENCY:.0%} of each core at work.",
        "",
        f"| executors of {CORES_AN_EXECUTOR} cores | hours | read from disk, GiB/s | each |",
        "|--:|--:|--:|--:|",
    ]
    for executors in (10, 50, 100, 500):
        seconds = core_seconds / (executors * CORES_AN_EXECUTOR * EFFICIENCY)
        # Both passes read all of it.
        rate = 2 * tib * 1024 / seconds
        lines.append(
            f"| {executors} | {seconds / 3600:.2f} | {rate:.1f} | {rate / executors:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Print the prediction; see ``--help``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS / "growth.json")
    parser.add_argument("--tib", type=float, default=TIB)
    parser.add_argument("--partitions", type=int, default=PARTITIONS)
    parser.add_argument("--keys", type=float, default=KEYS, help="distinct keys, all partitions")
    parser.add_argument("--out", type=Path, default=RESULTS / "cost_model.md")
    arguments = parser.parse_args()
    document = json.loads(arguments.results.read_text())
    text = table(
        slopes_of(document["points"]),
        tib=arguments.tib,
        partitions=arguments.partitions,
        keys=arguments.keys,
    )
    arguments.out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
