"""``keeplast tier undo``: put back what a round in a store replaced, while that is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.packages import check_packages
from keeplast.cli.frame.parameters import Json
from keeplast.cli.tier.options import GraceOptions, OwnedCall, StoreCall
from keeplast.cli.undo import DryRun, Rounds

undo = typer.Typer(
    name="undo",
    help="Put back what a round in a store replaced, within undo.retention.ms.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

ReceiptFile = Annotated[
    Path | None,
    typer.Option("--receipt", metavar="FILE", help="Append a line for each round undone."),
]


@undo.command(name="list")
@command(first=("store", "topics"), example="keeplast tier undo list --store sqlite:///meta.db")
def list_(call: StoreCall, as_json: Json = False) -> Result:
    """Show the rounds that have kept what they replaced, and which can be undone.

    The newest of each partition comes first, and first has to be undone. Reads no object: apply
    compares every byte, and may refuse what looks whole here.
    """
    from keeplast.cli.frame.exit_codes import DONE
    from keeplast.cli.undo import print_rounds

    with call.opened(only_looks=True) as opened:
        found = [each for at in call.chosen(opened) for each in opened.undo.rounds(at)]
    if not as_json:
        print_rounds(found)
    return DONE, {"store": call.shown, "rounds": found}


@undo.command()
@command(
    first=("store", "topics", "dry_run"),
    example="keeplast tier undo apply --store sqlite:///meta.db --topic orders --partition 0",
)
def apply(
    call: OwnedCall,
    grace: GraceOptions,
    rounds: Rounds = (),
    dry_run: DryRun = False,
    receipt: ReceiptFile = None,
    as_json: Json = False,
) -> Result:
    """Undo the newest round of each partition that is meant: its segments are read again.

    So does the first dirty offset go back. Refused where anything of the round was cleaned, cut or
    replaced since; what was copied behind it stays. Readers find the log before or after it. The
    next round cleans the log again: keep it away first, by a hold. Where no round has kept anything
    the exit code is 4. With --round a call that was cut off may be made again: what came back
    stays.
    """
    check_packages()
    from keeplast.cli.show.progress import ProgressEvents
    from keeplast.cli.tier.steps import receipt_writer
    from keeplast.cli.undo import end_of_undo, names_given, teller
    from keeplast.run.undoing import undo_partitions
    from keeplast.store.undo import UndoneStore

    named = names_given(rounds)
    writer = None if dry_run else receipt_writer(receipt)
    hold = f"keeplast tier hold add NAME --store {call.shown}"
    with call.opened() as opened, ProgressEvents("comparing") as events:
        chosen = call.chosen(opened)
        newest = [each for at in chosen for each in opened.undo.rounds(at)[:1]]
        events.planned(sum(each.bytes for each in newest))
        place = UndoneStore(
            opened.undo, grace.milliseconds, call.take_over, not dry_run, writer, events.progressed
        )
        done = undo_partitions(
            place, chosen, rounds=named,
            told=teller(hold, dry_run=dry_run, is_named=bool(named), as_json=as_json),
        )  # fmt: skip
    undone = _undone_before(receipt) if done.missing else {}
    document: dict[str, object] = {"store": call.shown, "dry_run": dry_run}
    return end_of_undo(done, undone, "keeplast tier undo list", document, is_named=bool(named))


@undo.command()
@command(
    first=("store", "topics"),
    example="keeplast tier undo drop --store sqlite:///meta.db --topic orders",
)
def drop(call: OwnedCall, as_json: Json = False) -> Result:
    """Let what rounds have kept go before its time; none of them can be undone then.

    The objects go with `collect`, when their grace has passed.
    """
    from keeplast.cli.frame.exit_codes import DONE
    from keeplast.cli.undo import print_dropped

    with call.opened() as opened:
        dropped = {
            str(each): opened.undo.drop(each, takes_over=call.take_over)
            for each in call.chosen(opened)
        }
    if not as_json:
        print_dropped(dropped.values())
    return DONE, {"store": call.shown, "rounds": dropped}


def _undone_before(receipt: Path | None) -> dict[str, int]:
    """Return when rounds were undone, by name, as a file of receipts tells; ms since 1970."""
    from keeplast.cli.undo import undone_ms
    from keeplast.errors import CompactionError
    from keeplast.log.files import LocalFiles
    from keeplast.survey.receipt_book import read_entries

    if receipt is None:
        return {}
    try:
        return undone_ms(read_entries(receipt, LocalFiles()))
    except (CompactionError, OSError):
        return {}
