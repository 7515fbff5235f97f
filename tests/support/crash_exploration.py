"""Cleans a log, crashes at every operation, and examines every state that the disk can be in then.

Each state is reopened as a start-up would (``recover_swap``), crashed in once more while that
happens, read, and cleaned again. States and what recovery makes of them are distinguished by their
bytes, so that nothing is examined twice.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from keeplast.clock import SystemClock
from keeplast.errors import InterruptedSwapError, InvalidError
from keeplast.format import txn_index
from keeplast.format.checkpoint import decode_offsets
from keeplast.format.filename import CLEANER_CHECKPOINT, LOG, TXN_INDEX, parse_segment_file
from keeplast.format.message_set import Batch, read_batches
from keeplast.inspect.verification import Verifier, VerifySettings
from keeplast.log.files import FileSystem
from keeplast.log.partition_log import list_partition
from keeplast.log.recovery import recover_swap
from keeplast.model.document import Verdict
from keeplast.rewrite.task import PartitionTask, Progressed, Runner, TaskResult
from keeplast.run.coordinator import Coordinator
from keeplast.run.events import NoEvents
from keeplast.run.local_runner import LocalRunner
from keeplast.survey.receipt_book import read_receipts
from tests.support.crash_logs import CrashLog
from tests.support.crashing_files import CrashingFiles, Image, Mode, digest
from tests.support.observed_files import Crash
from tests.support.partition_maker import PARTITION, clean_request, last_round
from tests.support.reader import Readable

OPERATIONS_MAX = 100_000
RECEIPT = "receipts.jsonl"


class Bounds(Struct, frozen=True):
    """How many states of one crash point are looked at, and of one inside a recovery.

    Recovery is crashed in for one in ``nested_every`` states.
    """

    states_per_point: int
    nested_states_per_point: int = 1
    nested_every: int = 1
    modes: tuple[Mode, ...] = (Mode.SUBSET, Mode.PREFIX)


@dataclass(slots=True)
class Tally:
    """What was tried."""

    points: int = 0
    nested_points: int = 0
    states: int = 0
    recovered: int = 0

    def add(self, other: Tally) -> None:
        """Count ``other`` in."""
        self.points += other.points
        self.nested_points += other.nested_points
        self.states += other.states
        self.recovered += other.recovered

    def __str__(self) -> str:
        """Say it in a line."""
        return (
            f"{self.points} crash points, {self.nested_points} more inside recoveries; "
            f"{self.states} distinct states, {self.recovered} distinct logs after recovery"
        )


class _LateRunner:
    """A runner next to which an attempt that lost goes on writing staged files."""

    def __init__(self, inner: Runner, files: FileSystem) -> None:
        self._inner = inner
        self._files = files

    @property
    def slots(self) -> int:
        return self._inner.slots

    @property
    def shares_memory(self) -> bool:
        return self._inner.shares_memory

    def run(self, tasks: Sequence[PartitionTask], progressed: Progressed) -> Iterator[TaskResult]:
        for result in self._inner.run(tasks, progressed):
            self._write_late(tasks[0], result)
            yield result

    def _write_late(self, task: PartitionTask, result: TaskResult) -> None:
        for group in result.staged[:1]:
            name = f"{group.base_offset:020d}.log.{task.attempt[::-1]}z.deleted"
            self._files.open_write(task.target / name).write(b"of a late attempt")

    def __enter__(self) -> _LateRunner:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Exploration:
    """One log under examination."""

    def __init__(self, log: CrashLog, root: Path, bounds: Bounds, *, seed: int = 0) -> None:
        """Clean ``log`` undisturbed; ``root`` is a real, empty directory, for the lock alone."""
        self._log = log
        self._root = root
        self._partition = root / str(PARTITION)
        self._bounds = bounds
        self._seed = seed
        self.tally = Tally()
        self._seen: set[bytes] = set()
        self._seen_recovered: set[bytes] = set()
        self.verdicts: set[bool] = set()
        self._before = log.image(root)
        self.law = ReadersLaw(self._before, self._partition)
        whole = CrashingFiles(self._before, free_bytes=log.free_bytes)
        self._clean(whole)
        self._operations = len(whole.operations)
        self._whole = whole.image()
        self._end_offset = _checkpoint(self._whole, root)
        assert self._end_offset is not None

    def run(self) -> Tally:
        """Crash everywhere; AssertionError names the point and what was lost."""
        for _ in self.states():
            pass
        return self.tally

    def states(self) -> Iterator[Image]:
        """Examine and yield every distinct state that the bounds allow."""
        for point in range(self._operations + 1):
            crashed = CrashingFiles(self._before, free_bytes=self._log.free_bytes)
            crashed.crash_at = point
            with contextlib.suppress(Crash):
                self._clean(crashed)
            self.tally.points += 1
            where = f"crash before operation {point} of {self._operations}"
            yield from self._examine(crashed, self._bounds.states_per_point, where, nests=True)

    def _clean(self, files: CrashingFiles, *, has_late: bool = True) -> None:
        request = replace(
            clean_request(self._partition, topic=self._log.topic),
            roll_active=self._log.rolls_active,
            receipt=self._root / RECEIPT if self._log.has_receipt else None,
        )
        local = LocalRunner(cores=1, files=files)
        runner: Runner = _LateRunner(local, files) if has_late else local
        coordinator = Coordinator(runner, SystemClock(), files, NoEvents())
        report = last_round(coordinator.clean(request))
        if report.failure is not None:
            raise report.failure

    def _examine(
        self, crashed: CrashingFiles, limit: int, where: str, *, nests: bool
    ) -> Iterator[Image]:
        dice = random.Random(f"{self._seed} {where}")
        for mode in self._bounds.modes:
            for number, state in enumerate(crashed.survivors(dice, mode=mode, limit=limit)):
                key = digest(state)
                if key in self._seen:
                    continue
                self._seen.add(key)
                self.tally.states += 1
                place = f"{where}, {mode} state {number}"
                self._check(state, place)
                if nests and self.tally.states % self._bounds.nested_every == 0:
                    yield from self._crash_recovery(state, place)
                yield state

    def _crash_recovery(self, state: Image, where: str) -> Iterator[Image]:
        for point in range(OPERATIONS_MAX):
            crashed = CrashingFiles(state)
            crashed.crash_at = point
            try:
                recover_swap(crashed, self._partition)
            except Crash:
                self.tally.nested_points += 1
                inner = f"{where}, and before operation {point} of its recovery"
                limit = self._bounds.nested_states_per_point
                yield from self._examine(crashed, limit, inner, nests=False)
            else:
                return

    def _check(self, state: Image, where: str) -> None:
        if is_listed(state, self._partition):
            self.law.check(state, f"{where}, before a start")
        files = CrashingFiles(state)
        recover_swap(files, self._partition)
        recovered = files.image()
        key = digest(recovered)
        if key in self._seen_recovered:
            return
        self._seen_recovered.add(key)
        self.tally.recovered += 1
        self.law.check(recovered, where)
        self._check_verdict(recovered, where)
        checkpoint = _checkpoint(recovered, self._root)
        assert checkpoint in (None, self._end_offset), where
        if checkpoint is not None:
            assert self._contents(self._whole) == self._contents(recovered), where
            assert self._has_receipt(recovered), where
        again = CrashingFiles(recovered)
        self._clean(again, has_late=False)
        final = again.image()
        self.law.check(final, f"{where}, cleaned again")
        self._check_verdict(final, f"{where}, cleaned again")
        assert self._contents(self._whole) == self._contents(final), where
        assert self._end_offset == _checkpoint(final, self._root), where
        assert self._has_receipt(final), where
        staged = [name for name in final[self._partition] if _is_staged(name)]
        assert [] == staged, where
        if self._log.is_same_bytes:
            assert self._bytes(self._whole) == self._bytes(final), where

    def _check_verdict(self, image: Image, where: str) -> None:
        """Let ``verify`` judge the log by its receipts, which name all that is in place."""
        if not self._log.has_receipt:
            return
        before = self._root / "before"
        files = CrashingFiles(
            {**image, before: {}, before / str(PARTITION): self._before[self._partition]}
        )
        path = self._root / RECEIPT
        try:
            receipts = read_receipts(path, files) if files.exists(path) else ()
        except InvalidError:
            receipts = ()  # cut off before its first line was whole
        if self._bytes(image) != self._bytes(self._before):
            assert receipts, where
        verifier = Verifier(files, VerifySettings(topic=self._log.topic))
        report = verifier.verify_pair(before / str(PARTITION), self._partition, receipts)
        broken = [check for check in report.checks if check.verdict is Verdict.BROKEN]
        assert [] == broken, where
        self.verdicts.add(any("was interrupted" in note for note in report.notes))

    def _contents(self, image: Image) -> list[bytes]:
        """Return the batches of data, byte for byte, however they lie in segments.

        Not the markers: of a transaction whose data the first call removed, the second one finds
        an unneeded marker and gives it its horizon a round earlier, as in Kafka.
        """
        files = image[self._partition]
        return [
            files[name][0][batch.position : batch.position + batch.size_bytes]
            for name in sorted(name for name in files if name.endswith(LOG))
            for batch in read_batches(files[name][0])
            if not batch.is_control
        ]

    def _has_receipt(self, image: Image) -> bool:
        """Say whether the finished round has left a receipt that can be read, if it was to."""
        if not self._log.has_receipt:
            return True
        receipts = read_receipts(self._root / RECEIPT, CrashingFiles(image))
        return receipts[-1].end_offset == self._end_offset

    def _bytes(self, image: Image) -> dict[str, bytes]:
        """Return the segments' files. An empty transaction index is as good as none."""
        return {
            name: data
            for name, (data, _) in image[self._partition].items()
            if name.endswith((".log", "index")) and (data or not name.endswith(TXN_INDEX))
        }


def is_listed(image: Image, partition: Path) -> bool:
    """Say whether readers take what is there for a log, before any start has dealt with it."""
    try:
        list_partition(partition, CrashingFiles(image))
    except InterruptedSwapError:
        return False
    return True


class ReadersLaw:
    """What readers get of a log from every offset on, which no crash may change."""

    def __init__(self, before: Image, partition: Path) -> None:
        """Take what they get of ``before``; they start at every batch, inside it and behind it."""
        self._partition = partition
        starts = {0}
        for batch in read_image(before, partition).batches:
            starts |= {batch.base_offset, batch.last_offset, batch.last_offset + 1}
        self.starts = sorted(starts)
        self.expected = read_image(before, partition).final_values_from(self.starts)
        self._held: set[frozenset[tuple[str, bytes]]] = set()

    def check(self, image: Image, where: str) -> None:
        """Fail unless readers of ``image`` get the same; equal files are read once."""
        read = frozenset(
            (name, data)
            for name, (data, _) in image[self._partition].items()
            if name.endswith((LOG, TXN_INDEX))
        )
        if read in self._held:
            return
        found = read_image(image, self._partition)
        offsets = [batch.last_offset for batch in found.batches]
        assert sorted(set(offsets)) == offsets, where
        assert self.expected == found.final_values_from(self.starts), where
        self._held.add(read)


def read_image(image: Image, partition: Path) -> Readable:
    """Return what a reader gets from an image."""
    files = image[partition]
    batches: list[Batch] = []
    aborted: list[txn_index.AbortedTransaction] = []
    for name in sorted(name for name in files if name.endswith(LOG)):
        batches += read_batches(files[name][0])
        data, _ = files.get(name.removesuffix(LOG) + TXN_INDEX, (b"", 0))
        aborted += txn_index.decode(data)
    return Readable(tuple(batches), tuple(aborted))


def _checkpoint(image: Image, root: Path) -> int | None:
    data, _ = image[root].get(CLEANER_CHECKPOINT, (b"", 0))
    return decode_offsets(data).get(PARTITION)


def _is_staged(name: str) -> bool:
    parsed = parse_segment_file(name)
    return parsed is not None and bool(parsed.stage)
