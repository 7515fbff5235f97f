"""Where settings are looked for, and what they say right now.

Nothing is remembered. Every call reads file, environment and the directory's metadata again, so
that a process that works in rounds sees a change with the next one. A source that cannot be used is
an error of the whole call; a process that goes on keeps what it had.

A KRaft broker's own copy of the metadata says which topics there are: settings and partitions.
``__cluster_metadata-0`` next to the partitions is read as a starting broker reads it: the newest
snapshot (``<offset>-<epoch>.checkpoint``) first, then the records of the log from that offset on.
Records of a metadata transaction count when its end is there. A topic that is deleted takes its
settings with it; one of the same name that is made later starts empty. Only what is on disk is
known: ``server.properties`` is not (:mod:`~keeplast.config.layers` reads it), nor what this broker
has not fetched yet. The log's torn tail ends it, as on a broker. Answers to
``ConfigurationControlManager`` and ``TopicsImage``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from keeplast.config.layers import (
    USUAL_SOURCES,
    BrokerConfig,
    Layer,
    SettingSources,
    environment_layer,
    file_layer,
    flags_layer,
    read_broker_config,
)
from keeplast.config.precedence import Settings
from keeplast.errors import CorruptError, InvalidError
from keeplast.format.filename import LOG, META_PROPERTIES, parse_segment_file, segment_file
from keeplast.format.meta_properties import decode as decode_meta_properties
from keeplast.format.metadata_record import (
    ConfigRecord,
    MetadataRecord,
    PartitionRecord,
    RemoveTopicRecord,
    ResourceType,
    TopicRecord,
    TransactionEdge,
    decode,
)
from keeplast.log.files import FileSystem
from keeplast.read.log_reader import read_segment

METADATA_DIRECTORY = "__cluster_metadata-0"
META_PROPERTIES_BYTES_MAX = 1 << 20
TRANSACTION_RECORDS_MAX = 1_000_000
CLUSTER_DEFAULT = ""
_SNAPSHOT = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint")


class MetadataImage(Struct):
    """Topics, their partitions and settings after some records; changed by :meth:`apply` only."""

    topics: dict[str, bytes] = field(default_factory=dict)
    partitions: dict[bytes, set[int]] = field(default_factory=dict)
    settings: dict[tuple[int, str], dict[str, str]] = field(default_factory=dict)

    def apply(self, record: MetadataRecord) -> None:
        """Take one record into account."""
        if isinstance(record, TopicRecord):
            self.topics[record.name] = record.topic_id
        elif isinstance(record, PartitionRecord):
            self.partitions.setdefault(record.topic_id, set()).add(record.number)
        elif isinstance(record, RemoveTopicRecord):
            self.partitions.pop(record.topic_id, None)
            for name in [n for n, topic_id in self.topics.items() if topic_id == record.topic_id]:
                del self.topics[name]
                self.settings.pop((ResourceType.TOPIC, name), None)
        elif isinstance(record, ConfigRecord):
            table = self.settings.setdefault((record.resource_type, record.resource_name), {})
            if record.value is None:
                table.pop(record.name, None)
            else:
                table[record.name] = record.value

    def layer(self, source: str, node_id: str | None) -> Layer:
        """Return the settings by scope; a broker's own dynamic ones beat the cluster's."""
        brokers = dict(self.settings.get((ResourceType.BROKER, CLUSTER_DEFAULT), {}))
        if node_id is not None:
            brokers.update(self.settings.get((ResourceType.BROKER, node_id), {}))
        topics = {name: self.settings.get((ResourceType.TOPIC, name), {}) for name in self.topics}
        return Layer(source, brokers, topics=topics)


def read_metadata(root: Path, files: FileSystem) -> Layer | None:
    """Return what the metadata in data directory ``root`` set, None when there are none.

    Raises CorruptError when they are damaged before the end of their last segment.
    """
    image = _read_image(root, files)
    if image is None:
        return None
    return image.layer(str(root / METADATA_DIRECTORY), read_node_id(root, files))


def read_partition_numbers(root: Path, files: FileSystem) -> dict[str, frozenset[int]]:
    """Return which partitions each topic has by the metadata in data directory ``root``.

    None of a topic that they do not know. Errors as for :func:`read_metadata`.
    """
    image = _read_image(root, files)
    if image is None:
        return {}
    return {
        name: frozenset(image.partitions.get(topic_id, ()))
        for name, topic_id in image.topics.items()
    }


def _read_image(root: Path, files: FileSystem) -> MetadataImage | None:
    directory = root / METADATA_DIRECTORY
    if not files.is_directory(directory):
        return None
    names = files.listdir(directory)
    image = MetadataImage()
    snapshots = [match for name in names if (match := _SNAPSHOT.fullmatch(name))]
    start = 0
    if snapshots:
        newest = max(snapshots, key=lambda match: (int(match[1]), int(match[2])))
        start = int(newest[1])
        _replay(image, _values(directory / newest[0], 0, files), directory)
    segments = [
        parsed.base_offset
        for name in names
        if (parsed := parse_segment_file(name)) and parsed.kind == LOG and not parsed.stage
    ]
    if not snapshots and not segments:
        return None
    _replay(image, _log_values(directory, sorted(segments), start, files), directory)
    return image


def _log_values(
    directory: Path, bases: list[int], start: int, files: FileSystem
) -> Iterator[bytes]:
    for index, base in enumerate(bases):
        is_last = index == len(bases) - 1
        if not is_last and bases[index + 1] <= start:
            continue
        yield from _values(directory / segment_file(base, LOG), start, files, may_be_torn=is_last)


def _values(
    path: Path, start: int, files: FileSystem, *, may_be_torn: bool = False
) -> Iterator[bytes]:
    """Yield record values from offset ``start`` on; what is wrong is a CorruptError with the path.

    A file that ``may_be_torn`` may end in something unfinished, but nothing whole may follow it: a
    change of policy could be what was lost.
    """
    wrong: CorruptError | None = None
    batches = read_segment(files, path)
    while True:
        try:
            batch = next(batches, None)
        except CorruptError:
            if may_be_torn and wrong is None:
                return
            raise
        if batch is None:
            break
        if wrong is not None:
            raise wrong
        if not batch.is_valid:
            wrong = CorruptError(
                "crc mismatch in the metadata log",
                path=str(path),
                position=batch.position,
                code="K223",
            )
        elif not batch.is_control and batch.last_offset >= start:
            try:
                for record in batch.records():
                    if record.offset >= start and record.value is not None:
                        yield record.value
            except CorruptError as error:
                raise error.located(str(path)) from error
    if wrong is not None and not may_be_torn:
        raise wrong


def _replay(image: MetadataImage, values: Iterable[bytes], directory: Path) -> None:
    pending: list[MetadataRecord] | None = None
    for value in values:
        try:
            record = decode(value)
        except CorruptError as error:
            raise error.located(str(directory)) from error
        if record is None:
            continue
        if record is TransactionEdge.BEGIN:
            pending = []
        elif record is TransactionEdge.ABORT:
            pending = None
        elif record is TransactionEdge.END:
            for held in pending or ():
                image.apply(held)
            pending = None
        elif pending is None:
            image.apply(record)
        else:
            pending.append(record)
            if len(pending) > TRANSACTION_RECORDS_MAX:
                raise CorruptError(
                    "metadata transaction without an end",
                    path=str(directory),
                    expected=f"at most {TRANSACTION_RECORDS_MAX} records",
                    found=len(pending),
                    code="K223",
                )


def read_node_id(root: Path, files: FileSystem) -> str | None:
    """Return which broker a data directory belongs to, None when it does not say."""
    path = root / META_PROPERTIES
    if not files.exists(path):
        return None
    try:
        properties = decode_meta_properties(files.read_bytes(path, META_PROPERTIES_BYTES_MAX))
    except CorruptError as error:
        raise error.located(str(path)) from error
    return None if properties.node_id is None else str(properties.node_id)


FILE_NAME = "keeplast.toml"
FILE_BYTES_MAX = 4 << 20


def read_settings(
    root: Path,
    files: FileSystem,
    sources: SettingSources = USUAL_SOURCES,
    *,
    key_map_bytes: int | None = None,
    file_text: str | None = None,
) -> Settings:
    """Return the settings of every source for the data directory ``root``, as they are now.

    ``file_text`` takes the place of what the file says. InvalidError when a source cannot be used,
    CorruptError when the metadata are damaged.
    """
    path = settings_path(root, sources.config_file)
    if file_text is None and (sources.config_file is not None or files.exists(path)):
        file_text = read_text(path, files)
    file = () if file_text is None else (file_layer(file_text, str(path)),)
    return Settings(
        _layers(sources, file),
        directory_layer=read_metadata(root, files),
        broker=_broker(sources.broker_config, files, root),
        key_map_bytes=key_map_bytes,
    )


def _broker(path: Path | None, files: FileSystem, root: Path | None = None) -> BrokerConfig | None:
    """Return what a broker's file says, with a warning when the directory is another broker's."""
    if path is None:
        return None
    found = read_broker_config(path, files)
    node = None if root is None else read_node_id(root, files)
    if node is None or found.node_id is None or found.node_id == node:
        return found
    warning = (
        "this is another broker's file, whose settings may differ; name the file of the "
        f"directory's broker. node.id={found.node_id} directory={node} path={path}"
    )
    return replace(found, warnings=(*found.warnings, warning))


def read_spoken_settings(files: FileSystem, sources: SettingSources) -> Settings:
    """Return the settings where there is no data directory, as they are now.

    Errors are those of :func:`read_settings`; without a ``config_file`` there is no file.
    """
    broker = _broker(sources.broker_config, files)
    return Settings(read_layers(files, sources), broker=broker)


def read_layers(files: FileSystem, sources: SettingSources) -> list[Layer]:
    """Return what is said where there is no data directory, the strongest source first."""
    if sources.config_file is None:
        return _layers(sources, ())
    path = sources.config_file.resolve()
    return _layers(sources, (file_layer(read_text(path, files), str(path)),))


def _layers(sources: SettingSources, file: Sequence[Layer]) -> list[Layer]:
    """Return the flags, the place's table, the settings file and the environment, in this order."""
    environment = os.environ if sources.environment is None else sources.environment
    place = () if sources.place is None else (sources.place,)
    return [flags_layer(sources.flags), *place, *file, environment_layer(environment)]


def settings_path(root: Path, config_file: Path | None) -> Path:
    """Return the settings file that counts for ``root``, whether it exists or not.

    A file that the user names may be a link; what lies in the data directory may not.
    """
    return root / FILE_NAME if config_file is None else config_file.resolve()


def read_text(path: Path, files: FileSystem) -> str:
    """Return the text of a settings file; InvalidError when it is none."""
    try:
        return files.read_bytes(path, FILE_BYTES_MAX).decode()
    except FileNotFoundError as error:
        raise InvalidError(
            f"no such settings file; name one that exists. path={path}", code="K110"
        ) from error
    except UnicodeDecodeError as error:
        raise InvalidError(
            f"not UTF-8 text; save it as UTF-8. path={path} position={error.start}", code="K122"
        ) from error
