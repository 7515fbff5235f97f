"""What ``keeplast export`` reads: a directory, a store or a remote tier, and as of which point."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keeplast.cli.attach.options import StorageOptions
from keeplast.cli.frame.options import ScopeOptions, SettingOptions, memory_size
from keeplast.cli.frame.parameters import MEMORY_DEFAULT, Memory, ObjectOptions
from keeplast.cli.frame.places import object_option, place
from keeplast.cli.frame.times import time_ms
from keeplast.errors import InvalidError
from keeplast.model.redaction import shown_url

if TYPE_CHECKING:
    from keeplast.service.exporting import ExportSource
    from keeplast.service.read_place import ReadPlace

DataDirs = Annotated[
    tuple[Path, ...],
    typer.Argument(
        metavar="[DATA_DIR]...",
        help="A Kafka log.dirs directory, or one partition directory in it; s3://, gs:// and az:// "
        "too. All log.dirs of a broker, and copies of several brokers', can be given as one place: "
        "of each partition the furthest replica is read, and it says which.",
        show_default=False,
        parser=place,
    ),
]
PartialTopics = Annotated[
    bool,
    typer.Option(
        "--partial-topics",
        help="Take what is here of topics that have more partitions by the directory's metadata "
        "log; refused otherwise.",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceGroup:
    """What is read, and as of which point."""

    data_dirs: DataDirs = ()
    partial_topics: PartialTopics = False
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


def read_source(group: SourceGroup) -> ExportSource:
    """Return what is read; InvalidError for options that do not go together."""
    from keeplast.cli.show.output import say
    from keeplast.service.exporting import ExportPoint, find_source

    place = _place_of(group)
    for note in place.notes:
        say(note, kind="note")
    ends = None if group.ending_offsets is None else _offsets_text(group.ending_offsets)
    point = ExportPoint(
        ending_offsets=ends, as_of_ms=group.as_of, checkpoint=group.checkpoint,
        group=group.checkpoint_group,
    )  # fmt: skip
    return find_source(place, group.scope, point, memory_size(group.memory))


def _place_of(group: SourceGroup) -> ReadPlace:
    attached = group.bootstrap_server is not None
    if (not group.data_dirs) == (group.store is None and not attached):
        raise InvalidError(
            "say what is read: a data directory, --store with the URL of a tiered store, or "
            "--bootstrap-server with a live cluster, and one of them. "
            f"path={','.join(map(str, group.data_dirs))} --store={shown_url(group.store or '')} "
            f"--bootstrap-server={group.bootstrap_server}"
        )
    if group.partial_topics and not group.data_dirs:
        raise InvalidError(
            "--partial-topics is about directories; stores and clusters say which partitions they "
            "have"
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
    from keeplast.service.read_place import directory_read

    return directory_read(
        group.data_dirs, group.settings, _object_options(group),
        takes_partial=group.partial_topics,
    )  # fmt: skip


def _object_options(group: SourceGroup) -> dict[str, str]:
    return dict(map(object_option, group.object_options))


def _store_place(group: SourceGroup, store: str) -> ReadPlace:
    from keeplast.cli.tier.options import broker_settings
    from keeplast.service.read_place import store_read

    if group.settings.flags or group.settings.config_file is not None:
        raise InvalidError(
            "the settings of what is in a store are kept with it; leave --config and --config-file "
            f"out, or change them with keeplast configure. --store={shown_url(store)}"
        )
    cluster = broker_settings(group.settings.broker_config)
    return store_read(store, cluster, _object_options(group))


def _attached_place(group: SourceGroup) -> ReadPlace:
    """Look at a cluster once, for the topics that are exported and those of checkpoints."""
    from keeplast.cli.attach.options import (
        ClusterOptions,
        WantedOptions,
        decision_log_there,
        layout_at,
    )
    from keeplast.cli.show.attach import folding
    from keeplast.service.read_place import topics_read

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
    topics = topics_read(group.scope.topics, group.checkpoint)
    cluster = ClusterOptions(
        bootstrap_server=str(group.bootstrap_server), command_config=group.command_config,
        topics=topics,
    )  # fmt: skip
    layout = layout_at(group.storage, group.storage_options)
    with decision_log_there(group.store, only_looks=True) as log:
        from keeplast.service.attached_read import attached_read

        client = cluster.connect()
        facts = client.read_facts(topics)
        wanted = WantedOptions(flags=group.settings.flags, config_file=group.settings.config_file)
        with folding() as progressed:
            return attached_read(
                client, facts, log, layout, wanted.settings_of(facts.topics), group.scope,
                group.checkpoint, f"bootstrap_server={group.bootstrap_server}", progressed,
            )  # fmt: skip


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
