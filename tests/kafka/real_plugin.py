"""Aiven's plugin itself on real brokers: it uploads, keeplast compacts, it serves what is left.

Not one of the tests: no jar of the plugin is where the tests' jars come from. ``make try-plugin
PLUGIN=DIRECTORY`` runs it, with the plugin's jars in a directory (its release, or built from its
source). Everything is done as an operator does it, by commands; every read is judged by what
producers got acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from msgspec import Struct

from keeplast.tier.objects.stores import open_tree
from tests.kafka.broker import VERSIONS, Broker, tier_settings
from tests.kafka.java_consumer import read_with_java
from tests.kafka.test_attach import attach, checked
from tests.support.acknowledged import Acknowledged, Watch
from tests.support.checked_place import problems
from tests.support.plugin_vectors import unpack_vectors
from tests.support.s3_server import own_s3
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kafka

TOPIC, PREFIX, BUCKET = "orders", "ts/", "logs"
MANAGER = "io.aiven.kafka.tieredstorage.RemoteStorageManager"
STORAGES = "io.aiven.kafka.tieredstorage.storage"
SEGMENT_BYTES = 1 << 20
"""The least that a broker of 4.x takes by its public name."""
RECORDS, VALUE_BYTES = 9000, 700
CHUNK_BYTES = 100_000
SECONDS_MAX = 400
GRACE = "1min"
VARIANTS = {
    "plain": (False, False), "zstd": (True, False), "encrypted": (False, True),
    "zstd and encrypted": (True, True),
}  # fmt: skip
CUSTOM = {"zstd": "REMOTE_SIZE,OBJECT_PREFIX,OBJECT_KEY"}
"""Custom metadata that the plugin adds to what it announces, by variant."""
CACHED = {"zstd and encrypted", "plain"}
"""Variants in which brokers keep chunks in memory."""


class Tiered(Struct, frozen=True):
    """A broker whose storage plugin is Aiven's, and how keeplast learns of that."""

    broker: Broker
    storage: tuple[str, ...]
    objects: Any
    acknowledged: Acknowledged

    def attach(self, *arguments: str) -> dict[str, Any]:
        """Run a command over the cluster; return its document."""
        return attach(self.broker, *arguments)

    @property
    def decisions(self) -> tuple[str, ...]:
        """Return the decision log, as an option."""
        return "--decisions", f"sqlite:///{self.broker.root / 'decisions.db'}"

    def fill(self) -> None:
        """Send, and wait until all but the newest segment is remote."""
        self.acknowledged.send(0, RECORDS)
        self.acknowledged.send_in_transactions(0, 8)
        self.acknowledged.go_on(0, 500)
        wait_until(
            lambda: (
                self.remote_end() + 2 * SEGMENT_BYTES // VALUE_BYTES
                > self.acknowledged.last_offset(0)
            )
        )

    def remote_end(self) -> int:
        """Return the last offset that brokers serve from the remote tier, -1 for none."""
        (found,) = self.attach("status", "--topic", TOPIC)["partitions"]
        return -1 if found["remote_end"] is None else int(found["remote_end"])

    def is_collected(self, given: tuple[str, ...]) -> bool:
        """Collect what has waited for its grace; say whether that is all."""
        (found,) = self.attach("collect", "--grace-ms", GRACE, *given)["partitions"]
        return not found["waiting"]

    def bytes(self) -> int:
        """Return what the plugin's objects take."""
        return sum(
            each.size_bytes
            for each in self.objects.list(PREFIX)
            if not each.key.startswith(f"{PREFIX}.keeplast/")
        )


def write_keys(folder: Path) -> dict[str, str]:
    """Write the vectors' key pair; return its settings, the same for plugin and keeplast."""
    unpack_vectors(folder)
    return {
        "encryption.key.pair.id": "k1", "encryption.key.pairs": "k1",
        **{
            f"encryption.key.pairs.k1.{kind}.key.file": str(folder / "keys" / f"{kind}.pem")
            for kind in ("public", "private")
        },
    }  # fmt: skip


def on_s3(server: Mapping[str, str]) -> dict[str, str]:
    """Return the plugin's settings for a bucket."""
    return {
        "storage.backend.class": f"{STORAGES}.s3.S3Storage",
        "storage.s3.bucket.name": BUCKET,
        "storage.s3.endpoint.url": server["endpoint"],
        "storage.s3.region": server["region"],
        "storage.s3.path.style.access.enabled": "true",
        "storage.aws.access.key.id": server["access_key_id"],
        "storage.aws.secret.access.key": server["secret_access_key"],
    }


@pytest.fixture(params=("s3", "file"))
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Any, ...]]:
    """Yield where the plugin keeps segments: its settings, URL and options for keeplast, which name
    files, and those that open the store."""
    if request.param == "file":
        root = tmp_path / "remote"
        root.mkdir()
        settings = {
            "storage.backend.class": f"{STORAGES}.filesystem.FileSystemStorage",
            "storage.root": str(root),
        }
        yield settings, f"file://{root}/", {}, {}
        return
    (tmp_path / "s3").mkdir()
    with own_s3(tmp_path / "s3", BUCKET) as server:
        options = dict(server)
        for name in ("access_key_id", "secret_access_key"):
            (tmp_path / name).write_text(server[name])
            options[name] = f"@{tmp_path / name}"
        yield on_s3(server), f"s3://{BUCKET}/", options, server


@pytest.fixture
def tiered(
    request: pytest.FixtureRequest, tmp_path: Path, place: tuple[Any, ...], version: str,
    variant: str,
) -> Iterator[Tiered]:  # fmt: skip
    """Yield a broker with the plugin, and a topic that is in the remote tier but for its end."""
    jars = Path(request.config.getoption("--plugin") or "").resolve()
    assert list(jars.glob("*.jar")), f"no jar is in --plugin={jars}: name the plugin's directory"
    compressed, encrypted = VARIANTS[variant]
    keys = write_keys(tmp_path / "vectors") if encrypted else {}
    backend, url, options, server = place
    plugin = {
        "chunk.size": str(CHUNK_BYTES), "key.prefix": PREFIX,
        "compression.enabled": str(compressed).lower(),
        "encryption.enabled": str(encrypted).lower(),
        "custom.metadata.fields.include": CUSTOM.get(variant, ""), **keys, **backend,
    }  # fmt: skip
    if variant in CACHED:
        cache = "io.aiven.kafka.tieredstorage.fetch.cache.MemoryChunkCache"
        plugin |= {"fetch.chunk.cache.class": cache, "fetch.chunk.cache.size": str(64 << 20)}
    root = tmp_path / "broker"
    settings = {
        key: value
        for key, value in tier_settings(version, root).items()
        if not key.startswith("rsm.config.")
    } | {
        "remote.log.storage.manager.class.name": MANAGER,
        "remote.log.storage.manager.class.path": f"{jars}/*",
        **{f"rsm.config.{key}": value for key, value in plugin.items()},
    }  # fmt: skip
    given = {"key.prefix": PREFIX, **keys, **options}
    storage = (
        "--storage", f"aiven:{url}",
        *(part for key, value in given.items() for part in ("--storage-option", f"{key}={value}")),
    )  # fmt: skip
    with Broker(version, root, settings) as broker:
        create(broker)
        acknowledged = Acknowledged(broker.address, TOPIC, value_bytes=VALUE_BYTES)
        found = Tiered(broker, storage, open_tree(url, dict(server)), acknowledged)
        found.fill()
        yield found


def create(broker: Broker) -> None:
    """Create the topic as an operator would, with small segments."""
    config = {
        "remote.storage.enable": "true", "cleanup.policy": "delete", "retention.ms": "-1",
        "retention.bytes": "-1", "local.retention.bytes": "1", "local.retention.ms": "1000",
        "segment.bytes": str(SEGMENT_BYTES), "segment.ms": "3600000",
    }  # fmt: skip
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic(TOPIC, 1, 1, config=config)])[TOPIC].result(SECONDS_MAX)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_segments_of_the_plugin_are_compacted_and_served_by_it(tiered: Tiered) -> None:
    """Two rounds while somebody reads, a collection of both, and restarts between."""
    acknowledged, broker = tiered.acknowledged, tiered.broker
    assert [] == problems(checked(broker, "--topic", TOPIC, *tiered.storage))
    given = ("--topic", TOPIC, *tiered.decisions, *tiered.storage)
    for runner in ("local", "spark"):
        read = acknowledged.judge(0)
        tiered.attach("plan", *given)
        watch = Watch(acknowledged, 0)
        tiered.attach(
            "clean", "--despite", "dirty-ratio", "--runner", runner, "--cores", "2", *given
        )
        assert acknowledged.judge(0) < read
        assert 0 < watch.stop()
        tiered.attach("verify", *given)
        broker.stop()
        broker.start()
        acknowledged.judge(0, is_starting=True)
        tiered.fill()
    replaced = tiered.bytes()
    wait_until(lambda: tiered.is_collected(given))
    assert tiered.bytes() < replaced
    acknowledged.judge(0)
    broker.stop()
    broker.start()
    count = acknowledged.judge(0, is_starting=True)
    rows = read_with_java(broker.version, broker.address, TOPIC, count, "read_committed")
    assert count == len({each.offset for each in rows})
    tiered.attach("verify", *given)
    (detached,) = tiered.attach("detach", "--grace-ms", GRACE, *given)["partitions"]
    assert detached["is_detached"]
    assert count == acknowledged.judge(0)
