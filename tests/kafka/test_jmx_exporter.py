"""What Prometheus's JMX exporter gives of a real broker is what ``--broker-metrics`` reads.

The exporter is the agent that users run inside their brokers, with rules as they have them. It
takes its rules again when their file is newer, so that one broker is enough for all of them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from keeplast.attach.upkeep.replaced_segments import CollectedSources, collect
from keeplast.cluster.broker_metrics import BrokerMetrics, lag_of, read_metrics
from keeplast.format.identifier import metadata_partition
from tests.kafka.broker import HERE, PARTITIONS, Broker, tiered_broker
from tests.kafka.jars import fetch_jars
from tests.kafka.test_attach import create, facts_of
from tests.kafka.test_attach_rounds import WISH, wait_until_remote
from tests.kafka.test_attach_run import attached, send
from tests.support.live_call import live_call
from tests.support.live_rounds import LiveCompactor, by_key_law, consume, require_nothing_left
from tests.support.ports import free_port
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kafka

PAIRS = (("3.9.1", "0.20.0"), ("4.3.0", "1.0.1"))
"""Releases of the broker and of its exporter; the other two pairs give the same."""
TOPIC = "orders"
NAMES_SIZE, KEEPS_NAMES_APART = [PAIRS[0]], [PAIRS[1]]
"""Whose broker gives the size by which it rolls (of others ``run`` leaves all in the margin),
and whose exporter keeps attributes of one name apart."""
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "attach-broker-metrics.md"

BROKER_ALONE = r"""
lowercaseOutputName: true
rules:
- pattern: 'kafka.server<type=(.+), name=(.+)><>(Value|Count)'
  name: kafka_server_$1_$2
"""
IN_NAMES = r"""
rules:
- pattern: 'kafka.consumer<type=(.+), client-id=(.+), topic=(.+), partition=(.+)><>(.+):'
  name: kafka_consumer_$1_$3_$4_$5
"""
NONE = ""
EVERYTHING = "lowercaseOutputName: true\nlowercaseOutputLabelNames: true\nrules:\n- pattern: '.*'\n"
ONLY_CONSUMERS = """
whitelistObjectNames:
- 'kafka.consumer:type=consumer-fetch-manager-metrics,*'
- 'kafka.consumer:type=consumer-metrics,*'
"""
OTHER_LABELS = r"""
lowercaseOutputName: true
rules:
- pattern: 'kafka.server<type=(.+), name=(.+)><>Value'
  name: kafka_server_$1_$2
- pattern: 'kafka.consumer<type=(.+), client-id=(.+), topic=(.+), partition=(.+)><>(.+):'
  name: kafka_consumer_$1_$5
  type: GAUGE
  labels: {clientId: "$2", topic: "$3", partition: "$4"}
- pattern: 'kafka.consumer<type=(.+), client-id=(.+)><>(.+):'
  name: kafka_consumer_$1_$3
  type: GAUGE
  labels: {clientId: "$2"}
"""
WITHOUT_COLON = r"""
rules:
- pattern: 'kafka.consumer<.+, client-id=(.+), topic=(.+), partition=(.+)><>records-lag'
  name: kafka_consumer_records_lag
  labels: {client_id: "$1", topic: "$2", partition: "$3"}
"""


@dataclass
class Exporter:
    """The agent of one broker."""

    root: Path
    version: str
    port: int = field(default_factory=free_port)
    writes: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/metrics"

    @property
    def rules(self) -> Path:
        return self.root / "exporter.yml"

    def option(self) -> str:
        """Return what starts it in a broker's JVM."""
        libs = fetch_jars(
            HERE / f"jmx-exporter-{self.version}.pom.xml", f"jmx-exporter-{self.version}",
            remedy="have its jar in build/",
        )  # fmt: skip
        (jar,) = libs.glob("*.jar")
        return f"-javaagent:{jar}=127.0.0.1:{self.port}:{self.rules}"

    def give(self, rules: str) -> None:
        """Let it have these rules from its next answer on."""
        self.rules.write_text(rules)
        self.writes += 1
        # It asks for the time alone, and two writes may be in one tick of the file system's clock.
        newer = self.rules.stat().st_mtime + 10 * self.writes
        os.utime(self.rules, (newer, newer))


@dataclass
class World:
    broker: Broker
    exporter: Exporter
    compactor: LiveCompactor

    def partition(self) -> int:
        """Return where the metadata topic has the topic."""
        topic, metadata = facts_of(self.compactor.client, TOPIC)
        return metadata_partition(topic.topic_id, 0, metadata.partition_count)

    def wait_until_read(self) -> None:
        """Wait until the broker has read of the topic what there is, by the rules as they are."""
        metrics, partition = BrokerMetrics((self.exporter.url,)), self.partition()
        wait_until(
            lambda: metrics.why_wait(partition, 1) is None,
            words=lambda: metrics.why_wait(partition, 1) or "",
        )

    def attach(self, name: str, *more: str) -> tuple[dict[str, Any], str]:
        """Return what a command answers, and what it says on the other stream."""
        done = subprocess.run(
            [sys.executable, "-m", "keeplast", *live_call(
                self.broker.address, name, "--topic", TOPIC, "--json", "--grace-ms", "0",
                "--decisions", f"sqlite:///{self.broker.root / 'meta.db'}",
                "--storage", f"local:{self.broker.root / 'remote'}", *more,
            )],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert 0 == done.returncode, done.stdout + done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        return document, done.stderr

    def collect(self, *urls: str) -> CollectedSources:
        publisher = self.compactor.claim(TOPIC)
        try:
            return collect(publisher, 0, why_wait=BrokerMetrics(urls).why_wait)
        finally:
            publisher.close()

    def objects(self) -> set[str]:
        return {each.name for each in (self.broker.root / "remote").rglob("*.log")}


@pytest.fixture(scope="module", params=PAIRS, ids="-".join)
def world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    version, agent = request.param
    root = tmp_path_factory.mktemp("exported")
    exporter = Exporter(root, agent)
    exporter.give(BROKER_ALONE)
    with tiered_broker(version, root, options=[exporter.option()]) as broker:
        create(broker, TOPIC, 1)
        send(broker, 0, TOPIC)
        compactor = LiveCompactor(broker.address, root / "meta.db", root / "remote")
        wait_until_remote(broker, compactor, TOPIC)
        yield World(broker, exporter, compactor)


def documented_rules() -> str:
    """Return the rules that users are to add by the documentation."""
    (found,) = re.findall(r"^```yaml\n(.*?)^```", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)
    return f"rules:\n{found}"


@pytest.mark.parametrize(
    "rules",
    [NONE, EVERYTHING, ONLY_CONSUMERS, OTHER_LABELS, documented_rules()],
    ids=["none", "everything", "only consumers", "other labels", "documented"],
)
def test_the_lag_is_found_whatever_the_rules_call_it(world: World, rules: str) -> None:
    world.exporter.give(rules)
    world.wait_until_read()
    text = read_metrics(world.exporter.url)
    assert (0, None) == (lag_of(text, world.partition()), lag_of(text, PARTITIONS))


def test_the_documented_rules_give_the_lag_itself_and_its_consumers_polls(world: World) -> None:
    world.exporter.give(documented_rules())
    world.wait_until_read()
    text = read_metrics(world.exporter.url)
    lags = [line for line in text.splitlines() if line.startswith("kafka_consumer_records_lag{")]
    labels = {label for line in lags for label in re.findall(r"(\w+)=", line)}
    assert {"client_id", "topic", "partition"} == labels
    assert "attribute=records-lag\n" in text
    polls = [line for line in text.splitlines() if "last_poll_seconds_ago{" in line]
    assert ['client_id="__remote_log_metadata_client_1_consumer"'] == [
        re.sub(r".*\{(.*?),?\}.*", r"\1", line) for line in polls
    ]


@pytest.mark.parametrize("world", KEEPS_NAMES_APART, indirect=True, ids="-".join)
def test_the_lag_is_found_among_attributes_that_a_rule_gives_one_name(world: World) -> None:
    world.exporter.give(WITHOUT_COLON)
    world.wait_until_read()
    partition, text = world.partition(), read_metrics(world.exporter.url)
    lines = [line for line in text.splitlines() if f'partition="{partition}"' in line]
    ends = {found for line in lines for found in re.findall(r"><>([a-z-]+)", line)}
    assert {"records-lag", "records-lag-avg", "records-lag-max"} == ends


@pytest.mark.parametrize(
    ("rules", "words"),
    [(BROKER_ALONE, "ends with records_lag"), (IN_NAMES, "has no labels topic and partition")],
    ids=["broker alone", "in names"],
)
def test_rules_that_leave_it_out_are_reported(world: World, rules: str, words: str) -> None:
    world.exporter.give(rules)
    assert words in (BrokerMetrics((world.exporter.url,)).why_wait(world.partition(), 1) or "")


@pytest.mark.parametrize("world", KEEPS_NAMES_APART, indirect=True, ids="-".join)
def test_nothing_goes_before_every_exporter_says_that_its_broker_has_read(world: World) -> None:
    before = consume(world.broker.address, TOPIC)
    assert not world.compactor.clean(TOPIC, WISH).skipped
    there = world.objects()
    world.exporter.give(BROKER_ALONE)
    done = world.collect(world.exporter.url)
    assert "fewer brokers say" in (done.held_back or "")
    assert (1, 0, there) == (done.waiting, done.segments, world.objects())
    world.exporter.give(documented_rules())
    done = world.collect(world.exporter.url, f"http://127.0.0.1:{free_port()}/metrics")
    assert "does not say how far it is" in (done.held_back or "")
    assert (1, 0, there) == (done.waiting, done.segments, world.objects())
    world.wait_until_read()
    document, _ = world.attach("collect", "--broker-metrics", world.exporter.url)
    (row,) = document["partitions"]
    assert "held_back" not in row
    assert (0, True) == (row["waiting"], row["collected_segments"] > 0)
    assert world.objects() < there
    after = consume(world.broker.address, TOPIC)
    assert len(after) < len(before)
    assert by_key_law(before, attached(world.compactor, TOPIC).cleaned_to) == after
    require_nothing_left(world.broker.root / "remote")


@pytest.mark.parametrize("world", NAMES_SIZE, indirect=True, ids="-".join)
def test_the_loop_deletes_nothing_while_the_exporter_does_not_answer(world: World) -> None:
    before = consume(world.broker.address, TOPIC)
    asking = ("--cores", "1", "--once", "--broker-metrics", world.exporter.url)
    there = world.objects()
    world.exporter.give(IN_NAMES)
    document, said = world.attach("run", *asking)
    assert 1 == document["rounds"]
    assert "nothing is deleted yet: fewer brokers say" in said
    assert there < world.objects()
    world.exporter.give(NONE)
    world.wait_until_read()
    document, said = world.attach("run", *asking)
    assert document["tier"]["collected_objects"] > 0
    assert "nothing is deleted yet" not in said
    assert 0 == world.compactor.status(TOPIC).deleting.count
    assert len(world.objects()) < len(there)
    expected = by_key_law(before, attached(world.compactor, TOPIC).cleaned_to)
    assert len(expected) < len(before)
    assert expected == consume(world.broker.address, TOPIC)
    require_nothing_left(world.broker.root / "remote")
