"""``keeplast export``: write the state of logs as Parquet."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keeplast.cli.frame import options
from keeplast.cli.frame.guard import run_guarded
from keeplast.cli.frame.places import object_option, place
from keeplast.cli.frame.wiring import RunnerName, check_runner, open_runner, say_start
from keeplast.cli.show.output import JSON_VERSION
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


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """The values of the options for one call."""

    data_dir: Path
    to: Path
    topics: tuple[str, ...]
    partitions: tuple[int, ...]
    overwrite: bool
    runner: RunnerName
    master: str | None
    cores: int | None
    config: tuple[str, ...]
    config_file: Path | None
    broker_config: Path | None
    memory: str
    task_memory: str
    object_options: tuple[str, ...]
    as_json: bool


def export(
    data_dir: options.DataDir,
    to: Target,
    topic: options.Topics = None,
    partition: options.Partitions = None,
    overwrite: Overwrite = False,
    runner: options.Runner = RunnerName.SPARK,
    master: options.Master = None,
    cores: options.Cores = None,
    config: options.Config = None,
    config_file: options.ConfigFile = None,
    broker_config: options.BrokerConfig = None,
    memory: options.Memory = options.MEMORY_DEFAULT,
    task_memory: options.TaskMemory = options.TASK_MEMORY_DEFAULT,
    object_option: options.ObjectOptions = None,
    as_json: options.Json = False,
) -> None:
    """Write the state of topics as Parquet: each key's last value, without deleted keys.

    The last is the one that the topic's compaction.strategy chooses. Committed records only.
    Nothing is locked or changed; a broker may be running. `_offsets.json` says where to go on, as
    Spark's startingOffsets takes it. An export that fails leaves nothing behind.
    """
    values = ExportOptions(
        data_dir=data_dir,
        to=to,
        topics=tuple(topic or ()),
        partitions=tuple(partition or ()),
        overwrite=overwrite,
        runner=runner,
        master=master,
        cores=cores,
        config=tuple(config or ()),
        config_file=config_file,
        broker_config=broker_config,
        memory=memory,
        task_memory=task_memory,
        object_options=tuple(object_option or ()),
        as_json=as_json,
    )
    run_guarded(lambda: _exported(values), as_json=as_json)


def _exported(values: ExportOptions) -> tuple[int, dict[str, Any]]:
    from keeplast.cli.frame.exit_codes import DONE
    from keeplast.cli.show.output import print_result, say
    from keeplast.cli.show.progress import ProgressEvents
    from keeplast.config.sources import read_settings
    from keeplast.log.data_directory import open_data_directory
    from keeplast.log.files import LocalFiles
    from keeplast.model.size import parse_size

    _require_pyarrow()
    check_runner(values.runner, master=values.master)
    from keeplast.pipeline.export import check_target, export_state

    source = _source(values)
    task_memory_bytes = parse_size(values.task_memory, "--task-memory")
    there = source.recipe().open()
    root = open_data_directory(values.data_dir, there).root
    settings = read_settings(
        root,
        there,
        flags=values.config,
        config_file=values.config_file,
        broker_config=values.broker_config,
    )
    # Before Spark is started: a mistake costs no session.
    check_target(values.to.absolute(), LocalFiles(), source, overwrite=values.overwrite)
    say_start(values.runner, None)
    with (
        ProgressEvents("exporting") as events,
        open_runner(values.runner, master=values.master, cores=values.cores) as workers,
    ):
        done = export_state(
            source,
            values.to,
            workers,
            events,
            topic_config=settings.topic_config,
            partitions=values.partitions,
            overwrite=values.overwrite,
            task_memory_bytes=task_memory_bytes,
        )
    if not values.as_json:
        print_result(printable(f"exported to {done.target}"), "", _table(done))
        say(f"go on reading with startingOffsets as in {done.target / '_offsets.json'}")
    return DONE, {
        "version": JSON_VERSION,
        "target": str(done.target),
        "partitions": [each.to_json() for each in done.partitions],
        "offsets": done.offsets(),
    }


def _source(values: ExportOptions) -> SourceOptions:
    """Return what is read, in the words of the data source."""
    from keeplast.model.size import parse_size
    from keeplast.pipeline.source_options import OBJECT_PREFIX, read_options
    from keeplast.rewrite.workspace import MEMORY_BYTES_MIN

    memory_bytes = parse_size(values.memory, "--memory")
    if memory_bytes < MEMORY_BYTES_MIN:
        raise InvalidError(
            f"memory is less than a worker can work in; give at least 32m. --memory={values.memory}"
        )
    given = {OBJECT_PREFIX + key: value for key, value in map(object_option, values.object_options)}
    given |= {"path": shown(str(values.data_dir)), "memoryBytes": str(memory_bytes)}
    if values.topics:
        given["subscribe"] = ",".join(values.topics)
    return read_options(given, is_streaming=False)


def _require_pyarrow() -> None:
    if importlib.util.find_spec("pyarrow") is None:
        raise InvalidError(
            f"pyarrow is not installed, and it writes Parquet; {installing('spark')} "
            "(--runner local needs no Java)"
        )


def _table(done: Export) -> Table:
    from keeplast.cli.show.rows import new_table
    from keeplast.cli.show.sizes import format_bytes

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
