"""The command line's entry: one command a file, nothing heavy imported before one runs."""

from __future__ import annotations

import atexit
import gc
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from keeplast import __version__
from keeplast.cli.frame.command import INTERRUPTED, TERMINATED, Terminated, terminate_on_signal
from keeplast.cli.frame.console import OPTION as CONSOLE
from keeplast.cli.frame.console import PORT_DEFAULT
from keeplast.cli.frame.lazy import (
    HELP_ALL,
    MARKUP,
    BadValue,
    HelpGroup,
    LazyGroup,
    coded_usage,
    entry_text,
)
from keeplast.cli.frame.options import LOOPBACK
from keeplast.cli.show.output import Voice, claim_stdout, print_result
from keeplast.errors import name_parameters

HOMES = {
    "inspect": "keeplast.cli.inspect:inspect",
    "status": "keeplast.cli.status:status",
    "plan": "keeplast.cli.plan:plan",
    "clean": "keeplast.cli.clean:clean",
    "run": "keeplast.cli.run:run",
    "console": "keeplast.cli.console:console",
    "collect": "keeplast.cli.collect:collect",
    "repair": "keeplast.cli.repair:repair",
    "pause": "keeplast.cli.detach:pause",
    "detach": "keeplast.cli.detach:detach",
    "delete-records": "keeplast.cli.delete_records:delete_records",
    "verify": "keeplast.cli.verify:verify",
    "explain": "keeplast.cli.explain:explain",
    "export": "keeplast.cli.export:export",
    "copy": "keeplast.cli.copy:copy",
    "pack": "keeplast.cli.pack:pack",
    "demo": "keeplast.cli.demo.command:demo",
    "place": "keeplast.cli.place:place",
    "hold": "keeplast.cli.hold:hold",
    "erase": "keeplast.cli.erase:erase",
    "undo": "keeplast.cli.undo:undo",
    "config": "keeplast.cli.config:config",
    "configure": "keeplast.cli.configure:configure",
}
"""Where each command is, or the group that it begins."""
GROUPS: Mapping[str, Mapping[str, str]] = {
    "": {
        "status": "Show where every log stands, and why it is cleaned or not.",
        "plan": "Show what clean would do, and change nothing.",
        "clean": "Drop superseded records, as Kafka's cleaner does.",
        "run": "Clean whatever becomes worth it, again and again.",
        "verify": "Judge what cleaning did, by a method of its own.",
        "explain": "Show every record of one key, and what becomes of it.",
    },
    "Look": {
        "inspect": "Show segments, batches and records, or rounds of receipts.",
        "console": "Show logs in a browser.",
    },
    "Keys": {
        "hold": "Keep rounds from cleaning past a point: add, list, release.",
        "erase": "Find keys that must go: keys, requests, certify, check.",
        "undo": "Put back the segments that a round replaced.",
    },
    "Read": {
        "export": "Write the state of topics: of each key the value that wins.",
    },
    "Set up and repair": {
        "place": "Give places names, and check them: list, add, check.",
        "config": "Show settings, and where each comes from.",
        "configure": "Change settings.",
        "copy": "Copy the logs of a data directory into a store.",
        "collect": "Delete replaced segments once their grace has passed.",
        "repair": "Mend a place after a crash or a restore.",
        "pause": "Keep rounds away from topics for a while, or resume them.",
        "detach": "Stop compacting partitions, and forget them.",
        "delete-records": "Move the start of a log, as Kafka's DeleteRecords does.",
    },
    "More": {
        "pack": "Pack keeplast for the executors of a Spark cluster.",
        "demo": "Compact a git history, and compare what remains.",
    },
}
"""What the first screen shows: groups of commands by task, and of each command one line."""
PLACES = (
    "PLACE is a data directory (s3://, gs://, az:// too), a store (sqlite:///FILE, "
    "postgresql://HOST/DATABASE), a live cluster (kafka://HOST:PORT), or a name from keeplast.toml."
)
MORE_HELP = (
    "keeplast COMMAND --help has its options, --help-all all commands, help K214 a message's code. "
    "--quiet, --verbose and --log-file FILE may stand anywhere."
)
LOG_FILE = "--log-file"
HELP = "help"
CODE = re.compile(r"[Kk][0-9]{3}")
OBJECTS_PER_COLLECTION = 10_000
"""Python looks for garbage in cycles after so many new objects, not after 700. What a look at
thousands of partitions keeps has none, and was walked through for a tenth of the command's time."""
NAME_WIDTH = 14
VOICE_FLAGS = ("--quiet", "-q", "--verbose", "-v")


class CheckedGroup(LazyGroup):
    """All commands; refuses an empty argument, which is what an unset variable leaves of one.

    As a path it would mean the current directory, and be cleaned wherever the user happens to be.
    """

    homes: ClassVar[Mapping[str, str]] = HOMES

    @coded_usage()
    def invoke(self, ctx: Any) -> Any:
        """Run the command; a mistake's message ends with its code."""
        return super().invoke(ctx)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the arguments name; ``help`` is ``--help``, or shows a code."""
        if args[0] != HELP:
            return super().resolve_command(ctx, args)
        words = [each for each in args[1:] if not each.startswith("-")]
        if words and CODE.fullmatch(words[0]) is None:
            return super().resolve_command(ctx, [*words, "--help"])
        print_result(entry_text(words[0].upper()) if words else ctx.get_help())
        raise typer.Exit

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the first screen; with ``--help-all`` also the options, and what groups have."""
        formatter.write_usage(ctx.command_path, "COMMAND PLACE [OPTIONS]")
        formatter.write(f"\n{self.help}\n\n")
        for heading, commands in GROUPS.items():
            if heading:
                formatter.write(f"{heading}\n")
            here = {name: about for name, about in commands.items() if name in self.homes}
            rows = self._rows(ctx, here) if ctx.meta.get(HELP_ALL) else list(here.items())
            formatter.indent()
            formatter.write_dl([(name.ljust(NAME_WIDTH), about) for name, about in rows])
            formatter.dedent()
        if ctx.meta.get(HELP_ALL):
            with formatter.section("Options"):
                formatter.write_dl([each.get_help_record(ctx) for each in self.get_params(ctx)])
        formatter.write_paragraph()
        for text in (PLACES, MORE_HELP, self.epilog):
            formatter.write_text(text)

    def _rows(self, ctx: Any, here: Mapping[str, str]) -> list[tuple[str, str]]:
        """Return commands and what they are for, those of groups one by one."""
        rows: list[tuple[str, str]] = []
        for name, about in here.items():
            found = self.get_command(ctx, name)
            below = found.rows(ctx) if isinstance(found, HelpGroup) else []
            rows += [(f"{name} {each}", text) for each, text in below] or [(name, about)]
        return rows

    @coded_usage()
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Look at every argument of the command line before any command does."""
        for number, text in enumerate(args, start=1):
            # An option without a value, as --to=$PLACE is then.
            is_bare = text.startswith("--") and text.endswith("=") and text.count("=") == 1
            if not text.strip() or is_bare:
                raise BadValue(
                    f"argument {number} is empty; is a variable not set? argument={text!r}",
                    code="K108",
                )
        found: list[str] = super().parse_args(ctx, with_address(voice_first(args)))
        return found


def voice_first(args: Sequence[str]) -> list[str]:
    """Return the arguments with those of the voice in front, wherever they stood.

    They are about every command, and people write them at its end. After ``--`` nothing is one.
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


def with_address(args: Sequence[str]) -> list[str]:
    """Return the arguments of a command line with the address that a bare ``--console`` means.

    It is bare where nothing follows it, or another option. After ``--`` nothing is one.
    """
    end = args.index("--") if "--" in args else len(args)
    return [
        f"{CONSOLE}={LOOPBACK}:{PORT_DEFAULT}"
        if text == CONSOLE and at < end and (at + 1 >= end or args[at + 1].startswith("-"))
        else text
        for at, text in enumerate(args)
    ]


app = typer.Typer(
    name="keeplast",
    cls=CheckedGroup,
    help="Log compaction for Kafka-format logs, outside the broker: here or on Spark.",
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
    """Log compaction for Kafka-format logs, outside the broker: here or on Spark."""
    if version:
        typer.echo(f"keeplast {__version__}")
        raise typer.Exit
    context.with_resource(Voice(is_quiet=quiet, is_verbose=verbose, path=log_file))


def main() -> None:
    """Run the command line of this process and exit with its code."""
    name_parameters(False)
    gc.set_threshold(OBJECTS_PER_COLLECTION, *gc.get_threshold()[1:])
    # The last look for garbage, as the interpreter ends, took a quarter of a second, and frees what
    # the process's end frees.
    atexit.register(gc.freeze)
    claim_stdout()
    terminate_on_signal()
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Terminated:
        sys.exit(TERMINATED)
