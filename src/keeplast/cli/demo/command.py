"""``keeplast demo``: compact two real logs in a temporary directory and prove the result.

Ends with 1 when a reader of a cleaned log would not get exactly what it must.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.options import Json, Runner

if TYPE_CHECKING:
    from keeplast.cli.demo.cleaning import CleaningOutcome
    from keeplast.cli.demo.reading import LogReading
    from keeplast.cli.frame.wiring import RunnerName

WRONG_KEYS_SHOWN = 5
INDENT = "   "
PICTURE_WIDTH_MIN = 12
NOTHING_SUPERSEDED = (
    "   nothing was superseded; a longer history shows more: keeplast demo --git PATH"
)
NEXT_STEPS = """\
Next
   what a broker wrote        keeplast inspect {sample}
   a copy to try the rest on  cp -r {directory} DATA_DIR
   what a clean would do      keeplast plan DATA_DIR          (the broker may be running)
   clean to a new place       keeplast clean DATA_DIR --to COPY
   clean in place             keeplast clean DATA_DIR         (the broker must be stopped)"""


@command(first=("git", "tier", "runner"), example="keeplast demo --runner spark")
def demo(
    git: Annotated[
        Path | None,
        typer.Option(
            "--git",
            metavar="PATH",
            help="The repository whose history is replayed. Default: the one around the working "
            "directory, if there is one.",
        ),
    ] = None,
    tier: Annotated[
        bool,
        typer.Option(
            "--tier",
            help="Show a tiered log instead: leaders are killed and frozen in the middle of a "
            "round, and a reader still gets what was appended.",
        ),
    ] = False,
    runner: Runner = None,
    as_json: Json = False,
) -> Result:
    """Compact a git history and a broker's data directory, and compare what remains.

    The history becomes a compacted topic: path by path, the last value must be what git says.
    The directory comes with keeplast. Both are cleaned in temporary directories, and the last
    lines show commands to try next.
    """
    from keeplast.cli.frame.wiring import choose_runner

    chosen = choose_runner(runner, master=None)
    if tier:
        return _show_tier(chosen, as_json=as_json)
    return _show_cleaning(git, chosen, as_json=as_json)


def _show_tier(runner: RunnerName, *, as_json: bool) -> Result:
    from keeplast.cli.frame.command import check_packages

    check_packages("tier")
    from keeplast.cli.demo.tier import show_tier

    return show_tier(runner, as_json=as_json)


def _show_cleaning(git: Path | None, runner: RunnerName, *, as_json: bool) -> Result:
    from keeplast.cli.demo.history import GitHistory, find_history
    from keeplast.cli.frame import wiring
    from keeplast.cli.frame.command import CHECK_FAILED, DONE, report_errors, report_exit_code
    from keeplast.cli.show.output import print_result, say
    from keeplast.cli.show.progress import ProgressEvents
    from keeplast.clock import SystemClock
    from keeplast.log.files import LocalFiles

    history = find_history() if git is None else GitHistory(git)
    if history is None:
        say(
            "no git history around the working directory, so only the broker's directory is "
            "cleaned; for both: keeplast demo --git PATH"
        )
    clock, files = SystemClock(), LocalFiles()
    wiring.say_start(runner)
    with (
        tempfile.TemporaryDirectory(prefix="keeplast-demo-") as scratch,
        ProgressEvents("cleaning") as events,
        wiring.open_coordinator(runner, master=None, cores=None, events=events) as coordinator,
    ):
        from keeplast.cli.demo import cleaning as demo_cleaning

        root = Path(scratch)
        outcomes = [demo_cleaning.clean_broker_sample(root / "broker", coordinator, files, clock)]
        if history is not None:
            outcomes.insert(
                0, demo_cleaning.clean_git_history(history, root / "git", coordinator, files, clock)
            )
    reports = [report for outcome in outcomes for report in outcome.reports]
    if not as_json:
        for number, outcome in enumerate(outcomes, 1):
            print_result(_describe(outcome, number, runner))
        sample = demo_cleaning.SAMPLE / f"{demo_cleaning.SAMPLE_TOPIC}-0"
        print_result(
            NEXT_STEPS.format(sample=_from_here(sample), directory=_from_here(demo_cleaning.SAMPLE))
        )
    for report in reports:
        say(*report_errors(report), kind="error")
    is_equal = all(outcome.is_equal for outcome in outcomes)
    document = {
        "runner": str(runner),
        "equal": is_equal,
        "parts": outcomes,
    }
    failed = max(report_exit_code(report) for report in reports)
    return failed or (DONE if is_equal else CHECK_FAILED), document


def _from_here(path: Path) -> Path:
    """Return ``path`` relative to the working directory when it lies below."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _describe(outcome: CleaningOutcome, number: int, runner: RunnerName) -> str:
    """Return one part as text: facts, pictures, counts, verdict."""
    from keeplast.model.text import format_bytes, format_count, shown_bytes

    before, after = outcome.before, outcome.after
    rows = [
        ("records", format_count(before.records), format_count(after.records)),
        ("tombstones", format_count(before.tombstones), format_count(after.tombstones)),
        ("bytes", format_bytes(before.size_bytes), format_bytes(after.size_bytes)),
        ("segments", format_count(len(before.segments)), format_count(len(after.segments))),
    ]
    verdict = (
        f"equal: all {len(after.state):,} keys have the value of {outcome.judge}"
        if outcome.is_equal
        else f"NOT EQUAL: {len(outcome.wrong_keys):,} keys differ from {outcome.judge}: "
        + ", ".join(shown_bytes(key) for key in outcome.wrong_keys[:WRONG_KEYS_SHOWN])
    )
    lines = [
        f"{number}. {outcome.name}",
        *(f"   {fact}" for fact in outcome.facts),
        "",
        "   before",
        *_picture(before, None, before),
        "",
        f"   after, cleaned in {outcome.seconds:.1f} s ({runner})",
        *_picture(after, outcome.checkpoint, before),
        "",
        *(f"   {name:<12}{old:>12} -> {new:>12}" for name, old, new in rows),
        "",
        f"   {verdict}",
        *([NOTHING_SUPERSEDED] if after.records == before.records else []),
        "",
    ]
    return "\n".join(lines)


def _picture(log: LogReading, checkpoint: int | None, scale: LogReading) -> list[str]:
    """Draw ``log`` with a length that shows its share of the bytes of ``scale``."""
    from keeplast.cli.show.output import screen_width
    from keeplast.cli.show.picture import WIDTH, PicturedSegment, draw_log

    share = WIDTH * log.size_bytes // max(scale.size_bytes, 1)
    segments = [
        PicturedSegment(segment.base_offset, segment.end_offset, segment.size_bytes)
        for segment in log.segments
    ]
    width = max(share, PICTURE_WIDTH_MIN, 2 * len(segments))
    screen = screen_width() - len(INDENT)
    drawn = draw_log(segments, first_dirty=checkpoint, width=min(width, WIDTH), screen=screen)
    return [f"{INDENT}{line}" for line in drawn.splitlines()]
