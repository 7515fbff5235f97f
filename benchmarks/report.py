"""The table of ``benchmarks.run``, made of its results file and nothing else.

So every page that shows it can be made again, and a test can hold it against the file. What a row
may say of its goal is decided in :mod:`benchmarks.pairs`. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.contestants import MIB, Measure
from benchmarks.machine import describe
from benchmarks.pairs import Comparison, compare, least
from benchmarks.workload import Workload
from keeplast.format.compression import Codec
from keeplast.survey.request import MEMORY_BYTES_DEFAULT

VERSION = 2
BYTES_PER_KEY_MAX = 40
"""What a distinct dirty key may cost us in memory."""
LARGEST_BATCHES_MAX = 3


@dataclass(frozen=True, slots=True)
class Row:
    """One log to measure. ``goal`` is the ratio to reach; None where there is no mark."""

    workload: Workload
    goal: float | None = None
    memory_bytes: int = MEMORY_BYTES_DEFAULT
    is_memory_row: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """A row and what was measured, turn by turn; a tuple is empty when its side did not run."""

    row: Row
    kafka: tuple[Measure, ...]
    keeplast: tuple[Measure, ...]
    keys: int
    records: int
    largest_batch_bytes: int

    @property
    def comparison(self) -> Comparison | None:
        """Both sides beside each other; None when one of them did not run."""
        if not self.kafka or not self.keeplast:
            return None
        return compare(ours=_times(self.keeplast), theirs=_times(self.kafka))

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
    return [asdict(result) for result in results]


def results_of(document: Mapping[str, Any]) -> list[Result]:
    """Return the results of a file; the reverse of :func:`stored`."""
    return [
        Result(
            _row(each["row"]),
            tuple(Measure(**one) for one in each["kafka"]),
            tuple(Measure(**one) for one in each["keeplast"]),
            each["keys"],
            each["records"],
            each["largest_batch_bytes"],
        )
        for each in document["results"]
    ]


def _row(stored_row: Mapping[str, Any]) -> Row:
    workload = stored_row["workload"]
    codec = Codec(workload["codec"])
    return Row(**{**stored_row, "workload": Workload(**{**workload, "codec": codec})})


def table(document: Mapping[str, Any]) -> str:
    """Return the results as Markdown: the machine, a table, and the memory that was held."""
    results = results_of(document)
    lines = [
        describe(document["machine"], kafka=document["kafka"]["version"]),
        f"{_sizes(results)} Each side's best, taken in turn. In brackets: processor time.",
        "",
        "| log | Kafka MB/s | seconds | keeplast MB/s | seconds | times as fast | pairs differ by "
        "| goal |",
        "|---|--:|--:|--:|--:|--:|--:|---|",
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


def _sizes(results: Sequence[Result]) -> str:
    sizes = sorted({result.row.workload.log_bytes // MIB for result in results})
    pairs = sorted({max(len(result.kafka), len(result.keeplast)) for result in results})
    listed = (" or ".join(str(each) for each in some) for some in (sizes, pairs))
    return "Logs of {} MiB; {} pairs a row.".format(*listed)


def line(result: Result) -> str:
    """Return the line of one result."""
    both = result.comparison
    ratios, spreads = ("-", "-") if both is None else (both.ratios, both.spreads)
    return (
        f"| {result.row.workload.name} | {_side(result.kafka)} | {_side(result.keeplast)} "
        f"| {ratios} | {spreads} | {_goal(result.row.goal, both)} |"
    )


def _side(measures: Sequence[Measure]) -> str:
    """Return two cells: speed and seconds of the best count."""
    if not measures:
        return "- | -"
    return f"{max(m.mib_per_second for m in measures):.0f} | {least(_times(measures))}"


def _goal(goal: float | None, both: Comparison | None) -> str:
    if goal is None:
        return ""
    return f"{goal:.1f}x" + ("" if both is None else f", {both.verdict(goal).value}")
