"""The command line's entry: one command a file, nothing heavy imported before one runs."""

from __future__ import annotations

import gc
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from keeplast import __version__
from keeplast.cli.frame.console import with_address
from keeplast.cli.frame.exit_codes import INTERRUPTED, TERMINATED
from keeplast.cli.frame.guard import Terminated, terminate_on_signal
from keeplast.cli.frame.lazy import MARKUP, LazyGroup
from keeplast.cli.show.output import claim_stdout
from keeplast.cli.show.voice import Voice

HOMES = {
    "inspect": "keeplast.cli.inspect:inspect",
    "status": "keeplast.cli.status:status",
    "plan": "keeplast.cli.plan:plan",
    "clean": "keeplast.cli.clean:clean",
    "run": "keeplast.cli.run:run",
    "console": "keeplast.cli.console:console",
    "delete-records": "keeplast.cli.delete_records:delete_records",
    "verify": "keeplast.cli.verify:verify",
    "explain": "keeplast.cli.explain:explain",
    "export": "keeplast.cli.export:export",
    "pack": "keeplast.cli.pack:pack",
    "demo": "keeplast.cli.demo.command:demo",
    "place": "keeplast.cli.place:place",
    "hold": "keeplast.cli.hold:hold",
    "erase": "keeplast.cli.erase:erase",
    "undo": "keeplast.cli.undo:undo",
    "config": "keeplast.cli.config:config",
    "configure": "keeplast.cli.configure:configure",
    "tier": "keeplast.cli.tier.main:tier",
    "attach": "keeplast.cli.attach.main:attach",
}
"""Where each command is, or the group that it begins."""
LOG_FILE = "--log-file"
OBJECTS_PER_COLLECTION = 10_000
"""Python looks for garbage in cycles after so many new objects, not after 700. What a look at
thousands of partitions keeps has none, and was walked through for a tenth of the command's time."""
HELP_COLUMNS_MIN = 90
"""Tables of options need so many columns; below, names of options would be cut."""
VOICE_FLAGS = ("--quiet", "-q", "--verbose", "-v")


class CheckedGroup(LazyGroup):
    """All commands; refuses an empty argument, which is what an unset variable leaves of one.

    As a path it would mean the current directory, and be cleaned wherever somebody happens to be.
    """

    homes: ClassVar[Mapping[str, str]] = HOMES

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; on a narrow screen one whose help cuts no option's name."""
        found = super().get_command(ctx, cmd_name)
        if found is not None and shutil.get_terminal_size().columns < HELP_COLUMNS_MIN:
            _make_plain(found)
        return found

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Look at every argument of the command line before any command does."""
        for number, text in enumerate(args, start=1):
            # An option without a value, as --to=$PLACE is then.
            is_bare = text.startswith("--") and text.endswith("=") and text.count("=") == 1
            if not text.strip() or is_bare:
                raise typer.BadParameter(
                    f"argument {number} is empty; is a variable not set? argument={text!r}"
                )
        found: list[str] = super().parse_args(ctx, with_address(voice_first(args)))
        return found


def _make_plain(command: Any) -> None:
    """Have the help of a command, and of those below it, in plain lines that fold."""
    command.rich_markup_mode = None
    for below in getattr(command, "commands", {}).values():
        _make_plain(below)


def voice_first(args: Sequence[str]) -> list[str]:
    """Return the arguments with those of the voice in front, wherever they stood.

    They are about every command, and people write them at its end. Behind ``--`` nothing is one.
    """
    front: list[str] = []
    rest = list(args)
    end = rest.index("--") if "--" in rest else len(rest)
    at = 0
    while at < end:
        name, equals, _ = rest[at].partition("=")
        if rest[at] in VOICE_FLAGS or (name == LOG_FILE and equals):
            width = 1
        elif rest[at] == LOG_FILE and at + 1 < end:
            width = 2
        else:
            at += 1
            continue
        front += rest[at : at + width]
        del rest[at : at + width]
        end -= width
    return [*front, *rest]


app = typer.Typer(
    name="keeplast",
    cls=CheckedGroup,
    help="Log compaction for Kafka-format logs, outside the broker, on Spark.",
    no_args_is_help=True,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=MARKUP,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(
    epilog="Exit codes: 0 done, 1 a check failed, 2 usage, 3 corrupt input (others go on), "
    "4 refused, 5 failed, 130 and 143 stopped by a signal.",
)
def _options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)
    ] = False,
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet",
            "-q",
            help="Say errors and warnings only, and draw no progress. This and the next two may "
            "stand anywhere on the line.",
        ),
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose",
            "-v",
            help="Say each round as it ends, and where in keeplast an error comes from.",
        ),
    ] = False,
    log_file: Annotated[
        Path | None,
        typer.Option(
            LOG_FILE,
            metavar="FILE",
            help="Append all that is said to this file too, with the time, also when quiet.",
        ),
    ] = None,
) -> None:
    """Log compaction for Kafka-format logs, outside the broker, on Spark."""
    if version:
        typer.echo(f"keeplast {__version__}")
        raise typer.Exit
    context.with_resource(Voice(is_quiet=quiet, is_verbose=verbose, path=log_file))


def main() -> None:
    """Run the command line of this process and exit with its code."""
    gc.set_threshold(OBJECTS_PER_COLLECTION, *gc.get_threshold()[1:])
    claim_stdout()
    terminate_on_signal()
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Terminated:
        sys.exit(TERMINATED)
