"""What a store's rows name becomes part of paths and keys: only what a broker takes as a name."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import update

from keeplast.errors import CorruptError, InvalidError
from keeplast.format.filename import parse_partition_directory
from keeplast.model.partition import INT32_MAX, TopicPartition
from keeplast.tier.metadata import schema
from keeplast.tier.objects.object_store import partition_prefix
from tests.support.existing import existing
from tests.support.metadata_contract import TOPIC_ID
from tests.support.store_world import COMPACTED, StoreWorld

STRANGE = [
    "/x/y", "../x", "..", ".", "", "a/b", "a\\b", "a b", "a\n", "a\x00", "é", "t" * 250, "-\r",
]  # fmt: skip
T0 = TopicPartition("t", 0)


@pytest.mark.parametrize("topic", STRANGE)
def test_no_path_or_key_is_made_of_a_name_that_no_broker_takes(tmp_path: Path, topic: str) -> None:
    world = StoreWorld(tmp_path)
    world.log(0, 1)
    strange = TopicPartition(topic, 0)
    with pytest.raises(InvalidError, match="not the name of a topic"):
        partition_prefix(strange, TOPIC_ID)
    with world.open() as store:
        with pytest.raises(InvalidError, match="not the name of a topic"):
            store.create(strange, COMPACTED)
        with store._store._transactions.writing() as connection:
            connection.execute(update(schema.PARTITIONS).values(topic=topic))
        with pytest.raises(CorruptError, match="no broker has"):
            store.partitions()
        for act in (
            lambda: store.export(strange, tmp_path / "out" / str(strange).replace("\x00", "")),
            lambda: store.state(strange),
            lambda: store.clean(strange),
            lambda: store.collect(strange),
        ):
            with pytest.raises((InvalidError, OSError)):
                act()
    assert parse_partition_directory(f"{topic}-0") is None


@pytest.mark.parametrize("topic", ["a", "A.b_c-9", "...", "t" * 249, "-", "__consumer_offsets"])
def test_every_name_that_a_broker_takes_is_taken(topic: str) -> None:
    partition = TopicPartition(topic, INT32_MAX)
    assert partition == partition.checked()
    found = existing(parse_partition_directory(str(partition)))
    assert partition == found.partition


@pytest.mark.parametrize("number", [-1, INT32_MAX + 1])
def test_a_partition_number_is_one_of_kafkas(number: int) -> None:
    with pytest.raises(InvalidError, match=f"partition={number}"):
        TopicPartition("t", number).checked()
    assert parse_partition_directory(f"t-{number}") is None or number < 0


@pytest.mark.parametrize("strange", ["../" + "a" * 29, "/etc", "", "G" * 32])
def test_ids_of_a_store_are_hex_digits(tmp_path: Path, strange: str) -> None:
    world = StoreWorld(tmp_path)
    world.log(0, 1)
    with world.open() as store:
        with store._store._transactions.writing() as connection:
            connection.execute(update(schema.PARTITIONS).values(topic_id=strange))
        with pytest.raises(CorruptError, match="topic_id"):
            store.export(T0, tmp_path / "out" / "t-0")


def test_files_of_a_segment_have_a_suffix_for_a_name(tmp_path: Path) -> None:
    world = StoreWorld(tmp_path)
    world.log(0, 1)
    with world.open() as store:
        with store._store._transactions.writing() as connection:
            connection.execute(update(schema.SEGMENTS).values(files='{"/../../x": [1, 2]}'))
        with pytest.raises(CorruptError, match="no file of a segment"):
            store.state(T0)
