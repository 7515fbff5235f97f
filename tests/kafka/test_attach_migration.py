"""A compacted local topic becomes tiered and is compacted there, under load, and comes back.

The lines that ``place check`` prints are followed to the letter, by a reader who knows no more than
they say. The topic has a retention that would eat all of it within a second, if its policy left
``compact`` first. What consumers read is judged by what producers got acknowledged
(:mod:`tests.support.acknowledged`), which shares no code with keeplast.
"""

from __future__ import annotations

import contextlib
import shlex
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from keeplast.attach.rules.sources import MARGIN_SEGMENTS
from keeplast.cluster.client import ClusterClient
from keeplast.cluster.metadata_cache import RemotePartitionStatus, name_of, partition_status
from keeplast.cluster.metadata_log import fold_metadata
from tests.kafka.broker import VERSIONS, Broker, tiered_broker
from tests.kafka.test_attach import WAIT_SECONDS
from tests.support.acknowledged import Acknowledged, Follower, Watch
from tests.support.attach_process import AttachProcess
from tests.support.checked_place import problems
from tests.support.live_call import live_call
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kafka

THERE, BACK = "ledger", "stock"
WRITTEN, QUIET = 0, 1
"""The partitions: producers write to the first all the time, readers start in the second again and
again."""
LEVELS = ("read_committed", "read_uncommitted")
RECORDS, AT_ONCE = 6000, 100
SEGMENT_BYTES = 1 << 20
ORDER = [
    "retention.ms=-1,retention.bytes=-1", "cleanup.policy=delete", "remote.storage.enable=true",
]  # fmt: skip
TYPED_MAX = 10


class Load:
    """Sends to a partition until it is stopped; raises then what it met."""

    def __init__(self, acknowledged: Acknowledged) -> None:
        self._acknowledged = acknowledged
        self._stopping = threading.Event()
        self._failures: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        for each in self._failures:
            raise each

    def _run(self) -> None:
        try:
            while not self._stopping.wait(0.05):
                self._acknowledged.go_on(WRITTEN, AT_ONCE)
        except BaseException as error:  # noqa: BLE001
            self._failures.append(error)


@pytest.fixture(scope="module", params=VERSIONS)
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    root = tmp_path_factory.mktemp("migration")
    with tiered_broker(request.param, root, {"log.cleaner.enable": "true"}) as running:
        yield running


def create_compacted(broker: Broker, topic: str) -> None:
    config = {
        "cleanup.policy": "compact", "retention.ms": "1000", "segment.bytes": str(SEGMENT_BYTES),
        "min.cleanable.dirty.ratio": "0.01", "file.delete.delay.ms": "1000",
    }  # fmt: skip
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic(topic, 2, 1, config=config)])[topic].result(WAIT_SECONDS)


def logs(broker: Broker, topic: str, partition: int) -> list[int]:
    """Return where the local segments of a partition begin."""
    folder = broker.data / f"{topic}-{partition}"
    return sorted(int(each.name[:20]) for each in folder.glob("*.log"))


def type_what_check_says(broker: Broker, topic: str) -> list[str]:
    """Type the lines of the first refusal until there is none; return what they set, in order."""
    typed: list[str] = []
    while refused := refusals(broker, topic):
        assert len(typed) < TYPED_MAX, refused
        typed += [type_line(broker, topic, line) for line in refused[0]["remedy"].split(" && ")]
    return typed


def refusals(broker: Broker, topic: str) -> list[dict[str, str]]:
    """Return what refuses a topic."""
    process = AttachProcess(
        ["place", "check", f"kafka://{broker.address}", "--topic", topic, "--json"],
        broker.root / "said",
    )
    code, document = process.wait(WAIT_SECONDS), process.document()
    assert code in (0, 1), document
    return problems(document)


def run(broker: Broker, topic: str, name: str, *more: str) -> tuple[int, dict[str, Any]]:
    process = AttachProcess(
        live_call(broker.address, name, "--topic", topic, "--json", *more), broker.root / "said"
    )
    return process.wait(WAIT_SECONDS), process.document()


def type_line(broker: Broker, topic: str, line: str) -> str:
    """Do in one request what a line of ``kafka-configs.sh`` does, without a JVM; return it."""
    options = shlex.split(line)
    wanted = [
        "kafka-configs.sh", "--bootstrap-server", broker.address, "--alter",
        "--entity-type", "topics", "--entity-name", topic, "--add-config",
    ]  # fmt: skip
    assert wanted == options[:-1], line
    configure(broker, topic, options[-1])
    return options[-1]


def configure(broker: Broker, topic: str, settings: str) -> None:
    entries = [
        ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        for key, _, value in (each.partition("=") for each in settings.split(","))
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": broker.address})
    for answer in admin.incremental_alter_configs([resource]).values():
        answer.result(WAIT_SECONDS)


def objects(broker: Broker, topic: str) -> list[Path]:
    return list((broker.root / "remote" / "kafka-tiered-storage").glob(f"{topic}-*/*.log"))


def statuses(broker: Broker, topic: str) -> list[RemotePartitionStatus]:
    client = ClusterClient(broker.address)
    facts = client.read_facts([topic])
    (found,), metadata = facts.topics, facts.metadata_topic
    assert metadata is not None
    known = fold_metadata(client, metadata, range(metadata.partition_count)).cache.partitions
    return [
        partition_status(found, number, log, known.get(name_of(found, number)))
        for number, log in enumerate(client.read_ranges(found))
    ]


def wait_until_copied(broker: Broker, topic: str, *, is_local_gone: bool = False) -> None:
    """Wait until the quiet partition is remote but for its active segment, and enough of the other.

    Its last segments are not compacted: there is more than those, and not empty.
    """

    def is_copied() -> bool:
        written, found = (statuses(broker, topic)[each] for each in (WRITTEN, QUIET))
        local = logs(broker, topic, QUIET)
        is_ended = not found.copying.count and found.remote_end == local[-1] - 1
        is_enough = written.served.bytes > (MARGIN_SEGMENTS + 2) * SEGMENT_BYTES
        return is_enough and is_ended and (not is_local_gone or len(local) == 1)

    wait_until(is_copied, words=lambda: "\n".join(broker.lines("ERROR", "WARN")))


def compact(broker: Broker, topic: str, name: str, *more: str) -> list[dict[str, Any]]:
    code, document = run(
        broker, topic, name, "--decisions", f"sqlite:///{broker.root / 'decisions.db'}",
        "--storage", f"local:{broker.root / 'remote'}", *more,
    )  # fmt: skip
    assert 0 == code, document
    found: list[dict[str, Any]] = document["partitions"]
    return found


def check_compacted(broker: Broker, topic: str) -> None:
    """Do a round, and check that it took everything from the log's begin on, in both partitions."""
    rows = compact(broker, topic, "clean", "--despite", "dirty-ratio", "--cores", "1")
    for row, found in zip(rows, statuses(broker, topic), strict=True):
        last = row["rounds"][-1]
        assert not last["skipped"], (last["reason"], found)
        assert 0 == last["first_dirty"]
        assert found.compacted.count
        assert () == found.holes


def test_a_compacted_topic_becomes_tiered_while_it_is_written_and_read(broker: Broker) -> None:
    """Its local copies go, and what was replaced in the remote tier goes too."""
    create_compacted(broker, THERE)
    acknowledged = filled(broker, THERE)
    with under_load(acknowledged):
        assert ORDER == type_what_check_says(broker, THERE)
        acknowledged.go_on(QUIET, RECORDS)
        with read_again_and_again(acknowledged):
            configure(broker, THERE, "local.retention.bytes=1")
            wait_until_copied(broker, THERE, is_local_gone=True)
            check_compacted(broker, THERE)
            verified = compact(broker, THERE, "verify")
            assert {"holds"} == {each["verdict"] for row in verified for each in row["checks"]}
            compact(broker, THERE, "collect", "--grace-ms", "0")
    assert acknowledged.judge(QUIET) < acknowledged.count(QUIET) * 0.7
    acknowledged.judge(WRITTEN)


def test_a_topic_comes_back_whole_and_is_not_tiered_again(broker: Broker) -> None:
    """As long as brokers keep all of it locally too; later they would delete what they forgot."""
    create_compacted(broker, BACK)
    acknowledged = filled(broker, BACK)
    with under_load(acknowledged):
        assert ORDER == type_what_check_says(broker, BACK)
        acknowledged.go_on(QUIET, RECORDS)
        with read_again_and_again(acknowledged):
            wait_until_copied(broker, BACK)
            check_compacted(broker, BACK)
            compact(broker, BACK, "detach", "--grace-ms", "0")
            configure(broker, BACK, "remote.storage.enable=false,remote.log.delete.on.disable=true")
            configure(broker, BACK, "cleanup.policy=compact")
            wait_until(lambda: not objects(broker, BACK), words=lambda: str(objects(broker, BACK)))
    for partition in (WRITTEN, QUIET):
        acknowledged.judge(partition)
    # What brokers do then was seen by hand: they copy nothing of it, and delete it.
    assert {"not-tiered", "not-copied"} == {each["name"] for each in refusals(broker, BACK)}


def filled(broker: Broker, topic: str) -> Acknowledged:
    """Fill a compacted topic, and wait until the broker's own cleaner has been there."""
    acknowledged = Acknowledged(broker.address, topic, value_bytes=1000)
    for partition in (WRITTEN, QUIET):
        acknowledged.go_on(partition, RECORDS)
        acknowledged.send_in_transactions(partition, 6)
    path = broker.data / "cleaner-offset-checkpoint"
    wait_until(
        lambda: path.exists() and path.read_text().count(f"{topic} ") == 2,
        words=lambda: "\n".join(broker.lines("ERROR", "WARN")),
    )
    return acknowledged


@contextlib.contextmanager
def under_load(acknowledged: Acknowledged) -> Iterator[None]:
    """Write to a partition all the time, and read on in it in both isolation levels."""
    followers = [Follower(acknowledged, WRITTEN, level) for level in LEVELS]
    load = Load(acknowledged)
    try:
        yield
    finally:
        load.stop()
    for each in followers:
        each.stop()


@contextlib.contextmanager
def read_again_and_again(acknowledged: Acknowledged) -> Iterator[None]:
    watch = Watch(acknowledged, QUIET)
    try:
        yield
    finally:
        assert 0 < watch.stop()
