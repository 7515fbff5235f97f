"""The command line's entry: one command a file, nothing heavy imported before one runs."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from keeplast import __version__
from keeplast.cli.clean import clean
from keeplast.cli.config import config
from keeplast.cli.delete_records import delete_records
from keeplast.cli.demo.command import demo
from keeplast.cli.doctor import doctor
from keeplast.cli.export import export
from keeplast.cli.frame.exit_codes import INTERRUPTED, TERMINATED
from keeplast.cli.frame.guard import Terminated, terminate_on_signal
from keeplast.cli.inspect import inspect
from keeplast.cli.pack import pack
from keeplast.cli.plan import plan
from keeplast.cli.receipt import receipt
from keeplast.cli.run import run
from keeplast.cli.show.output import claim_stdout
from keeplast.cli.status import status
from keeplast.cli.tier.main import tier
from keeplast.cli.verify import verify


class CheckedGroup(TyperGroup):
    """All commands; refuses an empty argument, which is what an unset variable leaves of one.

    As a path it would mean the current directory, and be cleaned wherever somebody happens to be.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Look at every argument of the command line before any command does."""
        for number, text in enumerate(args, start=1):
            # An option without a value, as --to=$PLACE is then.
            is_bare = text.startswith("--") and text.endswith("=") and text.count("=") == 1
            if not text.strip() or is_bare:
                raise typer.BadParameter(
                    f"argument {number} is empty; is a variable not set? argument={text!r}"
                )
        found: list[str] = super().parse_args(ctx, args)
        return found


app = typer.Typer(
    name="keeplast",
    cls=CheckedGroup,
    help="Log compaction for Kafka-format logs, outside the broker, on Spark.",
    no_args_is_help=True,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(
    epilog="Exit codes: 0 done, 1 a check failed, 2 usage, 3 corrupt input (others go on), "
    "4 refused, 5 failed, 130 and 143 stopped by a signal.",
)
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)
    ] = False,
) -> None:
    """Log compaction for Kafka-format logs, outside the broker, on Spark."""
    if version:
        typer.echo(f"keeplast {__version__}")
        raise typer.Exit


for command in (
    inspect,
    status,
    plan,
    clean,
    run,
    delete_records,
    verify,
    export,
    pack,
    demo,
    doctor,
):
    app.command()(command)
app.add_typer(receipt)
app.add_typer(config)
app.add_typer(tier)


def main() -> None:
    """Run the command line of this process and exit with its code."""
    claim_stdout()
    terminate_on_signal()
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Terminated:
        sys.exit(TERMINATED)
