"""Three brokers under producers, readers, rounds, kills and new leaders, for as long as asked.

Not one of the tests: ``make soak-attach`` runs it, with ``--soak-minutes`` and ``--soak-seed``.
What happens is drawn from the seed; what comes of it is judged by what producers were told, again
and again, and the counts are printed as they come out.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.kafka.tiered_cluster import TieredCluster
from tests.support.acknowledged import Acknowledged, Watch
from tests.support.attach_driver import COLLECTION_STEPS, ROUND_STEPS, Act, Step, environment

pytestmark = pytest.mark.kafka

VERSION = "3.9.1"
"""A broker of 4.x tells no client by which small size it rolls: the command would keep it all."""
TOPIC = "soaked"
PARTITIONS = 4
RECORDS = 1500
ATTEMPTS_MAX = 5
COMMAND_SECONDS = 600


class Soak:
    """One run; ``counts`` is what was done."""

    def __init__(self, brokers: TieredCluster, root: Path, seed: int) -> None:
        """Make the topic."""
        self.brokers = brokers
        self.dice = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self._root = root
        brokers.create(TOPIC, PARTITIONS)
        self.acknowledged = Acknowledged(brokers.address, TOPIC, seed)

    def step(self) -> None:
        """Send to a partition, and let something happen to another."""
        sent, other = self.dice.sample(range(PARTITIONS), 2)
        self.acknowledged.go_on(sent, RECORDS)
        self.acknowledged.send_in_transactions(sent, 8)
        self.counts["records"] += RECORDS
        watch = Watch(self.acknowledged, other)
        act = self.dice.choice(
            (self.clean, self.clean, self.clean_killed, self.clean_killed, self.collect,
             self.collect_killed, self.clean_under_change, self.restart)
        )  # fmt: skip
        act(other)
        self.counts["reads"] += watch.stop()

    def clean(self, partition: int) -> None:
        """Do a round, whatever was left by one that was killed."""
        self._until_done("clean", "--partition", str(partition), "--force", "--cores", "1")
        self.counts["rounds"] += 1

    def clean_killed(self, partition: int) -> None:
        """Kill a round, if it comes so far."""
        step = self.dice.choice(ROUND_STEPS)
        self._killed(step, "clean", "--partition", str(partition), "--force", "--cores", "1")

    def collect(self, partition: int) -> None:
        """Collect everything."""
        self._until_done("collect", "--grace-ms", "5s")
        self.counts["collections"] += 1

    def collect_killed(self, partition: int) -> None:
        """Kill a collection, if it comes so far."""
        self._killed(self.dice.choice(COLLECTION_STEPS), "collect", "--grace-ms", "5s")

    def clean_under_change(self, partition: int) -> None:
        """Let leaders change while a round runs."""
        process = self._start("clean", "--partition", str(partition), "--force", "--cores", "1")
        try:
            self.brokers.move_both_leaders(TOPIC, partition)
            self.counts["changes of leaders"] += 1
        finally:
            process.communicate(timeout=COMMAND_SECONDS)
        self.clean(partition)

    def restart(self, partition: int) -> None:
        """Kill a broker while a round runs, and start it again."""
        for each in range(PARTITIONS):
            self.brokers.wait_for_replicas(TOPIC, each)
        broker = self.brokers.brokers[self.dice.choice(list(self.brokers.brokers))]
        process = self._start("clean", "--partition", str(partition), "--force", "--cores", "1")
        try:
            broker.kill()
            process.communicate(timeout=COMMAND_SECONDS)
        finally:
            broker.start()
        self.counts["brokers killed"] += 1

    def finish(self) -> None:
        """Let everything settle, and judge every partition."""
        for partition in range(PARTITIONS):
            self.brokers.wait_until_remote(TOPIC, partition)
            self.clean(partition)
        self._until_done("collect", "--grace-ms", "0")
        for partition in range(PARTITIONS):
            found = self.brokers.status(TOPIC, partition)
            assert ((), 0, 0) == (found.holes, found.copying.count, found.deleting.count)
            read = self.acknowledged.judge(partition, is_starting=True)
            self.counts["records read at the end"] += read

    def _command(self, name: str, *more: str) -> list[str]:
        return [
            "attach", name, "--bootstrap-server", self.brokers.address, "--topic", TOPIC,
            "--store", f"sqlite:///{self._root / 'decisions.db'}",
            "--storage", f"local:{self.brokers.remote}", "--json", "--take-over", *more,
        ]  # fmt: skip

    def _start(self, name: str, *more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "keeplast", *self._command(name, *more)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def _until_done(self, name: str, *more: str) -> None:
        told = ""
        for _ in range(ATTEMPTS_MAX):
            process = self._start(name, *more)
            told, _ = process.communicate(timeout=COMMAND_SECONDS)
            if process.returncode == 0 or "nothing of that is attached" in told:
                return
            self.counts["commands again"] += 1
        raise AssertionError(f"{name} failed {ATTEMPTS_MAX} times. {told}")

    def _killed(self, step: Step, name: str, *more: str) -> None:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.attach_driver", *self._command(name, *more)],
            env=environment(step, Act.KILL),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        process.communicate(timeout=COMMAND_SECONDS)
        self.counts["processes killed"] += process.returncode == -signal.SIGKILL


def test_nothing_is_read_wrong(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    seed = int(pytestconfig.getoption("--soak-seed"))
    seconds = 60 * float(pytestconfig.getoption("--soak-minutes"))
    with TieredCluster(VERSION, tmp_path) as brokers:
        soak = Soak(brokers, tmp_path, seed)
        for partition in range(PARTITIONS):
            soak.acknowledged.send(partition, 2 * RECORDS)
        started = time.monotonic()
        while time.monotonic() - started < seconds:
            soak.step()
            print(f"seed {seed}, {time.monotonic() - started:.0f} s: {dict(soak.counts)}")
        soak.finish()
        print(f"seed {seed}, at the end: {dict(soak.counts)}")
        assert soak.counts["rounds"]
