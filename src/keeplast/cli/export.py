"""``keeplast export``: write the state of a place's logs as Parquet, or its logs as a broker's."""

from __future__ import annotations

import importlib.util
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct

from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.options import Json, ScopeOptions, despite_option
from keeplast.cli.frame.round_options import PlaceOptions, open_workers, runner_of, work_of
from keeplast.cli.frame.values import place as place_argument
from keeplast.cli.frame.values import time_ms
from keeplast.errors import Despite, InvalidError, installing
from keeplast.model.text import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from keeplast.pipeline.export import Export
    from keeplast.service.copying import WrittenLogs

OFFSETS_BYTES_MAX = 16 << 20


class ExportForm(StrEnum):
    """What an export writes."""

    PARQUET = "parquet"
    LOG = "log"


MorePlaces = Annotated[
    tuple[str, ...],
    typer.Argument(
        metavar="PLACE",
        help="Further data directories: all log.dirs of a broker, and copies of several brokers', "
        "are one place. Of each partition the furthest replica is read, and it says which.",
        show_default=False,
    ),
]
Target = Annotated[
    Path,
    typer.Option(
        "--to",
        metavar="DIR",
        help="The directory to make: DIR/TOPIC/partition=N/, and DIR/_offsets.json. In s3://, "
        "gs:// or az:// the object DIR/current names the version that has them. With --as log "
        "DIR/TOPIC-N/.",
        show_default=False,
        parser=place_argument,
    ),
]
Form = Annotated[
    ExportForm,
    typer.Option(
        "--as",
        help="parquet is the state, log the partitions of a store as directories that a broker "
        "serves.",
    ),
]
Limits = Annotated[
    tuple[Despite, ...], despite_option(Despite.EXISTING_TARGET, Despite.PARTIAL_TOPICS)
]
Incremental = Annotated[
    bool,
    typer.Option(
        "--incremental",
        help="Make the next version in --to, from the last one and what came since: "
        "DIR/versions/NUMBER. DIR/current leads to the newest, and its _changes has the keys that "
        "changed, ready for MERGE. A partition is read as a whole where that would not be exact, "
        "and the reason is shown.",
    ),
]
Keep = Annotated[
    int | None,
    typer.Option(
        "--keep",
        metavar="N",
        min=1,
        help="How many versions stay, the new one among them; with --incremental. Default: 2.",
    ),
]
Tombstones = Annotated[
    bool,
    typer.Option(
        "--tombstones",
        help="Write what deletes a key too, as a row without a value: what a live consumer needs "
        "to go on from the export where records rank by version. With --incremental every "
        "partition is read as a whole then.",
    ),
]
EndingOffsets = Annotated[
    str | None,
    typer.Option(
        "--ending-offsets",
        metavar="JSON",
        help='The state as of these offsets, exclusive: {"orders":{"0":120}}, or @FILE such as '
        "another export's _offsets.json. Refused where cleaning has gone beyond. Default: the "
        "latest.",
    ),
]
AsOf = Annotated[
    int | None,
    typer.Option(
        "--as-of",
        metavar="TIME",
        help="The state as of a time, such as 2026-05-31T22:00:00Z: each partition up to its first "
        "record with a later timestamp. Approximate, as producers' clocks made those.",
        parser=time_ms,
    ),
]
CheckpointTopic = Annotated[
    str | None,
    typer.Option(
        "--checkpoint",
        metavar="TOPIC[@OFFSET]",
        help="The state as of the offsets that the last committed record of a topic has as its "
        'value, or the one at OFFSET: {"orders":{"0":120}}. Only what it names is exported.',
    ),
]
CheckpointGroup = Annotated[
    str | None,
    typer.Option(
        "--checkpoint-group",
        metavar="GROUP",
        help="The state as of the offsets that a consumer group has committed, by the place's own "
        "__consumer_offsets, or by what brokers say. Only what it has committed is exported.",
    ),
]


class StateOptions(Struct, frozen=True, kw_only=True):
    """The point of a state, and how it is written; a log has none of it."""

    despite: Limits = ()
    incremental: Incremental = False
    keep: Keep = None
    tombstones: Tombstones = False
    ending_offsets: EndingOffsets = None
    as_of: AsOf = None
    checkpoint: CheckpointTopic = None
    checkpoint_group: CheckpointGroup = None


@command(first=("to", "topics", "form"), example="keeplast export DATA_DIR --to OUT --topic orders")
def export(
    where: PlaceOptions,
    to: Target,
    scope: ScopeOptions,
    state: StateOptions,
    more: MorePlaces = (),
    form: Form = ExportForm.PARQUET,
    as_json: Json = False,
) -> Result:
    """Write the state of topics as Parquet: each key's last value, without deleted keys.

    The last is the one that the topic's compaction.strategy chooses. Committed records only. With
    --ending-offsets, --as-of, --checkpoint or --checkpoint-group the state is that of an earlier
    point, if it can still be read; transactions count as they were decided there. Of a live cluster
    what brokers have copied to their remote tier.

    Nothing is locked or changed; a broker may run. `_offsets.json` says where to go on, as Spark's
    startingOffsets takes it. An export that fails leaves nothing of its own; with --as log one
    partition that fails is no log, and the others are written.
    """
    if form is ExportForm.LOG:
        return _export_logs(where, to, scope, state, more, as_json=as_json)
    from keeplast.cli.frame.command import DONE
    from keeplast.cli.show.output import print_result, say
    from keeplast.cli.show.progress import ProgressEvents
    from keeplast.run.events import StopSwitch

    if importlib.util.find_spec("pyarrow") is None:
        raise InvalidError(
            f"pyarrow is not installed, and it writes Parquet; {installing('spark')} "
            "(--runner local needs no Java)",
            code="K134",
        )
    from keeplast.api.export import ExportTerms, directory_path, export_place
    from keeplast.service.exporting import LATEST, ExportPoint
    from keeplast.service.read_place import ReadTerms

    ends = None if state.ending_offsets is None else _offsets_text(state.ending_offsets)
    point = ExportPoint(
        ending_offsets=ends, as_of_ms=state.as_of, checkpoint=state.checkpoint,
        group=state.checkpoint_group,
    )  # fmt: skip
    found, place = where.open()
    with ProgressEvents("exporting") as events:
        work = work_of(found, events, StopSwitch(), compiles=False)
        terms = ExportTerms(
            to=to, point=point, overwrite=Despite.EXISTING_TARGET in state.despite,
            incremental=state.incremental, keep=state.keep, tombstones=state.tombstones,
            read=ReadTerms(
                also=tuple(map(directory_path, more)),
                takes_partial=Despite.PARTIAL_TOPICS in state.despite, brokers=work.brokers,
            ),
            memory_bytes=work.memory_bytes, task_memory_bytes=work.task_memory_bytes,
            object_options=found.options("object-option"),
        )  # fmt: skip
        done, exported = export_place(
            place, scope, terms, lambda: open_workers(runner_of(found), compiles=False), events
        )
    if not as_json:
        about = "" if exported.words is None else f", {exported.words}"
        print_result(
            printable(f"exported to {done.target}{about}"),
            "",
            _table(done, has_end=point != LATEST, is_incremental=state.incremental),
        )
        for topic, ranking in done.rankings.items():
            say(printable(f"{topic}: the records of a key rank by {ranking}"))
        say(f"go on reading with startingOffsets as in {done.target / '_offsets.json'}")
    return DONE, {
        **place.head,
        "as": ExportForm.PARQUET,
        "target": done.target,
        "partitions": done.partitions,
        "offsets": done.offsets(),
        "ending_offsets": done.ending_offsets(),
        "changed_keys": done.changed_keys(),
        "as_of": exported.document,
        "ranked_by": done.rankings,
        "tombstones": state.tombstones,
    }


def _export_logs(
    where: PlaceOptions,
    to: Path,
    scope: ScopeOptions,
    state: StateOptions,
    more: tuple[str, ...],
    *,
    as_json: bool,
) -> Result:
    from keeplast.cli.frame.command import say_faults
    from keeplast.cli.show.output import fault_text, print_result
    from keeplast.cli.show.progress import ProgressEvents

    if state != StateOptions() or more:
        given = [name for name in StateOptions.__struct_fields__ if getattr(state, name)]
        raise InvalidError(
            "a log is written as it is, of one store, to where none lies; leave the options of a "
            f"state out. given={', '.join(given) or 'PLACE PLACE'}",
            code="K103",
        )
    _, place = where.open()
    with ProgressEvents("writing") as events:
        written = place.export_logs(scope, to, planned=events.planned, progressed=events.progressed)
    if not as_json:
        print_result(*_log_parts(written))
    return say_faults(written.faults), {
        **place.head, "as": ExportForm.LOG, **written.document(fault_text),
    }  # fmt: skip


def _log_parts(written: WrittenLogs) -> list[RenderableType]:
    from rich.text import Text

    from keeplast.cli.show.rounds import ends_line
    from keeplast.cli.show.tables import new_table
    from keeplast.model.text import format_bytes, format_count, format_counted

    table = new_table(
        "partition",
        ">segments",
        ">bytes",
        ">log",
        "written to",
        rows=(
            (
                Text(printable(str(each.partition))),
                format_count(each.segments),
                format_bytes(each.size_bytes),
                f"{each.log_start}..{each.log_end}",
                Text(printable(str(each.path))),
            )
            for each in written.logs
        ),
    )
    amount = (
        f"{format_counted(sum(each.segments for each in written.logs), 'segment')}, "
        f"{format_bytes(sum(each.size_bytes for each in written.logs))}"
    )
    ends = {f"exported ({amount}) to {printable(str(written.target))}": len(written.logs)}
    shown: list[RenderableType] = [table, ""] if written.logs else []
    return [*shown, ends_line(ends, failed=len(written.faults))]


def _offsets_text(text: str) -> str:
    """Return the offsets as given, or as a file has them."""
    if not text.startswith("@"):
        return text
    path = Path(text.removeprefix("@")).expanduser()
    try:
        with path.open("rb") as file:
            data = file.read(OFFSETS_BYTES_MAX + 1)
        found = data.decode()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise InvalidError(
            "the file of offsets cannot be read; name another one. "
            f"path={path} error={why.lower()}",
            code="K136",
        ) from None
    if len(data) > OFFSETS_BYTES_MAX:
        raise InvalidError(f"the file is too large for offsets. path={path}", code="K136")
    return found


def _table(done: Export, *, has_end: bool, is_incremental: bool) -> RenderableType:
    from keeplast.cli.show.tables import new_table
    from keeplast.model.text import format_bytes

    ends = (">as of offset",) if has_end else ()
    starts = (">read from offset",) if is_incremental else ()
    return new_table(
        "partition",
        ">keys",
        ">Parquet",
        ">tasks",
        *starts,
        *ends,
        ">go on at offset",
        rows=(
            (
                printable(str(each.partition)),
                f"{each.records:,}",
                format_bytes(each.size_bytes),
                f"{each.tasks:,}",
                *(["all" if each.carried_to is None else f"{each.carried_to:,}"] if starts else []),
                *([f"{each.end_offset:,}"] if has_end else []),
                f"{each.resume_offset:,}",
            )
            for each in done.partitions
        ),
    )
