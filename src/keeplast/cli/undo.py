"""``keeplast undo``: put back what a round replaced, as long as that loses nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.options import ScopeOptions
from keeplast.cli.frame.parameters import DataDir, Json

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from rich.table import Table

    from keeplast.log.data_directory import DataDirectory, PartitionEntry
    from keeplast.log.files import FileSystem
    from keeplast.run.undo import UndoRound

undo = typer.Typer(
    name="undo",
    help="Put back what a round replaced, within undo.retention.ms.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Read and compare everything, and change nothing."),
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
    from keeplast.cli.show.output import print_result
    from keeplast.clock import SystemClock
    from keeplast.run.undo import find_undo

    directory, entries, files = _open(data_dir, scope)
    found = [each for entry in entries for each in find_undo(files, entry)]
    if not as_json:
        print_result(
            _table(found, SystemClock().now_ms()) if found else "no round has kept anything"
        )
    return DONE, {"path": directory.root, "rounds": found}


@undo.command()
@command(first=(), example="keeplast undo apply DATA_DIR --topic orders --partition 0")
def apply(
    data_dir: DataDir,
    scope: ScopeOptions,
    dry_run: DryRun = False,
    receipt: ReceiptFile = None,
    as_json: Json = False,
) -> Result:
    """Undo the newest round of each partition that is meant: its segments come back, byte for byte.

    So do the cleaner checkpoint and the producer snapshots. Refused where anything of the round was
    cleaned, cut or replaced since; what was appended behind it stays. The directory may not be in
    use. The next round cleans the log again: keep it away first, with keeplast hold or by the
    settings.
    """
    from keeplast.clock import SystemClock
    from keeplast.log.lock import locked
    from keeplast.run.readiness import prove_receipt
    from keeplast.run.undo import undo_newest
    from keeplast.service.receipts import receipts_file

    directory, entries, files = _open(data_dir, scope)
    with locked(directory.root, writes=not dry_run):
        line_to = receipt
        if not dry_run:
            line_to = receipts_file(files, directory.root) if receipt is None else receipt
            prove_receipt(files, line_to, [entry.path for entry in entries])

        def act(entry: PartitionEntry) -> list[UndoRound]:
            done = undo_newest(
                files, entry, receipt=line_to, now_ms=SystemClock().now_ms(),
                writes=not dry_run, warned=_warn,
            )  # fmt: skip
            return [] if done is None else [done]

        return _each(directory, entries, act, dry_run=dry_run, as_json=as_json)


@undo.command()
@command(first=(), example="keeplast undo drop DATA_DIR --topic orders")
def drop(data_dir: DataDir, scope: ScopeOptions, as_json: Json = False) -> Result:
    """Remove what rounds have kept before its time; none of them can be undone then."""
    from keeplast.cli.frame.exit_codes import DONE
    from keeplast.cli.show.output import print_result
    from keeplast.log.lock import locked
    from keeplast.model.size import format_counted
    from keeplast.run.undo import drop_kept

    directory, entries, files = _open(data_dir, scope)
    with locked(directory.root):
        dropped = {str(entry.partition): drop_kept(files, entry) for entry in entries}
    if not as_json:
        print_result(f"dropped what {format_counted(sum(dropped.values()), 'round')} had kept")
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


def _each(
    directory: DataDirectory,
    entries: Sequence[PartitionEntry],
    act: Callable[[PartitionEntry], list[UndoRound]],
    *,
    dry_run: bool,
    as_json: bool,
) -> Result:
    """Undo partition by partition: what one refuses keeps no other from it."""
    from keeplast.cli.frame.exit_codes import DONE, error_exit_code
    from keeplast.cli.show.output import print_result, say
    from keeplast.errors import CompactionError
    from keeplast.survey.report import describe_error

    done: list[UndoRound] = []
    failed: list[dict[str, Any]] = []
    code = DONE
    for entry in entries:
        try:
            found = act(entry)
        except (CompactionError, OSError) as error:
            code = max(code, error_exit_code(error))
            message = describe_error(error).message
            failed.append(
                {
                    "topic": entry.partition.topic,
                    "partition": entry.partition.partition,
                    "class": type(error).__name__,
                    "message": message,
                }
            )
            say(f"{entry.partition}: {message}", kind="error")
            continue
        done += found
        if not as_json:
            lines = [_line(each, dry_run=dry_run) for each in found]
            print_result(*(lines or [f"{entry.partition}: no round has kept anything"]))
    document = {"path": directory.root, "dry_run": dry_run, "rounds": done, "failed": failed}
    return code, document


def _line(each: UndoRound, *, dry_run: bool) -> str:
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
        f"the next round cleans them again: keeplast hold add DATA_DIR NAME --topic "
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
