"""The settings in a metadata log that a Kafka 4.3.0 broker wrote, and damaged ones."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from keeplast.config.layers import Layer
from keeplast.config.sources import METADATA_DIRECTORY, MetadataImage, read_metadata
from keeplast.errors import CorruptError
from keeplast.format.metadata_record import ConfigRecord, RemoveTopicRecord, TopicRecord
from keeplast.log.files import LocalFiles
from tests.support.existing import existing
from tests.support.flipped import flip

GOLDEN = Path(__file__).parents[2] / "golden" / "cluster_metadata"
POLICIES = {
    "compacted": "compact",
    "both": "compact,delete",
    "deleted-policy": "delete",
    "plain": None,
    "changed": "compact",
    "unset": None,
    "recreated": None,
    "later": "compact",
}
NEWER = "00000000000000000097-0000000001.checkpoint"
OLDER = "00000000000000000081-0000000001.checkpoint"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN, tmp_path / "data"))


def layer(root: Path) -> Layer:
    found = existing(read_metadata(root, LocalFiles()))
    return found


def policies(found: Layer) -> dict[str, str | None]:
    return {topic: table.get("cleanup.policy") for topic, table in found.topics.items()}


@pytest.mark.parametrize("removed", [(), (NEWER,), (NEWER, OLDER), (OLDER,)])
def test_snapshot_and_log_say_the_same_whichever_snapshot_is_there(
    root: Path, removed: tuple[str, ...]
) -> None:
    for name in removed:
        (root / METADATA_DIRECTORY / name).unlink()
    assert POLICIES == policies(layer(root))


def test_the_snapshot_alone_is_the_state_at_its_offset(root: Path) -> None:
    (root / METADATA_DIRECTORY / "00000000000000000000.log").unlink()
    (root / METADATA_DIRECTORY / NEWER).unlink()
    found = policies(layer(root))
    assert "delete" == found["changed"]
    assert "compact" == found["unset"]
    assert "later" not in found


def test_other_settings_of_topics_and_of_this_broker_come_along(root: Path) -> None:
    found = layer(root)
    assert "1000" == found.topics["compacted"]["delete.retention.ms"]
    assert "60000" == found.topics["later"]["min.compaction.lag.ms"]
    assert "7000" == found.cluster["log.cleaner.delete.retention.ms"]
    assert "0.25" == found.cluster["log.cleaner.min.cleanable.ratio"]


def test_settings_of_another_broker_do_not(root: Path) -> None:
    meta = root / "meta.properties"
    meta.write_text(meta.read_text().replace("node.id=1", "node.id=2"))
    assert "log.cleaner.min.cleanable.ratio" not in layer(root).cluster


def test_no_metadata_directory_is_no_layer(tmp_path: Path) -> None:
    assert None is read_metadata(tmp_path, LocalFiles())


def test_a_torn_tail_of_the_log_ends_it(root: Path) -> None:
    log = root / METADATA_DIRECTORY / "00000000000000000000.log"
    log.write_bytes(log.read_bytes() + b"\0" * 30)
    assert POLICIES == policies(layer(root))


def test_a_damaged_snapshot_is_corrupt_and_names_the_file(root: Path) -> None:
    snapshot = root / METADATA_DIRECTORY / NEWER
    flip(snapshot, 300)
    with pytest.raises(CorruptError) as caught:
        read_metadata(root, LocalFiles())
    assert str(snapshot) == caught.value.path


def test_a_damaged_log_before_its_tail_is_corrupt(root: Path) -> None:
    directory = root / METADATA_DIRECTORY
    for name in (NEWER, OLDER):
        (directory / name).unlink()
    log = directory / "00000000000000000000.log"
    flip(log, log.stat().st_size // 2)
    with pytest.raises(CorruptError):
        read_metadata(root, LocalFiles())


def test_a_topic_takes_its_settings_with_it() -> None:
    image = MetadataImage()
    image.apply(TopicRecord("t", b"1" * 16))
    image.apply(ConfigRecord(2, "t", "cleanup.policy", "compact"))
    image.apply(RemoveTopicRecord(b"1" * 16))
    image.apply(TopicRecord("t", b"2" * 16))
    assert {"t": {}} == image.layer("x", None).topics


def test_a_null_value_takes_a_setting_back() -> None:
    image = MetadataImage()
    image.apply(TopicRecord("t", b"1" * 16))
    image.apply(ConfigRecord(2, "t", "cleanup.policy", "compact"))
    image.apply(ConfigRecord(2, "t", "cleanup.policy", None))
    assert {"t": {}} == image.layer("x", None).topics
