"""``keeplast receipt show``: what the rounds of a receipt file say of themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.parameters import Json

receipt = typer.Typer(
    name="receipt",
    help="What rounds wrote down of themselves.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@receipt.callback()
def _group() -> None:
    """Keep ``show`` a command of its own: with one command Typer would drop its name."""


@receipt.command()
@command(first=(), example="keeplast receipt show receipts.jsonl")
def show(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="The file that --receipt named, or DATA_DIR/keeplast-receipts, where run, "
            "erase --now and undo write without it.",
            show_default=False,
        ),
    ],
    as_json: Json = False,
) -> Result:
    """Show each round: its clock and range, what it read and wrote, and what went and why.

    Beside it stands what verify --note said of it last. Lines that were changed, moved or removed
    are named, and the exit code is 1; only a head that was kept elsewhere (verify --receipt-head)
    tells whether some were cut off the end.
    """
    from keeplast.cli.frame.exit_codes import CHECK_FAILED, DONE
    from keeplast.cli.show.output import print_result, say
    from keeplast.cli.show.receipt import receipts_table
    from keeplast.errors import InvalidError
    from keeplast.log.files import LocalFiles
    from keeplast.service.receipt_names import FILE_NAME
    from keeplast.survey.receipt_book import read_chain, read_entries

    if not file.exists():
        raise InvalidError(
            "no such file; give the one that clean --receipt wrote, or DATA_DIR/keeplast-receipts. "
            f"path={file}"
        )
    if file.is_dir():
        raise InvalidError(
            "a directory, and no receipt; name the file in it, such as "
            f"{file / FILE_NAME}. path={file}"
        )
    receipts = read_entries(file, LocalFiles())
    chain = read_chain(file, LocalFiles())
    if not as_json:
        head = "" if chain.head is None else f"; head {chain.head}"
        print_result(receipts_table(receipts), "", f"{chain.sentence}{head}")
    for problem in chain.problems:
        say(f"its chain is broken: {problem}. path={file}", kind="error")
    document = {
        "receipts": [each.document for each in receipts],
        "chain": {
            "head": None if chain.head is None else str(chain.head),
            "unchained": chain.unchained,
            "missing_before": chain.missing_before,
            "problems": chain.problems,
        },
    }
    return CHECK_FAILED if chain.problems else DONE, document
