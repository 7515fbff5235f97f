"""Exports of any place: the point of the state that is written, where to, and as which version.

The point is put into the words of the data source, which alone says what it means. What can be
wrong with a call is found before a runner is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from msgspec import Struct

from keeplast.clock import time_text
from keeplast.config.layers import PartitionChoice
from keeplast.errors import Despite, InvalidError, RefusedError
from keeplast.log.paths import is_object_path, url_of
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import TopicConfig
from keeplast.pipeline.checkpoints import read_checkpoint, read_group_checkpoint, split_checkpoint
from keeplast.pipeline.increment import BucketVersions, VersionPlace, Versions
from keeplast.pipeline.source_options import OBJECT_PREFIX, SourceOptions, read_options
from keeplast.service.read_place import ReadPlace
from keeplast.tier.objects.places import mounted


class ExportPoint(Struct, frozen=True, kw_only=True):
    """The point of a state: one of these, or the latest.

    ``ending_offsets`` is JSON as ``endingOffsets`` takes it, ``as_of_ms`` a time in milliseconds
    since 1970, ``checkpoint`` TOPIC[@OFFSET] of a topic whose records name offsets, ``group`` a
    consumer group, whose committed offsets count.
    """

    ending_offsets: str | None = None
    as_of_ms: int | None = None
    checkpoint: str | None = None
    group: str | None = None

    @property
    def names_all(self) -> bool:
        """Say whether every partition that is read must have a point of its own."""
        return self.checkpoint is not None or self.group is not None

    def check(self) -> None:
        """Raise InvalidError for two points."""
        ends = {
            "--ending-offsets": self.ending_offsets,
            "--as-of": self.as_of_ms,
            "--checkpoint": self.checkpoint,
            "--checkpoint-group": self.group,
        }
        asked = [name for name, value in ends.items() if value is not None]
        if len(asked) > 1:
            raise InvalidError(
                f"one point at a time; leave out {' and '.join(asked[1:])}", code="K101"
            )


LATEST = ExportPoint()


class ExportedPoint(Struct, frozen=True):
    """The point that a state is of, in words and for the document; the latest has neither."""

    words: str | None = None
    document: dict[str, object] | None = None


class ExportSource(Struct, frozen=True):
    """What is read, its point, and how the records of a topic rank.

    Of ``numbers`` alone, all without any. With ``names_all`` each partition has a point of its own.
    Within ``named`` errors name what is really there.
    """

    options: SourceOptions
    point: ExportedPoint
    topic_config: Callable[[str], TopicConfig]
    named: Callable[[], AbstractContextManager[None]]
    numbers: tuple[int, ...]
    names_all: bool


def find_source(
    place: ReadPlace, scope: PartitionChoice, point: ExportPoint, memory_bytes: int
) -> ExportSource:
    """Return what is read; InvalidError for what does not go together or names nothing."""
    point.check()
    with place.named():
        options, exported = _source(place, scope, point, memory_bytes)
        options = place.shows(options)
        return ExportSource(
            options, exported, place.configs(options), place.named, scope.partitions,
            point.names_all,
        )  # fmt: skip


def find_versions(
    to: Path,
    *,
    incremental: bool,
    keep: int | None,
    overwrite: bool,
    object_options: Mapping[str, str],
) -> Versions | None:
    """Return where versions lie, where one more is asked for; InvalidError for a contradiction.

    What is written to an object store is a version in any case.
    """
    if not incremental and keep is not None:
        raise InvalidError(
            "--keep is about versions; give --incremental too, or leave it out", code="K102"
        )
    if incremental and overwrite:
        raise InvalidError(
            "--incremental adds a version and replaces none; leave "
            f"--despite {Despite.EXISTING_TARGET} out",
            code="K101",
        )
    if is_object_path(to):
        bucket = BucketVersions(to, mounted((to,), object_options), continues=incremental)
        bucket.check()
        if bucket.is_there and not incremental and not overwrite:
            raise RefusedError(
                "an export is there already; choose another place, or add a version with "
                f"--incremental; {Despite.EXISTING_TARGET.remedy}. --to={url_of(to)}",
                code="K144",
            )
        return bucket
    if not incremental:
        return None
    versions = VersionPlace(to.resolve())
    versions.check()
    return versions


def _source(
    place: ReadPlace, scope: PartitionChoice, point: ExportPoint, memory_bytes: int
) -> tuple[SourceOptions, ExportedPoint]:
    """Return what is read, in the words of the data source, and its point."""
    given = {OBJECT_PREFIX + key: value for key, value in place.object_options.items()}
    given |= {"memoryBytes": str(memory_bytes), **place.given}
    if scope.topics:
        given["subscribe"] = ",".join(scope.topics)
    exported = ExportedPoint()
    if point.ending_offsets is not None:
        given["endingOffsets"] = point.ending_offsets
    elif point.as_of_ms is not None:
        # Up to the first record that is later: of this very time is still in it.
        given["endingTimestamp"] = str(point.as_of_ms + 1)
        exported = ExportedPoint(
            f"as of {time_text(point.as_of_ms)}, approximately: by the timestamps of the records",
            {"time_ms": point.as_of_ms, "is_approximate": True},
        )
    elif point.checkpoint is not None:
        exported = _take_checkpoint(place, scope, point.checkpoint, given)
    elif point.group is not None:
        exported = _take_group(place, scope, point.group, given)
    return read_options(given, is_streaming=False), exported


def _take_checkpoint(
    place: ReadPlace, scope: PartitionChoice, checkpoint: str, given: dict[str, str]
) -> ExportedPoint:
    """Add to ``given`` what a checkpoint names, as far as it was chosen."""
    topic, offset = split_checkpoint(checkpoint)
    found = read_checkpoint(
        place.shows(read_options({**given, "subscribe": topic}, is_streaming=False)), offset
    )
    _take_offsets(scope, found.offsets, given, f"--checkpoint={checkpoint}")
    at = f"{found.partition}@{found.offset}"
    return ExportedPoint(f"as of the checkpoint {at}", {"checkpoint": at})


def _take_group(
    place: ReadPlace, scope: PartitionChoice, group: str, given: dict[str, str]
) -> ExportedPoint:
    """Add to ``given`` what a consumer group has committed, as far as it was chosen."""
    if place.groups is None and len(json.loads(given.get("paths", "[]"))) > 1:
        raise InvalidError(
            "a group's offsets are those in one directory; give --ending-offsets. "
            f"--checkpoint-group={group!r}",
            code="K154",
        )
    source = place.shows(read_options(given, is_streaming=False))
    found = read_group_checkpoint(source, group, scope.partitions, brokers=place.groups)
    _take_offsets(scope, found, given, f"--checkpoint-group={group!r}")
    return ExportedPoint(f"as of what group {group} has committed", {"group": group})


def _take_offsets(
    scope: PartitionChoice,
    offsets: Mapping[TopicPartition, int],
    given: dict[str, str],
    where: str,
) -> None:
    """Add to ``given`` what of ``offsets``, exclusive, was chosen; InvalidError for nothing."""
    document: dict[str, dict[str, int]] = {}
    for partition, end in sorted(offsets.items()):
        if scope.includes(partition):
            document.setdefault(partition.topic, {})[str(partition.partition)] = end
    if not document:
        named = ", ".join(sorted({each.topic for each in offsets}))
        raise InvalidError(
            f"the checkpoint names nothing that was chosen; it names {named}. {where}", code="K155"
        )
    given.setdefault("subscribe", ",".join(document))
    given["endingOffsets"] = json.dumps(document)
