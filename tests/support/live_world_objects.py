"""A remote tier in memory, and the layout by which one host of keeplast reaches it.

Every request is a step of the simulation: a process may fall asleep or die before it. A request
that fails has had its effect or not. A log gets its name last and goes first, as in every layout; a
name is never written twice.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from keeplast.cluster.layouts.layout import (
    ALWAYS_THERE,
    AuxiliaryFile,
    FoundOwn,
    FoundSegment,
    LogWriter,
    SegmentReader,
    WrittenLog,
)
from keeplast.errors import ConflictError, CorruptError, UnavailableError
from keeplast.format.checksum import Buffer
from keeplast.format.message_set import read_batches
from keeplast.format.remote_log_metadata import (
    RemoteLogSegment,
    RemoteLogSegmentId,
    TopicIdPartition,
)
from keeplast.format.txn_index import AbortedTransaction
from keeplast.format.txn_index import decode as decode_aborted
from keeplast.inspect.erasure_search import ForeignPath
from tests.support.reader import DecodedBatch, decode_records
from tests.support.tier_world_stores import require
from tests.support.tier_world_tasks import Tasks

LOG = "log"
_WAITING = "waiting"
_NEEDED = frozenset({LOG, *ALWAYS_THERE})


@dataclass(slots=True)
class RemoteTier:
    """Objects by segment id and kind, and keeplast's own by name."""

    segments: dict[bytes, dict[str, bytes]] = field(default_factory=dict)
    starts: dict[bytes, int] = field(default_factory=dict)
    own: dict[str, bytes] = field(default_factory=dict)
    own_ms: dict[str, int] = field(default_factory=dict)
    """When each own object was written last."""
    now_ms: Callable[[], int] = lambda: 0
    noted: Callable[[str], None] = lambda line: None
    deletions: int = 0
    changes: int = 0
    """How often anything of a segment has changed."""
    _written: set[bytes] = field(default_factory=set)
    _parsed: dict[bytes, list[DecodedBatch]] = field(default_factory=dict)
    _fitting: set[tuple[bytes, int, int, int]] = field(default_factory=set)
    """Announcements that the log of an id, which never changes, was found to be."""
    _aborted: dict[bytes, tuple[AbortedTransaction, ...]] = field(default_factory=dict)
    """Transaction indexes by their bytes."""

    def put(self, segment_id: bytes, start: int, kind: str, data: bytes) -> None:
        """Store one object; a log is stored once, ever."""
        if kind == LOG:
            require(segment_id not in self._written, "a log is written twice under one id")
            self._written.add(segment_id)
        self.segments.setdefault(segment_id, {})[kind] = data
        self.starts[segment_id] = start
        self.changes += 1

    def remove(self, segment_id: bytes, kind: str) -> bool:
        """Remove one object; False when there is none."""
        files = self.segments.get(segment_id, {})
        was_there = files.pop(kind, None) is not None
        self.changes += 1
        if not files:
            self.segments.pop(segment_id, None)
        return was_there

    def write_own(self, name: str, data: bytes) -> None:
        """Write an own object."""
        self.own[name] = data
        self.own_ms[name] = self.now_ms()

    def remove_all(self, segment_id: bytes) -> None:
        """Remove a segment as a broker does, at once."""
        self.deletions += self.segments.pop(segment_id, None) is not None
        self.changes += 1

    def read(self, who: object, segment: RemoteLogSegment) -> list[DecodedBatch]:
        """Return the batches that a broker reads; AssertionError for what it could not read."""
        name = segment.id.segment_id
        files = self.segments.get(name, {})
        if not files.keys() >= _NEEDED:
            missing = sorted(_NEEDED - set(files))
            where = _read_by(who, segment)
            require(False, f"C4: objects of what is read are not there. {where} {missing}")
        if name not in self._parsed:
            self._parsed[name] = [decode_records(each) for each in read_batches(files[LOG])]
        found = self._parsed[name]
        announced = name, segment.start_offset, segment.end_offset, segment.size_bytes
        if announced not in self._fitting:
            self._require_fitting(_read_by(who, segment), segment, len(files[LOG]), found)
            self._fitting.add(announced)
        return found

    def _require_fitting(
        self, where: str, segment: RemoteLogSegment, size: int, found: Sequence[DecodedBatch]
    ) -> None:
        require(size == segment.size_bytes, f"another size was announced. {where}")
        at = segment.start_offset
        for each in found:
            require(at <= each.base_offset <= each.last_offset, f"offsets go back. {where}")
            at = each.last_offset + 1
        require(at == segment.end_offset + 1, f"AT-16: the log ends at {at}. {where}")

    def aborted(self, segment: RemoteLogSegment) -> tuple[AbortedTransaction, ...]:
        """Return what a segment's transaction index has."""
        data = self.segments.get(segment.id.segment_id, {}).get(AuxiliaryFile.TXN_INDEX, b"")
        if data not in self._aborted:
            self._aborted[data] = decode_aborted(data)
        return self._aborted[data]


def _read_by(who: object, segment: RemoteLogSegment) -> str:
    name = segment.id.segment_id.hex()[:8]
    return f"{who} segment={name} {segment.start_offset}..{segment.end_offset}"


FILTERS = "filters/"
"""To look for filters where there are none is no step: a run without any goes as it always did."""


class HostLayout:
    """The layout of one host: a :class:`~keeplast.cluster.layouts.layout.RemoteLayout`."""

    def __init__(self, tier: RemoteTier, tasks: Tasks, dice: random.Random) -> None:
        """Reach ``tier`` by steps of ``tasks``."""
        self.deletions = 0
        """How many logs it has removed."""
        self._tier = tier
        self._tasks = tasks
        self._dice = dice

    # Segments.

    def open(self, segment: RemoteLogSegment) -> SegmentReader:
        """Open a segment that is whole."""
        self._look("open")
        files = self._tier.segments.get(segment.id.segment_id, {})
        if LOG not in files:
            raise FileNotFoundError(2, "no such object", segment.id.segment_id.hex())
        if len(files[LOG]) != segment.size_bytes:
            raise CorruptError(
                "a remote log has not the size that was announced",
                path=segment.id.segment_id.hex(),
            )  # fmt: skip
        return _Reader(self, files)

    def pattern(self, sources: Sequence[RemoteLogSegment]) -> RemoteLogSegment:
        """Return the newest."""
        self._look("pattern")
        return sources[-1]

    def create_log(
        self, segment_id: RemoteLogSegmentId, start_offset: int, like: RemoteLogSegment
    ) -> LogWriter:
        """Start a log; nothing is sent yet."""
        if segment_id.segment_id in self._tier.segments:
            raise ConflictError("there is a log of this id already")
        return _Writer(self, segment_id.segment_id, start_offset)

    def complete(
        self, segment: RemoteLogSegment, written: WrittenLog,
        auxiliary: Mapping[AuxiliaryFile, bytes], like: RemoteLogSegment,
    ) -> bytes | None:  # fmt: skip
        """Write what stands next to a log, and give it its name."""
        name, start = segment.id.segment_id, segment.start_offset
        for kind, data in auxiliary.items():
            self.change("put next to", self._putting(name, start, kind, data))

        def named() -> None:
            waiting = self._tier.segments.get(name, {}).get(_WAITING)
            if waiting is None:
                raise FileNotFoundError(2, "no such object", name.hex())
            self._tier.put(name, start, LOG, waiting)
            self._tier.remove(name, _WAITING)

        self.change("put log", named)
        return None

    def sent(self, name: bytes, start: int, data: bytes) -> None:
        """Take a log that was sent whole and has no name yet."""
        self.change("send log", self._putting(name, start, _WAITING, data))

    def _putting(self, name: bytes, start: int, kind: str, data: bytes) -> Callable[[], None]:
        return lambda: self._tier.put(name, start, kind, data)

    def delete(self, segment: RemoteLogSegment) -> None:
        """Remove the objects of a segment, one by one, the log first."""
        self._delete(segment.id.segment_id)

    def delete_found(self, partition: TopicIdPartition, found: FoundSegment) -> None:
        """Remove what a listing found."""
        self._delete(found.segment_id)

    def _delete(self, name: bytes) -> None:
        for kind in (LOG, *AuxiliaryFile, _WAITING):
            if kind in self._tier.segments.get(name, {}):
                self.change(f"delete {kind}", self._removing(name, kind))

    def _removing(self, name: bytes, kind: str) -> Callable[[], None]:
        def remove() -> None:
            if self._tier.remove(name, kind) and kind in (LOG, _WAITING):
                self._tier.deletions += 1
                self.deletions += 1

        return remove

    def list(self, partition: TopicIdPartition) -> Iterator[FoundSegment]:
        """Yield what lies there."""
        self._look("list")
        for name, files in sorted(self._tier.segments.items()):
            size = sum(len(each) for each in files.values())
            yield FoundSegment(name, self._tier.starts[name], size, 0)

    def foreign(self) -> Iterator[ForeignPath]:
        """Find no name of a stranger."""
        return iter(())

    # Own objects.

    def hides_deleted(self, segment: RemoteLogSegment) -> bool:
        """Find that what is deleted is gone."""
        return False

    def check_conditions(self) -> None:
        """Find that the store heeds conditions."""
        self._look("probe")

    def put_new(self, name: str, data: bytes) -> bool:
        """Write where nothing was written."""
        return self._answered("put own", lambda: self._put_new(name, data))

    def _put_new(self, name: str, data: bytes) -> bool:
        if name in self._tier.own:
            return False
        self._tier.write_own(name, data)
        return True

    def read_own(self, name: str) -> bytes | None:
        """Return an own object."""
        self._look("read own")
        return self._tier.own.get(name)

    def replace_own(self, name: str, data: bytes, expected: bytes) -> bool:
        """Replace what is still ``expected``."""

        def replace() -> bool:
            if self._tier.own.get(name) != expected:
                return False
            self._tier.write_own(name, data)
            return True

        return self._answered("replace own", replace)

    def delete_own(self, name: str) -> None:
        """Remove an own object."""
        if name.startswith(FILTERS) and name not in self._tier.own:
            return
        self.change("delete own", lambda: self._tier.own.pop(name, None))

    def list_own(self, folder: str) -> Iterator[FoundOwn]:
        """Yield what is below ``folder``."""
        found = [name for name in self._tier.own if name.startswith(f"{folder}/")]
        if found or not folder.startswith(FILTERS):
            self._look("list")
        yield from (FoundOwn(name, self._tier.own_ms[name]) for name in found)

    # Steps.

    def look(self) -> None:
        """Read something of an open segment."""
        self._look("read")

    def _look(self, verb: str) -> None:
        if self._tasks.step(verb):
            raise UnavailableError(f"the simulated store failed. request={verb}")

    def change(self, verb: str, effect: Callable[[], object]) -> None:
        """Do a request that changes something."""

        def done() -> bool:
            effect()
            return True

        self._answered(verb, done)

    def _answered(self, verb: str, effect: Callable[[], bool]) -> bool:
        fails = self._tasks.step(verb)
        if fails and self._dice.random() < 0.5:
            raise UnavailableError(f"the simulated store failed. request={verb}")
        found = effect()
        self._tier.noted(verb)
        if fails:
            raise UnavailableError(f"the simulated answer was lost. request={verb}")
        return found


@dataclass(frozen=True, slots=True)
class _Reader(SegmentReader):
    layout: HostLayout
    files: Mapping[str, bytes]

    @property
    def log_bytes(self) -> int:
        return len(self.files[LOG])

    def read_into(self, start: int, buffer: memoryview) -> int:
        self.layout.look()
        if LOG not in self.files:
            raise FileNotFoundError(2, "no such object", LOG)
        found = self.files[LOG][start : start + len(buffer)]
        buffer[: len(found)] = found
        return len(found)

    def read_auxiliary(self, file: AuxiliaryFile) -> bytes | None:
        self.layout.look()
        found = self.files.get(file)
        if found is None and file in ALWAYS_THERE:
            raise FileNotFoundError(2, "no such object", file)
        return found


class _Writer:
    def __init__(self, layout: HostLayout, name: bytes, start: int) -> None:
        self._layout = layout
        self._name = name
        self._start = start
        self._data = bytearray()

    def write(self, data: Buffer) -> None:
        self._data += data

    def close(self) -> WrittenLog:
        self._layout.sent(self._name, self._start, bytes(self._data))
        return WrittenLog(len(self._data), b"{}")

    def abort(self) -> None:
        self._data.clear()
