"""What ``keeplast export`` reads: a directory, a store or a remote tier, and as of which point.

The point is put into the words of the data source, which alone says what it means.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keeplast.cli.attach.options import StorageOptions
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
    from keeplast.model.reader_wait import GroupReader
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
        "postgresql://USER@HOST/DATABASE with the password in PGPASSWORD or ~/.pgpass. With "
        "--bootstrap-server: the decision log, which says what was compacted.",
    ),
]
Bootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-server",
        metavar="HOST:PORT",
        show_default=False,
        help="Read what brokers of a live cluster serve from their remote tier instead; what they "
        "alone have is not in it.",
    ),
]
ClientConfig = Annotated[
    Path | None,
    typer.Option(
        "--command-config",
        metavar="FILE",
        help="client.properties as Kafka's own tools take it, for SSL and SASL.",
    ),
]
Segments = Annotated[
    str | None,
    typer.Option(
        "--storage",
        metavar="PLUGIN:PLACE",
        show_default=False,
        help="With --bootstrap-server: where the brokers' plugin keeps segments, local:PATH or "
        "aiven:URL.",
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
        "own __consumer_offsets, or by what brokers of --bootstrap-server say. Only what it has "
        "committed is exported.",
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
    bootstrap_server: Bootstrap = None
    command_config: ClientConfig = None
    storage: Segments = None
    storage_options: StorageOptions = ()
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
    """What is read, as of which point, and how the records of a topic rank.

    Within ``named`` errors name what is really there.
    """

    options: SourceOptions
    point: ExportedPoint
    topic_config: Callable[[str], TopicConfig]
    named: Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where what is read lies: ``given`` in the words of the data source, ``shows`` what of it is
    read with some options, and ``configs`` how topics rank there. ``groups`` tell what consumer
    groups have committed, None where files do. Within ``named`` errors name what is really there.
    """

    given: Mapping[str, str]
    shows: Callable[[SourceOptions], SourceOptions]
    configs: Callable[[SourceOptions], Callable[[str], TopicConfig]]
    groups: GroupReader | None = None
    named: Callable[[], AbstractContextManager[None]] = nullcontext


def find_source(group: SourceGroup) -> ExportedSource:
    """Return what is read; InvalidError for options that do not go together."""
    place = _place_of(group)
    with place.named():
        options, point = _source(group, place)
        options = place.shows(options)
        return ExportedSource(options, point, place.configs(options), place.named)


def _place_of(group: SourceGroup) -> _Place:
    attached = group.bootstrap_server is not None
    if (group.data_dir is None) == (group.store is None and not attached):
        raise InvalidError(
            "say what is read: a data directory, --store with the URL of a tiered store, or "
            "--bootstrap-server with a live cluster, and one of them. "
            f"path={group.data_dir} --store={shown_url(group.store or '')} "
            f"--bootstrap-server={group.bootstrap_server}"
        )
    if attached:
        return _attached_place(group)
    if group.storage is not None or group.storage_options or group.command_config is not None:
        raise InvalidError(
            "--storage, its options and --command-config are about a live cluster; give "
            f"--bootstrap-server too. --storage={shown_url(group.storage or '')} "
            f"--command-config={group.command_config}"
        )
    if group.store is not None:
        return _store_place(group, group.store)
    path = shown(str(group.data_dir))
    return _Place({"path": path}, lambda options: options, partial(_directory_configs, group))


def _store_place(group: SourceGroup, store: str) -> _Place:
    from keeplast.cli.tier.options import broker_settings
    from keeplast.config.stored import stored_topic_config

    if group.settings.flags or group.settings.config_file is not None:
        raise InvalidError(
            "the settings of what is in a store are kept with it; leave --config and --config-file "
            f"out, or change them with keeplast tier configure. --store={shown_url(store)}"
        )
    cluster = broker_settings(group.settings.broker_config)

    def configs(options: SourceOptions) -> Callable[[str], TopicConfig]:
        return stored_topic_config(options.shown_logs(), cluster)

    return _Place({"store": store}, lambda options: options.of(options.shown_logs()), configs)


def _attached_place(group: SourceGroup) -> _Place:
    """Look at a cluster once, for the topics that are exported and those of checkpoints."""
    from keeplast.attach.attached_files import ROOT
    from keeplast.attach.shown_logs import find_shown_topics, naming_segments
    from keeplast.cli.attach.options import (
        ClusterOptions,
        WantedOptions,
        decision_log_there,
        layout_at,
    )
    from keeplast.cli.show.attach import folding
    from keeplast.cli.show.output import say
    from keeplast.cluster.group_offsets import BrokerGroups

    if group.storage is None:
        raise InvalidError(
            "say where the brokers' plugin keeps segments: give --storage. "
            f"--bootstrap-server={group.bootstrap_server}"
        )
    if group.object_options or group.settings.broker_config is not None:
        raise InvalidError(
            "--object-option and --broker-config are not for a live cluster: brokers tell their "
            "settings, and --storage-option is for its objects. "
            f"--bootstrap-server={group.bootstrap_server}"
        )
    topics, named = group.scope.topics, (group.checkpoint or "").partition("@")[0]
    if topics and named:
        topics = tuple({*topics, named})

    def wants(partition: TopicPartition) -> bool:
        return group.scope.includes(partition) or partition.topic == named

    cluster = ClusterOptions(
        bootstrap_server=str(group.bootstrap_server), command_config=group.command_config,
        topics=topics,
    )  # fmt: skip
    layout = layout_at(group.storage, group.storage_options)
    with decision_log_there(group.store, only_looks=True) as log:
        client = cluster.connect()
        facts = client.read_facts(topics)
        with folding() as progressed:
            found = find_shown_topics(
                client, facts, log, layout, wants,
                f"bootstrap_server={group.bootstrap_server}", progressed,
            )  # fmt: skip
    for each in found.logs:
        if each.behind:
            say(f"{each.partition}: {each.behind}", kind="note")
        if log is None and each.told_from > each.log_start:
            say(
                f"{each.partition}: it was compacted; how far, the decision log says (--store), "
                "and without it only the latest state can be told",
                kind="note",
            )
    wanted = WantedOptions(flags=group.settings.flags, config_file=group.settings.config_file)
    configs = wanted.settings_of(facts.topics).topic_config
    return _Place(
        {"path": str(ROOT)}, lambda options: options.of(found), lambda _: configs,
        groups=BrokerGroups(client), named=lambda: naming_segments(found),
    )  # fmt: skip


def _directory_configs(group: SourceGroup, options: SourceOptions) -> Callable[[str], TopicConfig]:
    from keeplast.config.sources import read_settings
    from keeplast.log.data_directory import open_data_directory

    there = options.recipe().open()
    root = open_data_directory(options.path, there).root
    return read_settings(root, there, group.settings).topic_config


def _source(options: SourceGroup, place: _Place) -> tuple[SourceOptions, ExportedPoint]:
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
    given |= {"memoryBytes": str(memory_bytes), **place.given}
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
        point = _take_checkpoint(options, place, options.checkpoint, given)
    elif options.checkpoint_group is not None:
        point = _take_group(options, place, options.checkpoint_group, given)
    return read_options(given, is_streaming=False), point


def _take_checkpoint(
    options: SourceGroup, place: _Place, checkpoint: str, given: dict[str, str]
) -> ExportedPoint:
    """Add to ``given`` what a checkpoint names, as far as it was chosen."""
    from keeplast.pipeline.checkpoint_topic import read_checkpoint, split_checkpoint
    from keeplast.pipeline.source_options import read_options

    topic, offset = split_checkpoint(checkpoint)
    found = read_checkpoint(
        place.shows(read_options({**given, "subscribe": topic}, is_streaming=False)), offset
    )
    _take_offsets(options, found.offsets, given, f"--checkpoint={checkpoint}")
    at = f"{found.partition}@{found.offset}"
    return ExportedPoint(f"as of the checkpoint {at}", {"checkpoint": at})


def _take_group(
    options: SourceGroup, place: _Place, group: str, given: dict[str, str]
) -> ExportedPoint:
    """Add to ``given`` what a consumer group has committed, as far as it was chosen."""
    from keeplast.pipeline.checkpoint_group import read_group_checkpoint
    from keeplast.pipeline.source_options import read_options

    source = place.shows(read_options(given, is_streaming=False))
    found = read_group_checkpoint(source, group, options.scope.partitions, brokers=place.groups)
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
