"""The metadata topic of a simulated cluster, and what one broker has made of it so far.

Written from what brokers were seen to do, not from keeplast's own fold; what the two make of the
same records is compared at the end of each run. Source: tiering.md section 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.format.remote_log_metadata import (
    RemoteLogEvent,
    RemoteLogSegment,
    RemoteLogSegmentState,
    RemoteLogSegmentUpdate,
    RemotePartitionDelete,
    decode,
)

CS = RemoteLogSegmentState.COPY_SEGMENT_STARTED
CF = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
DS = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
DF = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED
_MOVES = {(CS, CF), (CS, DS), (CF, CF), (CF, DS), (DS, DS), (DS, DF)}


@dataclass(slots=True)
class MetadataTopic:
    """One partition of the metadata topic; ``leader_epoch`` is that of its present leader."""

    values: list[bytes] = field(default_factory=list)
    events: list[RemoteLogEvent] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    times_ms: list[int] = field(default_factory=list)
    batch_ends: list[int] = field(default_factory=list)
    """Of each record, the offset behind its batch."""
    closes: list[bool] = field(default_factory=list)
    """Of each record, whether its batch says behind deletions that something is whole."""
    leader_epoch: int = 3

    @property
    def end(self) -> int:
        """Return the offset behind the last record."""
        return len(self.values)

    def append(self, values: Sequence[bytes], now_ms: int) -> None:
        """Take one batch."""
        self.batch_ends += [len(self.values) + len(values)] * len(values)
        events = [decode(each) for each in values]
        states = [each.state for each in events if not isinstance(each, RemotePartitionDelete)]
        self.closes += [DS in states and states[-1] is CF] * len(values)
        for each, event in zip(values, events, strict=True):
            self.values.append(each)
            self.events.append(event)
            self.epochs.append(self.leader_epoch)
            self.times_ms.append(now_ms)

    def copy(self) -> MetadataTopic:
        """Return what a clone of the cluster goes on with."""
        return MetadataTopic(
            list(self.values), list(self.events), list(self.epochs), list(self.times_ms),
            list(self.batch_ends), list(self.closes), self.leader_epoch,
        )  # fmt: skip


@dataclass(slots=True)
class _Epoch:
    serving: dict[int, bytes] = field(default_factory=dict)
    highest: int = -1


@dataclass(slots=True)
class Seen:
    """What a broker knows: segments by id, and of each leader epoch who serves from where."""

    known: dict[bytes, RemoteLogSegment] = field(default_factory=dict)
    read_to: int = 0
    _epochs: dict[int, _Epoch] = field(default_factory=dict)
    _found: dict[tuple[int, int], RemoteLogSegment | None] = field(default_factory=dict)
    """What was looked up since something moved."""

    def hear(self, event: RemoteLogEvent) -> None:
        """Take the next record in; what a broker drops is dropped."""
        self.read_to += 1
        assert not isinstance(event, RemoteLogSegmentUpdate) or event.state is not CS
        if isinstance(event, RemoteLogSegment):
            before = self.known.get(event.id.segment_id)
            if before is None or before.state is CS:
                self.known[event.id.segment_id] = event
        elif isinstance(event, RemoteLogSegmentUpdate):
            segment = self.known.get(event.id.segment_id)
            if segment is not None and (segment.state, event.state) in _MOVES:
                self._move(replace(segment, state=event.state))
        else:
            raise AssertionError(f"no broker was seen to write this. event={event}")

    def _move(self, segment: RemoteLogSegment) -> None:
        name = segment.id.segment_id
        self._found.clear()
        for epoch, start, end in ranges_of(segment):
            table = self._epochs.setdefault(epoch, _Epoch())
            if segment.state is CF:
                while table.serving and table.highest <= end and max(table.serving) >= start:
                    del table.serving[max(table.serving)]
                table.serving[start] = name
                table.highest = max(table.highest, end)
            elif segment.state is DS and table.serving.get(start) == name:
                del table.serving[start]
        if segment.state is DF:
            del self.known[name]
        else:
            self.known[name] = segment

    def lookup(self, epoch: int, offset: int) -> RemoteLogSegment | None:
        """Return what ``offset`` is read from in ``epoch``, None for nothing."""
        asked = epoch, offset
        if asked not in self._found:
            self._found[asked] = self._look_up(epoch, offset)
        return self._found[asked]

    def _look_up(self, epoch: int, offset: int) -> RemoteLogSegment | None:
        table = self._epochs.get(epoch, _Epoch())
        start = max((each for each in table.serving if each <= offset), default=None)
        if start is None:
            return None
        segment = self.known[table.serving[start]]
        (end,) = [last for at, _, last in ranges_of(segment) if at == epoch]
        return segment if offset <= end else None

    def highest(self, lineage: Sequence[LeaderEpoch], end: int) -> int:
        """Return the last offset that was ever copied, -1 for none; ``end`` is the log's."""
        for each in reversed(lineage):
            table = self._epochs.get(each.epoch)
            if table is not None and table.highest >= 0:
                return min(table.highest, end - 1)
            end = each.start_offset
        return -1

    def starts(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield epoch, start offset and id of all that serves."""
        for epoch, table in sorted(self._epochs.items()):
            for start, name in sorted(table.serving.items()):
                yield epoch, start, name


def ranges_of(segment: RemoteLogSegment) -> Iterator[tuple[int, int, int]]:
    """Yield epoch, first and last offset of a segment's epochs."""
    epochs = sorted((each.epoch, each.start_offset) for each in segment.epochs)
    nexts = [start - 1 for _, start in epochs[1:]]
    for (epoch, start), last in zip(epochs, [*nexts, segment.end_offset], strict=True):
        yield epoch, start, last
