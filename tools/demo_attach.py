"""``make demo-attach``: a tiered topic of a real broker is compacted where it lies, and read.

Starts a broker with Kafka's own file-system tier in a temporary directory (its jars come by Maven,
once), and ends with 1 when a reader got anything but the last value of each key. Nothing is
installed on the broker, and nothing of it is stopped but once, at the end, to start it again.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from confluent_kafka import KafkaException, Producer  # noqa: E402 - after the path is set
from confluent_kafka.admin import AdminClient, NewTopic  # noqa: E402

from keeplast.model.text import format_bytes, format_count  # noqa: E402
from tests.kafka.broker import VERSIONS, tiered_broker  # noqa: E402
from tests.support.live_call import live_call  # noqa: E402
from tests.support.live_rounds import LiveCompactor, consume  # noqa: E402
from tests.support.waiting import wait_until  # noqa: E402

TOPIC = "states"
KEYS, RECORDS, VALUE_BYTES = 1500, 70_000, 1000
SEGMENT_BYTES = 1 << 20
SHARE_MAX = 0.1
SETTINGS = {
    "remote.storage.enable": "true", "cleanup.policy": "delete", "retention.ms": "-1",
    "retention.bytes": "-1", "local.retention.bytes": "1", "segment.bytes": str(SEGMENT_BYTES),
}  # fmt: skip
State = dict[bytes | None, bytes]


class Demo:
    """The story, step by step."""

    def __init__(self, root: Path, version: str, runner: str) -> None:
        """Start nothing yet."""
        self._root = root
        self._runner = runner
        self.broker = tiered_broker(version, root)

    @contextmanager
    def _tiered(self) -> Iterator[State]:
        """Let the broker run with a topic that is in its remote tier, and give the state sent."""
        with self.broker:
            say(f"a broker of Kafka {self.broker.version} runs with a remote tier")
            sent = self._produce()
            compactor = LiveCompactor(
                self.broker.address, self._root / "decisions.db", self._root / "remote"
            )
            self._wait_until_remote(compactor)
            yield sent

    def stay(self) -> None:
        """Leave the rounds to the reader, until Ctrl-C."""
        with self._tiered() as sent:
            self._show("before", sent)
            say("try it by hand in another terminal; Ctrl-C here ends the broker")
            address = f"kafka://{self.broker.address}"
            print("keeplast place add demo", address, " ".join(self._places()), flush=True)
            with suppress(KeyboardInterrupt):
                signal.pause()

    def play(self) -> bool:
        """Play it; False when a reader got something else than it must."""
        with self._tiered() as sent:
            before = self._show("before", sent)
            self._run("place", "check", f"kafka://{self.broker.address}", "--topic", TOPIC)
            self._keeplast("plan", *self._places())
            with self._readers() as reads:
                self._keeplast(
                    "clean", *self._places(), "--despite", "dirty-ratio", "--runner", self._runner
                )
                say("a grace of nothing is for this demo alone")
                self._keeplast("collect", *self._places(), "--grace-ms", "0")
            say(f"a consumer read the topic {reads.whole} times meanwhile, {reads.wrong} errors")
            after = self._show("after", sent)
            self.broker.stop()
            self.broker.start()
            say("the broker was restarted")
            self._wait_until_ready()
            again = self._show("after the restart", sent)
        share = after[1] / before[1]
        say(f"{share:.1%} of the bytes, and the same state")
        states = all(each[0] for each in (before, after, again))
        return states and not reads.wrong and share <= SHARE_MAX

    def _produce(self) -> State:
        admin = AdminClient({"bootstrap.servers": self.broker.address})
        created = admin.create_topics([NewTopic(TOPIC, 1, 1, config=SETTINGS)])
        created[TOPIC].result(60)
        dice = random.Random(1272)
        producer = Producer({"bootstrap.servers": self.broker.address, "linger.ms": 20})
        state: State = {}
        for number in range(RECORDS):
            key = b"key-%d" % dice.randrange(KEYS)
            value = b"%d-" % number + dice.randbytes(VALUE_BYTES)
            state[key] = value
            while True:
                try:
                    producer.produce(TOPIC, key=key, value=value, partition=0)
                    break
                except BufferError:
                    producer.poll(0.1)
        if producer.flush(120):
            raise SystemExit("the broker did not take all records")
        say(f"{format_count(RECORDS)} records of {format_count(KEYS)} keys are produced")
        return state

    def _wait_until_remote(self, compactor: LiveCompactor) -> None:
        def is_remote() -> bool:
            found = compactor.status(TOPIC)
            local = list((self.broker.data / f"{TOPIC}-0").glob("*.log"))
            return len(local) == 1 and found.served.count > 1 and not found.copying.count

        wait_until(is_remote, words=lambda: "\n".join(self.broker.lines("ERROR", "WARN")))
        say("all but the active segment is in the remote tier, and nowhere else")

    def _wait_until_ready(self) -> None:
        def is_ready() -> bool:
            try:
                return bool(consume(self.broker.address, TOPIC, limit=1))
            except KafkaException:
                return False

        wait_until(is_ready, words=lambda: "\n".join(self.broker.lines("ERROR", "WARN")))

    def _show(self, when: str, sent: State) -> tuple[bool, int]:
        """Show what a consumer reads and what is stored; say whether the state is what was sent."""
        records = consume(self.broker.address, TOPIC)
        state = {each.key: each.value for each in records}
        stored = [path.stat().st_size for path in (self._root / "remote").rglob("*.log")]
        verdict = "the last value of every key" if state == sent else "NOT what was sent"
        say(
            f"{when}: a consumer reads {format_count(len(records))} records, {verdict}; "
            f"{format_count(len(stored))} objects, {format_bytes(sum(stored))}"
        )
        return state == sent, sum(stored)

    def _places(self) -> list[str]:
        return [
            "--decisions", f"sqlite:///{self._root / 'decisions.db'}",
            "--storage", f"local:{self._root / 'remote'}",
        ]  # fmt: skip

    def _keeplast(self, verb: str, *more: str) -> None:
        self._run(*live_call(self.broker.address, verb, "--topic", TOPIC, *more))

    def _run(self, *arguments: str) -> None:
        say("$ keeplast " + " ".join(arguments).replace(str(self._root), "DIR"))
        done = subprocess.run([sys.executable, "-m", "keeplast", *arguments], check=False)
        if done.returncode:
            raise SystemExit(f"keeplast ended with {done.returncode}")

    @contextmanager
    def _readers(self) -> Iterator[Reads]:
        """Let a consumer read the topic from its beginning, again and again, until the end."""
        reads, stopping = Reads(), threading.Event()

        def read() -> None:
            while not stopping.is_set():
                try:
                    consume(self.broker.address, TOPIC)
                    reads.whole += 1
                except (KafkaException, AssertionError) as error:
                    reads.wrong += 1
                    say(f"a reader failed: {error}")

        thread = threading.Thread(target=read)
        thread.start()
        try:
            yield reads
        finally:
            stopping.set()
            thread.join()


class Reads:
    """How often the topic was read whole, and how often that failed."""

    def __init__(self) -> None:
        """Begin with none."""
        self.whole = 0
        self.wrong = 0


def say(text: str) -> None:
    """Say what happens, and when."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def main() -> int:
    """Run the demo."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runner", default="spark", choices=("spark", "local"))
    parser.add_argument("--kafka", default=VERSIONS[-1], choices=VERSIONS)
    parser.add_argument("--stay", action="store_true", help="leave the rounds to you, until Ctrl-C")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="keeplast-demo-") as scratch:
        demo = Demo(Path(scratch), asked.kafka, asked.runner)
        if asked.stay:
            demo.stay()
            return 0
        return 0 if demo.play() else 1


if __name__ == "__main__":
    sys.exit(main())
