"""``keeplast export``: write the state of logs as Parquet."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keeplast.cli.export_source import SourceGroup, read_source
from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.options import RunnerOptions, task_memory_size
from keeplast.cli.frame.parameters import TASK_MEMORY_DEFAULT, Json, TaskMemory
from keeplast.cli.frame.places import place
from keeplast.cli.frame.wiring import check_runner, open_runner, say_start
from keeplast.errors import InvalidError, installing
from keeplast.model.escapes import printable

if TYPE_CHECKING:
    from rich.table import Table

    from keeplast.pipeline.export import Export

Target = Annotated[
    Path,
    typer.Option(
        "--to",
        metavar="DIR",
        help="The directory to make: DIR/TOPIC/partition=N/, and DIR/_offsets.json.",
        show_default=False,
        parser=place,
    ),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace an earlier export that is in the way.")
]
Incremental = Annotated[
    bool,
    typer.Option(
        "--incremental",
        help="Make the next version in --to, from the last one and what came since: "
        "DIR/versions/NUMBER, and DIR/current leads to the newest. Partitions of which that would "
        "not be exact are read as a whole, and it says why.",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """What ``export`` takes."""

    source: SourceGroup
    to: Target
    overwrite: Overwrite = False
    incremental: Incremental = False
    keep: Keep = None
    tombstones: Tombstones = False
    workers: RunnerOptions
    task_memory: TaskMemory = TASK_MEMORY_DEFAULT


@command(first=("to", "topics", "runner"), example="keeplast export DATA_DIR --to OUT --topic t")
def export(options: ExportOptions, as_json: Json = False) -> Result:
    """Write the state of topics as Parquet: each key's last value, without deleted keys.

    The last is the one that the topic's compaction.strategy chooses. Committed records only.
    With --ending-offsets, --as-of, --checkpoint or --checkpoint-group the state is that of an
    earlier point, if it can still be told; transactions count as they were decided there.
    Of a directory, with --store of a tiered store, with --bootstrap-server of what brokers have
    copied to their remote tier.
    Nothing is locked or changed; a broker may be running. `_offsets.json` says where to go on, as
    Spark's startingOffsets takes it. An export that fails leaves nothing behind.
    """
    from keeplast.cli.frame.exit_codes import DONE
    from keeplast.cli.show.output import print_result, say
    from keeplast.cli.show.progress import ProgressEvents

    _require_pyarrow()
    workers = options.workers
    check_runner(workers.chosen_runner, master=workers.master)
    from keeplast.service.exporting import ExportCall, find_versions

    versions = find_versions(
        options.to, incremental=options.incremental, keep=options.keep, overwrite=options.overwrite
    )
    source = read_source(options.source)
    call = ExportCall(
        source=source, to=options.to, versions=versions, keep=options.keep,
        overwrite=options.overwrite, tombstones=options.tombstones,
        task_memory_bytes=task_memory_size(options.task_memory),
    )  # fmt: skip
    # Before Spark is started: a mistake costs no session.
    call.check()
    say_start(workers.chosen_runner)
    with (
        call.held(),
        ProgressEvents("exporting") as events,
        open_runner(workers.chosen_runner, master=workers.master, cores=workers.cores) as opened,
    ):
        done = call.run(opened, events)
    point = source.point
    if not as_json:
        about = "" if point.words is None else f", {point.words}"
        print_result(
            printable(f"exported to {done.target}{about}"),
            "",
            _table(done, has_end=source.options.has_end, is_incremental=options.incremental),
        )
        for topic, ranking in done.rankings.items():
            say(printable(f"{topic}: the records of a key rank by {ranking}"))
        say(f"go on reading with startingOffsets as in {done.target / '_offsets.json'}")
    return DONE, {
        "target": done.target,
        "partitions": done.partitions,
        "offsets": done.offsets(),
        "ending_offsets": done.ending_offsets(),
        "as_of": point.document,
        "ranked_by": done.rankings,
        "tombstones": options.tombstones,
    }


def _require_pyarrow() -> None:
    if importlib.util.find_spec("pyarrow") is None:
        raise InvalidError(
            f"pyarrow is not installed, and it writes Parquet; {installing('spark')} "
            "(--runner local needs no Java)"
        )


def _table(done: Export, *, has_end: bool, is_incremental: bool) -> Table:
    from keeplast.cli.show.rows import new_table
    from keeplast.model.size import format_bytes

    ends = (">as of offset",) if has_end else ()
    starts = (">read from offset",) if is_incremental else ()
    table = new_table(
        "partition", ">keys", ">Parquet", ">tasks", *starts, *ends, ">go on at offset"
    )
    for each in done.partitions:
        table.add_row(
            printable(str(each.partition)),
            f"{each.records:,}",
            format_bytes(each.size_bytes),
            f"{each.tasks:,}",
            *(["all" if each.carried_to is None else f"{each.carried_to:,}"] if starts else []),
            *([f"{each.end_offset:,}"] if has_end else []),
            f"{each.resume_offset:,}",
        )
    return table
