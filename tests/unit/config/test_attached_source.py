"""``kafka-log`` of a live cluster's tiered topics, asked as Spark asks it; no cluster."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.types import StructType

from keeplast.cluster import client
from keeplast.cluster.layouts import open as layouts
from keeplast.cluster.live_cluster import TopicEnds
from keeplast.config.log_source import KafkaLogSource
from keeplast.errors import CompactionError, CorruptError, InvalidError, RefusedError
from keeplast.format.identifier import encode_id
from keeplast.model.partition import TopicPartition
from keeplast.pipeline.data_source import SCHEMA, table_schema
from tests.support.attached_world import PARTITION
from tests.support.commanded_world import asked_world, end_of, state_up_to
from tests.support.group_cluster import GroupCluster
from tests.support.verified_world import VerifiedWorld

TOPIC = PARTITION.topic
ORDERS = TopicPartition(TOPIC, PARTITION.partition)
CLUSTER = {"bootstrapServers": "127.0.0.1:1", "storage": "local:/x"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VerifiedWorld]:
    """A partition that was compacted once."""
    with asked_world(tmp_path_factory.mktemp("world"), client, layouts) as made:
        yield made


def rows(world: VerifiedWorld, **more: str) -> dict[bytes, bytes]:
    """Return the state, by default as of what was copied; the decision log knows it."""
    store = f"sqlite:///{world.world.root / 'decisions.db'}"
    return rows_without_log(store=store, **more)


def rows_without_log(**more: str) -> dict[bytes, bytes]:
    given = {**CLUSTER, "state": "latest", **more}
    reader = KafkaLogSource(given).reader(SCHEMA)
    # As Spark does: what was planned, and who reads it, travel to another process.
    parts, reader = pickle.loads(pickle.dumps((reader.partitions(), reader)))
    found = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    assert len(found) == len({row["key"] for row in found})
    return {row["key"]: row["value"] for row in found}


def at(offset: int) -> dict[str, str]:
    return {"endingOffsets": f'{{"{TOPIC}":{{"0":{offset}}}}}'}


def test_the_state_is_that_of_the_log_up_to_where_brokers_have_copied_it(
    world: VerifiedWorld,
) -> None:
    end = end_of(world)
    state = state_up_to(world, end)
    assert state
    assert state == rows(world) == rows(world, subscribe=TOPIC, **at(end))
    assert state == rows_without_log(minPartitions="3")


def test_records_are_those_that_consumers_are_given(world: VerifiedWorld) -> None:
    reader = KafkaLogSource({**CLUSTER, "columns": "offset"}).reader(StructType([SCHEMA["offset"]]))
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    offsets = [offset for batch in batches for offset in batch.column("offset").to_pylist()]
    assert [each.offset for each in world.tier.read().records(0)] == offsets


@pytest.mark.parametrize(
    ("point", "words"),
    [
        (at(5), "cleaned_to="),
        (at(10**6), "with the brokers alone"),
        ({"endingTimestamp": str(10**15)}, "with the brokers alone"),
    ],
)
def test_points_whose_state_cannot_be_shown_are_refused(
    world: VerifiedWorld, point: dict[str, str], words: str
) -> None:
    with pytest.raises(RefusedError, match=words) as error:
        rows(world, **point)
    assert "/attached/" not in str(error.value)


def test_a_group_is_asked_of_the_brokers(
    world: VerifiedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = end_of(world)
    topic = TopicEnds(PARTITION.topic_id, {0: world.cluster.log.end})
    groups = GroupCluster({TOPIC: topic}, {"readers": {ORDERS: end}, "behind": {ORDERS: 5}})
    for name in ("find_ends", "read_group_offsets"):
        monkeypatch.setattr(
            type(world.consumers), name, staticmethod(getattr(groups, name)), raising=False
        )
    assert state_up_to(world, end) == rows(world, endingGroup="readers")
    with pytest.raises(RefusedError, match="cleaned_to="):
        rows(world, endingGroup="behind")
    with pytest.raises(InvalidError, match="endingGroup='others' bootstrapServers="):
        rows(world, endingGroup="others")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"store": "sqlite:////none/none.db"}, "no such decision log"),
        ({"assign": f'{{"{TOPIC}":[7]}}'}, f"assign={TOPIC}-7 bootstrapServers="),
        ({"commandConfig": "/none/client.properties"}, "no such file. commandConfig=/none/"),
        ({"endingOffsets": '{"oders":{"0":1}}'}, f"did you mean {TOPIC}-0"),
    ],
)
def test_a_missing_place_or_partition_is_named(
    world: VerifiedWorld, more: dict[str, str], words: str
) -> None:
    with pytest.raises(InvalidError, match=words):
        KafkaLogSource({**CLUSTER, **more}).reader(SCHEMA).partitions()


def test_what_the_clients_file_says_goes_to_the_client_alone(
    world: VerifiedWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.jaas.config=a.PlainLoginModule "
        'required username="me" password="sesame";\n'
    )
    received: list[dict[str, str]] = []

    def connected(_: str, settings: dict[str, str]) -> object:
        received.append(settings)
        return world.consumers

    monkeypatch.setattr(client, "ClusterClient", connected)
    given = {**CLUSTER, "state": "latest", "commandConfig": str(file)}
    source = KafkaLogSource(given)
    reader = source.reader(SCHEMA)
    parts = reader.partitions()
    assert ["sesame"] == [each["sasl.password"] for each in received]
    assert b"sesame" not in pickle.dumps((source, reader, parts))
    assert parts


def test_a_table_keeps_where_the_cluster_is_and_no_password() -> None:
    kept = {**CLUSTER, "commandConfig": "/etc/client.properties"}
    given = {**kept, "store": "postgresql://me:sesame@host/db", "provider": "kafka-log"}
    text = str(table_schema(given, SCHEMA).jsonValue())
    assert "sesame" not in text
    assert all(value in text for value in kept.values())


def test_an_error_of_a_task_names_the_segment_and_no_temporary_file(
    world: VerifiedWorld,
) -> None:
    last = world.tier.served()[-1]
    (log,) = world.tier.root.rglob(f"*{encode_id(last.id.segment_id)}.log")
    reader = KafkaLogSource({**CLUSTER, "state": "latest"}).reader(SCHEMA)
    parts = reader.partitions()
    whole = log.read_bytes()
    log.write_bytes(whole[:70] + bytes([whole[70] ^ 1]) + whole[71:])
    try:
        with pytest.raises(CompactionError) as error:
            [batch for part in parts for batch in reader.read(part)]
    finally:
        log.write_bytes(whole)
    assert isinstance(error.value, CorruptError)
    assert f"segment={encode_id(last.id.segment_id)} offsets={last.start_offset}.." in str(
        error.value
    )
    assert "/attached/" not in str(error.value)
