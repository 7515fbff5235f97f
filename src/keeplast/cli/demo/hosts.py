"""The hosts of ``keeplast demo --tier``, and what is appended to them.

Each host has a directory of its own, all share one store. What is appended is drawn from one seed,
and the state that a reader must see is kept next to it. A leader that is to be killed or frozen
works in a process of its own: this module is also what that process runs.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np

from keeplast.api.open_store import open_store
from keeplast.cli.demo.reading import Consumer
from keeplast.cli.frame import wiring
from keeplast.cli.frame.wiring import RunnerName
from keeplast.clock import SystemClock
from keeplast.config.mapping import topic_config
from keeplast.errors import CompactionError, UnavailableError
from keeplast.format.message_set import read_batches
from keeplast.format.record import ControlType
from keeplast.host.leased_host import open_host
from keeplast.host.partition_host import PartitionHost
from keeplast.log.append import NewRecord
from keeplast.model.partition import TopicPartition
from keeplast.store.tiered_store import TieredStore

PARTITION = TopicPartition("sessions", 0)
SETTINGS = {
    "cleanup.policy": "compact",
    "segment.bytes": str(256 << 10),
    "remote.storage.enable": "true",
    "local.retention.bytes": str(512 << 10),
}
META = "meta.db"
KEYS = 2_000
BATCH = 50
VALUE_BYTES = 60
PRODUCER = 7
HOT_SHARE, DELETED_SHARE, TRANSACTION_SHARE, ABORTED_SHARE = 0.8, 0.03, 0.1, 0.3
FETCH_BYTES = 1 << 20
POLL_SECONDS = 0.005
LOCK_SECONDS = 0.2
FREEZES_MAX = 20
PROCESS_SECONDS_MAX = 240
"""A process that has not come to its middle by then is taken as it is."""


def open_demo_store(root: Path, owner: str) -> TieredStore:
    """Open the demo's store as one of its hosts."""
    return open_store(
        f"sqlite:///{root / META}", f"file://{root / 'objects'}",
        owner=owner, topic_of=topic_config,
    )  # fmt: skip


def demo_host(
    store: TieredStore, root: Path, name: str, *, recovers: bool = False
) -> PartitionHost:
    """Open the log of the host ``name``."""
    return open_host(store, PARTITION, root / name, topic_config(SETTINGS), recovers=recovers)


class Appender:
    """Who appends: records of one seed, and what a reader must see of them in ``state``."""

    def __init__(self, seed: int) -> None:
        self._dice = np.random.default_rng(seed)
        self._sequence = 0
        self.records = 0
        self.transactions = 0
        self.aborted = 0
        self.state: dict[bytes, bytes] = {}

    def append(self, leader: PartitionHost, follower: PartitionHost, count: int) -> None:
        """Append ``count`` records or a few more, and replicate them."""
        clock, end = SystemClock(), self.records + count
        while self.records < end:
            records = self._batch(clock.now_ms())
            is_counted = True
            if self._dice.random() < TRANSACTION_SHARE:
                is_counted = self._transaction(leader, records)
            else:
                leader.append(records)
            if is_counted:
                self._apply(records)
        replicate(leader, follower)

    def _batch(self, now_ms: int) -> list[NewRecord]:
        """Return a batch: most of it about few keys, some of it deletions."""
        found = []
        for _ in range(BATCH):
            self.records += 1
            is_hot = self._dice.random() < HOT_SHARE
            key = b"session-%05d" % self._dice.integers(KEYS // 10 if is_hot else KEYS)
            value: bytes | None = b"%0*d" % (VALUE_BYTES, self.records)
            if self._dice.random() < DELETED_SHARE:
                value = None
            found.append(NewRecord(key, value, now_ms))
        return found

    def _transaction(self, leader: PartitionHost, records: list[NewRecord]) -> bool:
        """Append a transaction; returns whether it was committed."""
        leader.append(
            records, producer_id=PRODUCER, producer_epoch=0, base_sequence=self._sequence,
            is_transactional=True,
        )  # fmt: skip
        self._sequence += len(records)
        self.transactions += 1
        is_aborted = bool(self._dice.random() < ABORTED_SHARE)
        self.aborted += is_aborted
        outcome = ControlType.ABORT if is_aborted else ControlType.COMMIT
        leader.end_transaction(outcome, producer_id=PRODUCER, producer_epoch=0)
        return not is_aborted

    def _apply(self, records: list[NewRecord]) -> None:
        for record in records:
            if record.key is None:
                continue
            if record.value is None:
                self.state.pop(record.key, None)
            else:
                self.state[record.key] = record.value


def replicate(leader: PartitionHost, follower: PartitionHost) -> None:
    """Bring the follower to the leader's end, as its fetches would."""
    while follower.log_end_offset < leader.log_end_offset:
        fetched = leader.fetch(follower.log_end_offset, FETCH_BYTES)
        follower.replicate(fetched.data, high_watermark=leader.log_end_offset)
    leader.acknowledge(leader.log_end_offset)


def read_as_consumer(host: PartitionHost) -> tuple[dict[bytes, bytes], int]:
    """Return the state that a read-committed consumer of the host gets, and how many records."""
    consumer, count, offset = Consumer(), 0, host.state().log_start
    while offset < host.high_watermark:
        fetched = host.fetch(offset, FETCH_BYTES, end=host.high_watermark)
        for batch in read_batches(fetched.data):
            count += consumer.take(batch)
        if fetched.next_offset <= offset:
            break
        offset = fetched.next_offset
    return consumer.state(), count


class LeaderProcess:
    """A leader that copies and cleans in a process group of its own; ended by :meth:`end`."""

    def __init__(self, root: Path, name: str, epoch: int, runner: RunnerName) -> None:
        """Start it and its runner; it leads from :meth:`go` on."""
        self.output = root / f"{name}-{epoch}.out"
        line = [sys.executable, "-m", __name__, str(root), name, str(epoch), runner.value]
        with self.output.open("wb") as out, (root / f"{name}-{epoch}.err").open("wb") as err:
            self._process = subprocess.Popen(
                line, stdin=subprocess.PIPE, stdout=out, stderr=err, start_new_session=True
            )

    def go(self) -> None:
        """Let it lead. UnavailableError, with what it said, when it has ended before."""
        try:
            if self._process.stdin is not None:
                self._process.stdin.close()
        except BrokenPipeError:
            pass
        if self._process.poll() is not None:
            raise UnavailableError(
                f"a host could not start. said={self._read_errors()}", code="K356"
            )

    def _read_errors(self) -> str:
        lines = self.output.with_suffix(".err").read_text("utf-8", "replace").splitlines()
        return " ".join(lines[-3:])

    def wait_until(self, reached: Callable[[], bool]) -> bool:
        """Wait for something to be so; False when the process ended before it was."""
        clock = SystemClock()
        deadline = clock.seconds() + PROCESS_SECONDS_MAX
        while clock.seconds() < deadline:
            if reached():
                return self._process.poll() is None
            if self._process.poll() is not None:
                return False
            clock.sleep(POLL_SECONDS)
        return False

    def send(self, number: signal.Signals) -> None:
        """Send a signal to it and to what it has started: that is what a dead host is."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, number)

    def freeze(self, store: Path) -> None:
        """Stop it where it holds no lock of the SQLite file ``store``.

        Stopped inside a transaction it would keep all others from the store. SQLite is for hosts of
        one machine; PostgreSQL ends the transaction of a client that is gone.
        """
        clock = SystemClock()
        for _ in range(FREEZES_MAX):
            self.send(signal.SIGSTOP)
            if self._process.poll() is not None or not _is_locked(store):
                return
            self.send(signal.SIGCONT)
            clock.sleep(POLL_SECONDS)

    def wait(self) -> dict[str, str]:
        """Return what it said at its end; nothing when it was killed."""
        try:
            self._process.wait(PROCESS_SECONDS_MAX)
        except subprocess.TimeoutExpired as error:
            raise UnavailableError(
                f"a host does not end. said={self._read_errors()}", code="K356"
            ) from error
        text = self.output.read_text("utf-8").strip()
        found: dict[str, str] = json.loads(text.splitlines()[-1]) if text else {}
        return found

    def end(self) -> None:
        """Kill it if it is still there."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGCONT)
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _is_locked(store: Path) -> bool:
    connection = sqlite3.connect(store, timeout=LOCK_SECONDS, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
    except sqlite3.OperationalError:
        return True
    finally:
        connection.close()
    return False


def lead(root: Path, name: str, epoch: int, runner: RunnerName) -> dict[str, str]:
    """Lead as the process of a host: copy what is closed and clean it; return how that ended."""
    with (
        open_demo_store(root, name) as store,
        wiring.open_runner(runner, master=None, cores=None) as started,
    ):
        sys.stdin.read()  # until this host is to lead
        host = demo_host(store, root, name, recovers=True)
        try:
            host.become_leader(epoch)
            host.copy()
            report = host.clean(lambda files: nullcontext(started), force=True, grace_ms=0)
        except CompactionError as error:
            return {"error": type(error).__name__, "message": str(error)}
        finally:
            host.close()
        return {"done": str(report.end_offset)}


if __name__ == "__main__":
    root_, name_, epoch_, runner_ = sys.argv[1:]
    print(json.dumps(lead(Path(root_), name_, int(epoch_), RunnerName(runner_))), flush=True)
