"""``keeplast demo --tier``: a tiered log outlives its leaders, and a reader sees what was written.

Two hosts and a store in a temporary directory. One leader is killed in the middle of a round. The
next one is frozen in the middle of its own and wakes up as a zombie; a third ends the round. Ends
with 1 when a reader would not get exactly what was appended, or the store does not hold.
"""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from keeplast.cli.demo.hosts import (
    META,
    PARTITION,
    SETTINGS,
    Appender,
    LeaderProcess,
    demo_host,
    open_demo_store,
    read_as_consumer,
    replicate,
)
from keeplast.cli.frame import wiring
from keeplast.cli.frame.command import CHECK_FAILED, DONE
from keeplast.cli.frame.wiring import RunnerName
from keeplast.cli.show.output import print_result, say, screen_width
from keeplast.cli.show.picture import draw_tiers
from keeplast.host.partition_host import PartitionHost
from keeplast.model.text import format_bytes, format_count
from keeplast.tier.metadata.collection import Collected
from keeplast.tier.state.segment import SegmentKind

SEED = 1272
RECORDS, MORE_RECORDS = 40_000, 4_000
GROUPS_BEFORE_THE_KILL, GROUPS_BEFORE_THE_FREEZE = 2, 1
A, B = "host-a", "host-b"

Say = Callable[[str], None]
INDENT = "   "


class Interrupted(Struct, frozen=True):
    """A leader whose round did not end: what it had made live by then.

    ``was_cut_short`` False means that it was too fast to be caught in the middle.
    """

    host: str
    epoch: int
    was_cut_short: bool
    segments_cleaned: int


class Amount(Struct, frozen=True):
    """How much a reader, the object store, and the leader's disk hold."""

    records: int
    remote_bytes: int
    remote_segments: int
    local_bytes: int


class TierDemoOutcome(Struct, frozen=True):
    """How the demo ended."""

    appended: int
    transactions: int
    aborted: int
    before: Amount
    after: Amount
    killed: Interrupted
    frozen: Interrupted
    zombie: dict[str, str]
    replaced: Collected
    garbage: Collected
    wrong_keys: int
    keys: int
    findings: tuple[str, ...]

    @property
    def is_equal(self) -> bool:
        """True when a reader gets what was appended, and the store holds."""
        return not self.wrong_keys and not self.findings


def show_tier(runner: RunnerName, *, as_json: bool) -> tuple[int, dict[str, Any]]:
    """Run the demo; say the story while it happens."""

    def narrate(text: str) -> None:
        if not as_json:
            print_result(text)

    wiring.check_runner(runner, master=None)
    if runner is RunnerName.SPARK:
        say("three hosts start Spark, each its own; --runner local does without")
    with tempfile.TemporaryDirectory(prefix="keeplast-demo-") as scratch, ExitStack() as stack:
        outcome = _Story(Path(scratch), runner, narrate, stack).play()
    narrate(_closing(outcome))
    document = {
        "runner": str(runner), "equal": outcome.is_equal, **asdict(outcome),
    }  # fmt: skip
    return DONE if outcome.is_equal else CHECK_FAILED, document


class _Story:
    """The demo, chapter by chapter."""

    def __init__(self, root: Path, runner: RunnerName, narrate: Say, stack: ExitStack) -> None:
        self._root = root
        self._runner = runner
        self._narrate = narrate
        self._stack = stack
        self._source = Appender(SEED)
        self._store = stack.enter_context(open_demo_store(root, A))

    def play(self) -> TierDemoOutcome:
        """Play the demo from its first chapter to the end; return what came of it."""
        self._store.create(PARTITION, SETTINGS)
        # Both start their runner now, which takes the longest, and lead when they are asked to.
        self._a, self._b = self._process(A, 1), self._process(B, 2)
        before = self._append()
        killed = self._kill()
        frozen, zombie = self._freeze()
        host = self._replace()
        woken = self._wake(zombie)
        state, count = read_as_consumer(host)
        after = self._amount(host, count)
        self._picture("both tiers now", host)
        source = self._source
        keys = state.keys() | source.state.keys()
        replaced = self._store.collect(PARTITION)
        garbage = self._store.collect(PARTITION, garbage_age_ms=0)
        found = self._store.verify(PARTITION, lambda count: None)
        host.close()
        return TierDemoOutcome(
            source.records, source.transactions, source.aborted, before, after, killed, frozen,
            woken, replaced, garbage,
            sum(state.get(key) != source.state.get(key) for key in keys), len(source.state),
            tuple(f"{each.invariant}: {each.problem}" for each in found),
        )  # fmt: skip

    def _append(self) -> Amount:
        leader = demo_host(self._store, self._root, A)
        leader.become_leader(1)
        with open_demo_store(self._root, B) as other:
            follower = demo_host(other, self._root, B)
            self._source.append(leader, follower, RECORDS)
            follower.close()
        leader.copy()
        leader.retain_local()
        source = self._source
        _, count = read_as_consumer(leader)
        amount = self._amount(leader, count)
        self._narrate(
            f"1. {A} leads {PARTITION} at epoch 1, {B} follows\n"
            f"   {source.records:,} records appended and replicated, about "
            f"{len(source.state):,} keys; {source.transactions} transactions, "
            f"{source.aborted} of them aborted\n"
            "   closed segments are copied to object storage, the newest stay on the disk too\n"
        )
        self._picture("both tiers", leader)
        leader.close()
        return amount

    def _kill(self) -> Interrupted:
        """Let the leader clean in a process of its own, and kill that in the middle."""
        process = self._a
        process.go()
        was_cut = process.wait_until(lambda: self._count_cleaned(1) >= GROUPS_BEFORE_THE_KILL)
        process.send(signal.SIGKILL)
        process.end()
        made = self._count_cleaned(1)
        self._narrate(
            f"2. {A} cleans object storage ({self._runner})\n   "
            + (
                f"killed with SIGKILL in the middle: {made} of its cleaned segments live by then, "
                "the checkpoint is where it was\n"
                if was_cut
                else "it was done before it could be killed\n"
            )
        )
        return Interrupted(A, 1, was_cut, made)

    def _freeze(self) -> tuple[Interrupted, LeaderProcess]:
        """Let the follower take over and clean, and freeze it in the middle."""
        process = self._b
        process.go()
        was_cut = process.wait_until(lambda: self._count_cleaned(2) >= GROUPS_BEFORE_THE_FREEZE)
        process.freeze(self._root / META)
        made = self._count_cleaned(2)
        self._narrate(
            f"3. {B} leads at epoch 2 and goes on\n   "
            + (
                f"frozen with SIGSTOP in the middle, as by a long pause: {made} of its segments "
                "live by then\n"
                if was_cut
                else "it was done before it could be frozen\n"
            )
        )
        return Interrupted(B, 2, was_cut, made), process

    def _replace(self) -> PartitionHost:
        """Let the first host come back, catch up, lead, take more records and end the round."""
        host = demo_host(self._store, self._root, A, recovers=True)
        host.catch_up()
        host.become_leader(3)
        # The frozen host answers nothing: another one follows.
        with open_demo_store(self._root, "host-c") as other:
            follower = demo_host(other, self._root, "host-c")
            follower.restart(host.local_start)
            replicate(host, follower)
            self._source.append(host, follower, MORE_RECORDS)
            follower.close()
        host.copy()
        with wiring.open_runner(self._runner, master=None, cores=None) as started:
            report = host.clean(lambda files: nullcontext(started), force=True, grace_ms=0)
        host.retain_local()
        self._narrate(
            f"4. {A} is back and leads at epoch 3, with host-c behind it\n"
            f"   takes {MORE_RECORDS:,} more records and ends the round: "
            f"clean up to offset {report.end_offset:,}\n"
        )
        return host

    def _wake(self, zombie: LeaderProcess) -> dict[str, str]:
        """Let the frozen leader go on; return how it ended."""
        zombie.send(signal.SIGCONT)
        ended = zombie.wait()
        if "error" in ended:
            words = f"{ended['error']}: {ended['message']}"
        else:
            words = "it had ended before"
        self._narrate(f"5. {B} wakes up and wants to commit what it made\n   {words}\n")
        return ended

    def _process(self, name: str, epoch: int) -> LeaderProcess:
        process = LeaderProcess(self._root, name, epoch, self._runner)
        self._stack.callback(process.end)
        return process

    def _count_cleaned(self, epoch: int) -> int:
        """Return how many live segments the leader of ``epoch`` has cleaned."""
        return sum(
            each.kind is SegmentKind.CLEANED and each.leader_epoch == epoch
            for each in self._store.state(PARTITION).segments.values()
        )

    def _amount(self, host: PartitionHost, records: int) -> Amount:
        status = self._store.status(PARTITION, host.directory)
        return Amount(
            records, status.remote_bytes, len(self._store.state(PARTITION).routes),
            status.local_bytes or 0,
        )  # fmt: skip

    def _picture(self, words: str, host: PartitionHost) -> None:
        status = self._store.status(PARTITION, host.directory)
        picture = draw_tiers(status, screen=screen_width() - len(INDENT))
        drawn = "\n".join(f"{INDENT}{line}" for line in picture.splitlines())
        self._narrate(f"   {words}\n{drawn}\n")


def _closing(outcome: TierDemoOutcome) -> str:
    """Return the counts and the verdict."""
    before, after = outcome.before, outcome.after
    rows = [
        ("records and markers", format_count, before.records, after.records),
        ("bytes in object storage", format_bytes, before.remote_bytes, after.remote_bytes),
        ("segments there", format_count, before.remote_segments, after.remote_segments),
        ("bytes on the leader's disk", format_bytes, before.local_bytes, after.local_bytes),
    ]
    verdict = (
        f"equal: a reader of both tiers gets all {outcome.keys:,} keys as they were appended, and "
        "every invariant of the store holds"
        if outcome.is_equal
        else f"NOT EQUAL: {outcome.wrong_keys:,} keys differ; "
        + ("; ".join(outcome.findings) or "the store holds")
    )
    lines = [
        "                              before        after",
        *(f"   {name:<27}{shown(old):>12} -> {shown(new):>12}" for name, shown, old, new in rows),
        "",
        f"   replaced segments collected: {outcome.replaced.objects:,} objects, "
        f"{format_bytes(outcome.replaced.bytes)}",
        "   left by the killed and the overtaken leader, collected: "
        f"{outcome.garbage.objects:,} objects, {format_bytes(outcome.garbage.bytes)}",
        "",
        f"   {verdict}",
        "",
        "Next",
        "   take logs in    keeplast copy DATA_DIR sqlite:///meta.db --new --objects URL",
        "   copy more       keeplast copy DATA_DIR sqlite:///meta.db",
        "   keep it cleaned keeplast run sqlite:///meta.db",
    ]
    return "\n".join(lines)
