"""``keeplast export``: write the state of logs as Parquet."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keeplast.cli import options
from keeplast.cli.escapes import printable
from keeplast.cli.guard import run_guarded
from keeplast.cli.places import object_option, place
from keeplast.cli.wiring import RunnerName, check_runner
from keeplast.errors import InvalidError
from keeplast.log.object_paths import shown

if TYPE_CHECKING:
    from rich.table import Table

    from keeplast.pipeline.export import Export, Workers

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
    run_guarded(
        lambda: _exported(
            data_dir,
            to,
            topics=tuple(topic or ()),
            partitions=tuple(partition or ()),
            overwrite=overwrite,
            runner=runner,
            master=master,
            cores=cores,
            flags=tuple(config or ()),
            config_file=config_file,
            memory=memory,
            task_memory=task_memory,
            object_options=tuple(object_option or ()),
            as_json=as_json,
        ),
        as_json=as_json,
    )


def _exported(
    data_dir: Path,
    to: Path,
    *,
    topics: tuple[str, ...],
    partitions: tuple[int, ...],
    overwrite: bool,
    runner: RunnerName,
    master: str | None,
    cores: int | None,
    flags: tuple[str, ...],
    config_file: Path | None,
    memory: str,
    task_memory: str,
    object_options: tuple[str, ...],
    as_json: bool,
) -> tuple[int, dict[str, Any]]:
    from keeplast.cli.exit_codes import DONE
    from keeplast.cli.output import print_result, say
    from keeplast.cli.progress import ProgressEvents
    from keeplast.cli.sizes import parse_size
    from keeplast.config.sources import read_settings
    from keeplast.engine.workspace import MEMORY_BYTES_MIN
    from keeplast.log.data_directory import open_data_directory
    from keeplast.log.files import LocalFiles

    _require_pyarrow()
    check_runner(runner, master=master)
    from keeplast.pipeline.export import check_target, export_state
    from keeplast.pipeline.source_options import OBJECT_PREFIX, read_options

    given = {OBJECT_PREFIX + key: value for key, value in map(object_option, object_options)}
    memory_bytes = parse_size(memory, "--memory")
    if memory_bytes < MEMORY_BYTES_MIN:
        raise InvalidError(
            f"memory is less than a worker can work in; give at least 32m. --memory={memory}"
        )
    given |= {"path": shown(str(data_dir)), "memoryBytes": str(memory_bytes)}
    if topics:
        given["subscribe"] = ",".join(topics)
    source = read_options(given, is_streaming=False)
    task_memory_bytes = parse_size(task_memory, "--task-memory")
    there = source.recipe().open()
    root = open_data_directory(data_dir, there).root
    settings = read_settings(root, there, flags=flags, config_file=config_file)
    # Before Spark is started: a mistake costs no session.
    check_target(to.absolute(), LocalFiles(), source, overwrite=overwrite)
    with ProgressEvents("exporting") as events, _workers(runner, master, cores) as workers:
        done = export_state(
            source,
            to,
            workers,
            events,
            topic_config=settings.topic_config,
            partitions=partitions,
            overwrite=overwrite,
            task_memory_bytes=task_memory_bytes,
        )
    if not as_json:
        print_result(printable(f"exported to {done.target}"), "", _table(done))
        say(f"go on reading with startingOffsets as in {done.target / '_offsets.json'}")
    return DONE, {
        "version": 1,
        "target": str(done.target),
        "partitions": [each.to_json() for each in done.partitions],
        "offsets": done.offsets(),
    }


def _require_pyarrow() -> None:
    if importlib.util.find_spec("pyarrow") is None:
        raise InvalidError(
            "pyarrow is not installed, and it writes Parquet; run pip install 'keeplast[spark]' "
            "(--runner local needs no Java)"
        )


@contextlib.contextmanager
def _workers(runner: RunnerName, master: str | None, cores: int | None) -> Iterator[Workers]:
    if runner is RunnerName.LOCAL:
        from keeplast.engine.local_runner import LocalRunner

        with LocalRunner(cores) as local:
            yield local
        return
    from keeplast.pipeline.runner import SparkRunner

    with SparkRunner(master, cores) as spark:
        yield spark


def _table(done: Export) -> Table:
    from keeplast.cli.rows import new_table
    from keeplast.cli.sizes import format_bytes

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
