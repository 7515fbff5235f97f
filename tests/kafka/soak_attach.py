"""Three brokers under producers, readers, rounds, kills and new leaders, for as long as asked.

Not one of the tests: ``make soak-attach`` runs it, with ``--soak-minutes`` and ``--soak-seed``.
What happens is drawn from the seed; what comes of it is judged by what was acknowledged, again and
again: by readers from the start while something happens, and by followers that read on all the
time. Counts are printed as they come out, next to what a soak has to reach to count as one.
"""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import Struct

from keeplast.clock import SystemClock
from keeplast.cluster.client import ClusterClient
from keeplast.tier.metadata.database import open_database
from keeplast.tier.metadata.decisions import DecisionLog
from keeplast.tier.state.attached import DecisionState
from tests.kafka.tiered_cluster import TieredCluster
from tests.support.acknowledged import Acknowledged, Follower, Watch
from tests.support.attach_driver import COLLECTION_STEPS, ROUND_STEPS, Act, Step
from tests.support.attach_process import AttachProcess
from tests.support.live_call import live_call
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kafka

VERSION = "3.9.1"
"""A broker of 4.x gives no client its small segment size: the command would keep it all."""
TOPIC = "soaked"
PARTITIONS = 6
RECORDS, TRANSACTIONS = 700, 6
GRACE = "5s"
ATTEMPTS_MAX = 8
COMMAND_SECONDS = 400
CLEAN = ("clean", "--despite", "dirty-ratio", "--cores", "1")
COLLECT = ("collect", "--grace-ms", GRACE)
REACHED = {
    "published swaps": 100, "killed inside a step": 30, "leaders of the topic changed": 20,
    "leaders of the metadata topic changed": 20, "collections": 20,
}  # fmt: skip
"""What a soak has to have seen to count as one."""
LACKING_WEIGHT = 5
"""How much likelier an act is while none of what it counts for has been reached."""
SAMPLED_SECONDS = 120.0
BLOCK_BYTES = 512
_LIVE = (DecisionState.PUBLISHED, DecisionState.COLLECTING, DecisionState.COLLECTED)


class Sample(Struct, frozen=True):
    """What there is at one moment: bytes, but for the counts."""

    records: int
    objects: int
    remote: int
    metadata_records: int
    metadata: int
    brokers: int
    broker_memory: int

    def __str__(self) -> str:
        """Return it in a line."""
        mib = 1 << 20
        return (
            f"{self.records:,} records sent; remote tier {self.objects} objects, "
            f"{self.remote / mib:.1f} MiB; metadata topic {self.metadata_records:,} records, "
            f"{self.metadata / mib:.2f} MiB on all brokers; brokers' directories "
            f"{self.brokers / mib:.0f} MiB; resident {self.broker_memory / mib:.0f} MiB"
        )


class Soak:
    """One run; ``counts`` is what was done."""

    def __init__(self, brokers: TieredCluster, root: Path, seed: int) -> None:
        """Make the topic, fill it, and let followers begin."""
        self.brokers = brokers
        self.dice = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.killed_at: Counter[str] = Counter()
        self.samples: list[Sample] = []
        self.again: list[str] = []
        self.seconds_max = 0.0
        self._root = root
        self._commands = 0
        brokers.create(TOPIC, PARTITIONS)
        self.acknowledged = Acknowledged(brokers.address, TOPIC, seed)
        for partition in range(PARTITIONS):
            self._send(partition)
            self._send(partition)
        self._followers = [
            Follower(self.acknowledged, each, level)
            for each, level in enumerate(("read_committed", "read_uncommitted") * (PARTITIONS // 2))
        ]

    def step(self) -> str:
        """Let something happen to a partition that has something new, and read it meanwhile.

        Return what it was, and how long sending, copying and the act took.
        """
        began = time.monotonic()
        partition, *others = self.dice.sample(range(PARTITIONS), 3)
        self._send(partition)
        sent = time.monotonic()
        self._wait_until_copied(partition)
        copied = time.monotonic()
        acts = (
            (self.clean, "published swaps"), (self.clean_killed, "killed inside a step"),
            (self.collect_killed, "killed inside a step"), (self.collect, "collections"),
            (self.clean_under_change, "leaders of the topic changed"),
            (self.clean_frozen, ""), (self.restart, ""),
        )  # fmt: skip
        weights = [1 + LACKING_WEIGHT * self._lacking(name) for _, name in acts]
        ((act, _),) = self.dice.choices(acts, weights)
        with self._watched(partition):
            act(partition, others)
        self.counts["steps"] += 1
        ended = time.monotonic()
        return f"{act.__name__} {sent - began:.1f} + {copied - sent:.1f} + {ended - copied:.1f} s"

    def _lacking(self, name: str) -> float:
        """Return which share of what has to be reached is not there yet."""
        least = REACHED.get(name, 0)
        return max(least - self.counts[name], 0) / least if least else 0.0

    def clean(self, partition: int, others: list[int]) -> None:
        """Do rounds of all partitions, whatever was left, while others are written to."""
        process = self._start(*CLEAN)
        self._send_to(others)
        self._until_done(process, *CLEAN)

    def clean_killed(self, partition: int, others: list[int]) -> None:
        """Kill a round in a step."""
        process = self._killed(self.dice.choice(ROUND_STEPS), *CLEAN, "--partition", str(partition))
        self._send_to(others)
        self._judge_killed(process)

    def collect(self, partition: int, others: list[int]) -> None:
        """Collect everything that has waited for its grace."""
        process = self._start(*COLLECT)
        self._send_to(others)
        self._until_done(process, *COLLECT)

    def collect_killed(self, partition: int, others: list[int]) -> None:
        """Kill a collection, if there is anything to collect."""
        process = self._killed(self.dice.choice(COLLECTION_STEPS), *COLLECT)
        self._send_to(others)
        self._judge_killed(process)

    def clean_frozen(self, partition: int, others: list[int]) -> None:
        """Overtake a round that sleeps in a step, and wake it."""
        step = self.dice.choice(ROUND_STEPS)
        arguments = self._arguments(*CLEAN, "--partition", str(partition))
        process = AttachProcess(arguments, self._said(), (step, Act.FREEZE))
        wait_until(lambda: not process.is_alive or process.is_stopped, words=process.output)
        if not process.is_alive:
            return
        self._send_to(others)
        self._until_done(self._start(*CLEAN), *CLEAN)
        process.wake()
        process.wait(COMMAND_SECONDS)
        self.counts["overtaken in a step"] += 1

    def clean_under_change(self, partition: int, others: list[int]) -> None:
        """Let leaders change while rounds run; who led wakes up and believes that it leads."""
        at = self.brokers.metadata_partition(TOPIC, partition)
        process = self._start(*CLEAN)
        self.brokers.move_both_leaders(TOPIC, partition)
        self.counts["leaders of the topic changed"] += 1
        self.counts["leaders of the metadata topic changed"] += 1
        self.counts[f"of which of its partition {at}"] += 1
        self._send_to(others)
        self._until_done(process, *CLEAN)

    def restart(self, partition: int, others: list[int]) -> None:
        """Kill a broker while rounds run, and start it again."""
        for each in range(PARTITIONS):
            self.brokers.wait_for_replicas(TOPIC, each)
        broker = self.brokers.brokers[self.dice.choice(sorted(self.brokers.brokers))]
        process = self._start(*CLEAN)
        try:
            broker.kill()
            self._send_to(others)
            process.wait(COMMAND_SECONDS)
        finally:
            broker.start()
        self.counts["brokers killed"] += 1
        self._until_done(process, *CLEAN)

    def finish(self) -> None:
        """Let everything settle, and judge every partition, by followers and by ``verify`` too."""
        for partition in range(PARTITIONS):
            self.brokers.wait_for_replicas(TOPIC, partition)
            self.brokers.wait_until_remote(TOPIC, partition)
        for command in (CLEAN, ("verify",), ("collect", "--grace-ms", "0"), ("verify",)):
            self._until_done(self._start(*command), *command)
        for partition, follower in enumerate(self._followers):
            found = self.brokers.status(TOPIC, partition)
            assert ((), 0, 0) == (found.holes, found.copying.count, found.deleting.count)
            read = self.acknowledged.judge(partition, is_starting=True)
            self.counts["records read at the end"] += read
            self.counts["records read by followers"] += follower.stop()
        self.sample()

    def sample(self) -> None:
        """Note what there is, and what decisions were published."""
        client = ClusterClient(self.brokers.address)
        facts = client.read_facts([TOPIC])
        assert facts.metadata_topic is not None
        log = DecisionLog(open_database(self._store), SystemClock())
        try:
            rows = log.partitions(facts.cluster_id)
            self.counts["published swaps"] = sum(len(log.decisions(x, *_LIVE)) for x in rows)
        finally:
            log.close()
        objects = _sizes(self.brokers.remote)
        directories = [each.data for each in self.brokers.brokers.values()]
        self.samples.append(
            Sample(
                records=sum(self.acknowledged.count(each) for each in range(PARTITIONS)),
                objects=len(objects), remote=sum(objects),
                metadata_records=sum(
                    each.end - each.start for each in client.read_ranges(facts.metadata_topic)
                ),
                metadata=sum(
                    sum(_sizes(place))
                    for each in directories
                    for place in each.glob(f"{facts.metadata_topic.name}-*")
                ),
                brokers=sum(sum(_sizes(each)) for each in directories),
                broker_memory=sum(x.resident_bytes() for x in self.brokers.brokers.values()),
            )
        )  # fmt: skip

    def summary(self) -> str:
        """Return what was reached and what was not, and how what is kept has grown."""
        lines = [f"{name}: {self.counts[name]} of {least}" for name, least in REACHED.items()]
        lines += [f"{name}: {n}" for name, n in self.counts.items() if name not in REACHED]
        lines += [f"killed at {name}: {n}" for name, n in sorted(self.killed_at.items())]
        lines += [f"given again: {each}" for each in self.again]
        lines.append(f"longest read of a partition in both levels: {self.seconds_max:.1f} s")
        missed = [name for name, least in REACHED.items() if self.counts[name] < least]
        lines.append(f"not reached: {', '.join(missed) or 'nothing'}")
        return "\n".join([*lines, *map(str, self.samples)])

    @property
    def _store(self) -> str:
        return f"sqlite:///{self._root / 'decisions.db'}"

    @contextlib.contextmanager
    def _watched(self, partition: int) -> Iterator[None]:
        watch = Watch(self.acknowledged, partition)
        try:
            yield
        finally:
            self.counts["whole reads"] += watch.stop()
            self.seconds_max = max(self.seconds_max, watch.seconds_max)

    def _send_to(self, partitions: list[int]) -> None:
        for each in partitions:
            self._send(each)

    def _send(self, partition: int) -> None:
        self.acknowledged.go_on(partition, RECORDS)
        self.acknowledged.send_in_transactions(partition, TRANSACTIONS, owner=f"of-{partition}")

    def _wait_until_copied(self, partition: int) -> None:
        """Wait until the leader has the active segment alone: the others are remote then."""

        def is_copied() -> bool:
            leader = self.brokers.leader(TOPIC, partition)
            if leader == -1:
                return False
            folder = self.brokers.brokers[leader].data / f"{TOPIC}-{partition}"
            return len(list(folder.glob("*.log"))) == 1

        wait_until(is_copied, words=self.brokers.complaints)

    def _arguments(self, name: str, *more: str) -> list[str]:
        common = live_call(
            self.brokers.address, name, "--topic", TOPIC, "--decisions", self._store,
            "--storage", f"local:{self.brokers.remote}", "--json", *more,
        )  # fmt: skip
        return common if name == "verify" else [*common, "--take-over"]

    def _said(self) -> Path:
        self._commands += 1
        return self._root / f"said-{self._commands % 100}"

    def _start(self, name: str, *more: str) -> AttachProcess:
        return AttachProcess(self._arguments(name, *more), self._said())

    def _until_done(self, process: AttachProcess, name: str, *more: str) -> None:
        """Wait for a command, and give it again while leaders change under it."""
        for _ in range(ATTEMPTS_MAX):
            code, output = process.wait(COMMAND_SECONDS), process.output()
            if code == 0 or "nothing of that is attached" in output:
                break
            self.again.append(output.strip()[-300:])
            process = self._start(name, *more)
        else:
            raise AssertionError(f"{name} failed {ATTEMPTS_MAX} times. {output}")
        self.counts[f"{name} done"] += 1
        if name == "collect" and code == 0:
            rows = process.document()["partitions"]
            self.counts["collections"] += any(each["collected_segments"] for each in rows)
            self.counts["partitions collected"] += sum(x["collected_segments"] > 0 for x in rows)

    def _killed(self, step: Step, name: str, *more: str) -> AttachProcess:
        self._step = step
        return AttachProcess(self._arguments(name, *more), self._said(), (step, Act.KILL))

    def _judge_killed(self, process: AttachProcess) -> None:
        if process.wait(COMMAND_SECONDS) == -signal.SIGKILL:
            self.counts["killed inside a step"] += 1
            self.killed_at[self._step] += 1


def _sizes(root: Path) -> list[int]:
    """Return what files below ``root`` take on the disk; those that go meanwhile are left out."""
    found: list[int] = []
    for each in root.rglob("*"):
        with contextlib.suppress(OSError):
            if each.is_file():
                found.append(each.stat().st_blocks * BLOCK_BYTES)
    return found


def test_nothing_is_read_wrong(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    seed = int(pytestconfig.getoption("--soak-seed"))
    seconds = 60 * float(pytestconfig.getoption("--soak-minutes"))
    with TieredCluster(VERSION, tmp_path) as brokers:
        soak = Soak(brokers, tmp_path, seed)
        soak.sample()
        started = sampled = time.monotonic()
        while time.monotonic() - started < seconds:
            done = soak.step()
            if time.monotonic() - sampled > SAMPLED_SECONDS:
                sampled = time.monotonic()
                soak.sample()
            shown = {name: soak.counts[name] for name in REACHED}
            print(f"seed {seed}, {time.monotonic() - started:.0f} s: {done}; {shown}", flush=True)
        soak.finish()
        print(f"seed {seed}, {time.monotonic() - started:.0f} s, at the end:\n{soak.summary()}")
        assert soak.counts["published swaps"]
