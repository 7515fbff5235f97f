"""Makes the sample data directory of the demo with a real Kafka 4.3.0 broker.

    python tools/make_sample.py --libs DIR_WITH_KAFKA_4_3_0_JARS src/keeplast/samples/broker-4.3.0

Needs Java 17 and confluent-kafka, which nothing else in this repository needs. The broker listens
on the loopback interface only and is ended by its own process id. It writes a compacted topic
`orders` whose cleaning it holds back itself, with overwritten keys, tombstones, a committed and an
aborted transaction, three codecs and a few segments; then it is stopped cleanly and its data
directory is copied as it lies, `__cluster_metadata-0` included.
"""

from __future__ import annotations

import argparse
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

PORT = 29392
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"
TOPIC = "orders"
START_MS = 1_700_000_000_000
PROPERTIES = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.quorum.voters": f"1@localhost:{PORT + 1}",
    "listeners": f"PLAINTEXT://localhost:{PORT},CONTROLLER://localhost:{PORT + 1}",
    "advertised.listeners": f"PLAINTEXT://localhost:{PORT}",
    "inter.broker.listener.name": "PLAINTEXT",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "auto.create.topics.enable": "false",
}
TOPIC_CONFIG = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "1.0",
    "internal.segment.bytes": "4096",
    "segment.ms": "1000000000000",
    "delete.retention.ms": "0",
}


def java(libs: Path, root: Path, *arguments: str) -> list[str]:
    """Return the command that runs a main class of Kafka with quiet logs."""
    logging = root / "log4j2.xml"
    logging.write_text(
        '<Configuration><Loggers><Root level="OFF"/></Loggers></Configuration>', encoding="utf-8"
    )
    return ["java", f"-Dlog4j2.configurationFile={logging}", "-cp", f"{libs}/*", *arguments]


def wait_for_port(process: subprocess.Popen[bytes]) -> None:
    """Return when the broker accepts connections."""
    for _ in range(200):
        if process.poll() is not None:
            raise SystemExit("the broker ended before it listened")
        try:
            socket.create_connection(("localhost", PORT), 1).close()
            return
        except OSError:
            time.sleep(0.3)
    raise SystemExit("the broker did not listen in time")


def produce() -> None:
    """Write the orders: three days of status changes, some orders deleted, two transactions."""
    bootstrap = {"bootstrap.servers": f"localhost:{PORT}", "linger.ms": 50}
    admin = AdminClient(bootstrap)
    [created] = admin.create_topics([NewTopic(TOPIC, 1, 1, config=TOPIC_CONFIG)]).values()
    created.result(30)
    states = ["placed", "paid", "packed", "shipped", "delivered"]
    clock = START_MS
    for step, codec in enumerate(["none", "lz4", "zstd", "none", "lz4"]):
        producer = Producer({**bootstrap, "enable.idempotence": True, "compression.type": codec})
        for order in range(60):
            clock += 60_000
            value = f'{{"order":{order},"state":"{states[step]}","total":{order * 37 % 900 + 5}}}'
            if order % 5 or step < 2:
                deleted = order % 5 == 0 and step == 1
                producer.produce(
                    TOPIC,
                    key=f"order-{order:03}",
                    value=None if deleted else value,
                    timestamp=clock,
                )
            if order % 12 == 11:
                producer.flush()
        producer.flush()
        in_transaction(bootstrap, clock, step, commit=step % 2 == 0)
    producer = Producer({**bootstrap, "enable.idempotence": True})
    for order in range(60, 70):
        clock += 60_000
        producer.produce(TOPIC, key=f"order-{order:03}", value='{"state":"new"}', timestamp=clock)
    producer.flush()


def in_transaction(bootstrap: dict[str, object], clock: int, step: int, *, commit: bool) -> None:
    """Change ten orders in one transaction, and commit or abort it."""
    producer = Producer({**bootstrap, "transactional.id": f"audit-{step % 2}"})
    producer.init_transactions(60)
    producer.begin_transaction()
    word = "audited" if commit else "never-seen"
    for order in range(1, 60, 5):
        producer.produce(
            TOPIC, key=f"order-{order:03}", value=f'{{"{word}":{step}}}', timestamp=clock
        )
    producer.flush()
    if commit:
        producer.commit_transaction(60)
    else:
        producer.abort_transaction(60)


def main() -> None:
    """Start, produce, stop, copy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--libs", type=Path, required=True)
    parser.add_argument("target", type=Path)
    arguments = parser.parse_args()
    libs = arguments.libs.resolve()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        data = root / "data"
        config = root / "server.properties"
        properties = PROPERTIES | {"log.dirs": str(data)}
        config.write_text("".join(f"{k}={v}\n" for k, v in properties.items()), encoding="utf-8")
        format_tool = ("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(config))
        subprocess.run(java(libs, root, *format_tool), check=True, stdout=subprocess.DEVNULL)
        broker = subprocess.Popen(java(libs, root, "kafka.Kafka", str(config)))
        try:
            wait_for_port(broker)
            produce()
        finally:
            broker.terminate()
            broker.wait(120)
        shutil.rmtree(arguments.target, ignore_errors=True)
        shutil.copytree(data, arguments.target)


if __name__ == "__main__":
    main()
