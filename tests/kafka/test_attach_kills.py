"""``clean`` and ``collect`` of a live cluster are killed at each of their steps.

One real broker, and real processes that meet SIGKILL at a named step
(:mod:`tests.support.attach_driver`); those that sleep are in :mod:`tests.kafka.test_attach_frozen`.
What consumers read is judged by what was acknowledged (:mod:`tests.support.acknowledged`),
before anything is repaired and after it. 3.9.1: a broker of 4.x gives no client the small size
by which it rolls, and the command's margin would be all of the log.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from keeplast.cluster.client import ClusterClient
from keeplast.cluster.layouts.local_storage import SEGMENTS
from keeplast.cluster.metadata_cache import RemotePartitionStatus, name_of, partition_status
from keeplast.cluster.metadata_log import fold_metadata
from tests.kafka.broker import Broker
from tests.kafka.test_attach import SEGMENT_BYTES, WAIT_SECONDS
from tests.support.acknowledged import Acknowledged
from tests.support.attach_driver import (
    COLLECTION_STEPS,
    ROUND_STEPS,
    Act,
    Step,
    environment,
)
from tests.support.live_call import live_call
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kafka

VERSION = "3.9.1"
TOPIC = "killed"
CUT = len(ROUND_STEPS)
"""The partition whose beginning is deleted."""
PARTITIONS = CUT + 1
RECORDS = 3000
WRONG_USE, REFUSED = 2, 4


BROKERS = (VERSION,)


@pytest.fixture(scope="module")
def acknowledged(broker: Broker) -> Acknowledged:
    return filled(broker, PARTITIONS)


def filled(broker: Broker, partitions: int) -> Acknowledged:
    """Make the topic, write to each partition, and wait until brokers have copied it."""
    config = {
        "remote.storage.enable": "true", "cleanup.policy": "delete", "retention.ms": "-1",
        "retention.bytes": "-1", "local.retention.bytes": "1", "segment.bytes": SEGMENT_BYTES,
    }  # fmt: skip
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic(TOPIC, partitions, 1, config=config)])[TOPIC].result(WAIT_SECONDS)
    found = Acknowledged(broker.address, TOPIC)
    for partition in range(partitions):
        found.send(partition, RECORDS)
        found.send_in_transactions(partition, 10)
    wait_until(
        lambda: are_remote(broker, range(partitions)),
        words=lambda: "\n".join(broker.lines("ERROR", "WARN")),
    )
    return found


def statuses(broker: Broker) -> list[RemotePartitionStatus]:
    client = ClusterClient(broker.address)
    facts = client.read_facts([TOPIC])
    (topic,), metadata = facts.topics, facts.metadata_topic
    assert metadata is not None
    folded = fold_metadata(client, metadata, range(metadata.partition_count))
    return [
        partition_status(topic, number, log, folded.cache.partitions.get(name_of(topic, number)))
        for number, log in enumerate(client.read_ranges(topic))
    ]


def status(broker: Broker, partition: int) -> RemotePartitionStatus:
    return statuses(broker)[partition]


def are_remote(broker: Broker, partitions: Iterable[int]) -> bool:
    """Say whether of each all but the active segment is remote, and nothing else is local."""
    bases = {}
    for each in partitions:
        names = (broker.data / f"{TOPIC}-{each}").glob("*.log")
        bases[each] = [int(path.name[:20]) for path in names]
    if any(len(local) != 1 for local in bases.values()):
        return False
    found = statuses(broker)
    return all(
        not found[each].copying.count and found[each].remote_end == local - 1
        for each, (local,) in bases.items()
    )


def command(broker: Broker, name: str, *more: str) -> list[str]:
    return live_call(
        broker.address, name, "--topic", TOPIC,
        "--decisions", f"sqlite:///{broker.root / 'decisions.db'}",
        "--storage", f"local:{broker.root / 'remote'}", "--json", *more,
    )  # fmt: skip


def cleaning(broker: Broker, partition: int, *more: str) -> list[str]:
    return command(
        broker,
        "clean",
        "--partition",
        str(partition),
        "--despite",
        "dirty-ratio",
        "--cores",
        "1",
        *more,
    )


def met(arguments: list[str], step: Step, act: Act) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.attach_driver", *arguments],
        env=environment(step, act), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def done(arguments: list[str], expected: int = 0) -> dict[str, Any]:
    found = subprocess.run(
        [sys.executable, "-m", "keeplast", *arguments], capture_output=True, text=True, check=False
    )
    assert expected == found.returncode, found.stdout + found.stderr
    document: dict[str, Any] = json.loads(found.stdout)
    return document


def kill(arguments: list[str], step: Step) -> None:
    process = met(arguments, step, Act.KILL)
    output = process.communicate()
    assert -signal.SIGKILL == process.returncode, output


def freeze(arguments: list[str], step: Step) -> subprocess.Popen[str]:
    process = met(arguments, step, Act.FREEZE)
    state = Path(f"/proc/{process.pid}/stat")
    wait_until(
        lambda: state.read_text().rpartition(")")[2].split()[0] == "T",
        by=lambda: process.poll() is None,
        words=lambda: str(process.communicate()),
    )
    return process


def wake(process: subprocess.Popen[str]) -> int:
    os.kill(process.pid, signal.SIGCONT)
    process.communicate()
    return process.returncode


def compacted(acknowledged: Acknowledged, partition: int, start: int = 0) -> int:
    """Return how much is read once the broker has heard of a swap; until then nothing is wrong."""
    reads: list[int] = []

    def is_compacted() -> bool:
        reads.append(acknowledged.judge(partition, start=start))
        return reads[-1] < acknowledged.count(partition) * 0.7

    wait_until(is_compacted, words=lambda: f"{reads[-3:]} of {acknowledged.count(partition)}")
    return reads[-1]


def test_another_plugins_directory_is_refused_and_stays_empty(
    broker: Broker, acknowledged: Acknowledged, tmp_path: Path
) -> None:
    """Before anything is claimed: the first round at the right one is the first of all."""
    (tmp_path / SEGMENTS).mkdir()
    said = json.dumps(done(cleaning(broker, 0, "--storage", f"local:{tmp_path}"), REFUSED))
    assert "--storage or its prefix is another one than the brokers' plugin has" in said
    assert f"object={tmp_path}/" in said
    assert [tmp_path / SEGMENTS] == list(tmp_path.rglob("*"))
    said = json.dumps(done(command(broker, "repair"), WRONG_USE))
    assert "nothing of that is attached by this decision log" in said


@pytest.mark.parametrize("step", ROUND_STEPS)
def test_readers_get_the_same_when_a_round_is_killed(
    broker: Broker, acknowledged: Acknowledged, step: Step
) -> None:
    """AT-2, AT-3, AT-4, AT-5, C1 to C3: before anybody repairs it, and when the next round has."""
    partition = ROUND_STEPS.index(step)
    kill(cleaning(broker, partition), step)
    if step in (Step.PUBLISHED, Step.SETTLED):
        compacted(acknowledged, partition)
    else:
        assert acknowledged.judge(partition) > acknowledged.count(partition) * 0.7
    if step is Step.DECIDED:
        # Who comes next publishes what was decided, whatever he was called for.
        done(command(broker, "repair"))
    else:
        done(cleaning(broker, partition))
    compacted(acknowledged, partition)
    found = status(broker, partition)
    assert (0, ()) == (found.copying.count, tuple(found.holes))
    assert found.compacted.count


def test_records_are_deleted_from_the_middle_of_what_was_compacted_and_beyond(
    broker: Broker, acknowledged: Acknowledged
) -> None:
    """P12, P13, AT-25: beyond it, a broker removes it with the sources that wait."""
    done(cleaning(broker, CUT))
    found = status(broker, CUT)
    assert found.compacted.count
    middle = (found.remote_end or 0) // 8
    delete_records(broker, middle)
    compacted(acknowledged, CUT, start=middle)
    delete_records(broker, found.remote_end or 0)
    wait_until(
        lambda: (left := status(broker, CUT)).compacted.count == left.deleting.count == 0,
        words=lambda: str(status(broker, CUT)),
    )
    acknowledged.judge(CUT, start=found.remote_end or 0)


def delete_records(broker: Broker, before: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    for answer in admin.delete_records([TopicPartition(TOPIC, CUT, before)]).values():
        answer.result(WAIT_SECONDS)


def test_replaced_segments_stay_until_they_are_collected(broker: Broker) -> None:
    """P15, R-2: every broker's task has passed it many times."""
    found = statuses(broker)
    assert sum(each.deleting.count for each in found)
    assert stored(broker) == sum(
        each.served.count + each.deleting.count + each.hidden.count for each in found
    )


def stored(broker: Broker) -> int:
    return len(list((broker.root / "remote" / "kafka-tiered-storage").rglob("*.log")))


@pytest.mark.parametrize("step", COLLECTION_STEPS)
def test_readers_get_the_same_when_a_collection_is_killed(
    broker: Broker, acknowledged: Acknowledged, step: Step
) -> None:
    """AT-5, AT-6: it goes on where the one before was killed, in the first partitions."""
    before = [acknowledged.judge(each) for each in (0, 1)]
    kill(command(broker, "collect", "--grace-ms", "0"), step)
    assert before == [acknowledged.judge(each) for each in (0, 1)]


def test_nothing_is_left_over_and_a_cold_broker_serves_the_same(
    broker: Broker, acknowledged: Acknowledged
) -> None:
    """P5, P8, AT-20, AT-23: the indexes that it had cached are gone, too."""
    done(command(broker, "collect", "--grace-ms", "0"))
    found = statuses(broker)
    assert [(0, 0, 0)] * PARTITIONS == [
        (each.copying.count, each.deleting.count, each.hidden.count) for each in found
    ]
    assert sum(each.served.count for each in found) == stored(broker)
    before = [acknowledged.judge(each) for each in range(len(ROUND_STEPS))]
    broker.kill()
    for path in (broker.data / "remote-log-index-cache").glob("*"):
        path.unlink()
    broker.start()
    again = [acknowledged.judge(each, is_starting=True) for each in range(len(before))]
    assert before == again


def test_a_topic_that_is_deleted_leaves_nothing(broker: Broker, acknowledged: Acknowledged) -> None:
    """P14: sources that wait, and what replaced them."""
    acknowledged.send(0, RECORDS)
    wait_until(lambda: are_remote(broker, [0]))
    done(cleaning(broker, 0))
    found = status(broker, 0)
    assert min(found.deleting.count, found.compacted.count)
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.delete_topics([TOPIC])[TOPIC].result(WAIT_SECONDS)
    wait_until(lambda: stored(broker) == 0, words=lambda: f"{stored(broker)} logs")
    rows = done(command(broker, "collect", "--grace-ms", "0"))["partitions"]
    assert {True} == {each["is_gone"] for each in rows}
