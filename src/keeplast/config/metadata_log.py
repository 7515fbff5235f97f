"""What a KRaft broker's own copy of the metadata says about its topics: settings and partitions.

``__cluster_metadata-0`` beside the partitions is read as a starting broker reads it: the newest
snapshot (``<offset>-<epoch>.checkpoint``) first, then the records of the log from that offset on.
Records of a metadata transaction count when its end is there. A topic that is deleted takes its
settings with it; one of the same name that is made later starts empty.

Only what is on disk is known: ``server.properties`` is not (:mod:`~keeplast.config.broker_config`
reads it), nor what this broker has not fetched
yet. The log's torn tail ends it, as on a broker. Answers to ``ConfigurationControlManager`` and
``TopicsImage``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from keeplast.config.layers import Layer
from keeplast.errors import CorruptError
from keeplast.format.filename import (
    LOG,
    META_PROPERTIES,
    parse_segment_file,
    segment_file,
)
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


@dataclass(slots=True)
class MetadataImage:
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
                "crc mismatch in the metadata log", path=str(path), position=batch.position
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
