"""A data directory, a clock that is moved by hand, and the daemon that works on it.

Nothing is left to chance: one round at a time in this thread, time passes only in pauses and when
the test says so, and :class:`World` ends a run after so many pauses or when a test's own act says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from keeplast.cleaner.log_order import Choice, Order
from keeplast.config.layers import SettingSources
from keeplast.config.selection import Selection, select_partitions
from keeplast.format.filename import CLEANER_CHECKPOINT
from keeplast.log.append import NewRecord
from keeplast.log.checkpoints import read_checkpoint, update_checkpoint
from keeplast.log.files import FileSystem, LocalFiles
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import TopicConfig
from keeplast.rewrite.task import Runner
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN
from keeplast.run.coordinator import Coordinator
from keeplast.run.events import NoEvents
from keeplast.run.local_runner import LocalRunner
from keeplast.service.daemon import Daemon, RunReport
from keeplast.service.directory_work import DirectorySettings, DirectoryWork
from keeplast.service.live import Control
from keeplast.service.snapshot import PartitionFacts, Snapshot
from keeplast.survey.report import ExpiryReport, RoundReport
from keeplast.survey.request import CleanRequest
from tests.support.log_builder import START_MS, LogBuilder, text
from tests.support.manual_clock import ManualClock
from tests.support.observed_files import UnsyncedFiles
from tests.support.reader import read_partition

SEGMENT_RECORDS = 5
TOPIC = TopicConfig(cleanup_policy=frozenset({"compact"}), segment_bytes=1 << 20)
SETTINGS = '[topic."t"]\n"cleanup.policy" = "compact"\n'


class Narrated(NoEvents):
    """Remembers what a person would have read, in order."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, ...]] = []
        self.idle_seconds: list[float] = []
        self.on_idle: Callable[[], None] | None = None
        self.on_chosen: Callable[[Sequence[Choice]], None] | None = None

    def of(self, kind: str) -> list[str]:
        """Return the second word of every line that begins with ``kind``."""
        return [line[1] for line in self.lines if line[0] == kind]

    def chosen(self, choices: Sequence[Choice]) -> None:
        self.lines += [("chosen", str(each.partition), each.why) for each in choices]
        if self.on_chosen is not None:
            self.on_chosen(choices)

    def idle(self, snapshot: Snapshot, seconds: float) -> None:
        self.lines.append(("idle", str(snapshot.turn)))
        self.idle_seconds.append(seconds)
        if self.on_idle is not None:
            self.on_idle()

    def expired(self, partition: TopicPartition, report: ExpiryReport) -> None:
        self.lines.append(("expired", str(partition), str(len(report.segments))))

    def set_aside(self, partition: TopicPartition, reason: str) -> None:
        self.lines.append(("set aside", str(partition), reason))

    def retrying(self, partition: TopicPartition, reason: str, seconds: float) -> None:
        self.lines.append(("retrying", str(partition), f"{seconds:g}", reason))

    def finished(self, partition: TopicPartition, report: RoundReport) -> None:
        self.lines.append(("finished", str(partition)))

    def warned(self, message: str) -> None:
        self.lines.append(("warned", message))


class Published:
    """Keeps every snapshot."""

    def __init__(self) -> None:
        self.snapshots: list[Snapshot] = []

    def published(self, snapshot: Snapshot) -> None:
        self.snapshots.append(snapshot)

    def facts(self, number: int) -> PartitionFacts:
        """Return what is known last of one partition."""
        partition = TopicPartition("t", number)
        return next(x for x in self.snapshots[-1].partitions if x.partition == partition)


class World:
    """The directory ``root`` with logs ``t-0``, ``t-1``, ..., and whatever runs on it."""

    def __init__(
        self,
        root: Path,
        *,
        slots: int = 1,
        files: FileSystem | None = None,
        runner: Runner | None = None,
    ) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.root = root
        self.clock = ManualClock(START_MS)
        self.files: FileSystem = UnsyncedFiles() if files is None else files
        self.slots = slots
        self.runner = runner
        self.is_watched = False
        self.logs: dict[int, LogBuilder] = {}
        self.settings(SETTINGS)

    def settings(self, toml: str) -> None:
        """Replace the file with the settings."""
        (self.root / "keeplast.toml").write_text(toml)

    def path(self, number: int) -> Path:
        return self.root / f"t-{number}"

    def log(self, number: int, segments: int = 0) -> LogBuilder:
        """Start a log; with ``segments`` it has so many closed ones, all on the same keys."""
        log = self.logs[number] = LogBuilder(self.path(number), TOPIC)
        for _ in range(segments):
            self.fill(number)
        return log

    def fill(self, number: int, *, first_key: int = 0) -> None:
        """Append a segment of records, one a batch, dated now, and close it."""
        log = self.logs[number]
        log.now_ms = self.clock.now_ms()
        for i in range(SEGMENT_RECORDS):
            value = text(log.log_end)
            log.append(NewRecord(text(first_key + i), value, self.clock.now_ms()))
        log.roll()

    def checkpoint(self, number: int) -> int | None:
        return read_checkpoint(self.files, self.root, CLEANER_CHECKPOINT).get(
            TopicPartition("t", number)
        )

    def set_checkpoint(self, number: int, offset: int) -> None:
        change = {TopicPartition("t", number): offset}
        update_checkpoint(LocalFiles(), self.root, CLEANER_CHECKPOINT, change)

    def state(self, number: int) -> dict[bytes, bytes]:
        """Return the final values that a reader from the start sees."""
        return read_partition(self.path(number)).final_values()

    def select(self) -> Selection:
        return select_partitions(self.root, LocalFiles(), sources=SettingSources(environment={}))

    def daemon(
        self,
        narrated: Narrated,
        published: Published,
        *,
        is_once: bool = False,
        retries: bool = False,
        order: Order = Order.OVERDUE_FIRST,
        control: Control | None = None,
    ) -> Daemon:
        runner = self.runner
        if runner is None:
            runner = LocalRunner(self.slots, files=self.files, clock=self.clock)
        coordinator = Coordinator(runner, self.clock, self.files, narrated)
        request = CleanRequest(
            (), memory_bytes=MEMORY_BYTES_MIN, order=order, rolls_idle=order is not Order.KAFKA
        )
        work = DirectoryWork(
            coordinator, self.clock, self.files,
            DirectorySettings(self.root, self.select, request, retries, self.is_watched),
            narrator=narrated,
        )  # fmt: skip
        return Daemon(
            work, self.clock, narrator=narrated, observer=published, order=order, is_once=is_once,
            control=control,
        )  # fmt: skip

    def once(
        self, *, retries: bool = False, order: Order = Order.OVERDUE_FIRST
    ) -> tuple[RunReport, Narrated, Published]:
        """Run until nothing is eligible."""
        narrated, published = Narrated(), Published()
        daemon = self.daemon(narrated, published, is_once=True, retries=retries, order=order)
        return daemon.run(), narrated, published

    def until_idle(
        self,
        times: int,
        act: Callable[[int], None] | None = None,
        control: Control | None = None,
    ) -> tuple[RunReport, Narrated, Published]:
        """Run until it was idle so many times; ``act`` is called at each, from 1 on."""
        narrated, published = Narrated(), Published()
        daemon = self.daemon(narrated, published, control=control)

        def on_idle() -> None:
            if act is not None:
                act(len(narrated.idle_seconds))
            if len(narrated.idle_seconds) >= times:
                daemon.stop()

        narrated.on_idle = on_idle
        return daemon.run(), narrated, published
