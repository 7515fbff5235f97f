"""``keeplast undo``: put back what a round replaced, as long as that loses nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.options import ScopeOptions
from keeplast.cli.frame.parameters import DataDir, Json

if TYPE_CHECKING:
    from rich.table import Table

    from keeplast.log.data_directory import DataDirectory, PartitionEntry
    from keeplast.log.files import FileSystem
    from keeplast.model.partition import TopicPartition
    from keeplast.run.undo import UndoRound
    from keeplast.run.undoing import Told, UndoReport

NAMES_BYTES_MAX = 1 << 20
NOTHING_KEPT = "no round has kept anything"
WHEN_KEPT = (
    "rounds keep what they replace where undo.retention.ms is above 0, until that time is over; "
    "those of erase --now keep nothing"
)
undo = typer.Typer(
    name="undo",
    help="Put back what a round replaced, within undo.retention.ms; of attached topics none is.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
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
        help="Only this round, as undo list names it, or @FILE with one a line; repeatable. "
        "Default: the newest of each partition.",
    ),
]
ReceiptFile = Annotated[
    Path | None,
    typer.Option(
        "--receipt",
        metavar="FILE",
        help="Where the line about it goes. Default: keeplast-receipts in the data directory.",
    ),
]


@undo.command(name="list")
@command(first=(), example="keeplast undo list DATA_DIR")
def list_(data_dir: DataDir, scope: ScopeOptions, as_json: Json = False) -> Result:
    """Show the rounds that have kept what they replaced, and which can be undone.

    The newest of each partition comes first, and first has to be undone. Reads no segment: apply
    compares every byte, and may refuse what looks whole here.
    """
    from keeplast.cli.frame.exit_codes import DONE
    from keeplast.errors import RefusedError, error_text
    from keeplast.log.undo_files import read_kept
    from keeplast.run.undo import find_undo

    directory, entries, files = _open(data_dir, scope)
    found = [each for entry in entries for each in find_undo(files, entry)]
    damaged: list[Path] = []
    for path in (entry.path for entry in entries):
        kept = read_kept(files, path)
        damaged += [path / name for name in kept.damaged]
        try:
            kept.require_lists(path)
        except RefusedError as error:
            _warn(error_text(error))
    if not as_json:
        print_rounds(found)
    return DONE, {"path": directory.root, "rounds": found, "damaged": damaged}


@undo.command()
@command(first=(), example="keeplast undo apply DATA_DIR --topic orders --partition 0")
def apply(
    data_dir: DataDir,
    scope: ScopeOptions,
    rounds: Rounds = (),
    dry_run: DryRun = False,
    receipt: ReceiptFile = None,
    as_json: Json = False,
) -> Result:
    """Undo the newest round of each partition that is meant: its segments come back, byte for byte.

    So do the cleaner checkpoint and the producer snapshots. Refused where anything of the round was
    cleaned, cut or replaced since; what was appended behind it stays. The directory may not be in
    use. The next round cleans the log again: keep it away first, with keeplast hold or by the
    settings. Where no round has kept anything the exit code is 4. With --round a call that was cut
    off may be made again: what came back stays.
    """
    from keeplast.cli.show.progress import ProgressEvents
    from keeplast.clock import SystemClock
    from keeplast.log.lock import locked
    from keeplast.run.undoing import undo_each
    from keeplast.service.receipts import receipts_file

    named, hold = names_given(rounds), "keeplast hold add DATA_DIR NAME"
    directory, entries, files = _open(data_dir, scope)
    with locked(directory.root, writes=not dry_run):
        line_to = receipt
        if not dry_run and receipt is None:
            line_to = receipts_file(files, directory.root)
        with ProgressEvents("comparing") as events:
            done = undo_each(
                files, entries, SystemClock(), rounds=named, receipt=line_to, writes=not dry_run,
                told=teller(hold, dry_run=dry_run, is_named=bool(named), as_json=as_json),
                warned=events.warned, events=events,
            )  # fmt: skip
        undone = _undone_before(files, directory, receipt) if done.missing else {}
    document = {"path": directory.root, "dry_run": dry_run}
    return end_of_undo(done, undone, "keeplast undo list", document, is_named=bool(named))


@undo.command()
@command(first=(), example="keeplast undo drop DATA_DIR --topic orders")
def drop(data_dir: DataDir, scope: ScopeOptions, as_json: Json = False) -> Result:
    """Remove what rounds have kept before its time; none of them can be undone then."""
    from keeplast.cli.frame.exit_codes import DONE
    from keeplast.log.lock import locked
    from keeplast.run.undo import drop_kept

    directory, entries, files = _open(data_dir, scope)
    with locked(directory.root):
        dropped = {str(entry.partition): drop_kept(files, entry) for entry in entries}
    if not as_json:
        print_dropped(dropped.values())
    return DONE, {"path": directory.root, "rounds": dropped}


def _open(
    data_dir: Path, scope: ScopeOptions
) -> tuple[DataDirectory, Sequence[PartitionEntry], FileSystem]:
    from keeplast.log.data_directory import open_data_directory
    from keeplast.log.files import LocalFiles
    from keeplast.run.undo import choose_undo, refuse_stores

    files = LocalFiles()
    refuse_stores(data_dir)
    directory = open_data_directory(data_dir, files)
    return directory, choose_undo(directory, scope.includes), files


def _warn(message: str) -> None:
    from keeplast.cli.show.output import say

    say(message, kind="warning")


def print_rounds(found: Sequence[UndoRound]) -> None:
    """Show rounds that have kept what they replaced."""
    from keeplast.cli.show.output import print_result
    from keeplast.clock import SystemClock

    print_result(_table(found, SystemClock().now_ms()) if found else f"{NOTHING_KEPT}: {WHEN_KEPT}")


def print_dropped(counts: Iterable[int]) -> None:
    """Say how many rounds can no longer be undone."""
    from keeplast.cli.show.output import print_result
    from keeplast.model.size import format_counted

    print_result(f"dropped what {format_counted(sum(counts), 'round')} had kept")


def end_of_undo(
    done: UndoReport,
    undone_ms: Mapping[str, int],
    listing: str,
    document: dict[str, object],
    *,
    is_named: bool,
) -> tuple[int, dict[str, object]]:
    """Return the exit code of an apply and its document, of which ``document`` is the beginning.

    ``undone_ms`` is when rounds that are missing were undone, by name; ``listing`` the command that
    lists those that are not. Where no round was named and none was there, nothing was undone, and
    who goes on as if something was would be wrong: that is refused.
    """
    from keeplast.cli.frame.exit_codes import DONE, REFUSED, USAGE, error_exit_code
    from keeplast.cli.show.output import say
    from keeplast.survey.report import describe_error

    failed = [
        {
            "topic": partition.topic,
            "partition": partition.partition,
            "class": type(error).__name__,
            "message": describe_error(error).message,
        }
        for partition, error in done.failed
    ]
    code = max((error_exit_code(error) for _, error in done.failed), default=DONE)
    if not (is_named or done.rounds or done.failed):
        say(f"nothing was undone, {NOTHING_KEPT}: {WHEN_KEPT}", kind="error")
        code = REFUSED
    for name in done.missing:
        code = max(code, _say_missing(name, undone_ms.get(name), listing, usage=USAGE))
    more = {"rounds": done.rounds, "failed": failed, "missing": done.missing}
    return code, document | more


def undone_ms(entries: Iterable[object]) -> dict[str, int]:
    """Return when rounds were undone, by name, as the entries of receipts tell; ms since 1970."""
    from keeplast.survey.receipt_book import UndoReceipt

    return {each.attempt: each.now_ms for each in entries if isinstance(each, UndoReceipt)}


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
            raise InvalidError(f"no such file. --round={each}") from error
        found = data.decode("utf-8", "replace").split()
        if not found:
            raise InvalidError(f"the file names no round; keeplast undo list does. --round={each}")
        names += found
    return tuple(dict.fromkeys(names))


def teller(hold: str, *, dry_run: bool, is_named: bool, as_json: bool) -> Told:
    """Return what says of each partition what became of it.

    ``hold`` is the command that keeps the next round away, up to its topic.
    """
    from keeplast.cli.show.output import print_result, say
    from keeplast.survey.report import describe_error

    nothing = "no round of these is kept" if is_named else NOTHING_KEPT

    def told(partition: TopicPartition, done: Sequence[UndoRound] | Exception) -> None:
        if isinstance(done, Exception):
            say(f"{partition}: {describe_error(done).message}", kind="error")
        elif not as_json:
            lines = [_line(each, hold, dry_run=dry_run) for each in done]
            print_result(*(lines or [f"{partition}: {nothing}"]))

    return told


def _undone_before(
    files: FileSystem, directory: DataDirectory, receipt: Path | None
) -> dict[str, int]:
    """Return when rounds were undone, by name, as receipts tell; ms since 1970."""
    from keeplast.errors import CompactionError
    from keeplast.service.status import read_kept_entries

    try:
        given = receipt if receipt is not None and files.exists(receipt) else None
        entries = read_kept_entries(files, directory.root, given)
    except (CompactionError, OSError):
        return {}
    return undone_ms(entries)


def _say_missing(name: str, undone_ms: int | None, listing: str, *, usage: int) -> int:
    """Say of a round that nothing of it is kept; returns 0 where it was undone before."""
    from keeplast.cli.show.output import say
    from keeplast.clock import time_text
    from keeplast.model.escapes import printable

    if undone_ms is not None:
        say(f"round {printable(name)} was undone before, at {time_text(undone_ms)}", kind="note")
        return 0
    say(
        "nothing is kept of this round, and no receipt says that it was undone: its time is over, "
        f"or it is none of these partitions; see {listing}. --round={printable(name)}",
        kind="error",
    )
    return usage


def _line(each: UndoRound, hold: str, *, dry_run: bool) -> str:
    """Return what was done with a round, and what keeps the next one from doing it again."""
    from keeplast.model.escapes import printable
    from keeplast.model.size import format_bytes, format_counted

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
    from keeplast.cli.show.rows import new_table
    from keeplast.clock import time_text
    from keeplast.model.duration import relative_text
    from keeplast.model.escapes import printable
    from keeplast.model.size import format_bytes

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
