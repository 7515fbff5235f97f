"""The command line's entry: one command a file, nothing heavy imported before one runs."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from keeplast import __version__
from keeplast.cli.clean import clean
from keeplast.cli.config import config
from keeplast.cli.delete_records import delete_records
from keeplast.cli.demo import demo
from keeplast.cli.exit_codes import INTERRUPTED, TERMINATED
from keeplast.cli.export import export
from keeplast.cli.guard import Terminated, terminate_on_signal
from keeplast.cli.inspect import inspect
from keeplast.cli.output import claim_stdout
from keeplast.cli.pack import pack
from keeplast.cli.plan import plan
from keeplast.cli.receipt import receipt
from keeplast.cli.run import run
from keeplast.cli.status import status
from keeplast.cli.tier import tier
from keeplast.cli.verify import verify

app = typer.Typer(
    name="keeplast",
    help="Log compaction for Kafka-format logs, outside the broker, on Spark.",
    no_args_is_help=True,
    invoke_without_command=True,
    add_completion=False,
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
        bool, typer.Option("--version", help="Print the version and leave.", is_eager=True)
    ] = False,
) -> None:
    """Log compaction for Kafka-format logs, outside the broker, on Spark."""
    if version:
        typer.echo(f"keeplast {__version__}")
        raise typer.Exit


for command in (inspect, status, plan, clean, run, delete_records, verify, export, pack, demo):
    app.command()(command)
app.add_typer(receipt)
app.add_typer(config)
app.add_typer(tier)


def main() -> None:
    """Run the command line of this process and leave with its exit code."""
    claim_stdout()
    terminate_on_signal()
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Terminated:
        sys.exit(TERMINATED)
