"""Exports that continue from the last one: versions of a state, and what may be carried over.

::

    DIR/versions/00000003/orders/partition=0/part-00000.parquet   an export as any other
    DIR/versions/00000003/_base.json                              what the next one needs to know
    DIR/versions/00000003/_changes/_since.json                    {"since": "versions/00000002", …}
    DIR/versions/00000003/_changes/orders/partition=0/...         keys that changed since that one
    DIR/current -> versions/00000003                              which one counts

The rules:

1. A version gets its name when it is whole and on disk, and only then does ``current`` lead to it.
   A run that was killed leaves the last version as it was. An older one loses its name before its
   files go. One export at a time adds versions; what killed ones have left goes with the next
   (:meth:`VersionPlace.held`).
2. Rows of the last version are carried over where nothing but what lies above its end can have
   changed them. The topic ranks by offset and is the same, as it was for the last version. The
   leader epochs say that the log was not cut below that end. No cleaner can have taken away a
   record above it before it was seen. A tombstone that was is the danger; none goes within
   ``delete.retention.ms``. Wherever that is not certain, the partition is read as a whole, and the
   reason is shown. So it is where tombstones are rows: any of those may be gone from the log by
   now.
3. So a version equals what a full export gives at the same offsets, row by row.

4. A key that changed since the last version is one row of ``_changes``: what it stands for now, or
   ``deleted``. A partition that is in ``whole`` there has none: what it has now is its state.

In an object store nothing is renamed, and a small object is the pointer::

    DIR/versions/00000003-1f0c9a7e/orders/partition=0/part-00000.parquet
    DIR/current     {"format": 1, "version": "versions/00000003-1f0c9a7e", "kept": [...]}

5. The objects of a version lie below a name that only one run has. ``current`` is written last, on
   the condition that it still is what this run began from. So of two runs at once one adds its
   version, and the other one removes its own and is a ConflictError. A run that was killed leaves
   objects that nothing leads to; they go with the next one, as older versions do after the pointer
   has moved. Where that is not known, nothing is removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import asdict

from keeplast.clock import Clock
from keeplast.errors import ConflictError, CorruptError, RefusedError, UnavailableError
from keeplast.log.files import FilesRecipe, FileSystem, LocalFiles, LocalRecipe
from keeplast.log.lock import has_name
from keeplast.log.paths import mount_of, url_of
from keeplast.log.truncation import read_leader_epochs
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import Strategy, TopicConfig
from keeplast.pipeline.export_files import sweep_killed
from keeplast.read.log_view import LogView
from keeplast.read.state_end import first_missing

if TYPE_CHECKING:
    from keeplast.tier.objects.object_files import MountedRecipe

BASE_FILE = "_base.json"
VERSIONS, CURRENT = "versions", "current"
CHANGES, SINCE_FILE = "_changes", "_since.json"
CHANGES_FORMAT = 1
_NEXT = f".{CURRENT}"
BASE_BYTES_MAX = 64 << 20
KEPT_DEFAULT = 2
NUMBER_DIGITS = 8
POINTER_BYTES_MAX = 1 << 20
POINTER_FORMAT = 1

_NUMBER = re.compile(r"[0-9]{8}")
_HIDDEN = re.compile(r"\.([0-9]{8})\.")
_REMOVED = re.compile(r"\.[0-9]{8}\.removed")
_PART = re.compile(r"part-[0-9]+\.parquet")
_POINTED = re.compile(rf"{VERSIONS}/[0-9]{{{NUMBER_DIGITS}}}-[0-9a-f]{{8}}")
_FORMAT = 2


class BasePartition(Struct, frozen=True):
    """What an export knew of a partition: ``end_offset`` is exclusive, ``epochs`` are those below.

    ``resume_offset`` is from where on to read after it: rows at or above it are there all the same,
    where a transaction was in flight at the end. ``looked_ms`` is when it looked at the log,
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


class CarriedOver(Struct, frozen=True):
    """The rows of the last version that may go on: ``files`` in the order of their offsets.

    What lies at or above ``log_start`` of it stays, but for keys that come again from
    ``resume_offset`` on.
    """

    files: tuple[Path, ...]
    resume_offset: int
    log_start: int


class Version(Struct, frozen=True):
    """A finished version, and what it knew of each partition."""

    path: Path
    partitions: Mapping[TopicPartition, BasePartition]
    files: FileSystem = field(default_factory=LocalFiles)

    def is_of_log(self, view: LogView, files: FileSystem) -> bool:
        """Say whether it has the partition, of a log in which an offset is the same record now."""
        base = self.partitions.get(view.partition)
        topic_id = None if view.topic_id is None else view.topic_id.hex()
        return (
            base is not None
            and base.topic_id == topic_id
            and _is_same_lineage(base, read_leader_epochs(files, view.path))
        )


def _read_base(version: Path, files: FileSystem) -> Version:
    """Return a version with what it knew; CorruptError when it is not known what it is."""
    base = version / BASE_FILE
    try:
        found = json.loads(files.read_bytes(base, BASE_BYTES_MAX))
        if found["format"] == 1:
            # Of an earlier version, which did not say all that carrying rows over asks for.
            return Version(version, {}, files)
        if found["format"] != _FORMAT:
            raise ValueError(f"format {found['format']}")
        known = {
            TopicPartition(str(each["topic"]), int(each["partition"])): _base(each)
            for each in found["partitions"]
        }
        return Version(version, known, files)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CorruptError(
            "the last version cannot be continued; remove its directory and `current`, and "
            f"export again: {error!r}",
            code="K147",
        ).located(str(base)) from error


class VersionPlace:
    """The directory of all versions of one state."""

    def __init__(self, target: Path) -> None:
        """Take ``target``, whose links are resolved; nothing need be there."""
        self._target = target
        self._files = LocalFiles()

    @property
    def files(self) -> FilesRecipe:
        """Return how their files are opened."""
        return LocalRecipe()

    def check(self) -> None:
        """RefusedError when something else than versions is there."""
        if not self._files.exists(self._target):
            return
        # A run that was killed may have left the link that was to be the next one.
        names = set(os.listdir(self._target)) - {_NEXT} if self._target.is_dir() else {"a file"}
        if not names <= {VERSIONS, CURRENT} or (CURRENT in names and VERSIONS not in names):
            raise RefusedError(
                "what is there was not made by export --incremental, so nothing is added to it; "
                f"choose another place. --to={self._target}",
                code="K144",
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
                    f"over. --to={self._target}",
                    code="K145",
                ) from error
            except OSError:
                # Where there are no locks no process gets one; a name is still given once.
                pass
            if not has_name(fd, self._target):
                raise RefusedError(
                    "another export --incremental to the same place has failed meanwhile; run this "
                    f"one again. --to={self._target}",
                    code="K145",
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
        """Return the version that counts; CorruptError when it is not known what it is."""
        link = self._target / CURRENT
        if not link.is_symlink():
            return None
        return _read_base(self._target / VERSIONS / Path(os.readlink(link)).name, self._files)

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


class BucketVersions:
    """Versions in an object store: ``current`` is an object there."""

    def __init__(self, target: Path, recipe: MountedRecipe, *, continues: bool) -> None:
        """Take ``target`` as ``recipe`` opens it; without ``continues`` none is gone on from."""
        self._target = target
        self._recipe = recipe
        self._objects = recipe.tree_of(target)
        self._files = recipe.open()
        self._continues = continues
        self._seen: bytes | None = None
        self._known: tuple[str, ...] = ()
        self._token = secrets.token_hex(4)
        self._may_count = False

    @property
    def files(self) -> FilesRecipe:
        """Return how their files are opened."""
        return self._recipe

    def check(self) -> None:
        """Read what counts now; RefusedError when something else than versions is there.

        Without going on from versions, RefusedError too when one is there.
        """
        self._seen = self._read_pointer()
        if self._seen is not None:
            self._known = decode_pointer(self._seen, self._target / CURRENT)
        elif set(self._names(self._target)) - {VERSIONS, CURRENT}:
            raise RefusedError(
                "what is there was not made by an export, so nothing is added to it; choose "
                f"another place. --to={url_of(self._target)}",
                code="K144",
            )

    @property
    def is_there(self) -> bool:
        """Say whether a version counts already."""
        return self._seen is not None

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Add a version meanwhile; one that cannot count any more is removed.

        RefusedError where the store heeds no conditions: two runs could both count.
        """
        try:
            if not self._objects.is_conditional(self._key(self.next() / ".probe")):
                raise RefusedError(
                    "this object store writes over objects whatever the condition, so that two "
                    "exports at once would both count; export to a directory. "
                    f"--to={url_of(self._target)}",
                    code="K312",
                )
            yield
        except BaseException as error:
            if not self._may_count:
                with contextlib.suppress(UnavailableError):
                    self._remove(self.next().name)
                # Who has added a version removes what was begun next to it.
                if isinstance(error, Exception) and self._read_pointer() != self._seen:
                    raise self._overtaken() from error
            raise

    def _overtaken(self) -> ConflictError:
        return ConflictError(
            "another export has added a version meanwhile; run this one again. "
            f"--to={url_of(self._target)}",
            code="K145",
        )

    def _read_pointer(self) -> bytes | None:
        with contextlib.suppress(FileNotFoundError):
            return self._files.read_bytes(self._target / CURRENT, POINTER_BYTES_MAX)
        return None

    def last(self) -> Version | None:
        """Return the version that counts."""
        if not self._known or not self._continues:
            return None
        return _read_base(self._target / self._known[0], self._files)

    def next(self) -> Path:
        """Return the directory of the version to come."""
        number = int(Path(self._known[0]).name[:NUMBER_DIGITS]) if self._known else 0
        return self._target / VERSIONS / f"{number + 1:0{NUMBER_DIGITS}d}-{self._token}"

    def settle(self, version: Path, kept: int) -> None:
        """Let ``current`` lead to a finished version, and remove all but the newest ``kept``.

        ConflictError when another run has added one since :meth:`check`.
        """
        known = (f"{VERSIONS}/{version.name}", *self._known)[:kept]
        document = {"format": POINTER_FORMAT, "version": known[0], "kept": known[1:]}
        data, key = (json.dumps(document) + "\n").encode(), self._key(self._target / CURRENT)
        self._may_count = True
        if self._seen is None:
            # After a lost answer it may be our own that is there.
            is_ours = self._objects.put_new(key, data) or data == self._read_pointer()
        else:
            is_ours = self._objects.replace(key, data, self._seen)
        if not is_ours:
            self._may_count = False
            raise self._overtaken()
        kept_names = {Path(each).name for each in known}
        for name in self._names(self._target / VERSIONS):
            if name[:NUMBER_DIGITS] <= version.name[:NUMBER_DIGITS] and name not in kept_names:
                self._remove(name)

    def _remove(self, name: str) -> None:
        """Remove the objects of a version; what a run still writes there goes with the next one."""
        prefix = self._key(self._target / VERSIONS / name)
        self._objects.delete([each.key for each in self._objects.list(f"{prefix}/")])

    def _names(self, path: Path) -> list[str]:
        objects, folders = self._objects.children(self._key(path))
        return [*(each.key.rpartition("/")[2] for each in objects), *folders]

    def _key(self, path: Path) -> str:
        return path.relative_to(mount_of(self._target)).as_posix().removeprefix(".")


Versions = VersionPlace | BucketVersions
"""Where all versions of one state lie; both are asked for the same."""


def decode_pointer(data: bytes, path: Path) -> tuple[str, ...]:
    """Return the versions that an object ``current`` names, the one that counts first.

    CorruptError for what is no pointer.
    """
    try:
        found = json.loads(data)
        if found["format"] != POINTER_FORMAT:
            raise ValueError(f"format {found['format']}")
        names = (found["version"], *found["kept"])
        if not all(_POINTED.fullmatch(each) for each in names):
            raise ValueError(f"versions {names}")
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptError(
            f"not what leads to the versions of an export; export to another place: {error!r}",
            code="K147",
        ).located(str(path)) from error
    return names


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


def parts_in(place: Path, files: FileSystem) -> tuple[Path, ...]:
    """Return the Parquet files of a partition, in the order of their offsets."""
    try:
        names = files.listdir(place)
    except FileNotFoundError:
        return ()
    return tuple(place / name for name in sorted(names) if _PART.fullmatch(name))


class Carrier(Struct, frozen=True):
    """Says what of the last version goes over to the next one, whose rows may be ``tombstones``."""

    last: Version
    files: FileSystem
    clock: Clock
    noted: Callable[[str], None]
    tombstones: bool = False

    def carried_over(
        self, view: LogView, topic: TopicConfig, end: int, resume: int
    ) -> CarriedOver | None:
        """Return the rows that go on where the state ends at ``end``; None reads all of the log.

        ``resume`` is from where on to read after that.
        """
        base = self.last.partitions.get(view.partition)
        if base is None:
            return None
        why = self.why_not(base, view, topic, end, resume)
        if why is not None:
            self.noted(f"{view.partition} is read as a whole: {why}")
            return None
        place = self.last.path / view.partition.topic / f"partition={view.partition.partition}"
        found = parts_in(place, self.last.files)
        return CarriedOver(found, base.resume_offset, view.log_start) if found else None

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
            return "the topic was made again"
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
