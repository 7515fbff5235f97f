"""``clean`` of a live cluster on Spark with speculation on, killed or frozen at its steps.

As :mod:`tests.kafka.test_attach_kills`, but each output is written by two attempts side by side,
in processes on two hosts that do not end with their driver: a slow task waits until Spark has begun
another attempt at it. What comes of tasks that die themselves is in ``tests/spark``.

By ``make test-attach-cluster``, where ``LONG=`` does not leave it out: it takes minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kafka.broker import Broker
from tests.kafka.test_attach_kills import (
    VERSION,
    are_remote,
    command,
    compacted,
    done,
    filled,
    freeze,
    kill,
    status,
    statuses,
    stored,
    wake,
)
from tests.support.acknowledged import Acknowledged
from tests.support.attach_driver import ROUND_STEPS, Step
from tests.support.cluster_driver import FAULT
from tests.support.cluster_faults import Act, Fault, Moment, Stage
from tests.support.spark_cluster import (
    SETTINGS,
    SPECULATION,
    Cluster,
    source_environment,
    standalone_cluster,
)
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.cluster, pytest.mark.slow]

STEPS = tuple(each for each in ROUND_STEPS if each is not Step.LOG_WRITTEN)
"""Those of the driver; logs are written by tasks."""
FROZEN = len(STEPS)
PARTITIONS = FROZEN + 1
RECORDS = 3000


BROKERS = (VERSION,)


@pytest.fixture(scope="module")
def acknowledged(broker: Broker) -> Acknowledged:
    return filled(broker, PARTITIONS)


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    root = tmp_path_factory.mktemp("spark")
    lines = [f"{name} {value}" for name, value in (SETTINGS | SPECULATION).items()]
    (root / "spark-defaults.conf").write_text("\n".join(lines))
    with pytest.MonkeyPatch.context() as patch, standalone_cluster(root) as cluster:
        for name in ("PYTHONPATH", "SPARK_LOCAL_IP"):
            patch.setenv(name, source_environment()[name])
        patch.setenv("SPARK_CONF_DIR", str(root))
        yield cluster


def on_spark(broker: Broker, spark: Cluster, partition: int, *more: str) -> list[str]:
    asked = ("--partition", str(partition), "--despite", "dirty-ratio", "--master", spark.master)
    return command(broker, "clean", *asked, "--shape", "partition", *more)


def slow_task(root: Path, patch: pytest.MonkeyPatch) -> Fault:
    """Let the next driver's first attempt wait until there is another one."""
    root.mkdir()
    patch.setenv(FAULT, f"{Stage.WHOLE} {Moment.BEFORE} {Act.WAIT} {root}")
    return Fault(Stage.WHOLE, Moment.BEFORE, Act.WAIT, root)


@pytest.mark.parametrize("step", STEPS)
def test_readers_get_the_same_when_the_driver_is_killed(
    broker: Broker, acknowledged: Acknowledged, spark: Cluster, step: Step, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """AT-2, AT-3, AT-4, AT-5, AT-34: two attempts have written, and one is decided at most."""
    partition = STEPS.index(step)
    with monkeypatch.context() as patch:
        fault = slow_task(tmp_path / "fault", patch)
        kill(on_spark(broker, spark, partition), step)
    assert step is Step.CLAIMED or 2 <= len(fault.attempts())
    if step in (Step.PUBLISHED, Step.SETTLED):
        compacted(acknowledged, partition)
    else:
        assert acknowledged.judge(partition) > acknowledged.count(partition) * 0.7
    done(on_spark(broker, spark, partition))
    compacted(acknowledged, partition)
    found = status(broker, partition)
    assert (0, ()) == (found.copying.count, tuple(found.holes))
    assert found.compacted.count


def test_a_driver_that_slept_publishes_only_what_was_decided(
    broker: Broker, acknowledged: Acknowledged, spark: Cluster, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """AT-7, AT-9: overtaken by another round on the same cluster."""
    with monkeypatch.context() as patch:
        slow_task(tmp_path / "fault", patch)
        zombie = freeze(on_spark(broker, spark, FROZEN), Step.ANNOUNCED)
    done(on_spark(broker, spark, FROZEN, "--take-over"))
    served, read = status(broker, FROZEN).served, compacted(acknowledged, FROZEN)
    assert 0 < wake(zombie)
    assert served == status(broker, FROZEN).served
    assert read == acknowledged.judge(FROZEN)


def test_nothing_of_any_attempt_is_left(broker: Broker, acknowledged: Acknowledged) -> None:
    """C2: the next round of each partition has removed what the attempts before it left."""
    for partition in range(PARTITIONS):
        acknowledged.send(partition, RECORDS)
    wait_until(lambda: are_remote(broker, range(PARTITIONS)))
    done(command(broker, "clean", "--despite", "dirty-ratio", "--cores", "1"))
    done(command(broker, "collect", "--grace-ms", "0"))
    found = statuses(broker)
    assert [(0, 0, 0)] * PARTITIONS == [
        (each.copying.count, each.deleting.count, each.hidden.count) for each in found
    ]
    assert sum(each.served.count for each in found) == stored(broker)
    for partition in range(PARTITIONS):
        compacted(acknowledged, partition)
