"""Two hosts under load for a while: appends, readers, rounds, expiry, collection, kills, sleeps.

The driver is the network between two host processes and knows everything that was written. It lets
one of them do something, often lets the other read meanwhile, and now and then kills or freezes one
in the middle of it; then the other one leads. Every read is compared with what was written, and
what the hosts hold is measured.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
import time
from dataclasses import dataclass, field
from pathlib import Path

from keeplast.errors import UnavailableError
from keeplast.model.partition import TopicPartition
from keeplast.tier.objects.object_store import partition_prefix
from keeplast.tier.objects.stores import open_objects
from tests.support.host_process import Entry, HostProcess, Member, Outcome, Place

TOPIC_ID = "7" * 32
KEYS, UPDATES = 200, 20
"""Keys that are written at a time, and how often on average before retention may have them."""
SETTINGS = {
    "cleanup.policy": "compact,delete",
    "segment.bytes": str(16 << 10),
    "retention.ms": "20000",
    "local.retention.ms": "5000",
    "delete.retention.ms": "15000",
}
GARBAGE_AGE_MS = 5000
ACTS_LEAST = 200
IDLE_MS = 5000
"""After so long the server ends a session; a host that is only slow is quicker."""
FENCED = {"FencedError", "RefusedError", "ConflictError", "UnavailableError"}
Found = list[tuple[int, bytes | None, bytes | None]]


@dataclass
class Counts:
    """What happened, and the most that was ever held."""

    records: int = 0
    reads: int = 0
    records_read: int = 0
    rounds: int = 0
    follower_passes: int = 0
    segments_copied: int = 0
    segments_expired: int = 0
    objects_collected: int = 0
    kills: int = 0
    leader_changes: int = 0
    sleeps: int = 0
    refused_late: int = 0
    local_bytes_max: int = 0
    remote_bytes_max: int = 0
    objects_max: int = 0
    resident_bytes_max: int = 0
    resident_bytes_after_a_minute: int = 0
    seconds: float = 0.0
    during: dict[str, int] = field(default_factory=dict)


class Soak:
    """The driver. ``a`` leads first."""

    def __init__(self, place: Place, seed: int) -> None:
        """Start both hosts."""
        self.place = place
        self.counts = Counts()
        self._dice = random.Random(seed)
        self._written: list[tuple[bytes, bytes | None]] = []
        self._acknowledged = 0
        self._epoch = 0
        self._began = time.monotonic()
        looker = Member(place, "looker")
        looker.store.create(place.partition, TOPIC_ID, log_start=0, settings=place.settings)
        looker.close()
        self._objects = open_objects(place.objects, place.options)
        self._leader, self._follower = HostProcess(place, "a"), HostProcess(place, "b")
        self._names = {id(self._leader): "a", id(self._follower): "b"}
        self._leader.call("lead", 0)
        self._follower.call("follow", 0)

    def run(self, seconds: float) -> Counts:
        """Go on for ``seconds``, then look at everything once more."""
        acts = [
            (self._append, 8), (self._copy, 5), (self._clean, 4), (self._expire, 2),
            (self._collect, 2), (self._clean_follower, 1), (self._read, 3), (self._kill, 3),
            (self._sleep, 1),
        ]  # fmt: skip
        weights = [weight for _, weight in acts]
        try:
            for done in itertools.count():
                is_over = time.monotonic() - self._began >= seconds
                has_seen = min(self.counts.reads, self.counts.kills) > 0
                # A slow machine does little in that time.
                if is_over and (has_seen or done >= ACTS_LEAST):
                    break
                (act,) = self._dice.choices([act for act, _ in acts], weights)
                act()
                self._measure()
            self._end()
        finally:
            self._leader.kill()
            self._follower.kill()
        self.counts.seconds = time.monotonic() - self._began
        return self.counts

    # What users do.

    def _append(self) -> None:
        now_ms = time.time_ns() // 1_000_000
        base = len(self._written)
        batches: list[list[Entry]] = []
        for _ in range(self._dice.randint(1, 30)):
            entries: list[Entry] = []
            for _ in range(self._dice.randint(1, 20)):
                number = base + sum(map(len, batches)) + len(entries)
                key = b"key %d" % (number // UPDATES + self._dice.randrange(KEYS))
                value = None if self._dice.random() < 0.1 else b"%d " % number * 8
                entries.append((key, value, now_ms))
            batches.append(entries)
        self._leader.send("append_batches", batches)
        self._appended(self._leader.outcome(), batches)
        self._replicate()

    def _appended(self, outcome: Outcome, batches: list[list[Entry]]) -> None:
        assert outcome.error is None, outcome
        self._written += [(key, value) for batch in batches for key, value, _ in batch]
        assert outcome.value == len(self._written)
        self.counts.records = len(self._written)

    def _replicate(self) -> None:
        """Bring the follower to the leader's end and acknowledge."""
        end = int(self._leader.call("end"))
        log_start = self._leader.call("log_start")
        at = int(self._follower.call("end"))
        if at < log_start:
            at = int(self._follower.call("catch_up"))
        while at < end:
            data, _ = self._leader.call("fetch", at)
            at = int(self._follower.call("replicate", data, self._acknowledged, log_start))
        self._leader.call("acknowledge", end)
        self._acknowledged = end

    def _read(self) -> None:
        self._begin_read(self._follower)
        self._finish_read(self._follower)

    def _begin_read(self, reader: HostProcess) -> None:
        reader.send("read")

    def _finish_read(self, reader: HostProcess) -> None:
        outcome = reader.outcome()
        if outcome.error == "InvalidError" and "out of range" in outcome.text:
            return  # Retention overtook the reader, as a broker reports to a consumer.
        assert outcome.error is None, outcome
        self._check(outcome.value, int(reader.call("log_start")), int(reader.call("end")))

    def _check(self, found: Found, log_start: int, end: int) -> None:
        """AssertionError for a record that was never written, or a value that is not the newest."""
        offsets = [offset for offset, _, _ in found]
        assert offsets == sorted(set(offsets))
        for offset, key, value in found:
            assert (key, value) == self._written[offset], offset
        values = {key: value for _, key, value in found}
        for key, value in dict(self._written[log_start:end]).items():
            assert values.get(key) == value, key
        self.counts.reads += 1
        self.counts.records_read += len(found)

    # What the leader does, while the follower is read from.

    def _lead(self, method: str, *args: object) -> Outcome:
        reads = self._dice.random() < 0.5
        self._leader.send(method, *args)
        if reads:
            self._begin_read(self._follower)
            self._finish_read(self._follower)
        outcome = self._leader.outcome()
        assert outcome.error is None, (method, outcome)
        return outcome

    def _copy(self) -> None:
        self._leader.call("roll")
        self.counts.segments_copied += self._lead("copy").value
        for host in (self._leader, self._follower):
            host.call("retain_local")

    def _clean(self) -> None:
        self.counts.rounds += bool(self._lead("clean").value)

    def _clean_follower(self) -> None:
        self.counts.follower_passes += bool(self._follower.call("clean"))

    def _expire(self) -> None:
        self.counts.segments_expired += self._lead("expire").value

    def _collect(self) -> None:
        self.counts.objects_collected += self._lead("collect", GARBAGE_AGE_MS).value[1]

    # What goes wrong.

    def _begin_something(self) -> str:
        method = self._dice.choice(["copy", "clean", "clean", "expire", "collect", "roll"])
        self._leader.send(method)
        time.sleep(self._dice.random() * self._dice.choice([0.02, 0.2]))
        self.counts.during[method] = self.counts.during.get(method, 0) + 1
        return method

    def _kill(self) -> None:
        """Kill either host, most often the leader in the middle of something."""
        self.counts.kills += 1
        if self._dice.random() < 0.3:
            victim = self._follower
            victim.send("clean")
            time.sleep(self._dice.random() * 0.1)
            victim.kill()
            self._follower = self._restart(victim)
            self._rejoin()
            return
        self._begin_something()
        self._leader.kill()
        victim = self._leader
        self._change_leader()
        self._follower = self._restart(victim)
        self._rejoin()

    def _restart(self, victim: HostProcess) -> HostProcess:
        made = HostProcess(self.place, self._names[id(victim)])
        self._names[id(made)] = self._names[id(victim)]
        return made

    def _sleep(self) -> None:
        """Freeze the leader in the middle of something; it wakes up when another one leads."""
        self.counts.sleeps += 1
        self._begin_something()
        self._leader.freeze()
        zombie = self._leader
        try:
            self._change_leader()
            self._append_alone()
        finally:
            zombie.wake()
        outcome = zombie.outcome()
        # Asleep for long in the commit of a deletion, which has no id, it finds its session ended.
        assert outcome.error in FENCED | {"CommitUnknownError", None}, outcome
        self.counts.refused_late += outcome.error is not None
        zombie.send("copy")
        late = zombie.outcome()
        assert (late.error, late.value) in [("FencedError", None), (None, 0)], late
        self._follower = zombie
        self._rejoin()

    def _append_alone(self) -> None:
        now_ms = time.time_ns() // 1_000_000
        batches: list[list[Entry]] = [[(b"key 0", b"by the new leader", now_ms)]]
        self._leader.send("append_batches", batches)
        self._appended(self._leader.outcome(), batches)

    def _change_leader(self) -> None:
        """Let the follower lead; what was not replicated to it was never acknowledged."""
        self._epoch += 1
        self.counts.leader_changes += 1
        leader = self._follower
        end = int(leader.call("end"))
        assert end >= self._acknowledged
        del self._written[end:]
        leader.send("lead", self._epoch)
        outcome = leader.outcome()
        while outcome.error == UnavailableError.__name__:  # A frozen transaction holds the row.
            leader.send("lead", self._epoch)
            outcome = leader.outcome()
        assert outcome.error is None, outcome
        self._leader = leader

    def _rejoin(self) -> None:
        self._follower.call("follow", self._epoch)
        lineage, end = self._leader.call("lineage"), self._leader.call("end")
        self._follower.call("truncate_to", lineage, end)
        self._replicate()

    # What is held.

    def _measure(self) -> None:
        c = self.counts
        c.local_bytes_max = max(
            c.local_bytes_max, *(h.call("local_bytes") for h in (self._leader, self._follower))
        )
        prefix = partition_prefix(self.place.partition, TOPIC_ID)
        sizes = [found.size_bytes for found in self._objects.list(prefix)]
        c.remote_bytes_max = max(c.remote_bytes_max, sum(sizes))
        c.objects_max = max(c.objects_max, len(sizes))
        resident = max(h.peak_bytes() for h in (self._leader, self._follower))
        c.resident_bytes_max = max(c.resident_bytes_max, resident)
        if time.monotonic() - self._began < 60:
            c.resident_bytes_after_a_minute = c.resident_bytes_max

    def _end(self) -> None:
        """AssertionError unless all of it is sound, read the same on both hosts, and tidy."""
        self._copy()
        self._clean()
        self._replicate()
        for host in (self._leader, self._follower):
            self._begin_read(host)
            self._finish_read(host)
        looker = Member(self.place, "looker")
        assert () == looker.tiered.verify(self.place.partition, lambda count: None)
        time.sleep(GARBAGE_AGE_MS / 1000 + 1)
        self._collect()
        state = looker.store.load(self.place.partition)
        live = set(state.segments)
        prefix = partition_prefix(self.place.partition, TOPIC_ID)
        assert live == {found.key.split("/")[-2] for found in self._objects.list(prefix)}
        looker.close()


def place_for(
    database: str, objects: str, root: Path, place_settings: dict[str, str], options: dict[str, str]
) -> Place:
    """Return the place of a soak; PostgreSQL ends a frozen transaction after ``IDLE_MS``."""
    limit = f"?options=-c%20idle_in_transaction_session_timeout%3D{IDLE_MS}"
    return Place(
        database + limit, objects, root, TopicPartition("soak", 0), place_settings, options
    )


def described(counts: Counts) -> str:
    """Return the counts as lines."""
    return "\n".join(f"{name}: {value}" for name, value in dataclasses.asdict(counts).items())
