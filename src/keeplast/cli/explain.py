"""``keeplast explain``: what there is of one key, what becomes of each record, and by when."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.keys import KEY_WORDS, parse_key
from keeplast.cli.frame.options import ScopeOptions, SettingOptions
from keeplast.cli.frame.parameters import FACTS, DataDir, Json, NowMs, ObjectOptions
from keeplast.cli.frame.places import recipe_for

if TYPE_CHECKING:
    from keeplast.cli.show.explain import ExplainedPartition
    from keeplast.cli.show.progress import ProgressEvents
    from keeplast.config.selection import Selection
    from keeplast.inspect.explain import AskedKey
    from keeplast.log.files import FileSystem
    from keeplast.model.partition import TopicPartition

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
    directory's lock, and writes nothing.
    """
    from keeplast.cli.frame.exit_codes import DONE
    from keeplast.cli.frame.guard import error_document
    from keeplast.cli.show.explain import explained_document, render_explained
    from keeplast.cli.show.fault import fault_text
    from keeplast.cli.show.output import print_result, say
    from keeplast.cli.show.progress import ProgressEvents
    from keeplast.clock import SystemClock
    from keeplast.config.selection import select_partitions

    asked = asked_key(options.key, options.offset, options.header)
    files = recipe_for((options.data_dir,), options.object_options).open()
    selection = select_partitions(options.data_dir, files, options.scope, options.settings)
    for warning in selection.warnings:
        say(warning, kind="warning")
    require_one(asked, len(selection.partitions))
    for each in selection.decided:
        say(f"{each.topic}-{each.partition} is not searched: {each.rounds[-1].reason}", kind="note")
    now_ms = SystemClock().now_ms() if options.now_ms is None else options.now_ms
    with ProgressEvents("searching") as events:
        parts, faults = _explain_all(options, selection, files, asked, now_ms, events)
    code = DONE
    documents: list[dict[str, Any]] = []
    for partition, error in faults:
        from keeplast.cli.frame.exit_codes import error_exit_code

        say(f"{partition}: {fault_text(error)}", kind="error")
        code = max(code, error_exit_code(error))
        head = {"topic": partition.topic, "partition": partition.partition}
        documents.append({**head, "error": error_document(error)["error"]})
    if not as_json:
        print_result(*render_explained(parts, values=options.values))
    document = explained_document(parts, values=options.values, key=asked.key)
    return code, {**document, "errors": documents}


def asked_key(key: str | None, offset: int | None, header: str | None) -> AskedKey:
    """Return what is asked about; InvalidError unless it is a key or an offset."""
    from keeplast.inspect.explain import AskedKey

    return AskedKey(None if key is None else parse_key(key), offset, header)


def require_one(asked: AskedKey, partitions: int) -> None:
    """Raise InvalidError for an offset of more partitions than one."""
    from keeplast.errors import InvalidError

    if asked.offset is not None and partitions != 1:
        raise InvalidError(
            "an offset is one partition's; give --topic and --partition too. "
            f"--offset={asked.offset} partitions={partitions}"
        )


def _explain_all(
    options: ExplainOptions,
    selection: Selection,
    files: FileSystem,
    asked: AskedKey,
    now_ms: int,
    events: ProgressEvents,
) -> tuple[list[ExplainedPartition], list[tuple[TopicPartition, Exception]]]:
    """Explain the key in each partition; returns those, and what could not be read."""
    from keeplast.cleaner.erasure import find_turn_ms
    from keeplast.cli.frame.standing import find_standing
    from keeplast.cli.show.explain import ExplainedPartition
    from keeplast.errors import CompactionError
    from keeplast.inspect.explain import explain_key
    from keeplast.inspect.status import TombstoneReading
    from keeplast.inspect.traces import find_last_trace
    from keeplast.rewrite.workspace import Workspace
    from keeplast.service.status import find_sizes, read_round_receipts
    from keeplast.service.status_words import erased_sentence
    from keeplast.survey.request import MEMORY_BYTES_DEFAULT, CleanRequest

    standing = find_standing(
        selection, files, now_ms, tombstones=TombstoneReading.SKIP, round_seconds=None,
        receipt=options.receipt, events=events,
    )  # fmt: skip
    states = {each.partition: each for each in standing.partitions}
    sizes = find_sizes(selection.directory, files)
    events.planned(sum(sizes[each.partition] for each in selection.partitions))
    turn_ms = find_turn_ms([*sizes.values()], standing.pace) if sizes else 0
    receipts = read_round_receipts(files, selection.directory.root, options.receipt)
    has_expired_rounds = selection.settings.cleaner_config().has_expired_rounds
    request, workspace = CleanRequest((), rolls_idle=True), Workspace(MEMORY_BYTES_DEFAULT)
    parts: list[ExplainedPartition] = []
    faults: list[tuple[TopicPartition, Exception]] = []
    for each in selection.partitions:
        try:
            found = explain_key(
                each, request, files, now_ms, asked, workspace, events.progressed
            )  # fmt: skip
        except (CompactionError, OSError) as error:
            if asked.offset is not None:
                raise
            faults.append((each.partition, error))
            continue
        erased = states[each.partition].erased_by
        trace = find_last_trace(
            found, erased_by_ms=None if erased is None else erased.by_ms, turn_ms=turn_ms,
            has_expired_rounds=has_expired_rounds,
        )  # fmt: skip
        parts.append(
            ExplainedPartition(
                found,
                trace,
                "nobody knows" if erased is None else erased_sentence(erased, now_ms),
                [receipt for receipt in receipts if receipt.partition == each.partition],
            )
        )
    return parts, faults
