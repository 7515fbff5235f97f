"""``keeplast export``: write the state of logs as Parquet."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.options import RunnerOptions, ScopeOptions, SettingOptions, memory_size
from keeplast.cli.frame.parameters import (
    MEMORY_DEFAULT,
    TASK_MEMORY_DEFAULT,
    DataDir,
    Json,
    Memory,
    ObjectOptions,
    TaskMemory,
)
from keeplast.cli.frame.places import object_option, place
from keeplast.cli.frame.wiring import check_runner, open_runner, say_start
from keeplast.errors import InvalidError, installing
from keeplast.log.object_paths import shown
from keeplast.model.escapes import printable

if TYPE_CHECKING:
    from rich.table import Table

    from keeplast.pipeline.export import Export
    from keeplast.pipeline.source_options import SourceOptions

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
OFFSETS_BYTES_MAX = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """What ``export`` takes."""

    data_dir: DataDir
    to: Target
    scope: ScopeOptions
    overwrite: Overwrite = False
    ending_offsets: EndingOffsets = None
    workers: RunnerOptions
    settings: SettingOptions
    memory: Memory = MEMORY_DEFAULT
    task_memory: TaskMemory = TASK_MEMORY_DEFAULT
    object_options: ObjectOptions = ()


@command(first=("to", "topics", "runner"), example="keeplast export DATA_DIR --to OUT --topic t")
def export(options: ExportOptions, as_json: Json = False) -> Result:
    """Write the state of topics as Parquet: each key's last value, without deleted keys.

    The last is the one that the topic's compaction.strategy chooses. Committed records only.
    With --ending-offsets the state is that of an earlier point, if it can still be told.
    Nothing is locked or changed; a broker may be running. `_offsets.json` says where to go on, as
    Spark's startingOffsets takes it. An export that fails leaves nothing behind.
    """
    from keeplast.cli.frame.exit_codes import DONE
    from keeplast.cli.show.output import print_result, say
    from keeplast.cli.show.progress import ProgressEvents
    from keeplast.config.sources import read_settings
    from keeplast.log.data_directory import open_data_directory
    from keeplast.log.files import LocalFiles
    from keeplast.model.size import parse_size

    _require_pyarrow()
    workers = options.workers
    check_runner(workers.chosen_runner, master=workers.master)
    from keeplast.pipeline.export import check_target, export_state

    source = _source(options)
    task_memory_bytes = parse_size(options.task_memory, "--task-memory")
    there = source.recipe().open()
    root = open_data_directory(options.data_dir, there).root
    settings = read_settings(root, there, options.settings)
    # Before Spark is started: a mistake costs no session.
    check_target(options.to.absolute(), LocalFiles(), source, overwrite=options.overwrite)
    say_start(workers.chosen_runner)
    with (
        ProgressEvents("exporting") as events,
        open_runner(workers.chosen_runner, master=workers.master, cores=workers.cores) as opened,
    ):
        done = export_state(
            source,
            options.to,
            opened,
            events,
            topic_config=settings.topic_config,
            partitions=options.scope.partitions,
            overwrite=options.overwrite,
            task_memory_bytes=task_memory_bytes,
        )
    if not as_json:
        print_result(printable(f"exported to {done.target}"), "", _table(done))
        say(f"go on reading with startingOffsets as in {done.target / '_offsets.json'}")
    return DONE, {
        "target": done.target,
        "partitions": done.partitions,
        "offsets": done.offsets(),
    }


def _source(options: ExportOptions) -> SourceOptions:
    """Return what is read, in the words of the data source."""
    from keeplast.pipeline.source_options import OBJECT_PREFIX, read_options

    memory_bytes = memory_size(options.memory)
    given = {
        OBJECT_PREFIX + key: value for key, value in map(object_option, options.object_options)
    }
    given |= {"path": shown(str(options.data_dir)), "memoryBytes": str(memory_bytes)}
    if options.scope.topics:
        given["subscribe"] = ",".join(options.scope.topics)
    if options.ending_offsets is not None:
        given["endingOffsets"] = _offsets_text(options.ending_offsets)
    return read_options(given, is_streaming=False)


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
        raise InvalidError(
            f"the file of offsets cannot be read; name another one. path={path} error={error}"
        ) from None
    if len(data) > OFFSETS_BYTES_MAX:
        raise InvalidError(f"the file is too large for offsets. path={path}")
    return found


def _require_pyarrow() -> None:
    if importlib.util.find_spec("pyarrow") is None:
        raise InvalidError(
            f"pyarrow is not installed, and it writes Parquet; {installing('spark')} "
            "(--runner local needs no Java)"
        )


def _table(done: Export) -> Table:
    from keeplast.cli.show.rows import new_table
    from keeplast.model.size import format_bytes

    table = new_table("partition", ">keys", ">Parquet", ">tasks", ">go on at offset")
    for each in done.partitions:
        table.add_row(
            printable(str(each.partition)),
            f"{each.records:,}",
            format_bytes(each.size_bytes),
            f"{each.tasks:,}",
            f"{each.end_offset:,}",
        )
    return table
