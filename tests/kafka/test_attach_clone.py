"""A cluster that was cloned, and runs next to the first one over the same remote tier.

Both have the same cluster id, topic ids and history; their brokers know nothing of each other. Who
compacts the first one goes on; whatever is tried on the clone is refused and deletes nothing. What
consumers read of either is judged by what was acknowledged (:mod:`tests.support.acknowledged`).
3.9.1: a broker of 4.x gives no client the small size by which it rolls.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import replace

from tests.kafka.broker import Broker, tier_settings, tiered_broker
from tests.kafka.test_attach import create
from tests.kafka.test_attach_rounds import wait_until_remote
from tests.support.acknowledged import Acknowledged
from tests.support.attach_process import AttachProcess
from tests.support.live_call import live_call
from tests.support.live_rounds import LiveCompactor
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kafka

VERSION = "3.9.1"
TOPIC = "cloned"
RECORDS = 3000
REFUSED = 4
COMMAND_SECONDS = 300
CLEAN = ("clean", "--despite", "dirty-ratio", "--cores", "1")
COLLECT = ("collect", "--grace-ms", "0")
REBUILD = ("repair", "--rebuild", "--grace-ms", "86400000")
OWN_LOG = ("another decision log owns the partition", "that this decision log does not know")
COPIED_LOG = ("is not the one that was seen before", "the log is an older one")
REBUILT = ("segments that this cluster never heard of", "a compactor was at work here a moment ago")
"""Why it is refused: on a clone that was made before the first round, and behind it."""


class Compacting(Struct, frozen=True):
    """Who compacts the topic of a cluster by a decision log, whose file is ``store``."""

    broker: Broker
    store: Path
    remote: Path

    def command(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        """Run a command; return its exit code and what it says."""
        process = AttachProcess(
            live_call(
                self.broker.address, *arguments, "--topic", TOPIC, "--decisions",
                f"sqlite:///{self.store}", "--storage", f"local:{self.remote}", "--json",
            ),
            self.broker.root / "said",
        )  # fmt: skip
        code = process.wait(COMMAND_SECONDS)
        return code, process.document()

    def done(self, *arguments: str) -> None:
        """Run a command that has to succeed."""
        code, document = self.command(*arguments)
        assert 0 == code, document

    def refused(self, *arguments: str) -> str:
        """Run a command that is refused; return what it says."""
        code, document = self.command(*arguments)
        assert REFUSED == code, document
        return json.dumps(document)


class Original(Struct, frozen=True):
    """The cluster that was there first, and what its producers got acknowledged."""

    broker: Broker
    acknowledged: Acknowledged
    compacting: Compacting

    def clone(self, root: Path) -> Broker:
        """Return a copy of the cluster, ready to start; the first one goes on."""
        self.broker.stop()
        shutil.copytree(self.broker.data, root / "data")
        self.broker.start()
        self.acknowledged.judge(0, is_starting=True)
        return Broker(VERSION, root, tier_settings(VERSION, self.broker.root))

    def fill(self) -> None:
        """Write, and wait until brokers have copied it."""
        self.acknowledged.send(0, RECORDS)
        self.acknowledged.send_in_transactions(0, 6)
        broker = self.broker
        looking = LiveCompactor(broker.address, broker.root / "look.db", broker.root / "remote")
        wait_until_remote(broker, looking, TOPIC)

    def wait_until_compacted(self) -> None:
        """Wait until the broker has heard of a swap."""
        limit = 0.7 * self.acknowledged.count(0)
        wait_until(lambda: self.acknowledged.judge(0) < limit)

    def objects(self) -> dict[Path, bytes]:
        """Return what is in the remote tier, keeplast's own objects too."""
        remote = self.compacting.remote
        return {path: path.read_bytes() for path in remote.rglob("*") if path.is_file()}


@pytest.fixture
def original(tmp_path: Path) -> Iterator[Original]:
    root = tmp_path / "original"
    with tiered_broker(VERSION, root) as broker:
        create(broker, TOPIC, 1)
        compacting = Compacting(broker, root / "decisions.db", root / "remote")
        yield Original(broker, Acknowledged(broker.address, TOPIC), compacting)


def test_whatever_is_tried_on_a_clone_is_refused_and_deletes_nothing(
    original: Original, tmp_path: Path
) -> None:
    """AT-30: cloned before the first round, and behind one whose sources wait for collection.

    By a decision log of its own, and by a copy of the other one's as of the swap.
    """
    original.fill()
    for number, name in enumerate(("before", "behind")):
        with original.clone(tmp_path / name) as clone:
            of_clone = dataclasses.replace(original.acknowledged, address=clone.address)
            of_clone.judge(0, is_starting=True)
            own = replace(original.compacting, broker=clone, store=clone.root / "own.db")
            copied = replace(own, store=clone.root / "copied.db")
            if number == 0:
                original.compacting.done(*CLEAN)
                original.wait_until_compacted()
            shutil.copy(original.compacting.store, copied.store)
            if number == 1:
                # Who goes on with the first cluster is known by the owner object.
                original.compacting.done("repair")
            before = original.objects()
            assert OWN_LOG[number] in own.refused(*CLEAN)
            for command in (CLEAN, COLLECT, ("repair",)):
                assert COPIED_LOG[number] in copied.refused(*command)
            assert REBUILT[number] in own.refused(*REBUILD)
            assert before == original.objects()
            of_clone.judge(0, is_starting=True)
            original.acknowledged.judge(0)
    original.compacting.done(*COLLECT)
    assert original.objects().keys() < before.keys()
    original.acknowledged.judge(0)
