"""``keeplast undo``: put back what a round replaced, as long as that loses nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.options import Json, ScopeOptions
from keeplast.cli.frame.round_options import PlaceOptions, TakeOver

if TYPE_CHECKING:
    from rich.table import Table

    from keeplast.api.place import UndoneRounds
    from keeplast.model.partition import TopicPartition
    from keeplast.run.undo import UndoRound
    from keeplast.run.undoing import Finished

NAMES_BYTES_MAX = 1 << 20
NOTHING_KEPT = "no round has kept anything"
WHEN_KEPT = (
    "rounds keep what they replace where undo.retention.ms is above 0, until that time is over; "
    "those of erase --now keep nothing"
)
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Read and compare everything, and change nothing."),
]
Rounds = Annotated[
    tuple[str, ...],
    typer.Option(
        "--round",
        metavar="ID",
        help="Only this round, as undo --list names it, or @FILE with one a line; repeatable. "
        "Default: the newest of each partition.",
    ),
]


@command(
    first=("topics", "listed", "dry_run"),
    example="keeplast undo DATA_DIR --topic orders --partition 0",
)
def undo(
    where: PlaceOptions,
    scope: ScopeOptions,
    listed: Annotated[
        bool,
        typer.Option("--list", help="Show the rounds that can be undone, and change nothing."),
    ] = False,
    rounds: Rounds = (),
    dry_run: DryRun = False,
    drop: Annotated[
        bool,
        typer.Option(
            "--drop", help="Let the kept segments go before their time instead: for good."
        ),
    ] = False,
    take_over: TakeOver = False,
    as_json: Json = False,
) -> Result:
    """Undo the newest round of each chosen partition: its replaced segments come back.

    So do the cleaner checkpoint and the producer snapshots. Refused where anything of the round was
    cleaned, cut or replaced since; what was appended after it stays. A directory may not be in use;
    readers of a store find the log before or after. The next round cleans the log again: keep it
    away first, with keeplast hold or by the settings. Where no round has kept anything the exit
    code is 4. With --round an interrupted call can be repeated: what came back stays.
    """
    from keeplast.api.place import UndoTerms
    from keeplast.cli.frame.command import DONE
    from keeplast.cli.show.output import print_result, say
    from keeplast.cli.show.progress import ProgressEvents
    from keeplast.clock import SystemClock
    from keeplast.errors import InvalidError
    from keeplast.model.text import format_counted

    if (listed or drop) and (dry_run or rounds or (listed and drop)):
        raise InvalidError(
            "--list and --drop are calls of their own; leave the others out. "
            f"--list={listed} --drop={drop} --dry-run={dry_run} --round={list(rounds)}",
            code="K101",
        )
    found, place = where.open()
    if listed:
        kept = place.kept_rounds(scope)
        say(*kept.warnings, kind="warning")
        if not as_json:
            table = _table(kept.rounds, SystemClock().now_ms())
            print_result(table if kept.rounds else f"{NOTHING_KEPT}: {WHEN_KEPT}")
        return DONE, {**place.head, "rounds": kept.rounds, "damaged": kept.damaged}
    if drop:
        dropped = place.drop_kept(scope, takes_over=take_over)
        if not as_json:
            counted = format_counted(sum(dropped.values()), "round")
            print_result(f"dropped what {counted} had kept")
        return DONE, {**place.head, "rounds": dropped}
    named = names_given(rounds)
    with ProgressEvents("comparing") as events:
        terms = UndoTerms(
            rounds=named, writes=not dry_run, receipt=found.path("receipt"), events=events,
            takes_over=take_over,
            finished=undo_reporter(
                where.place, dry_run=dry_run, is_named=bool(named), as_json=as_json
            ),
        )  # fmt: skip
        done = place.undo(scope, terms)
    return end_of_undo(done, {**place.head, "dry_run": dry_run}, is_named=bool(named))


def end_of_undo(
    undone: UndoneRounds, document: dict[str, object], *, is_named: bool
) -> tuple[int, dict[str, object]]:
    """Return the exit code of an undo and its document, which begins with ``document``.

    Where no round was named and none was there, nothing was undone, and to go on as if something
    was would be wrong: that is refused.
    """
    from keeplast.cli.frame.command import DONE, REFUSED, USAGE, error_exit_code
    from keeplast.cli.show.output import say
    from keeplast.survey.report import describe_error

    done = undone.report
    failed = [
        {
            "topic": partition.topic,
            "partition": partition.partition,
            "class": type(error).__name__,
            "message": describe_error(error).message,
            "code": describe_error(error).code,
        }
        for partition, error in done.failed
    ]
    code = max((error_exit_code(error) for _, error in done.failed), default=DONE)
    if not (is_named or done.rounds or done.failed):
        say(f"nothing was undone, {NOTHING_KEPT}: {WHEN_KEPT}", kind="error")
        code = REFUSED
    for name in done.missing:
        code = max(code, _say_missing(name, undone.before_ms.get(name), usage=USAGE))
    more = {"rounds": done.rounds, "failed": failed, "missing": done.missing}
    return code, document | more


def names_given(given: Sequence[str]) -> tuple[str, ...]:
    """Return the names of rounds that were given; InvalidError for a file without one."""
    from keeplast.errors import InvalidError
    from keeplast.log.files import LocalFiles

    names: list[str] = []
    for each in given:
        if not each.startswith("@"):
            names.append(each)
            continue
        path = Path(each[1:]).expanduser()
        try:
            data = LocalFiles().read_bytes(path, NAMES_BYTES_MAX)
        except FileNotFoundError as error:
            raise InvalidError(
                f"no such file; correct the path. --round={each}", code="K110"
            ) from error
        found = data.decode("utf-8", "replace").split()
        if not found:
            raise InvalidError(
                f"the file names no round; keeplast undo --list does. --round={each}", code="K609"
            )
        names += found
    return tuple(dict.fromkeys(names))


def undo_reporter(place: str, *, dry_run: bool, is_named: bool, as_json: bool) -> Finished:
    """Return what says of each partition what became of it; ``place`` is as people type it."""
    from keeplast.cli.show.output import print_result, say
    from keeplast.model.text import shown_url
    from keeplast.survey.report import describe_error

    hold = f"keeplast hold add {shown_url(place)} NAME"
    nothing = "no round of these is kept" if is_named else NOTHING_KEPT

    def finished(partition: TopicPartition, done: Sequence[UndoRound] | Exception) -> None:
        if isinstance(done, Exception):
            say(f"{partition}: {describe_error(done).message}", kind="error")
        elif not as_json:
            lines = [_line(each, hold, dry_run=dry_run) for each in done]
            print_result(*(lines or [f"{partition}: {nothing}"]))

    return finished


def _say_missing(name: str, undone_ms: int | None, *, usage: int) -> int:
    """Say of a round that nothing of it is kept; returns 0 where it was undone before."""
    from keeplast.cli.show.output import say
    from keeplast.clock import time_text
    from keeplast.model.text import printable

    if undone_ms is not None:
        say(f"round {printable(name)} was undone before, at {time_text(undone_ms)}", kind="note")
        return 0
    say(
        "nothing is kept of this round, and no receipt says that it was undone: its time is over, "
        f"or it is none of these partitions; see keeplast undo --list. --round={printable(name)}",
        kind="error",
    )
    return usage


def _line(each: UndoRound, hold: str, *, dry_run: bool) -> str:
    """Return what was done with a round, and what keeps the next one from doing it again."""
    from keeplast.model.text import format_bytes, format_counted, printable

    name = printable(f"{each.topic}-{each.partition}")
    would = "would be " if dry_run else ""
    if not each.is_in_place:
        return (
            f"{name}: nothing of round {each.round} is in place; what it had kept {would}removed. "
            "Call again for the round before it"
        )
    line = "has no line" if each.checkpoint is None else f"at {each.checkpoint}"
    first = each.first if each.checkpoint is None else each.checkpoint
    return (
        f"{name}: round {each.round} {would}undone: {format_counted(each.segments, 'segment')} "
        f"({format_bytes(each.bytes)}) back below offset {each.end}, cleaner checkpoint {line}; "
        f"the next round cleans them again: {hold} --topic "
        f"{printable(each.topic)} --partition {each.partition} --at {first} "
        "--max-age 1d keeps it away"
    )


def _table(found: Sequence[UndoRound], now_ms: int) -> Table:
    from keeplast.cli.show.tables import new_table
    from keeplast.clock import time_text
    from keeplast.model.text import format_bytes, printable, relative_text

    table = new_table("partition", "round", "kept", ">offsets", ">bytes", "until", "")
    for each in found:
        state = "can be undone" if each.is_in_place else "nothing of it is in place"
        if each.refusal is not None:
            state = each.refusal
        table.add_row(
            printable(f"{each.topic}-{each.partition}"),
            each.round,
            time_text(each.kept_at_ms)[:19],
            f"{each.first}..{each.end}",
            format_bytes(each.bytes),
            relative_text(each.until_ms, now_ms),
            state,
        )
    return table
