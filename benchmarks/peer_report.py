"""What the peers' benchmark prints: tables in Markdown, goals reached or missed, and bars.

From the results file alone, so that every page that shows a number can be made again. What may be
said of a goal is decided in :mod:`benchmarks.pairs`; everything else shows a contestant's best
count. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from benchmarks.figure import Bar, Panel, draw
from benchmarks.machine import describe
from benchmarks.pairs import Comparison, Verdict, compare

MIB = 1 << 20
OURS = "keeplast"


class Taken(Struct, frozen=True):
    """One count of a contestant on a directory; ``failure`` says why there is nothing.

    Start-up is not part of ``seconds``, nor the removal of replaced files. ``bytes_read`` counts
    every pass; the speed relates the size of the logs to the time. ``peak_memory_bytes`` is the
    most that all processes of the contestant held at once, ``task_memory_bytes`` that one task of
    keeplast did. ``cpu_seconds`` is of all its processes; of Kafka's, of the threads that cleaned.
    In every ``turn``, from 0 on, each contestant is measured once.
    """

    directory: str
    contestant: str
    log_bytes: int
    records: int
    keys: int
    seconds: float = 0.0
    startup_seconds: float = 0.0
    bytes_read: int = 0
    bytes_written: int = 0
    records_left: int = 0
    rounds: int = 0
    peak_memory_bytes: int = 0
    cpu_seconds: float = 0.0
    task_memory_bytes: int = 0
    failure: str | None = None
    turn: int = 0

    @property
    def mib_per_second(self) -> float:
        """Return the size of the logs over the time, 0 where there is none."""
        return self.log_bytes / MIB / self.seconds if self.seconds else 0.0

    def line(self) -> str:
        """Return one line to look at while others are still running."""
        said = f"{self.mib_per_second:.0f} MiB/s" if self.failure is None else self.failure
        return f"{self.directory}: {self.contestant}: {said}"


class Goal(Struct, frozen=True):
    """``faster`` is to be at least ``ratio`` times as fast as ``slower`` on a directory.

    ``of`` is part of the directory's name. With ``by_work`` the ratio of processor time must reach
    it as well: both work on one core. ``log_bytes_min`` is the size from which on it is to hold.
    """

    faster: str
    slower: str
    ratio: float
    of: str
    by_work: bool = False
    log_bytes_min: int = 0


ONE_CORE, TWO_CORES, KAFKA = "keeplast, one core", "keeplast, two cores", "Kafka, one thread"
ON_SPARK, SQL = "keeplast on Spark, shape partition", "Spark SQL, two cores"
GOALS = (
    Goal(ONE_CORE, KAFKA, 6.0, "140 a batch", by_work=True),
    Goal(ONE_CORE, KAFKA, 9.0, "one record a batch", by_work=True),
    Goal(ONE_CORE, KAFKA, 2.5, "100 KB", by_work=True),
    Goal(ONE_CORE, KAFKA, 1.9, "1 KB zstd", by_work=True),
    Goal(TWO_CORES, ONE_CORE, 1.7, "140 a batch"),
    Goal(ON_SPARK, TWO_CORES, 0.75, "140 a batch", log_bytes_min=1 << 30),
    Goal(ON_SPARK, SQL, 10.0, "140 a batch"),
)
MANY_KEYS = "distinct keys"
TASK_MEMORY_BYTES = 1 << 30
"""``--task-memory`` unless it is given."""


def tables(taken: Iterable[Taken], document: Mapping[str, Any]) -> str:
    """Return the goals and all results as Markdown."""
    taken = list(taken)
    lines = [goal_table(taken, document), ""]
    for name in dict.fromkeys(one.directory for one in taken):
        some = [one for one in taken if one.directory == name]
        size = f"{some[0].log_bytes / MIB:.0f} MiB, {some[0].records} records, {some[0].keys} keys"
        lines += [
            f"**{name}** ({size})",
            "",
            "| | MiB/s | records/s | seconds | of processors | start-up | peak memory | read "
            "| written | rounds |",
            "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
        ]
        lines += [_row(one) for one in best_counts(some)]
        lines.append("")
    return "\n".join(lines).rstrip()


def best_counts(taken: Iterable[Taken]) -> list[Taken]:
    """Return one row a contestant and directory: the least times, the most memory, any failure."""
    counts: dict[tuple[str, str], list[Taken]] = {}
    for one in taken:
        counts.setdefault((one.directory, one.contestant), []).append(one)
    best = []
    for some in counts.values():
        failed = [one for one in some if one.failure is not None]
        best.append(
            failed[0]
            if failed
            else replace(
                some[0],
                seconds=min(one.seconds for one in some),
                cpu_seconds=min(one.cpu_seconds for one in some),
                startup_seconds=min(one.startup_seconds for one in some),
                peak_memory_bytes=max(one.peak_memory_bytes for one in some),
                task_memory_bytes=max(one.task_memory_bytes for one in some),
            )
        )
    return best


def goal_table(taken: Iterable[Taken], document: Mapping[str, Any]) -> str:
    """Return what was to be reached and what was, with the machine in words."""
    taken = [one for one in taken if one.failure is None]
    rows = [line for goal in GOALS if (line := _goal_row(goal, taken))] + _key_rows(taken)
    scale, kafka = document["scale"], document["kafka"]["version"]
    size = "" if scale == 1 else f" Sizes are {scale:g} times the full ones."
    lines = [describe(document["machine"], kafka=kafka) + size]
    if rows:
        lines += [
            "In brackets: processor time.",
            "",
            "| goal | to reach | reached | pairs differ by | |",
            "|---|--:|--:|--:|---|",
            *rows,
        ]
    return "\n".join(lines)


def _row(one: Taken) -> str:
    if one.failure is not None:
        return f"| {one.contestant} | {one.failure} | | | | | | | | |"
    return (
        f"| {one.contestant} | {one.mib_per_second:.0f} | {one.records / one.seconds:,.0f} "
        f"| {one.seconds:.2f} | {one.cpu_seconds:.2f} | {one.startup_seconds:.1f} s "
        f"| {one.peak_memory_bytes / MIB:.0f} MiB | {one.bytes_read / MIB:.0f} MiB "
        f"| {one.bytes_written / MIB:.0f} MiB | {one.rounds} |"
    )


def compared(goal: Goal, taken: Iterable[Taken]) -> tuple[str, Comparison] | None:
    """Return the directory of a goal and its pairs; None when its contestants have none."""
    taken = list(taken)
    for name in dict.fromkeys(one.directory for one in taken if goal.of in one.directory):
        faster = _by_turn(goal.faster, name, taken)
        slower = _by_turn(goal.slower, name, taken)
        turns = sorted(faster.keys() & slower.keys())
        if turns:
            return name, compare(
                ours=[(faster[turn].seconds, faster[turn].cpu_seconds) for turn in turns],
                theirs=[(slower[turn].seconds, slower[turn].cpu_seconds) for turn in turns],
            )
    return None


def to_keep(taken: Iterable[Taken], contestants: Iterable[str]) -> list[Taken]:
    """Return the counts with which a run of these ``contestants`` can go on.

    Left out are failures, turns that lack a contestant of a goal, as what is measured another day
    makes no pair with them, and whole directories in which pairs differ by too much.
    """
    taken = [one for one in taken if one.failure is None]
    paired = {name for goal in GOALS for name in (goal.faster, goal.slower)}
    wanted = paired.intersection(contestants)
    there: dict[tuple[str, int], set[str]] = {}
    for one in taken:
        there.setdefault((one.directory, one.turn), set()).add(one.contestant)
    differing = {
        found[0]
        for goal in GOALS
        if (found := compared(goal, taken)) and found[1].doubt() is Verdict.DIFFER
    }
    return [
        one
        for one in taken
        if one.directory not in differing
        and (one.contestant not in paired or wanted <= there[one.directory, one.turn])
    ]


def _by_turn(contestant: str, directory: str, taken: list[Taken]) -> dict[int, Taken]:
    return {
        one.turn: one for one in taken if (one.contestant, one.directory) == (contestant, directory)
    }


def _goal_row(goal: Goal, taken: list[Taken]) -> str | None:
    found = compared(goal, taken)
    if found is None:
        return None
    name, both = found
    judged = () if goal.by_work else (both.by_clock,)
    verdict = both.verdict(goal.ratio, *judged).value
    log_bytes = next(one.log_bytes for one in taken if one.directory == name)
    if log_bytes < goal.log_bytes_min:
        verdict += f" (of {log_bytes / MIB:.0f} MiB; the goal begins at 1 GiB)"
    return (
        f"| {name}: {goal.faster}, against {goal.slower} | {goal.ratio:g}x | {both.ratios} "
        f"| {both.spreads} | {verdict} |"
    )


def _key_rows(taken: list[Taken]) -> list[str]:
    """Return rows for what has no ceiling: passes over many keys, and the memory of a task."""
    rows = []
    of = {one.contestant: one for one in best_counts(taken) if MANY_KEYS in one.directory}
    if ONE_CORE in of and KAFKA in of:
        ours, theirs = of[ONE_CORE].rounds, of[KAFKA].rounds
        verdict = "reached" if ours == 1 else "**missed**"
        rows.append(
            f"| {of[ONE_CORE].directory}: rounds (Kafka at 128 MiB: {theirs}) | 1 | {ours} | "
            f"| {verdict} |"
        )
    bucket = of.get("keeplast on Spark, shape bucket")
    if bucket is not None and bucket.task_memory_bytes:
        verdict = "reached" if bucket.task_memory_bytes < TASK_MEMORY_BYTES else "**missed**"
        rows.append(
            f"| {bucket.directory}: memory of a task, shape bucket "
            f"| under {TASK_MEMORY_BYTES / MIB:.0f} MiB "
            f"| {bucket.task_memory_bytes / MIB:.0f} MiB | | {verdict} |"
        )
    return rows


def bars(taken: Iterable[Taken]) -> str:
    """Return the best speeds as an SVG, a panel a directory."""
    taken = best_counts(taken)
    panels = []
    for name in dict.fromkeys(one.directory for one in taken):
        panels.append(
            Panel(
                f"{name}, MiB/s",
                tuple(
                    Bar(
                        one.contestant,
                        one.mib_per_second,
                        f"{one.mib_per_second:.0f}" if one.failure is None else one.failure,
                        one.contestant.startswith(OURS),
                    )
                    for one in taken
                    if one.directory == name
                ),
            )
        )
    return draw(panels)
