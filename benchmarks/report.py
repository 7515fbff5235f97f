"""The table of ``benchmarks.run``, made of its results file and nothing else.

So every page that shows it can be made again, and a test can hold it against the file. What a row
may say of its goal is decided in :mod:`benchmarks.pairs`. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, to_builtins

from benchmarks.contestants import MIB, Measure
from benchmarks.figure import Bar, Panel, draw
from benchmarks.machine import describe
from benchmarks.pairs import PAIRS_MIN, Comparison, compare, least
from benchmarks.workload import Workload
from keeplast.format.compression import Codec
from keeplast.survey.request import MEMORY_BYTES_DEFAULT

VERSION = 3
SIDES = ("kafka", "keeplast", "all_cores", "spark")
BYTES_PER_KEY_MAX = 40
"""What a distinct dirty key may cost us in memory."""
LARGEST_BATCHES_MAX = 3


class Row(Struct, frozen=True):
    """One log to measure. A goal is the ratio to reach, with one core or with all of them."""

    workload: Workload
    goal: float | None = None
    goal_of_all_cores: float | None = None
    memory_bytes: int = MEMORY_BYTES_DEFAULT
    is_memory_row: bool = False


class Result(Struct, frozen=True):
    """A row and what was measured, turn by turn; a tuple is empty when its side did not run.

    ``keeplast`` has one core, ``all_cores`` threads on all of them, ``spark`` a warm session there.
    """

    row: Row
    kafka: tuple[Measure, ...]
    keeplast: tuple[Measure, ...]
    all_cores: tuple[Measure, ...]
    spark: tuple[Measure, ...]
    keys: int
    records: int
    largest_batch_bytes: int

    @property
    def comparison(self) -> Comparison | None:
        """One core next to Kafka's thread; None when one of them did not run."""
        if not self.kafka or not self.keeplast:
            return None
        return compare(ours=_times(self.keeplast), theirs=_times(self.kafka))

    def by_clock(self, ours: Sequence[Measure]) -> Comparison | None:
        """Several cores next to Kafka's thread, by the clock alone."""
        if not self.kafka or not ours:
            return None
        mine, theirs = ([(one.seconds, None) for one in side] for side in (ours, self.kafka))
        return compare(ours=mine, theirs=theirs)

    @property
    def memory_limit_bytes(self) -> int:
        """What the peak above the loaded process may be."""
        return (
            BYTES_PER_KEY_MAX * self.keys
            + self.row.memory_bytes
            + LARGEST_BATCHES_MAX * self.largest_batch_bytes
        )


def _times(measures: Sequence[Measure]) -> Iterator[tuple[float, float | None]]:
    return ((one.seconds, one.cpu_seconds) for one in measures)


def stored(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return the results as they lie in the file."""
    return [to_builtins(result) for result in results]


def results_of(document: Mapping[str, Any]) -> list[Result]:
    """Return the results of a file; the reverse of :func:`stored`."""
    return [
        Result(
            _row(each["row"]),
            kafka=_measures(each["kafka"]),
            keeplast=_measures(each["keeplast"]),
            all_cores=_measures(each["all_cores"]),
            spark=_measures(each["spark"]),
            keys=each["keys"],
            records=each["records"],
            largest_batch_bytes=each["largest_batch_bytes"],
        )
        for each in document["results"]
    ]


def _measures(side: Sequence[Mapping[str, Any]]) -> tuple[Measure, ...]:
    return tuple(Measure(**one) for one in side)


def _row(stored_row: Mapping[str, Any]) -> Row:
    workload = stored_row["workload"]
    codec = Codec(workload["codec"])
    return Row(**{**stored_row, "workload": Workload(**{**workload, "codec": codec})})


def table(document: Mapping[str, Any]) -> str:
    """Return the results as Markdown: the machine, a table, and the memory that was held."""
    results = results_of(document)
    lines = [
        describe(document["machine"], kafka=document["kafka"]["version"]),
        f"{_sizes(results)} Each side's best, taken in turn; a session of Spark is warm. "
        "In brackets: processor time.",
        "",
        "| log | Kafka, one thread | keeplast, one core | all cores | Spark on all cores "
        "| pairs differ by | goal |",
        "|---|--:|--:|--:|--:|--:|---|",
    ]
    lines += [line(result) for result in results]
    for result in results:
        held = [m.held_bytes for m in result.keeplast if m.held_bytes is not None]
        if result.row.is_memory_row and held:
            lines.append(
                f"\nMemory, {result.row.workload.name}: {result.keys} keys, peak "
                f"{max(held) / MIB:.0f} MiB above the loaded process; "
                f"limit {result.memory_limit_bytes / MIB:.0f} MiB"
            )
    return "\n".join(lines)


def chart(document: Mapping[str, Any]) -> str:
    """Return how many times as fast as Kafka's thread each log is cleaned, as an SVG."""
    results = results_of(document)
    kafka = Bar("Kafka's cleaner, its one thread", 1.0, "1.0x", is_ours=False)
    panels = []
    for cores, found in (
        ("one core", [(each, each.comparison) for each in results]),
        ("all cores", [(each, each.by_clock(each.all_cores)) for each in results]),
    ):
        bars = [
            Bar(each.row.workload.name, one.by_clock.ratio, f"{one.by_clock.ratio:.1f}x", True)
            for each, one in found
            if one is not None
        ]
        panels.append(
            Panel(f"Times as fast as Kafka's cleaner: keeplast on {cores}", (kafka, *bars))
        )
    return draw(panels)


def _sizes(results: Sequence[Result]) -> str:
    sizes = sorted({result.row.workload.log_bytes // MIB for result in results})
    pairs = sorted({max(len(getattr(result, side)) for side in SIDES) for result in results})
    listed = (" or ".join(str(each) for each in some) for some in (sizes, pairs))
    return "Logs of {} MiB; {} pairs a row.".format(*listed)


def line(result: Result) -> str:
    """Return the line of one result."""
    one_core = result.comparison
    others = [(side, result.by_clock(side)) for side in (result.all_cores, result.spark)]
    cells = [
        result.row.workload.name,
        _side(result.kafka),
        _side(result.keeplast, one_core),
        *(_side(side, found) for side, found in others),
        " · ".join(
            each.spreads for each in (one_core, *(found for _, found in others)) if each is not None
        )
        or "-",
        _goals(result, one_core, others[0][1]),
    ]
    return f"| {' | '.join(cells)} |"


def plain(result: Result) -> str:
    """Return one line for people: how many times as fast as Kafka, and what is to be reached.

    Where goals are judged by two clocks the ratio is the lower one. What a goal has come to stands
    in the table; here are the reasons to doubt a ratio, where there are any.
    """
    row = result.row
    found = (
        ("", result.comparison, row.goal),
        (" on all cores", result.by_clock(result.all_cores), row.goal_of_all_cores),
        (" on Spark", result.by_clock(result.spark), None),
    )
    said = [_times_as_fast(name, one, goal) for name, one, goal in found if one is not None]
    speeds = [
        f"{name} {max(one.mib_per_second for one in side):.0f} MB/s"
        for name, side in zip(SIDES, (result.kafka, result.keeplast, result.all_cores,
                                      result.spark), strict=True)
        if side
    ]  # fmt: skip
    return f"{row.workload.name}: {'; '.join(said or speeds)}"


def _times_as_fast(where: str, found: Comparison, goal: float | None) -> str:
    as_kafka = "" if where else " as fast as Kafka's cleaner thread"
    text = f"{found.least_ratio:.1f} times{as_kafka}{where}"
    reasons = [] if goal is None else [f"goal {goal:g}"]
    pairs = len(found.by_clock.ours)
    if found.doubt() is not None:
        reasons.append(
            f"{pairs} of {PAIRS_MIN} pairs" if pairs < PAIRS_MIN else "on a busy machine"
        )
    return f"{text} ({'; '.join(reasons)})" if reasons else text


def _side(measures: Sequence[Measure], against_kafka: Comparison | None = None) -> str:
    """Return a cell: how many times as fast as Kafka, speed and seconds of the best count."""
    if not measures:
        return "-"
    ratio = "" if against_kafka is None else f"{against_kafka.ratios}: "
    speed = max(m.mib_per_second for m in measures)
    return f"{ratio}{speed:.0f} MB/s, {least(_times(measures))} s"


def _goals(result: Result, one_core: Comparison | None, all_cores: Comparison | None) -> str:
    """Return what is to be reached on one core and, where that is asked for, on all."""
    row = result.row
    several = _goal(row.goal_of_all_cores, all_cores)
    goals = (_goal(row.goal, one_core), several and f"all cores: {several}")
    return "; ".join(each for each in goals if each)


def _goal(goal: float | None, found: Comparison | None) -> str:
    if goal is None:
        return ""
    return f"{goal:.1f}x" + ("" if found is None else f", {found.verdict(goal).value}")
