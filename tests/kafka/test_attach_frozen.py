"""``clean`` and ``collect`` of a live cluster are frozen at each step, overtaken, and wake.

As :mod:`tests.kafka.test_attach_kills`, but a process that sleeps comes back with everything that
it believed. What it does then changes nothing that brokers serve, and deletes no object.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kafka.broker import Broker
from tests.kafka.test_attach_kills import (
    VERSION,
    cleaning,
    command,
    compacted,
    filled,
    status,
    statuses,
    stored,
)
from tests.support.acknowledged import Acknowledged
from tests.support.attach_driver import COLLECTION_STEPS, ROUND_STEPS, Act, Step
from tests.support.attach_process import AttachProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kafka

PARTITIONS = len(ROUND_STEPS) + len(COLLECTION_STEPS)
COMMAND_SECONDS = 300
COLLECT = ("collect", "--grace-ms", "0")


BROKERS = (VERSION,)


@pytest.fixture(scope="module")
def acknowledged(broker: Broker) -> Acknowledged:
    return filled(broker, PARTITIONS)


def done(arguments: list[str], root: Path) -> AttachProcess:
    process = AttachProcess(arguments, root / "done")
    assert 0 == process.wait(COMMAND_SECONDS), process.output()
    return process


def freeze(arguments: list[str], root: Path, step: Step) -> AttachProcess:
    process = AttachProcess(arguments, root / "zombie", (step, Act.FREEZE))
    wait_until(
        lambda: process.is_alive and process.is_stopped,
        by=lambda: process.is_alive,
        words=process.output,
    )
    return process


def wake(process: AttachProcess) -> int:
    process.wake()
    return process.wait(COMMAND_SECONDS)


@pytest.mark.parametrize("step", ROUND_STEPS)
def test_a_round_that_slept_publishes_only_what_was_decided(
    broker: Broker, acknowledged: Acknowledged, step: Step, tmp_path: Path
) -> None:
    """AT-7, AT-9, Z1, Z2: frozen, overtaken by another round, and awake again."""
    partition = ROUND_STEPS.index(step)
    zombie = freeze(cleaning(broker, partition), tmp_path, step)
    done(cleaning(broker, partition, "--take-over"), tmp_path)
    read, before = compacted(acknowledged, partition), status(broker, partition)
    assert before.compacted.count
    assert 0 < wake(zombie), zombie.output()
    after = status(broker, partition)
    assert (before.served, before.compacted, before.holes) == (
        after.served, after.compacted, after.holes,
    )  # fmt: skip
    assert read == acknowledged.judge(partition)
    done(cleaning(broker, partition), tmp_path)
    assert 0 == status(broker, partition).copying.count
    assert read == acknowledged.judge(partition)


@pytest.mark.parametrize("step", COLLECTION_STEPS)
def test_a_collection_that_slept_deletes_nothing(
    broker: Broker, acknowledged: Acknowledged, step: Step, tmp_path: Path
) -> None:
    """AT-6: another one has collected everything meanwhile."""
    partition = len(ROUND_STEPS) + COLLECTION_STEPS.index(step)
    done(cleaning(broker, partition), tmp_path)
    read = compacted(acknowledged, partition)
    zombie = freeze(command(broker, *COLLECT), tmp_path, step)
    rows = done(command(broker, *COLLECT, "--take-over"), tmp_path).document()["partitions"]
    assert {0} == {each["waiting"] for each in rows}
    objects, before = stored(broker), statuses(broker)
    assert 0 < wake(zombie), zombie.output()
    assert objects == stored(broker)
    assert [each.served for each in before] == [each.served for each in statuses(broker)]
    assert read == acknowledged.judge(partition)


def test_nothing_is_left_over(broker: Broker, acknowledged: Acknowledged) -> None:
    """Of rounds and collections that slept."""
    found = statuses(broker)
    assert [(0, 0, 0)] * PARTITIONS == [
        (each.copying.count, each.deleting.count, each.hidden.count) for each in found
    ]
    assert sum(each.served.count for each in found) == stored(broker)
    for partition in range(PARTITIONS):
        acknowledged.judge(partition)
