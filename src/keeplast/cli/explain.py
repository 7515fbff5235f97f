"""``keeplast explain``: what there is of one key, what becomes of each record, and by when."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.erasing import search_runner
from keeplast.cli.frame.keys import KEY_WORDS, parse_key
from keeplast.cli.frame.options import RunnerOptions, ScopeOptions, SettingOptions
from keeplast.cli.frame.parameters import FACTS, DataDir, Json, NowMs, ObjectOptions
from keeplast.cli.frame.places import recipe_for
from keeplast.cli.frame.readers import ReaderOptions

if TYPE_CHECKING:
    from keeplast.inspect.explain import AskedKey

Key = Annotated[
    str | None,
    typer.Argument(
        metavar="[KEY]", help=f"The key: {KEY_WORDS}. Or give --offset.", show_default=False
    ),
]
Offset = Annotated[
    int | None,
    typer.Option("--offset", metavar="N", min=0, help="The key of the record at this offset."),
]
Values = Annotated[bool, typer.Option("--values", help="Show values too.")]
Header = Annotated[
    str | None,
    typer.Option(
        "--header",
        metavar="NAME",
        help="Also say which record would win if its version were taken from this header. "
        "Default: the topic's compaction.strategy.header.",
    ),
]
Receipts = Annotated[
    Path | None,
    typer.Option(
        "--receipt",
        metavar="FILE",
        help="Where rounds wrote their receipts. Default: those that keeplast run keeps in "
        "DATA_DIR.",
        rich_help_panel=FACTS,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainOptions:
    """What ``explain`` takes beside the key."""

    data_dir: DataDir
    key: Key = None
    offset: Offset = None
    values: Values = False
    header: Header = None
    scope: ScopeOptions
    settings: SettingOptions
    readers: ReaderOptions
    workers: RunnerOptions
    now_ms: NowMs = None
    receipt: Receipts = None
    object_options: ObjectOptions = ()


@command(
    first=("topics", "offset", "values"),
    example="keeplast explain DATA_DIR customer-17 --topic orders",
)
def explain(options: ExplainOptions, as_json: Json = False) -> Result:
    """Show every record of one key: what becomes of it and when, and by when the last is gone.

    All partitions of the chosen topics are searched, the active segments too. A record goes at
    the earliest at the time shown; a round must then be due. Reads each log once, without the
    directory's lock, and writes nothing. With --master tasks of Spark do, one a partition.
    """
    from keeplast.cli.frame.exit_codes import DONE, error_exit_code
    from keeplast.cli.show.explain import render_explained
    from keeplast.cli.show.fault import fault_text
    from keeplast.cli.show.output import print_result, say
    from keeplast.cli.show.progress import ProgressEvents
    from keeplast.clock import SystemClock
    from keeplast.config.selection import select_partitions
    from keeplast.service.directory_answer import answer_from_directory

    asked = asked_key(options.key, options.offset, options.header)
    brokers = options.readers.brokers()
    recipe = recipe_for((options.data_dir,), options.object_options)
    files = recipe.open()
    selection = select_partitions(options.data_dir, files, options.scope, options.settings)
    for warning in selection.warnings:
        say(warning, kind="warning")
    now_ms = SystemClock().now_ms() if options.now_ms is None else options.now_ms
    with ProgressEvents("searching") as events, search_runner(options.workers) as runner:
        answer = answer_from_directory(
            selection, files, now_ms, asked, scope=options.scope, receipt=options.receipt,
            planned=events.planned, progressed=events.progressed, brokers=brokers,
            runner=runner, recipe=recipe,
        )  # fmt: skip
    for warning in answer.warnings:
        say(warning, kind="warning")
    for partition, reason in answer.left_out:
        say(f"{partition} is not searched: {reason}", kind="note")
    code = DONE
    for partition, error in answer.faults:
        say(f"{partition}: {fault_text(error)}", kind="error")
        code = max(code, error_exit_code(error))
    if not as_json:
        print_result(*render_explained(answer, values=options.values, key_words=KEY_WORDS))
    return code, answer.document(values=options.values, fault_text=fault_text)


def asked_key(key: str | None, offset: int | None, header: str | None) -> AskedKey:
    """Return what is asked about; InvalidError unless it is a key or an offset."""
    from keeplast.inspect.explain import AskedKey

    return AskedKey(None if key is None else parse_key(key), offset, header)
