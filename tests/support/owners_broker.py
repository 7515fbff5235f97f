"""A broker's directory, as a model: it appends, rolls, cleans, expires, truncates and restarts.

The broker's hands are not a task of the simulation: what it does to its files is done at once, but
for a swap, which is a generator and goes on a step at a time, so that anybody may look between any
two of its renames. Its cleaner is the reference cleaner, which shares no code with the product,
with Kafka's quirks: horizons in batch headers, an abort indexed only where data was left, files
that wait as ``.deleted``, a checkpoint behind the last group.

What is in memory here is what the broker knows; what is on the disk is what everybody else sees.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from keeplast.format import leader_epoch, producer_snapshot, txn_index
from keeplast.format.batch import encode_batch
from keeplast.format.filename import (
    CLEANED,
    CLEANER_CHECKPOINT,
    DELETED,
    INDEX,
    LEADER_EPOCH_CHECKPOINT,
    LOG,
    LOG_START_CHECKPOINT,
    REPLICATION_CHECKPOINT,
    SNAPSHOT,
    SWAP,
    TIME_INDEX,
    TXN_INDEX,
)
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.format.message_set import Batch, read_batches
from keeplast.format.producer_snapshot import ProducerEntry
from keeplast.format.record import ControlType, EndTransactionMarker, Record, encode_end_transaction
from keeplast.format.txn_index import AbortedTransaction
from keeplast.model.topic_config import CleanerConfig, TopicConfig
from tests.support.manual_clock import ManualClock
from tests.support.owners_disk import SharedFiles
from tests.support.partition_maker import PARTITION
from tests.support.reference_cleaner import Output, Round, clean_log, indexes
from tests.support.reference_log import Log, Producer, Segment

FILE_DELETE_DELAY_MS = 60_000
CLEANER = CleanerConfig()
BATCH_BYTES = 100
KINDS = (LOG, INDEX, TIME_INDEX, TXN_INDEX)


@dataclass(slots=True)
class Stretch:
    """A segment as its broker has it."""

    base: int
    data: bytes
    mtime_ms: int
    aborted: list[AbortedTransaction] = field(default_factory=list)
    known: Segment | None = None

    def decoded(self, topic: TopicConfig) -> Segment:
        """Return it as the reference cleaner takes it."""
        if self.known is None or self.known.data is not self.data:
            batches = tuple(read_batches(self.data))
            # An index with no entry is always allowed; the greatest timestamp is not left out.
            greatest = max((b.max_timestamp for b in batches), default=-1)
            times = ((greatest, 0),) if greatest >= 0 else ()
            self.known = Segment(
                self.base, self.data, self.mtime_ms * 10**6, batches, (), times,
                tuple(self.aborted),
            )  # fmt: skip
        return self.known

    def batches(self, topic: TopicConfig) -> tuple[Batch, ...]:
        """Return its batches."""
        return self.decoded(topic).batches


class Known(Struct, frozen=True):
    """What a broker knows of its producers behind some batch.

    ``ended`` has each transaction's first offset and its marker's.
    """

    producers: dict[int, Producer]
    sequences: dict[int, int]
    ended: tuple[tuple[int, int], ...] = ()


class Broker:
    """One partition's directory on one broker, which leads it."""

    def __init__(
        self, files: SharedFiles, root: Path, topic: TopicConfig, clock: ManualClock,
        dice: random.Random,
    ) -> None:  # fmt: skip
        """Make an empty log."""
        self.directory = root / str(PARTITION)
        self.topic = topic
        self.clock = clock
        self.is_up = True
        self.log_start = self.log_end = self.high_watermark = 0
        self.lineage = [LeaderEpoch(0, 0)]
        self.whole_lineage = [LeaderEpoch(0, 0)]
        """As the log has it whose beginning was never removed."""
        self.segments = [Stretch(0, b"", clock.now_ms())]
        self.removed_markers: dict[int, int] = {}
        """Offsets of abort markers that the cleaner has dropped, and their producers."""
        self.swap_stage = ""
        self._files, self._root, self._dice = files, root, dice
        self._known = Known({}, {})
        self._history: list[tuple[int, Known]] = [(0, self._known)]
        self._swap: Iterator[None] | None = None
        self._ends_after_group = False
        self._trash: list[tuple[int, str]] = []
        self._torn = b""
        files.make_directory(self.directory)
        self._write_active()
        self._write_lineage()
        self.checkpoint()

    # What it knows.

    @property
    def epoch(self) -> int:
        """The leader epoch of what is appended next."""
        return self.lineage[-1].epoch

    @property
    def is_swapping(self) -> bool:
        """Say whether a round is under way, staged or swapping."""
        return self._swap is not None

    def open_transactions(self) -> dict[int, int]:
        """Return the first offset of each open transaction by its producer."""
        known = self._known.producers.items()
        return {pid: p.open_since for pid, p in known if p.open_since is not None}

    def last_stable(self) -> int:
        """Return up to where everything is acknowledged and decided."""
        mark = self.high_watermark
        undecided = [first for first, at in self._known.ended if at >= mark]
        return min([mark, *self.open_transactions().values(), *undecided])

    def next_sequence(self, producer_id: int) -> int:
        """Return the sequence that a producer's next batch begins with."""
        return self._known.sequences.get(producer_id, 0)

    def batch_ends(self) -> list[int]:
        """Return where batches end."""
        return [b.last_offset + 1 for s in self.segments for b in s.batches(self.topic)]

    def ends(self) -> list[int]:
        """Return the ends of batches between the high watermark and the log end."""
        return [end for end in self.batch_ends() if end >= self.high_watermark]

    def offsets(self) -> set[int]:
        """Return the offsets of the records that are still there, of markers too."""
        return {
            record.offset
            for segment in self.segments
            for batch in segment.batches(self.topic)
            for record in batch.records()
        }

    def missing_index(self, end: int) -> bool:
        """Say whether a segment below ``end`` should have an abort in its index and has not."""
        return any(
            self._on_disk(segment, TXN_INDEX) < len(segment.aborted) * txn_index.ENTRY_BYTES
            for segment in self.segments if segment.base < end
        )  # fmt: skip

    def staged(self) -> set[str]:
        """Return the stages of files that lie in the directory now."""
        names = self._files.listdir(self.directory)
        return {f".{name.rsplit('.', 1)[1]}" for name in names if not name.endswith("point")} & {
            CLEANED, SWAP, DELETED,
        }  # fmt: skip

    # Writing.

    def append(
        self, records: list[Record], producer_id: int = -1, *, is_transactional: bool = False
    ) -> None:
        """Append a batch at the log end."""
        self._make_room()
        sequence = self.next_sequence(producer_id) if producer_id >= 0 else -1
        data = encode_batch(
            records, leader_epoch=self.epoch, producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1, base_sequence=sequence,
            is_transactional=is_transactional,
        )  # fmt: skip
        if producer_id >= 0:
            before = self._known.producers.get(producer_id)
            opened = before.open_since if before is not None else None
            if is_transactional and opened is None:
                opened = self.log_end
            last = records[-1].offset
            made = Producer(0, last, max(r.timestamp for r in records), opened)
            self._learn(producer_id, made, sequence + len(records))
        self._add(data, len(records))

    def end_transaction(self, producer_id: int, outcome: ControlType) -> None:
        """Append the marker that ends a producer's transaction."""
        self._make_room()
        key, value = encode_end_transaction(EndTransactionMarker(outcome, 0))
        now_ms = self.clock.now_ms()
        data = encode_batch(
            [Record(self.log_end, now_ms, key, value)], leader_epoch=self.epoch,
            producer_id=producer_id, producer_epoch=0, is_transactional=True, is_control=True,
        )  # fmt: skip
        before = self._known.producers[producer_id]
        first, at = before.open_since, self.log_end
        self._learn(
            producer_id, Producer(0, before.last_data_offset, now_ms, None),
            self.next_sequence(producer_id),
        )  # fmt: skip
        aborted = None
        if first is not None:
            self._known = replace(self._known, ended=(*self._known.ended, (first, at)))
        if outcome is ControlType.ABORT and first is not None:
            others = [o for p, o in self.open_transactions().items() if p != producer_id]
            aborted = AbortedTransaction(producer_id, first, at, min([*others, at + 1]))
        self._add(data, 1, aborted)

    def _make_room(self) -> None:
        """Roll before anything is known of what comes: the snapshot is of what lies below."""
        if len(self.segments[-1].data) > self.topic.segment_bytes - BATCH_BYTES:
            self.roll()

    def _learn(self, producer_id: int, made: Producer, sequence: int) -> None:
        known = self._known
        self._known = Known(
            {**known.producers, producer_id: made},
            {**known.sequences, producer_id: sequence},
            known.ended,
        )

    def _add(self, data: bytes, count: int, aborted: AbortedTransaction | None = None) -> None:
        active = self.segments[-1]
        active.data += data
        active.mtime_ms = self.clock.now_ms()
        self._files.extend(active_path(self.directory, active.base, LOG), data, active.mtime_ms)
        if aborted is not None:
            active.aborted.append(aborted)
            path = active_path(self.directory, active.base, TXN_INDEX)
            self._files.extend(path, txn_index.encode([aborted]), active.mtime_ms)
        self.log_end += count
        self._history.append((self.log_end, self._known))

    def roll(self) -> None:
        """Close the active segment, if there is anything in it."""
        active = self.segments[-1]
        if not active.data:
            return
        self._write_indexes(active)
        self._put(self.log_end, SNAPSHOT, self._snapshot(), self.clock.now_ms())
        self.segments.append(Stretch(self.log_end, b"", self.clock.now_ms()))
        self._write_active()

    def acknowledge(self, offset: int) -> None:
        """Advance the high watermark."""
        self.high_watermark = max(self.high_watermark, offset)

    def checkpoint(self) -> None:
        """Write high watermark and log start down, as a broker does now and then."""
        self._write_offset(REPLICATION_CHECKPOINT, self.high_watermark)
        # Only where a segment's name does not say it.
        is_named = self.log_start <= self.segments[0].base
        self._write_offset(LOG_START_CHECKPOINT, None if is_named else self.log_start)

    # Cleaning.

    def begin_round(self) -> bool:
        """Start to clean; False when there is nothing to do, or a round is under way."""
        if self._swap is not None:
            return False
        log = Log(
            tuple(segment.decoded(self.topic) for segment in self.segments), self._live_producers()
        )
        outcome = clean_log(
            log,
            Round(
                self.clock.now_ms(), self.topic, CLEANER, checkpoint=self.cleaner_checkpoint(),
                log_start=self.log_start, high_watermark=self.last_stable(), force=True,
            ),
        )  # fmt: skip
        if outcome.end_offset is None:
            return False
        self._ends_after_group = False
        self._swap = self._replace(outcome.outputs, outcome.end_offset)
        return True

    def step(self) -> None:
        """Go on with a round by one step."""
        if self._swap is not None and next(self._swap, self) is self:
            self._swap, self.swap_stage = None, ""

    def finish(self) -> None:
        """Go on with a round until its group is in place, and leave the rest undone."""
        self._ends_after_group = True
        while self._swap is not None:
            self.step()

    def finish_round(self) -> None:
        """Go on with a round to its end."""
        while self._swap is not None:
            self.step()

    def cleaner_checkpoint(self) -> int | None:
        """Return where the next round begins, None before the first."""
        return self._files.read_offset(self._root / CLEANER_CHECKPOINT)

    def cleaned_by(self) -> int:
        """Return up to where what the cleaner went by lies: markers of what it took for decided."""
        end = self.cleaner_checkpoint() or 0
        return max([end, *(at + 1 for first, at in self._known.ended if first < end)])

    def _replace(self, outputs: list[Output], end_offset: int) -> Iterator[None]:
        for output in outputs:
            if self._ends_after_group:
                return
            self.swap_stage = CLEANED
            mtime_ms = output.mtime_ns // 10**6
            kinds = [kind for kind in KINDS if kind in output.files]
            for kind in kinds:
                path = active_path(self.directory, output.base_offset, kind, CLEANED)
                self._files.put(path, output.files[kind], mtime_ms)
                yield
            for kind in kinds:
                self._rename(output.base_offset, kind, CLEANED, SWAP)
                yield
            self.swap_stage = SWAP
            for base in output.replaced:
                for kind in KINDS:
                    self._delete(base, kind)
                    yield
                if base != output.base_offset:
                    self._delete(base, SNAPSHOT)
            for kind in kinds:
                self._rename(output.base_offset, kind, SWAP, "")
                if kind == kinds[-1]:
                    # The disk is whole: who asks what is there must get what lies on it.
                    self._take(output, mtime_ms)
                yield
        if not self._ends_after_group:
            self.swap_stage = ""
            self._write_offset(CLEANER_CHECKPOINT, end_offset)

    def _take(self, output: Output, mtime_ms: int) -> None:
        """Know the cleaned segment for the ones that it replaces."""
        gone = [s for s in self.segments if s.base in output.replaced]
        aborted = list(txn_index.decode(output.files.get(TXN_INDEX, b"")))
        made = Stretch(output.base_offset, output.files[LOG], mtime_ms, aborted)
        kept = {b.base_offset for b in made.batches(self.topic)}
        for old in gone:
            for batch in old.batches(self.topic):
                if batch.is_control and batch.base_offset not in kept:
                    self.removed_markers[batch.base_offset] = batch.producer_id
        at = self.segments.index(gone[0])
        self.segments[at : at + len(gone)] = [made]

    def _live_producers(self, known: Known | None = None) -> dict[int, Producer]:
        oldest = self.clock.now_ms() - CLEANER.producer_id_expiration_ms
        found = (self._known if known is None else known).producers.items()
        return {k: p for k, p in found if p.open_since is not None or p.timestamp > oldest}

    # What takes records away.

    def delete_records(self, offset: int) -> None:
        """Move the log start, as DeleteRecords does; files go with the next retention."""
        self.log_start = max(self.log_start, min(offset, self.high_watermark))
        self._cut_lineage()

    def retain(self) -> int:
        """Remove what retention and the log start let go; returns how many segments."""
        if self._swap is not None or "delete" not in self.topic.cleanup_policy:
            return 0
        limit = self.topic.retention_ms
        cutoff = self.clock.now_ms() - limit if limit >= 0 else -1
        gone = 0
        for segment, following in zip(self.segments, self.segments[1:], strict=False):
            is_old = segment.decoded(self.topic).largest_timestamp < cutoff
            is_over = following.base <= self.log_start
            if following.base > self.high_watermark or not (is_old or is_over):
                break
            gone += 1
        for segment in self.segments[:gone]:
            for kind in (*KINDS, SNAPSHOT):
                self._delete(segment.base, kind)
        del self.segments[:gone]
        if self.segments[0].base > self.log_start:
            self.log_start = self.segments[0].base
            self._cut_lineage()
        return gone

    def _cut_lineage(self) -> None:
        """Forget the leader epochs below the log start."""
        kept = [e for e in self.lineage if e.start_offset > self.log_start]
        begun = [e for e in self.lineage if e.start_offset <= self.log_start]
        if begun:
            kept.insert(0, LeaderEpoch(begun[-1].epoch, self.log_start))
        self.lineage = kept
        self._write_lineage()

    def change_leader(self, end: int, epoch: int) -> None:
        """Become the leader of a new epoch; what a former one wrote behind ``end`` is cut.

        ``end`` is not below the high watermark, unless the election is unclean.
        """
        self.finish()
        while len(self.segments) > 1 and self.segments[-1].base > end:
            gone = self.segments.pop()
            for kind in KINDS:
                self._delete(gone.base, kind)
        active = self.segments[-1]
        if end < self.log_end:
            kept = [b for b in active.batches(self.topic) if b.base_offset < end]
            size = sum(b.size_bytes for b in kept)
            active.data = active.data[:size]
            active.aborted = [a for a in active.aborted if a.last_offset < end]
            self._files.cut(active_path(self.directory, active.base, LOG), size)
            path = active_path(self.directory, active.base, TXN_INDEX)
            if self._files.exists(path):
                self._files.cut(path, len(active.aborted) * txn_index.ENTRY_BYTES)
            self._history = [each for each in self._history if each[0] <= end]
            self._known = self._history[-1][1]
            for name in self._files.listdir(self.directory):
                if name.endswith(SNAPSHOT) and int(name[:20]) > end:
                    self._delete(int(name[:20]), SNAPSHOT)
        self.log_end = end
        self.high_watermark = min(self.high_watermark, end)
        for lineage in (self.lineage, self.whole_lineage):
            lineage[:] = [*(e for e in lineage if e.start_offset < end), LeaderEpoch(epoch, end)]
        checkpoint = self.cleaner_checkpoint()
        if checkpoint is not None and checkpoint > active.base:
            self._write_offset(CLEANER_CHECKPOINT, active.base)
        self._write_lineage()

    # Being down.

    def stop(self, *, is_crash: bool) -> None:
        """Be down. A crash leaves a swap as it stands, and maybe a torn batch at the end."""
        if not is_crash:
            self.finish()
            self.checkpoint()
            self._put(self.log_end, SNAPSHOT, self._snapshot(), self.clock.now_ms())
        elif self._dice.random() < 0.3:
            self._torn = encode_batch([Record(self.log_end, 0, b"torn", b"torn")])[:30]
            path = active_path(self.directory, self.segments[-1].base, LOG)
            self._files.extend(path, self._torn, self.clock.now_ms())
        self.is_up = False

    def lose_indexes(self) -> None:
        """Let index files be gone or behind, as when somebody has copied the logs alone."""
        if self._dice.random() < 0.3:
            for segment in self.segments:
                self._files.remove(active_path(self.directory, segment.base, SNAPSHOT))
        for segment in self.segments:
            if self._dice.random() < 0.7:
                for kind in (INDEX, TIME_INDEX, TXN_INDEX):
                    self._files.remove(active_path(self.directory, segment.base, kind))
            elif segment.aborted:
                path = active_path(self.directory, segment.base, TXN_INDEX)
                if self._files.exists(path):
                    self._files.cut(path, (len(segment.aborted) - 1) * txn_index.ENTRY_BYTES)

    def start(self) -> None:
        """Recover what a crash left, build indexes again, and be up."""
        if self._swap is not None and self.swap_stage == CLEANED:
            self._swap, self.swap_stage = None, ""
        self.finish()
        for name in self._files.listdir(self.directory):
            if name.endswith((CLEANED, SWAP, DELETED)):
                self._files.remove(self.directory / name)
        active = self.segments[-1]
        if self._torn:
            path = active_path(self.directory, active.base, LOG)
            self._files.cut(path, len(active.data))
            self._torn = b""
        for segment in self.segments:
            if segment is not active:
                self._write_indexes(segment)
            if self._on_disk(segment, TXN_INDEX) != len(segment.aborted) * txn_index.ENTRY_BYTES:
                self._put(
                    segment.base, TXN_INDEX, txn_index.encode(segment.aborted), segment.mtime_ms
                )
        self._write_snapshots()
        self._write_active()
        self._trash.clear()
        self.is_up = True

    def remove_trash(self) -> None:
        """Remove files whose delay has passed."""
        now_ms = self.clock.now_ms()
        for _, name in [each for each in self._trash if each[0] <= now_ms]:
            self._files.remove(self.directory / name)
        self._trash = [each for each in self._trash if each[0] > now_ms]

    # The files.

    def _put(self, base: int, kind: str, data: bytes, mtime_ms: int) -> None:
        self._files.put(active_path(self.directory, base, kind), data, mtime_ms)

    def _on_disk(self, segment: Stretch, kind: str) -> int:
        path = active_path(self.directory, segment.base, kind)
        return self._files.stat(path).size_bytes if self._files.exists(path) else 0

    def _write_active(self) -> None:
        active = self.segments[-1]
        if not self._files.exists(active_path(self.directory, active.base, LOG)):
            self._put(active.base, LOG, active.data, active.mtime_ms)
        for kind in (INDEX, TIME_INDEX):
            self._put(active.base, kind, b"", active.mtime_ms)

    def _write_indexes(self, segment: Stretch) -> None:
        for kind, data in indexes(segment.base, segment.data, self.topic).items():
            self._put(segment.base, kind, data, segment.mtime_ms)

    def _write_snapshots(self) -> None:
        """Write those again that are gone, of what was known behind some batch."""
        for segment in self.segments[1:]:
            if not self._on_disk(segment, SNAPSHOT):
                known = [known for end, known in self._history if end <= segment.base][-1]
                self._put(segment.base, SNAPSHOT, self._snapshot(known), self.clock.now_ms())

    def _snapshot(self, known: Known | None = None) -> bytes:
        known = self._known if known is None else known
        entries = [
            ProducerEntry(
                producer_id, p.epoch, known.sequences[producer_id] - 1,
                -1 if p.last_data_offset is None else p.last_data_offset, 0, p.timestamp, -1,
                -1 if p.open_since is None else p.open_since,
            )
            for producer_id, p in self._live_producers(known).items()
        ]  # fmt: skip
        return producer_snapshot.encode(entries)

    def _write_lineage(self) -> None:
        path = self.directory / LEADER_EPOCH_CHECKPOINT
        self._files.put(path, leader_epoch.encode(self.lineage), self.clock.now_ms())

    def _write_offset(self, name: str, offset: int | None) -> None:
        line = [] if offset is None else [f"{PARTITION.topic} {PARTITION.partition} {offset}"]
        text = "\n".join(["0", str(len(line)), *line, ""])
        self._files.put(self._root / name, text.encode(), self.clock.now_ms())

    def _rename(self, base: int, kind: str, source: str, target: str) -> None:
        self._files.move(
            active_path(self.directory, base, kind, source),
            active_path(self.directory, base, kind, target),
        )

    def _delete(self, base: int, kind: str) -> None:
        path = active_path(self.directory, base, kind)
        if self._files.exists(path):
            gone = active_path(self.directory, base, kind, DELETED)
            self._files.move(path, gone)
            self._trash.append((self.clock.now_ms() + FILE_DELETE_DELAY_MS, gone.name))


def active_path(directory: Path, base: int, kind: str, stage: str = "") -> Path:
    """Return the path of a segment's file in a stage."""
    return directory / f"{base:020d}{kind}{stage}"
