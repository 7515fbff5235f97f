"""``keeplast export``: write the state of logs as Parquet."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.options import (
    RunnerOptions,
    ScopeOptions,
    SettingOptions,
    memory_size,
    task_memory_size,
)
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
from keeplast.cli.frame.times import time_ms
from keeplast.cli.frame.wiring import check_runner, open_runner, say_start
from keeplast.clock import time_text
from keeplast.errors import InvalidError, installing
from keeplast.log.object_paths import shown
from keeplast.model.escapes import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.table import Table

    from keeplast.model.partition import TopicPartition
    from keeplast.pipeline.export import Export
    from keeplast.pipeline.increment import VersionPlace
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
        help="The state as of the offsets that a consumer group has committed, by the directory's "
        "own __consumer_offsets. Only what it has committed is exported.",
    ),
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
OFFSETS_BYTES_MAX = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """What ``export`` takes."""

    data_dir: DataDir
    to: Target
    scope: ScopeOptions
    overwrite: Overwrite = False
    ending_offsets: EndingOffsets = None
    as_of: AsOf = None
    checkpoint: CheckpointTopic = None
    checkpoint_group: CheckpointGroup = None
    incremental: Incremental = False
    keep: Keep = None
    workers: RunnerOptions
    settings: SettingOptions
    memory: Memory = MEMORY_DEFAULT
    task_memory: TaskMemory = TASK_MEMORY_DEFAULT
    object_options: ObjectOptions = ()


@command(first=("to", "topics", "runner"), example="keeplast export DATA_DIR --to OUT --topic t")
def export(options: ExportOptions, as_json: Json = False) -> Result:
    """Write the state of topics as Parquet: each key's last value, without deleted keys.

    The last is the one that the topic's compaction.strategy chooses. Committed records only.
    With --ending-offsets, --as-of, --checkpoint or --checkpoint-group the state is that of an
    earlier point, if it can still be told; transactions count as they were decided there.
    Nothing is locked or changed; a broker may be running. `_offsets.json` says where to go on, as
    Spark's startingOffsets takes it. An export that fails leaves nothing behind.
    """
    from keeplast.cli.frame.exit_codes import DONE
    from keeplast.cli.show.output import print_result, say
    from keeplast.cli.show.progress import ProgressEvents
    from keeplast.config.sources import read_settings
    from keeplast.log.data_directory import open_data_directory
    from keeplast.log.files import LocalFiles

    _require_pyarrow()
    workers = options.workers
    check_runner(workers.chosen_runner, master=workers.master)
    from keeplast.pipeline.export import check_target, export_state
    from keeplast.pipeline.increment import KEPT_DEFAULT

    versions = _versions(options)
    source, point = _source(options)
    task_memory_bytes = task_memory_size(options.task_memory)
    there = source.recipe().open()
    root = open_data_directory(options.data_dir, there).root
    settings = read_settings(root, there, options.settings)
    target = options.to.absolute() if versions is None else versions.next()
    # Before Spark is started: a mistake costs no session.
    check_target(target, LocalFiles(), source, overwrite=options.overwrite)
    say_start(workers.chosen_runner)
    with (
        ProgressEvents("exporting") as events,
        open_runner(workers.chosen_runner, master=workers.master, cores=workers.cores) as opened,
    ):
        done = export_state(
            source,
            target,
            opened,
            events,
            topic_config=settings.topic_config,
            partitions=options.scope.partitions,
            overwrite=options.overwrite,
            task_memory_bytes=task_memory_bytes,
            names_all=options.checkpoint is not None or options.checkpoint_group is not None,
            versions=versions,
        )
    if versions is not None:
        versions.settle(done.target, options.keep or KEPT_DEFAULT)
    if not as_json:
        about = "" if point.words is None else f", {point.words}"
        print_result(
            printable(f"exported to {done.target}{about}"),
            "",
            _table(done, has_end=source.has_end, is_incremental=options.incremental),
        )
        say(f"go on reading with startingOffsets as in {done.target / '_offsets.json'}")
    return DONE, {
        "target": done.target,
        "partitions": done.partitions,
        "offsets": done.offsets(),
        "ending_offsets": done.ending_offsets(),
        "as_of": point.document,
    }


@dataclass(frozen=True, slots=True)
class _Point:
    """The point that a state is of, in words and for the document; the latest has neither."""

    words: str | None = None
    document: dict[str, object] | None = None


def _versions(options: ExportOptions) -> VersionPlace | None:
    """Return where versions lie, where one more is asked for."""
    from keeplast.pipeline.increment import VersionPlace

    if not options.incremental:
        if options.keep is not None:
            raise InvalidError("--keep is about versions; give --incremental too, or leave it out")
        return None
    if options.overwrite:
        raise InvalidError("--incremental adds a version and replaces none; leave --overwrite out")
    versions = VersionPlace(options.to.resolve())
    versions.check()
    return versions


def _source(options: ExportOptions) -> tuple[SourceOptions, _Point]:
    """Return what is read, in the words of the data source, and as of which point."""
    from keeplast.pipeline.source_options import OBJECT_PREFIX, read_options

    ends = {
        "--ending-offsets": options.ending_offsets,
        "--as-of": options.as_of,
        "--checkpoint": options.checkpoint,
        "--checkpoint-group": options.checkpoint_group,
    }
    asked = [name for name, value in ends.items() if value is not None]
    if len(asked) > 1:
        raise InvalidError(f"one point at a time; leave out {' and '.join(asked[1:])}")

    memory_bytes = memory_size(options.memory)
    given = {
        OBJECT_PREFIX + key: value for key, value in map(object_option, options.object_options)
    }
    given |= {"path": shown(str(options.data_dir)), "memoryBytes": str(memory_bytes)}
    if options.scope.topics:
        given["subscribe"] = ",".join(options.scope.topics)
    point = _Point()
    if options.ending_offsets is not None:
        given["endingOffsets"] = _offsets_text(options.ending_offsets)
    elif options.as_of is not None:
        # Up to the first record that is later: of this very time is still in it.
        given["endingTimestamp"] = str(options.as_of + 1)
        point = _Point(
            f"as of {time_text(options.as_of)}, approximately: by the timestamps of the records",
            {"time_ms": options.as_of, "is_approximate": True},
        )
    elif options.checkpoint is not None:
        point = _take_checkpoint(options, options.checkpoint, given)
    elif options.checkpoint_group is not None:
        point = _take_group(options, options.checkpoint_group, given)
    return read_options(given, is_streaming=False), point


def _take_checkpoint(options: ExportOptions, checkpoint: str, given: dict[str, str]) -> _Point:
    """Add to ``given`` what a checkpoint names, as far as it was chosen."""
    from keeplast.pipeline.checkpoint_topic import read_checkpoint, split_checkpoint
    from keeplast.pipeline.source_options import read_options

    topic, offset = split_checkpoint(checkpoint)
    found = read_checkpoint(read_options({**given, "subscribe": topic}, is_streaming=False), offset)
    _take_offsets(options, found.offsets, given, f"--checkpoint={checkpoint}")
    at = f"{found.partition}@{found.offset}"
    return _Point(f"as of the checkpoint {at}", {"checkpoint": at})


def _take_group(options: ExportOptions, group: str, given: dict[str, str]) -> _Point:
    """Add to ``given`` what a consumer group has committed, as far as it was chosen."""
    from keeplast.pipeline.checkpoint_group import read_group_checkpoint
    from keeplast.pipeline.source_options import read_options

    source = read_options(given, is_streaming=False)
    found = read_group_checkpoint(source, group, options.scope.partitions)
    _take_offsets(options, found, given, f"--checkpoint-group={group!r}")
    return _Point(f"as of what group {group} has committed", {"group": group})


def _take_offsets(
    options: ExportOptions, offsets: Mapping[TopicPartition, int], given: dict[str, str], where: str
) -> None:
    """Add to ``given`` what of ``offsets``, exclusive, was chosen; InvalidError for nothing."""
    topics, numbers = options.scope.topics, options.scope.partitions
    document: dict[str, dict[str, int]] = {}
    for partition, end in sorted(offsets.items()):
        is_chosen = not numbers or partition.partition in numbers
        if is_chosen and (not topics or partition.topic in topics):
            document.setdefault(partition.topic, {})[str(partition.partition)] = end
    if not document:
        named = ", ".join(sorted({each.topic for each in offsets}))
        raise InvalidError(
            f"the checkpoint names nothing that was chosen; it names {named}. {where}"
        )
    given.setdefault("subscribe", ",".join(document))
    given["endingOffsets"] = json.dumps(document)


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
            f"the file of offsets cannot be read; name another one. path={path} error={why.lower()}"
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
