"""``keeplast clean`` as a process that is disturbed while it works, and the log it works on.

The log has three partitions of many tiny segments, each a group of its own: most of the time goes
into staging and swapping, which is what a disturbance should hit.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from keeplast.format.batch import encode_batch
from keeplast.format.filename import LOG, parse_segment_file
from keeplast.format.message_set import read_batches
from keeplast.format.record import ControlType, Record
from keeplast.format.txn_index import AbortedTransaction
from keeplast.log.files import LocalFiles
from keeplast.log.recovery import recover_swap
from keeplast.model.partition import TopicPartition
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN
from keeplast.run.coordinator import Coordinator
from keeplast.survey.request import CleanRequest, PartitionRequest
from tests.support.page_steps import Done
from tests.support.partition_maker import (
    COMPACT,
    NOW_MS,
    coordinator,
    data_batch,
    marker,
    write_segment,
)
from tests.support.reader import read_partition
from tests.support.waiting import SECONDS_MAX

PARTITIONS = 3
SEGMENTS = 60
SEGMENT_OFFSETS = 10
SEGMENT_BYTES = 400
POLL_SECONDS = 0.002
STAGES = (".deleted", ".cleaned", ".swap")
TOPIC = replace(COMPACT, segment_bytes=SEGMENT_BYTES)


def write_log(root: Path) -> None:
    """Make the data directory: every segment supersedes some of the others, some abort."""
    for partition in range(PARTITIONS):
        directory = root / f"t-{partition}"
        for number in range(SEGMENTS):
            base = number * SEGMENT_OFFSETS
            keys = [b"k%d" % ((number * 7 + i) % 50) for i in range(4)]
            data = encode_batch([Record(base + i, NOW_MS, key, key) for i, key in enumerate(keys)])
            outcome = ControlType.ABORT if number % 5 == 0 else ControlType.COMMIT
            data += data_batch(base + 4, number, [b"k%d" % (number % 9)])
            data += marker(base + 5, number, outcome)
            tombstone = Record(base + 6, NOW_MS, b"k%d" % (number % 13), None)
            data += encode_batch([tombstone])
            aborted = [AbortedTransaction(number, base + 4, base + 5, base + 6)]
            is_aborted = outcome is ControlType.ABORT
            write_segment(directory, base, data, aborted=aborted if is_aborted else ())


def command(root: Path, *, runner: str) -> list[str]:
    """Return the command that cleans ``root``."""
    return [
        sys.executable, "-m", "keeplast", "clean", str(root), "--runner", runner,
        "--despite", "dirty-ratio", "--json", "--now-ms", str(NOW_MS), "--despite", "log-bounds",
        "--cores", "1",
        "--config", "cleanup.policy=compact", "--config", f"segment.bytes={SEGMENT_BYTES}",
    ]  # fmt: skip


def run_command(root: Path, *, runner: str) -> list[str]:
    """Return the command that runs on ``root``; its settings have to be in the directory."""
    return [
        sys.executable, "-m", "keeplast", "run", str(root), "--runner", runner, "--json",
        "--cores", "1",
    ]  # fmt: skip


def disturb(
    root: Path,
    *,
    runner: str,
    delay_seconds: float,
    act: Callable[[int], None],
    line: Sequence[str] | None = None,
) -> Done:
    """Start a clean, wait until it stages its first file, then ``delay_seconds``; act on its id.

    ``line`` is another command to start.
    """
    process = subprocess.Popen(
        command(root, runner=runner) if line is None else line,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + SECONDS_MAX
    while process.poll() is None and not _has_begun(root) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    time.sleep(delay_seconds)
    with contextlib.suppress(ProcessLookupError):
        act(process.pid)
    out, err = process.communicate(timeout=SECONDS_MAX)
    return Done(process.returncode, out, err)


def sender(number: signal.Signals) -> Callable[[int], None]:
    """Return what sends a signal to a process."""
    return lambda pid: os.kill(pid, number)


def descendants(pid: int) -> list[tuple[int, str]]:
    """Return the processes below ``pid``, each with its command line."""
    parents: dict[int, int] = {}
    lines: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                status = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(status[1])
                lines[int(entry.name)] = (entry / "cmdline").read_bytes().decode(errors="replace")
    found: list[int] = []
    waiting = [pid]
    while waiting:
        parent = waiting.pop()
        children = [child for child, of in parents.items() if of == parent]
        found += children
        waiting += children
    return [(child, lines.get(child, "")) for child in found]


def _has_begun(root: Path) -> bool:
    # Without parsing: it is asked hundreds of times while a process starts.
    return any(name.endswith(STAGES) for each in partitions(root) for name in os.listdir(each))


def partitions(root: Path) -> list[Path]:
    """Return the partition directories."""
    return [root / f"t-{partition}" for partition in range(PARTITIONS)]


def staged_names(directory: Path) -> list[str]:
    """Return the names of what is staged or replaced."""
    parsed = {name: parse_segment_file(name) for name in os.listdir(directory)}
    return sorted(name for name, file in parsed.items() if file is not None and file.stage)


class Subject:
    """A log, what its readers see, and what an undisturbed clean leaves of it."""

    def __init__(self, scratch: Path) -> None:
        """Write and clean it; measure how long the clean works on files."""
        self._scratch = scratch
        self._before = scratch / "before"
        write_log(self._before)
        self._expected = [_states(directory) for directory in partitions(self._before)]
        whole = self.copy("whole")
        begun = time.monotonic()
        self.clean(whole)
        self.seconds = time.monotonic() - begun
        self._contents = [_contents(directory) for directory in partitions(whole)]

    def copy(self, name: str) -> Path:
        """Return a copy to be disturbed."""
        root = self._scratch / name
        shutil.copytree(self._before, root)
        return root

    def clean(self, root: Path, cleaning: Coordinator | None = None) -> None:
        """Clean ``root`` in this process."""
        requests = tuple(
            PartitionRequest(TopicPartition("t", number), directory, TOPIC)
            for number, directory in enumerate(partitions(root))
        )
        request = CleanRequest(
            requests, now_ms=NOW_MS, is_unsafe=True, force=True, memory_bytes=MEMORY_BYTES_MIN,
            first_dirty_offset=0,
        )  # fmt: skip
        report = (coordinator() if cleaning is None else cleaning).clean(request)
        for partition in report.partitions:
            assert partition.rounds[-1].error is None, partition.rounds[-1].error

    def assert_readers_see_the_same(self, root: Path) -> None:
        """Check what readers see, files with a stage left out."""
        assert self._expected == [_states(directory) for directory in partitions(root)]

    def assert_recovers(self, root: Path) -> None:
        """Check that a start-up finds a whole log, and that the next clean ends as it should."""
        for directory in partitions(root):
            recover_swap(LocalFiles(), directory)
        self.assert_readers_see_the_same(root)
        self.clean(root)
        self.assert_readers_see_the_same(root)
        assert self._contents == [_contents(directory) for directory in partitions(root)]
        assert [] == [name for directory in partitions(root) for name in staged_names(directory)]

    def delays(self, seed: int, count: int) -> Sequence[float]:
        """Return seeded delays that lie within the work, and a little behind its end."""
        dice = random.Random(seed)
        return [dice.uniform(0, 1.1 * self.seconds) for _ in range(count)]


def _states(directory: Path) -> list[dict[bytes, bytes]]:
    log = read_partition(directory)
    return log.final_values_from(range(0, SEGMENTS * SEGMENT_OFFSETS, 37))


def _contents(directory: Path) -> list[bytes]:
    """Return the batches of data, byte for byte, however they lie in segments."""
    found: list[bytes] = []
    for path in sorted(directory.glob(f"*{LOG}")):
        data = path.read_bytes()
        found += [
            data[batch.position : batch.position + batch.size_bytes]
            for batch in read_batches(data)
            if not batch.is_control
        ]
    return found
