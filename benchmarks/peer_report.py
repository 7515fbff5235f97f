"""What the peers' benchmark prints: tables in Markdown, goals reached or missed, and bars.

Pure: from the results file alone, so that every page that shows a number can be made again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.figure import Bar, Panel, draw

MIB = 1 << 20
OURS = "keeplast"


@dataclass(frozen=True, slots=True)
class Taken:
    """What one contestant took for one directory. Start-up is not part of ``seconds``.

    ``bytes_read`` counts every pass; the speed relates the size of the logs to the time. The
    memory is the most that all processes of the contestant held at once; ``cpu_seconds`` is known
    where one process does everything.
    """

    directory: str
    contestant: str
    log_bytes: int
    records: int
    keys: int
    seconds: float
    startup_seconds: float
    bytes_read: int
    bytes_written: int
    records_left: int
    rounds: int
    peak_memory_bytes: int
    cpu_seconds: float | None = None

    @property
    def mib_per_second(self) -> float:
        """Return the size of the logs over the time."""
        return self.log_bytes / MIB / self.seconds

    def line(self) -> str:
        """Return one line to look at while others are still running."""
        return f"{self.directory}: {self.contestant}: {self.mib_per_second:.0f} MiB/s"


@dataclass(frozen=True, slots=True)
class Goal:
    """``faster`` is to be at least ``ratio`` times as fast as ``slower``, on one directory or all.

    ``of`` is part of the directory's name; empty means all.
    """

    faster: str
    slower: str
    ratio: float
    of: str = ""


GOALS = (
    Goal("keeplast, one core", "Kafka, one thread", 6.0, "140 a batch"),
    Goal("keeplast, one core", "Kafka, one thread", 9.0, "one record a batch"),
    Goal("keeplast, one core", "Kafka, one thread", 2.5, "100 KB"),
    Goal("keeplast, one core", "Kafka, one thread", 1.9, "1 KB zstd"),
    Goal("keeplast, two cores", "keeplast, one core", 1.7, "140 a batch"),
    Goal("keeplast on Spark, shape partition", "keeplast, two cores", 0.75, "140 a batch"),
    Goal("keeplast on Spark, shape partition", "Spark SQL, two cores", 10.0, "140 a batch"),
)


def tables(taken: Iterable[Taken], document: Mapping[str, Any]) -> str:
    """Return all results and the goals as Markdown."""
    taken = list(taken)
    lines = [_machine(document), ""]
    names = list(dict.fromkeys(one.directory for one in taken))
    for name in names:
        some = [one for one in taken if one.directory == name]
        size = f"{some[0].log_bytes / MIB:.0f} MiB, {some[0].records} records, {some[0].keys} keys"
        lines += [
            f"**{name}** ({size})",
            "",
            "| | MiB/s | records/s | seconds | start-up | peak memory | read | written | rounds |",
            "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
        ]
        lines += [_row(one) for one in some]
        lines.append("")
    goals = [line for goal in GOALS if (line := _goal_row(goal, taken))]
    if goals:
        lines += ["| goal | to reach | measured | |", "|---|--:|--:|---|", *goals]
    return "\n".join(lines).rstrip()


def _machine(document: Mapping[str, Any]) -> str:
    machine, scale = document["machine"], document["scale"]
    size = "" if scale == 1 else f" Sizes are {scale:g} times the full ones."
    return (
        f"{machine['cpus']} x {machine['processor']}, {machine['memory_bytes'] / 2**30:.0f} GiB, "
        f"{machine['system']}; Kafka {document['kafka']['version']}. Load when it began: "
        f"{machine['load_before']:.1f}.{size}"
    )


def _row(one: Taken) -> str:
    return (
        f"| {one.contestant} | {one.mib_per_second:.0f} | {one.records / one.seconds:,.0f} "
        f"| {one.seconds:.2f} | {one.startup_seconds:.1f} s "
        f"| {one.peak_memory_bytes / MIB:.0f} MiB | {one.bytes_read / MIB:.0f} MiB "
        f"| {one.bytes_written / MIB:.0f} MiB | {one.rounds} |"
    )


def _goal_row(goal: Goal, taken: list[Taken]) -> str | None:
    for name in dict.fromkeys(one.directory for one in taken):
        of = {one.contestant: one.mib_per_second for one in taken if one.directory == name}
        if goal.of in name and goal.faster in of and goal.slower in of:
            ratio = of[goal.faster] / of[goal.slower]
            verdict = "reached" if ratio >= goal.ratio else "**missed**"
            return (
                f"| {name}: {goal.faster}, against {goal.slower} | {goal.ratio:g}x "
                f"| {ratio:.2f}x | {verdict} |"
            )
    return None


def bars(taken: Iterable[Taken]) -> str:
    """Return the speeds as an SVG, a panel a directory."""
    taken = list(taken)
    panels = []
    for name in dict.fromkeys(one.directory for one in taken):
        panels.append(
            Panel(
                f"{name}, MiB/s",
                tuple(
                    Bar(
                        one.contestant,
                        one.mib_per_second,
                        f"{one.mib_per_second:.0f}",
                        one.contestant.startswith(OURS),
                    )
                    for one in taken
                    if one.directory == name
                ),
            )
        )
    return draw(panels)
