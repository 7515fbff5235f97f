"""Exports that continue from the last one: versions of a state, and what may be carried over.

::

    DIR/versions/00000003/orders/partition=0/part-00000.parquet   an export as any other
    DIR/versions/00000003/_base.json                              what the next one needs to know
    DIR/current -> versions/00000003                              which one counts

The rules:

1. A version gets its name when it is whole and on disk, and only then does ``current`` lead to it;
   a run that was killed leaves the last version as it was. An older one loses its name before its
   files go. One export at a time adds versions; what killed ones have left goes with the next
   (:meth:`VersionPlace.held`).
2. Rows of the last version are carried over where nothing but what lies behind its end can have
   changed them: the topic ranks by offset and is the same, as it was for the last version; the
   leader epochs say that the log was not cut below that end, and no record behind it can have been
   taken away by a cleaner before it was seen. A tombstone that was is the danger; none goes within
   ``delete.retention.ms``. Wherever that is not certain, the partition is read as a whole, and the
   reason is told. So it is where tombstones are rows: any of those may be gone from the log by now.
3. So a version equals what a full export gives at the same offsets, row by row.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from keeplast.clock import Clock
from keeplast.errors import CorruptError, RefusedError
from keeplast.log.files import FileSystem, LocalFiles
from keeplast.log.lock import has_name
from keeplast.log.truncation import read_leader_epochs
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import Strategy, TopicConfig
from keeplast.pipeline.export_files import sweep_killed
from keeplast.read.log_view import LogView
from keeplast.read.state_end import first_missing

BASE_FILE = "_base.json"
VERSIONS, CURRENT = "versions", "current"
_NEXT = f".{CURRENT}"
BASE_BYTES_MAX = 64 << 20
KEPT_DEFAULT = 2

_NUMBER = re.compile(r"[0-9]{8}")
_HIDDEN = re.compile(r"\.([0-9]{8})\.")
_REMOVED = re.compile(r"\.[0-9]{8}\.removed")
_FORMAT = 2


@dataclass(frozen=True, slots=True)
class BasePartition:
    """What an export knew of a partition: ``end_offset`` is exclusive, ``epochs`` are those below.

    ``resume_offset`` is from where on to read behind it: rows at or above it are there all the
    same, where a transaction was in flight at the end. ``looked_ms`` is when it looked at the log,
    ``tombstones_ms`` how long tombstones stayed. ``strategy`` is how its records ranked, and
    ``tombstones`` whether those that delete are rows.
    """

    end_offset: int
    resume_offset: int
    log_start: int
    topic_id: str | None
    epochs: tuple[tuple[int, int], ...]
    looked_ms: int
    tombstones_ms: int
    strategy: str
    tombstones: bool


@dataclass(frozen=True, slots=True)
class CarriedOver:
    """The rows of the last version that may go on: ``files`` in the order of their offsets.

    What lies at or above ``log_start`` of it stays, but for keys that come again from
    ``resume_offset`` on.
    """

    files: tuple[Path, ...]
    resume_offset: int
    log_start: int


@dataclass(frozen=True, slots=True)
class Version:
    """A finished version, and what it knew of each partition."""

    path: Path
    partitions: Mapping[TopicPartition, BasePartition]


class VersionPlace:
    """The directory of all versions of one state."""

    def __init__(self, target: Path) -> None:
        """Take ``target``, whose links are resolved; nothing need be there."""
        self._target = target
        self._files = LocalFiles()

    def check(self) -> None:
        """RefusedError when something else than versions is there."""
        if not self._files.exists(self._target):
            return
        # A run that was killed may have left the link that was to be the next one.
        names = set(os.listdir(self._target)) - {_NEXT} if self._target.is_dir() else {"a file"}
        if not names <= {VERSIONS, CURRENT} or (CURRENT in names and VERSIONS not in names):
            raise RefusedError(
                "what is there was not made by export --incremental, so nothing is added to it; "
                f"choose another place. --to={self._target}"
            )

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep other exports from adding a version meanwhile; removes what killed ones have left.

        RefusedError while another one is at it. Of a first export that fails nothing is left.
        """
        is_new = not self._files.exists(self._target)
        self._files.make_directory(self._target / VERSIONS)
        if is_new:
            self._files.fsync_directory(self._target.parent)
        fd = os.open(self._target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise RefusedError(
                    "another export --incremental is adding a version; run this one when it is "
                    f"over. --to={self._target}"
                ) from error
            except OSError:
                # Where there are no locks nobody gets one; a name is still given once.
                pass
            if not has_name(fd, self._target):
                raise RefusedError(
                    "another export --incremental to the same place has failed meanwhile; run this "
                    f"one again. --to={self._target}"
                )
            self._sweep()
            try:
                yield
            finally:
                with contextlib.suppress(OSError):
                    (self._target / VERSIONS).rmdir()
                    if is_new:
                        self._target.rmdir()
        finally:
            os.close(fd)

    def _sweep(self) -> None:
        """Remove what exports that were killed have left, as their lock is ours now."""
        versions, link = self._target / VERSIONS, self._target / CURRENT
        for name in os.listdir(versions):
            if (hidden := _HIDDEN.match(name)) is not None:
                sweep_killed(versions / hidden[1])
            if _REMOVED.fullmatch(name):
                shutil.rmtree(versions / name)
        if link.is_symlink():
            # Whole as they are, nothing ever led to them, and they would count as versions to keep.
            counts = Path(os.readlink(link)).name
            later = [each for each in self._numbers() if f"{each:08d}" > counts]
            for number in later if _NUMBER.fullmatch(counts) else ():
                self._remove(number)

    def _remove(self, number: int) -> None:
        """Remove a version, which is there until then as a whole."""
        path = self._target / VERSIONS / f"{number:08d}"
        hidden = path.with_name(f".{path.name}.removed")
        self._files.rename(path, hidden)
        shutil.rmtree(hidden)

    def last(self) -> Version | None:
        """Return the version that counts; CorruptError when it cannot be told what it is."""
        link = self._target / CURRENT
        if not link.is_symlink():
            return None
        path = self._target / VERSIONS / Path(os.readlink(link)).name
        base = path / BASE_FILE
        try:
            found = json.loads(self._files.read_bytes(base, BASE_BYTES_MAX))
            if found["format"] == 1:
                # Of an earlier version, which did not say all that carrying rows over asks for.
                return Version(path, {})
            if found["format"] != _FORMAT:
                raise ValueError(f"format {found['format']}")
            return Version(path, {_partition(each): _base(each) for each in found["partitions"]})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CorruptError(
                "the last version cannot be continued; remove its directory and `current`, and "
                f"export again: {error!r}"
            ).located(str(base)) from error

    def next(self) -> Path:
        """Return the directory of the version to come."""
        return self._target / VERSIONS / f"{max(self._numbers(), default=0) + 1:08d}"

    def settle(self, version: Path, kept: int) -> None:
        """Let ``current`` lead to a finished version, and remove all but the newest ``kept``.

        Within :meth:`held`, as what comes before it.
        """
        link = self._target / _NEXT
        link.unlink(missing_ok=True)
        link.symlink_to(Path(VERSIONS) / version.name)
        self._files.rename(link, self._target / CURRENT)
        self._files.fsync_directory(self._target)
        older = sorted(number for number in self._numbers() if number < int(version.name))
        for number in older[: max(0, len(older) - kept + 1)]:
            self._remove(number)

    def _numbers(self) -> list[int]:
        versions = self._target / VERSIONS
        names = os.listdir(versions) if versions.is_dir() else []
        return [int(name) for name in names if _NUMBER.fullmatch(name)]


def _partition(document: Mapping[str, Any]) -> TopicPartition:
    return TopicPartition(str(document["topic"]), int(document["partition"]))


def _base(document: Mapping[str, Any]) -> BasePartition:
    topic_id = document["topic_id"]
    return BasePartition(
        int(document["end_offset"]), int(document["resume_offset"]), int(document["log_start"]),
        None if topic_id is None else str(topic_id),
        tuple((int(epoch), int(start)) for epoch, start in document["epochs"]),
        int(document["looked_ms"]), int(document["tombstones_ms"]),
        str(document["strategy"]), bool(document["tombstones"]),
    )  # fmt: skip


def base_of(
    view: LogView,
    topic: TopicConfig,
    end_offset: int,
    resume_offset: int,
    looked_ms: int,
    files: FileSystem,
    *,
    tombstones: bool,
) -> BasePartition:
    """Return what the next export has to know of a partition whose state ends at ``end_offset``."""
    epochs = read_leader_epochs(files, view.path)
    return BasePartition(
        end_offset, resume_offset, view.log_start,
        None if view.topic_id is None else view.topic_id.hex(),
        tuple((each.epoch, each.start_offset) for each in epochs if each.start_offset < end_offset),
        looked_ms, topic.delete_retention_ms, topic.strategy.value, tombstones,
    )  # fmt: skip


def write_bases(
    version: Path, bases: Mapping[TopicPartition, BasePartition], files: FileSystem
) -> None:
    """Write down what the next export has to know."""
    partitions = [
        {"topic": each.topic, "partition": each.partition, **asdict(base)}
        for each, base in bases.items()
    ]
    document = {"format": _FORMAT, "partitions": partitions}
    files.write_durable(version / BASE_FILE, (json.dumps(document, indent=1) + "\n").encode())


@dataclass(frozen=True, slots=True)
class Carrier:
    """Says what of the last version goes over to the next one, whose rows may be ``tombstones``."""

    last: Version
    files: FileSystem
    clock: Clock
    told: Callable[[str], None]
    tombstones: bool = False

    def carried_over(
        self, view: LogView, topic: TopicConfig, end: int, resume: int
    ) -> CarriedOver | None:
        """Return the rows that go on where the state ends at ``end``; None reads all of the log.

        ``resume`` is from where on to read behind that.
        """
        base = self.last.partitions.get(view.partition)
        if base is None:
            return None
        why = self.why_not(base, view, topic, end, resume)
        if why is not None:
            self.told(f"{view.partition} is read as a whole: {why}")
            return None
        place = self.last.path / view.partition.topic / f"partition={view.partition.partition}"
        found = tuple(sorted(place.glob("part-*.parquet")))
        return CarriedOver(found, base.resume_offset, view.log_start) if found else None

    def still_not(
        self, partition: TopicPartition, view: LogView, topic: TopicConfig, end: int, resume: int
    ) -> str | None:
        """Return why the rows that were carried over cannot be by now, None where they can."""
        return self.why_not(self.last.partitions[partition], view, topic, end, resume)

    def why_not(
        self, base: BasePartition, view: LogView, topic: TopicConfig, end: int, resume: int
    ) -> str | None:
        """Return why the log has to be read as a whole, None where it need not be."""
        if topic.strategy is not Strategy.OFFSET:
            return "its records rank by version, and what came earlier may outrank what comes"
        if base.strategy != topic.strategy.value:
            return "its records ranked otherwise when the last export was made"
        if self.tombstones or base.tombstones:
            return (
                "tombstones are rows of this export or of the last, and go when the log is cleaned"
            )
        if base.topic_id != (None if view.topic_id is None else view.topic_id.hex()):
            return "the topic was made anew"
        if not view.log_start <= base.resume_offset:
            return "the log does not have the offset where the last export ended"
        if base.end_offset > end or base.resume_offset > resume:
            # What was final at the last end, and is a row of it, need not be at this one.
            return (
                "the last export is of a later point, or has transactions that are in flight here"
            )
        if not _is_same_lineage(base, read_leader_epochs(self.files, view.path)):
            return "the leader epochs do not say that the log is the same below the last export"
        kept_ms = min(base.tombstones_ms, topic.delete_retention_ms)
        if 0 <= self.clock.now_ms() - base.looked_ms < kept_ms:
            return None
        missing = first_missing(
            view.partition, view.path, base.resume_offset, end, self.files, self.clock
        )
        if missing is None:
            return None
        return (
            "the last export is older than delete.retention.ms, and it was cleaned since: a delete "
            "may have come and gone"
        )


def _is_same_lineage(base: BasePartition, epochs: tuple[Any, ...]) -> bool:
    """Say whether the epoch in which the last export ended still reaches to its end."""
    below = [each for each in epochs if each.start_offset < base.end_offset]
    if not base.epochs or not below:
        return not base.epochs and not below and base.end_offset == 0
    last_epoch, last_start = base.epochs[-1]
    # Where the log start moved past its beginning, an epoch begins there.
    return bool(below[-1].epoch == last_epoch and below[-1].start_offset >= last_start)
