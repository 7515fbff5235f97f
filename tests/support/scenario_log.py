"""A log that can be cleaned and looked at, in the words of cleaning.md section 8.

``clean`` is a whole round through the coordinator. ``clean_with`` is the second pass alone with a
key map filled by hand (a *direct* scenario of Kafka's tests); ``recopy`` is the same with an empty
map, for the scenarios that clean an empty dirty range. Failures of a round are raised.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from keeplast.cleaner.plan import GroupPlan, RoundPlan, plan_groups
from keeplast.clock import SystemClock
from keeplast.columns import retained, winners
from keeplast.columns.winners import KeyMap
from keeplast.format import txn_index
from keeplast.format.batch import encode_batch
from keeplast.format.filename import LOG, TXN_INDEX
from keeplast.format.message_set import Batch, read_batches
from keeplast.format.record import Record
from keeplast.format.txn_index import AbortedTransaction
from keeplast.log.files import LocalFiles
from keeplast.model.partition import INT64_MAX, TopicPartition
from keeplast.model.topic_config import CleanerConfig, TopicConfig
from keeplast.rewrite.index import Indexed, index_partition
from keeplast.rewrite.task import Carry, IndexStats, PartitionTask, TaskResult, second_pass_start
from keeplast.rewrite.transactions import MarkedPlan
from keeplast.rewrite.wave import run_wave
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN, DecompressedCache, Workspace
from keeplast.run.commit import commit_in_place
from keeplast.run.coordinator import Coordinator
from keeplast.run.events import NoEvents
from keeplast.run.local_runner import LocalRunner
from keeplast.survey.bounds import load_checkpoints
from keeplast.survey.report import RoundReport
from keeplast.survey.request import CleanRequest, PartitionRequest
from keeplast.survey.survey import Survey, survey_partition
from tests.support.kernel_window import HASH_KEY, window_of
from tests.support.log_builder import LogBuilder
from tests.support.standings import ABSENT, winning_offsets

DAY_MS = 86_400_000
BIG = INT64_MAX - DAY_MS - 1
"""The latest time at which a delete horizon can still be set and reached."""
FOREVER = 1 << 62
"""As an offset: later than every record. ``key -> FOREVER`` supersedes all records of a key."""
SMALL = TopicConfig(
    cleanup_policy=frozenset({"compact"}), segment_bytes=1024, segment_index_bytes=1024
)
LOAD_FACTOR = 0.75
PARTITION = TopicPartition("log", 0)


@functools.cache
def runner() -> LocalRunner:
    """Return the one runner of this process; it works in the calling thread."""
    return LocalRunner(cores=1)


@functools.cache
def default_workspace() -> Workspace:
    """Return the arrays that direct rounds work in."""
    return Workspace(MEMORY_BYTES_MIN)


def small_workspace(window_bytes: int) -> Workspace:
    """Return a workspace with windows, scratch, rows and output far below what is allowed."""
    workspace = Workspace(MEMORY_BYTES_MIN)
    workspace.buffers.window_bytes = window_bytes
    workspace.buffers.data = np.empty(window_bytes, np.uint8)
    workspace.scratch = np.empty(window_bytes, np.uint8)
    workspace.make_rows(max(1, window_bytes // 64))
    workspace.out = np.empty(window_bytes, np.uint8)
    workspace.cache_bytes = window_bytes
    return workspace


class ScenarioLog(LogBuilder):
    """A log with the settings of Kafka's cleaner tests, in a data directory of its own."""

    def __init__(self, root: Path, topic: TopicConfig = SMALL) -> None:
        """Start an empty log below ``root``."""
        super().__init__(root / str(PARTITION), topic)

    # Rounds.

    def clean(
        self,
        first_dirty: int | None = None,
        *,
        bound: int | None = None,
        now_ms: int | None = None,
        capacity: int | None = None,
        expiration_ms: int = INT64_MAX,
        topic: TopicConfig | None = None,
        log_start: int | None = None,
    ) -> RoundReport:
        """Clean once in ``[first_dirty, bound)``, by default up to the active segment.

        ``capacity`` is the number of slots of a bounded key map, three of four usable. Producers
        do not expire unless ``expiration_ms`` lets them. A round that failed is raised.
        """
        report = self.run(
            CleanRequest(
                (self._partition(topic, capacity, expiration_ms),),
                now_ms=self.now_ms if now_ms is None else now_ms,
                is_unsafe=True,
                log_start_offset=log_start,
                first_dirty_offset=first_dirty,
                uncleanable_offset=self.active_base if bound is None else bound,
                memory_bytes=MEMORY_BYTES_MIN,
                force=True,
            )
        )
        if report.failure is not None:
            raise report.failure
        assert not report.skipped, report.reason
        return report

    def roll_and_clean(self, *, now_ms: int | None = None) -> RoundReport:
        """Roll, and clean all that lies below the new active segment."""
        self.roll()
        return self.clean(0, now_ms=now_ms)

    def clean_to(self, target: Path) -> RoundReport:
        """Clean up to the active segment, into another data directory."""
        request = CleanRequest(
            (self._partition(None, None, INT64_MAX),),
            now_ms=self.now_ms,
            is_unsafe=True,
            uncleanable_offset=self.active_base,
            memory_bytes=MEMORY_BYTES_MIN,
            force=True,
            target=target,
        )
        report = self.run(request)
        if report.failure is not None:
            raise report.failure
        return report

    def judge(
        self, *, topic: TopicConfig | None = None, high_watermark: int | None = None
    ) -> RoundReport:
        """Clean once if the directory says that it is worth it: nothing is given or forced."""
        return self.run(
            CleanRequest(
                (self._partition(topic, None, INT64_MAX),),
                now_ms=self.now_ms,
                is_unsafe=True,
                high_watermark=high_watermark,
                memory_bytes=MEMORY_BYTES_MIN,
            )
        )

    def measure(
        self,
        first_dirty: int | None = None,
        uncleanable: int | None = None,
        *,
        topic: TopicConfig | None = None,
        high_watermark: int | None = None,
    ) -> RoundReport:
        """Return what a round would find, in this range or where the log allows it."""
        request = CleanRequest(
            (self._partition(topic, None, INT64_MAX),),
            now_ms=self.now_ms,
            is_unsafe=True,
            first_dirty_offset=first_dirty,
            uncleanable_offset=uncleanable,
            high_watermark=high_watermark,
        )
        (partition,) = _coordinator().plan(request).partitions
        return partition.rounds[-1]

    def two_pass(self, first_dirty: int, now_ms: int) -> None:
        """Clean, and clean again with the same bounds when every horizon has passed."""
        self.clean(first_dirty, now_ms=now_ms)
        self.clean(first_dirty, now_ms=now_ms + self.topic.delete_retention_ms + 1)

    def two_pass_recopy(self, now_ms: int) -> None:
        """As :meth:`two_pass`, of an empty dirty range."""
        self.recopy(now_ms)
        self.recopy(now_ms + self.topic.delete_retention_ms + 1)

    def run(self, request: CleanRequest) -> RoundReport:
        """Return the last round of a request, whatever became of it."""
        (partition,) = _coordinator().clean(request).partitions
        return partition.rounds[-1]

    def recopy(self, now_ms: int | None = None) -> TaskResult:
        """Rewrite everything below the active segment with an empty key map that reaches there."""
        return self.clean_with({}, end_offset=self.active_base, now_ms=now_ms)

    def clean_with(
        self,
        key_map: Mapping[bytes, int],
        *,
        sources: Sequence[int] | None = None,
        end_offset: int = FOREVER,
        now_ms: int | None = None,
        workspace: Workspace | None = None,
    ) -> TaskResult:
        """Run the second pass with this map; all ``sources`` (bases) are one group if given."""
        survey, plan = self._plan(now_ms)
        if sources is None:
            groups = plan_groups(plan, end_offset)
        else:
            chosen = tuple(s for s in plan.segments if s.base_offset in sources)
            groups = (GroupPlan(chosen),)
        carry = Carry(
            end_offset=end_offset,
            groups=groups,
            key_map=filled_map(key_map),
            transactions=second_pass_start(plan),
            counters=np.zeros(retained.COUNTERS, np.int64),
            index=IndexStats(),
        )
        return self._commit(survey, replace(self._task(plan), carry=carry), workspace)

    def clean_first_wave(
        self,
        *,
        wave_bytes_max: int | None = None,
        workspace: Workspace | None = None,
        capacity: int | None = None,
        now_ms: int | None = None,
        first_dirty: int = 0,
    ) -> TaskResult:
        """Run and commit one wave of a round from ``first_dirty``, and leave it at that.

        The checkpoint is not written, and with ``wave_bytes_max`` groups may be left over: the log
        is as a crash between commits leaves it.
        """
        survey, plan = self._plan(now_ms, capacity, first_dirty)
        task = replace(self._task(plan), wave_bytes_max=wave_bytes_max)
        return self._commit(survey, task, workspace)

    def index(
        self, start: int, end: int, *, capacity: int | None = None
    ) -> tuple[Indexed, dict[bytes, int]]:
        """Run the first pass over ``[start, end)``; return it, and its map as a dictionary."""
        indexed = self.index_only(start, end, capacity=capacity)
        keys = sorted({record.key for record in self.records() if record.key is not None})
        return indexed, looked_up(indexed.key_map, keys)

    def index_only(self, start: int, end: int, *, capacity: int | None = None) -> Indexed:
        """Run the first pass over ``[start, end)``."""
        _, plan = self._plan(None, capacity)
        task = self._task(replace(plan, first_dirty=start, bound=end))
        marked = MarkedPlan(task.plan, task.path, LocalFiles(), _ignore)
        return index_partition(
            task, LocalFiles(), default_workspace(), DecompressedCache(0), _ignore, marked.ask
        )

    # What is in the log now.

    def batches(self) -> list[Batch]:
        """Return every batch, the active segment's included."""
        return [
            batch
            for path in sorted(self.directory.glob(f"*{LOG}"))
            for batch in read_batches(path.read_bytes())
        ]

    def records(self) -> list[Record]:
        """Return every record that is no control record."""
        return [r for batch in self.batches() if not batch.is_control for r in batch.records()]

    @property
    def keys(self) -> list[int]:
        """Keys of the records that have key and value, as numbers."""
        return [int(r.key) for r in self.records() if r.key is not None and r.value is not None]

    @property
    def offsets(self) -> list[int]:
        """Offsets of all records that have key and value, markers included."""
        return [
            r.offset
            for batch in self.batches()
            for r in batch.records()
            if r.key is not None and r.value is not None
        ]

    @property
    def last_offsets(self) -> list[int]:
        """Last offset of every batch."""
        return [batch.last_offset for batch in self.batches()]

    @property
    def base_offsets(self) -> list[int]:
        """Base offset of every batch."""
        return [batch.base_offset for batch in self.batches()]

    @property
    def last_sequences(self) -> dict[int, int]:
        """Last sequence of every producer that has data batches."""
        return {
            batch.producer_id: batch.last_sequence
            for batch in self.batches()
            if batch.producer_id >= 0 and not batch.is_control
        }

    def find_duplicate(self, producer_id: int, first: int, last: int) -> tuple[int, int] | None:
        """Return base and last offset of the batch with these sequences, as a broker finds it."""
        for batch in self.batches():
            sequences = (batch.producer_id, batch.base_sequence, batch.last_sequence)
            if sequences == (producer_id, first, last) and not batch.is_control:
                return batch.base_offset, batch.last_offset
        return None

    def aborted(self) -> list[AbortedTransaction]:
        """Return the transaction indexes of the closed segments, joined."""
        return [
            entry
            for path in sorted(self.directory.glob(f"*{TXN_INDEX}"))
            for entry in txn_index.decode(path.read_bytes())
        ]

    def segments(self) -> dict[int, int]:
        """Return base offset and bytes of every segment, the active one included."""
        paths = sorted(self.directory.glob(f"*{LOG}"))
        return {int(path.stem): path.stat().st_size for path in paths}

    def closed_bytes(self) -> int:
        """Return the bytes below the active segment."""
        return sum(size for base, size in self.segments().items() if base < self.active_base)

    def files(self) -> dict[str, bytes]:
        """Return the content of every file of the partition."""
        return {path.name: path.read_bytes() for path in sorted(self.directory.iterdir())}

    def closed_files(self) -> dict[str, bytes]:
        """Return the content of the files of closed segments."""
        end = f"{self.active_base:020d}"
        return {name: content for name, content in self.files().items() if name < end}

    def copy_to(self, root: Path) -> ScenarioLog:
        """Return a log with the same closed segments below ``root``, for another way to clean."""
        self.close()
        copy = ScenarioLog(root, self.topic)
        copy.close()
        shutil.rmtree(copy.directory)
        shutil.copytree(self.directory, copy.directory)
        copy.now_ms, copy.log_end, copy.bases = self.now_ms, self.log_end, list(self.bases)
        return copy

    # How.

    def _partition(
        self, topic: TopicConfig | None, capacity: int | None, expiration_ms: int
    ) -> PartitionRequest:
        topic = topic or self.topic
        slot_bytes = topic.strategy.slot_bytes
        key_map_bytes = None if capacity is None else capacity * slot_bytes
        cleaner = CleanerConfig(key_map_bytes, LOAD_FACTOR, expiration_ms)
        return PartitionRequest(PARTITION, self.directory, topic, cleaner)

    def _plan(
        self, now_ms: int | None, capacity: int | None = None, first_dirty: int = 0
    ) -> tuple[Survey, RoundPlan]:
        partition = self._partition(None, capacity, INT64_MAX)
        request = CleanRequest(
            (partition,),
            is_unsafe=True,
            first_dirty_offset=first_dirty,
            uncleanable_offset=self.active_base,
            force=True,
        )
        checkpoints = load_checkpoints(LocalFiles(), self.directory.parent)
        now_ms = self.now_ms if now_ms is None else now_ms
        survey = survey_partition(partition, request, checkpoints, LocalFiles(), now_ms)
        assert survey.plan is not None, survey.reason
        return survey, survey.plan

    def _task(self, plan: RoundPlan) -> PartitionTask:
        return PartitionTask(
            number=0,
            plan=plan,
            path=self.directory,
            target=self.directory,
            attempt="0123456789abcdef",
            hash_key=HASH_KEY,
            memory_bytes=MEMORY_BYTES_MIN,
            wave_bytes_max=None,
            writes=True,
        )

    def _commit(
        self, survey: Survey, task: PartitionTask, workspace: Workspace | None
    ) -> TaskResult:
        workspace = default_workspace() if workspace is None else workspace
        result = run_wave(task, LocalFiles(), SystemClock(), workspace, _ignore)
        if result.error is not None:
            raise result.error
        for path in commit_in_place(LocalFiles(), task.path, result.staged):
            path.unlink()
        return result


def _coordinator() -> Coordinator:
    return Coordinator(runner(), SystemClock(), LocalFiles(), NoEvents())


def filled_map(entries: Mapping[bytes, int]) -> KeyMap:
    """Return a key map with these winners, hashed as the rounds of a :class:`ScenarioLog` are."""
    key_map = KeyMap()
    if entries:
        w = _sorted_by_shard(entries)
        key_map.put(w.block, w.starts)
    return key_map


def looked_up(key_map: KeyMap, keys: Sequence[bytes]) -> dict[bytes, int]:
    """Return the winners of those of ``keys`` (at least one) that are in the map."""

    def standings(offsets: NDArray[np.int64]) -> NDArray[np.uint8]:
        w = _sorted_by_shard(dict(zip(keys, offsets.tolist(), strict=True)))
        key_map.find(w.block, w.starts, w.block_rows, w.standings)
        return w.standings[: len(keys)].copy()

    found = winning_offsets(len(keys), standings)
    return {key: at for key, at in zip(keys, found, strict=True) if at != ABSENT}


def _sorted_by_shard(entries: Mapping[bytes, int]) -> Workspace:
    """Return a workspace that holds keys and offsets as the key map takes them.

    The keys are hashed by parsing a batch of them.
    """
    w = default_workspace()
    window = window_of(encode_batch([Record(i, 0, key, b"") for i, key in enumerate(entries)]))
    retained.select_indexed(window.table, 0, window.batches)
    (part,) = w.slices(window, 0, HASH_KEY, DecompressedCache(0), keeps=False)
    w.marks[: part.rows] = 1
    w.offsets[: part.rows] = list(entries.values())
    winners.sort_by_shard(
        w.hashes, w.offsets, w.marks, 0, part.rows, w.block, w.block_rows, w.starts
    )
    return w


def _ignore(read_bytes: int) -> None:
    """There is no observer."""
