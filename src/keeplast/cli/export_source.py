"""What ``keeplast export`` reads: a directory or a store, and as of which point.

The point is put into the words of the data source, which alone says what it means.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keeplast.cli.frame.options import ScopeOptions, SettingOptions, memory_size
from keeplast.cli.frame.parameters import MEMORY_DEFAULT, Memory, ObjectOptions
from keeplast.cli.frame.places import object_option, place
from keeplast.cli.frame.times import time_ms
from keeplast.clock import time_text
from keeplast.errors import InvalidError
from keeplast.log.object_paths import shown
from keeplast.model.redaction import shown_url

if TYPE_CHECKING:
    from keeplast.model.partition import TopicPartition
    from keeplast.model.topic_config import TopicConfig
    from keeplast.pipeline.source_options import SourceOptions

DataDir = Annotated[
    Path | None,
    typer.Argument(
        metavar="DATA_DIR",
        help="A Kafka log.dirs directory, or one partition directory in it; s3://, gs:// and az:// "
        "too.",
        show_default=False,
        parser=place,
    ),
]
Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        show_default=False,
        help="Read a tiered store instead of a directory, by its metadata: sqlite:///FILE, or "
        "postgresql://USER@HOST/DATABASE with the password in PGPASSWORD or ~/.pgpass.",
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
        help="The state as of the offsets that a consumer group has committed, by the directory's "
        "own __consumer_offsets. Only what it has committed is exported.",
    ),
]
OFFSETS_BYTES_MAX = 16 << 20


@dataclass(frozen=True, slots=True)
class ExportedPoint:
    """The point that a state is of, in words and for the document; the latest has neither."""

    words: str | None = None
    document: dict[str, object] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceGroup:
    """What is read, and as of which point."""

    data_dir: DataDir = None
    store: Store = None
    scope: ScopeOptions
    ending_offsets: EndingOffsets = None
    as_of: AsOf = None
    checkpoint: CheckpointTopic = None
    checkpoint_group: CheckpointGroup = None
    settings: SettingOptions
    memory: Memory = MEMORY_DEFAULT
    object_options: ObjectOptions = ()

    @property
    def names_all(self) -> bool:
        """Say whether every partition that is read must have a point of its own."""
        return self.checkpoint is not None or self.checkpoint_group is not None


@dataclass(frozen=True, slots=True)
class ExportedSource:
    """What is read, as of which point, and how the records of a topic rank."""

    options: SourceOptions
    point: ExportedPoint
    topic_config: Callable[[str], TopicConfig]


def find_source(group: SourceGroup) -> ExportedSource:
    """Return what is read; InvalidError for options that do not go together."""
    if (group.data_dir is None) == (group.store is None):
        raise InvalidError(
            "say what is read: a data directory, or --store with the URL of a tiered store, and "
            f"not both. path={group.data_dir} --store={shown_url(group.store or '')}"
        )
    options, point = _source(group)
    if group.store is None:
        return ExportedSource(options, point, _directory_configs(group, options))
    from keeplast.cli.tier.options import broker_settings
    from keeplast.config.stored import stored_topic_config
    from keeplast.tier.objects.log_directory import LogDirectoryRecipe

    if group.settings.flags or group.settings.config_file is not None:
        raise InvalidError(
            "the settings of what is in a store are kept with it; leave --config and --config-file "
            f"out, or change them with keeplast tier configure. --store={shown_url(group.store)}"
        )
    recipe = options.recipe()
    assert isinstance(recipe, LogDirectoryRecipe)
    configs = stored_topic_config(recipe, broker_settings(group.settings.broker_config))
    return ExportedSource(options.of(recipe), point, configs)


def _directory_configs(group: SourceGroup, options: SourceOptions) -> Callable[[str], TopicConfig]:
    from keeplast.config.sources import read_settings
    from keeplast.log.data_directory import open_data_directory

    there = options.recipe().open()
    root = open_data_directory(options.path, there).root
    return read_settings(root, there, group.settings).topic_config


def _source(options: SourceGroup) -> tuple[SourceOptions, ExportedPoint]:
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
    given |= {"memoryBytes": str(memory_bytes)}
    if options.store is not None:
        given["store"] = options.store
    else:
        given["path"] = shown(str(options.data_dir))
    if options.scope.topics:
        given["subscribe"] = ",".join(options.scope.topics)
    point = ExportedPoint()
    if options.ending_offsets is not None:
        given["endingOffsets"] = _offsets_text(options.ending_offsets)
    elif options.as_of is not None:
        # Up to the first record that is later: of this very time is still in it.
        given["endingTimestamp"] = str(options.as_of + 1)
        point = ExportedPoint(
            f"as of {time_text(options.as_of)}, approximately: by the timestamps of the records",
            {"time_ms": options.as_of, "is_approximate": True},
        )
    elif options.checkpoint is not None:
        point = _take_checkpoint(options, options.checkpoint, given)
    elif options.checkpoint_group is not None:
        point = _take_group(options, options.checkpoint_group, given)
    return read_options(given, is_streaming=False), point


def _take_checkpoint(options: SourceGroup, checkpoint: str, given: dict[str, str]) -> ExportedPoint:
    """Add to ``given`` what a checkpoint names, as far as it was chosen."""
    from keeplast.pipeline.checkpoint_topic import read_checkpoint, split_checkpoint
    from keeplast.pipeline.source_options import read_options

    topic, offset = split_checkpoint(checkpoint)
    found = read_checkpoint(read_options({**given, "subscribe": topic}, is_streaming=False), offset)
    _take_offsets(options, found.offsets, given, f"--checkpoint={checkpoint}")
    at = f"{found.partition}@{found.offset}"
    return ExportedPoint(f"as of the checkpoint {at}", {"checkpoint": at})


def _take_group(options: SourceGroup, group: str, given: dict[str, str]) -> ExportedPoint:
    """Add to ``given`` what a consumer group has committed, as far as it was chosen."""
    from keeplast.pipeline.checkpoint_group import read_group_checkpoint
    from keeplast.pipeline.source_options import read_options

    source = read_options(given, is_streaming=False)
    found = read_group_checkpoint(source, group, options.scope.partitions)
    _take_offsets(options, found, given, f"--checkpoint-group={group!r}")
    return ExportedPoint(f"as of what group {group} has committed", {"group": group})


def _take_offsets(
    options: SourceGroup, offsets: Mapping[TopicPartition, int], given: dict[str, str], where: str
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
