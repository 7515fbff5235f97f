"""``keeplast run --host-dir``: two processes over two directories and one SQLite store."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import keeplast as library
from keeplast.api.open_store import host_partition, open_store
from keeplast.config.mapping import topic_config
from keeplast.log.append import NewRecord
from keeplast.log.lock import locked
from keeplast.model.partition import TopicPartition
from tests.support.leased_hosts import Entry, read, state_of
from tests.support.waiting import SECONDS_MAX, wait_until
from tests.unit.cli.conftest import Command

PARTITION = TopicPartition("t", 0)
SETTINGS = {
    "cleanup.policy": "compact", "segment.bytes": "400", "retention.ms": "-1",
    "min.cleanable.dirty.ratio": "0.01", "segment.ms": "1000000000000",
}  # fmt: skip


class Hosts:
    """A store with one partition, and a directory for each host."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = f"sqlite:///{root / 'meta.db'}"

    def opened(self, owner: str) -> library.TieredStore:
        return open_store(
            self.url, f"file://{self.root / 'objects'}", owner=owner, topic_of=topic_config
        )

    def make(self, settings: dict[str, str]) -> None:
        with self.opened("maker") as store:
            store.create(PARTITION, SETTINGS | settings)

    def append(self, name: str, start: int, count: int) -> list[Entry]:
        """Lead as a program does, append, and end in good order."""
        made: list[Entry] = []
        with (
            self.opened(name) as store,
            host_partition(store, PARTITION, self.root / name) as hosted,
        ):
            assert hosted.turn().standing.leads
            for i in range(start, start + count):
                key, value = b"k%d" % (i % 4), b"v%d" % i
                made.append((hosted.host.append([NewRecord(key, value)]), key, value))
        return made

    def read(self, name: str) -> list[Entry]:
        """Return what a reader of a host gets, whose process has ended."""
        with (
            self.opened(name) as store,
            host_partition(store, PARTITION, self.root / name, role="follower") as hosted,
        ):
            hosted.step()
            return read(hosted)

    def owner(self) -> tuple[str, int]:
        """Return who owns the partition, and at which epoch."""
        with self.opened("looks") as store:
            state = store.state(PARTITION)
            return state.owner, state.leader_epoch

    def segments(self, name: str) -> list[str]:
        return sorted(each.name for each in (self.root / name / "t-0").glob("*.log"))

    def arguments(self, name: str, *options: str) -> list[str]:
        return [
            "run", self.url, "--host-dir", str(self.root / name),
            "--owner", name, "--cores", "1", "--config", "log.cleaner.backoff.ms=200",
            "--lease-ms", "3s", "--grace-ms", "0", *options,
        ]  # fmt: skip

    @contextmanager
    def running(self, name: str, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
        """Start a host; killed at the end if it still runs."""
        err = self.root / f"{name}.err"
        with err.open("wb") as said:
            process = subprocess.Popen(
                [sys.executable, "-m", "keeplast", *self.arguments(name, *options)],
                stdout=subprocess.DEVNULL, stderr=said,
            )  # fmt: skip
        try:
            yield process, err
        finally:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()


Running = tuple[subprocess.Popen[bytes], Path]


def freeze(hosts: Hosts, process: subprocess.Popen[bytes]) -> None:
    """Stop a host where it holds no lock of the store, which would keep all others out."""

    def is_frozen() -> bool:
        process.send_signal(signal.SIGSTOP)
        connection = sqlite3.connect(hosts.root / "meta.db", timeout=0.2, isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
        except sqlite3.OperationalError:
            process.send_signal(signal.SIGCONT)
            return False
        finally:
            connection.close()
        return True

    wait_until(is_frozen, by=lambda: process.poll() is None, words=str)


@pytest.fixture
def hosts(tmp_path: Path) -> Hosts:
    return Hosts(tmp_path)


def begun(hosts: Hosts, processes: dict[str, Running]) -> tuple[str, str, int]:
    """Wait until one of two hosts leads and the other follows it; on a busy machine either may.

    Returns who leads, who follows, and at which epoch.
    """
    found: list[tuple[str, str, int]] = []

    def has_begun() -> bool:
        name, epoch = hosts.owner()
        (other,) = processes.keys() - {name}
        if f"follows {name} at epoch {epoch}" not in processes[other][1].read_text():
            return False
        found.append((name, other, epoch))
        return True

    wait_until(
        has_begun,
        by=lambda: all(process.poll() is None for process, _ in processes.values()),
        words=lambda: "".join(err.read_text() for _, err in processes.values()),
    )
    return found[-1]


def wait_for_leader(hosts: Hosts, name: str, above: int, running: Running) -> None:
    """Wait until ``name`` has led at an epoch above ``above``."""
    process, err = running
    wait_until(
        lambda: hosts.owner()[0] == name and hosts.owner()[1] > above,
        by=lambda: process.poll() is None, words=err.read_text,
    )  # fmt: skip


@pytest.mark.repeats(
    "tests/unit/cli/test_demo_tier.py::"
    "test_a_reader_gets_what_was_appended_whatever_happens_to_the_leaders"
)
def test_a_follower_leads_when_its_leader_was_killed_and_a_reader_gets_the_whole_log(
    hosts: Hosts, keeplast: Command
) -> None:
    hosts.make({})
    written = hosts.append("a", 0, 40)
    with hosts.running("a") as a, hosts.running("b") as b:
        processes = {"a": a, "b": b}
        leader, follower, epoch = begun(hosts, processes)
        processes[leader][0].kill()
        processes[leader][0].wait()
        wait_for_leader(hosts, follower, epoch, processes[follower])
        with hosts.running(leader) as processes[leader]:
            assert epoch < begun(hosts, processes)[2]
            for process, _ in processes.values():
                process.send_signal(signal.SIGTERM)
                assert 143 == process.wait(SECONDS_MAX)
    assert state_of(written) == state_of(hosts.read("a")) == state_of(hosts.read("b"))
    written += hosts.append("a", 40, 20)
    assert state_of(written) == state_of(hosts.read("a")) == state_of(hosts.read("b"))
    assert "t-0: holds" in keeplast("verify", hosts.url).out


def test_a_frozen_leader_is_taken_over_and_follows_when_it_wakes_up(hosts: Hosts) -> None:
    hosts.make({"local.retention.bytes": "0", "min.compaction.lag.ms": "86400000"})
    written = hosts.append("a", 0, 40)
    with hosts.running("a") as a, hosts.running("b") as b:
        processes = {"a": a, "b": b}
        leader, follower, epoch = begun(hosts, processes)
        freeze(hosts, processes[leader][0])
        wait_for_leader(hosts, follower, epoch, processes[follower])
        processes[leader][0].send_signal(signal.SIGCONT)
        assert epoch < begun(hosts, processes)[2]
    assert state_of(written) == state_of(hosts.read("a")) == state_of(hosts.read("b"))


@pytest.mark.parametrize(
    ("settings", "stays"),
    [
        pytest.param({"local.retention.bytes": "0"}, False, id="size"),
        pytest.param({"local.retention.ms": "0"}, False, id="age"),
        pytest.param({"local.retention.bytes": "-1"}, True, id="no limit"),
        pytest.param(
            {"local.retention.bytes": "0", "local.delete.requires.clean": "true"}, True,
            id="size, only what is clean",
        ),
        pytest.param(
            {"local.retention.bytes": "0", "local.delete.requires.clean": "true",
             "cleanup.policy": "compact,delete"}, False, id="compact,delete waits for nothing",
        ),
    ],
)  # fmt: skip
def test_local_segments_leave_the_disks_of_leader_and_follower(
    hosts: Hosts, keeplast: Command, settings: dict[str, str], stays: bool
) -> None:
    hosts.make({**settings, "min.compaction.lag.ms": "86400000"})
    written = hosts.append("a", 0, 40)
    copied = len(hosts.segments("a")) - 1
    for name, role in (("a", "leader"), ("b", "follower")):
        ran = keeplast(*hosts.arguments(name, "--once", "--role", role), code=0)
        # A follower begins behind what would leave it.
        assert (not stays and name == "a") == ("left disk" in ran.err)
        assert (len(hosts.segments(name)) > 1) == stays
    assert stays == (len(hosts.segments("a")) == copied + 1)
    assert state_of(written) == state_of(hosts.read("a")) == state_of(hosts.read("b"))


# What is refused.


@pytest.mark.parametrize("name", ["meta.properties", "__cluster_metadata-0"])
def test_a_brokers_directory_is_refused_and_nothing_of_it_changed(
    hosts: Hosts, keeplast: Command, name: str
) -> None:
    hosts.make({})
    hosts.append("a", 0, 40)
    (hosts.root / "a" / name).touch()
    before = hosts.segments("a")
    ran = keeplast(*hosts.arguments("a", "--once"), code=4)
    assert "the directory is a broker's" in ran.err
    assert before == hosts.segments("a")


def test_a_directory_that_another_process_has_is_refused(hosts: Hosts, keeplast: Command) -> None:
    hosts.make({})
    (hosts.root / "a").mkdir()
    with locked(hosts.root / "a"):
        ran = keeplast(*hosts.arguments("a", "--once"))
    assert 4 == ran.code
    assert "in use by a running broker or another keeplast" in ran.err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--role", "leader"], "--role is about hosts"),
        (["--lease-ms", "5s"], "--lease-ms is about hosts"),
        (["--host-dir", "h", "--data-dir", "."], "--data-dir copies a broker's directory"),
        (["--host-dir", "h", "--shape", "bucket"], "--shape is not for hosts"),
        (["--host-dir", "h", "--lease-ms", "10"], "between a second and an hour"),
        (["--host-dir", "t-0"], "hosts keep a directory for each partition"),
    ],
)
def test_options_that_contradict_are_refused_before_a_store_is_opened(
    hosts: Hosts, keeplast: Command, monkeypatch: pytest.MonkeyPatch, options: list[str], words: str
) -> None:
    monkeypatch.chdir(hosts.root)
    ran = keeplast("run", hosts.url, "--once", *options, code=2)
    assert words in ran.err
