"""An attached topic in Aiven's layout on an S3 server, from its owner object to ``verify``.

The decision log is in PostgreSQL. Rounds are done on threads, and by executors of a Spark cluster
that go to the bucket themselves; they know where credentials are, and what they are is in
nothing that Spark writes down.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec import Struct
from pyspark import SparkContext
from pyspark.sql import SparkSession

from keeplast.api.open_log import OpenLog
from keeplast.attach.answers.shown_logs import find_shown_topics
from keeplast.cluster.layouts.aiven import AivenLayout
from keeplast.cluster.layouts.open import open_layout
from keeplast.errors import RefusedError
from keeplast.model.document import Verdict
from keeplast.model.topic_config import Shape
from keeplast.pipeline.runner import SparkRunner
from keeplast.tier.objects.stores import ObstoreObjects, open_tree
from tests.services.conftest import S3
from tests.spark.test_attached_on_spark import CLUSTER as LOOKED_AT
from tests.spark.test_attached_on_spark import source_of
from tests.support.plugin_tier import Variant, move_to
from tests.support.plugin_vectors import unpack_vectors
from tests.support.spark_cluster import SETTINGS as CLUSTER
from tests.support.spark_cluster import session_settings, standalone_cluster
from tests.support.verified_world import VerifiedWorld
from tests.unit.attach.test_attached_rounds import LINEAGE, MERGING, by_key_law, write_history

pytestmark = pytest.mark.services

VARIANTS: tuple[Variant, ...] = ((False, False, 1 << 20), (True, False, 4096), (True, True, 4096))
OBJECTS_A_SEGMENT = 3
SECRET, KEY_ID = "secret_access_key", "access_key_id"
PAIR = "encryption.key.pairs.k1"


class Bucket(Struct, frozen=True):
    """A prefix of the bucket as operators give it: ``options`` name files, and no secret."""

    url: str
    options: dict[str, str]
    objects: ObstoreObjects

    @property
    def prefix(self) -> str:
        return self.url.rpartition("/logs/")[2] + "/"

    def layout(self) -> AivenLayout:
        """Open the layout as a command does."""
        layout = open_layout(f"aiven:{self.url}/", self.options)
        assert isinstance(layout, AivenLayout)
        return layout

    def names(self) -> list[str]:
        """Return what lies there, below the prefix."""
        found = self.objects.list(self.prefix)
        return sorted(each.key.removeprefix(self.prefix) for each in found)


NewBucket = Callable[[], Bucket]


@pytest.fixture
def new_bucket(s3_server: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NewBucket:
    """Makes a prefix of its own; key id and secret are in a variable and a file."""
    unpack_vectors(tmp_path / "plugin")
    file = tmp_path / "secret"
    file.write_text(s3_server.options[SECRET])
    monkeypatch.setenv("ATTACHED_KEY_ID", s3_server.options[KEY_ID])
    options = {
        **s3_server.options, SECRET: f"@{file}", KEY_ID: "env:ATTACHED_KEY_ID",
        "encryption.key.pairs": "k1",
        f"{PAIR}.private.key.file": str(tmp_path / "plugin" / "keys" / "private.pem"),
        f"{PAIR}.public.key.file": str(tmp_path / "plugin" / "keys" / "public.pem"),
        "encryption.key.pair.id": "k1",
    }  # fmt: skip

    def make() -> Bucket:
        url = f"{s3_server.url}/{secrets.token_hex(6)}"
        return Bucket(url, options, open_tree(s3_server.url, s3_server.options))

    return make


@contextmanager
def attached(root: Path, bucket: Bucket, database: str) -> Iterator[VerifiedWorld]:
    """Yield a partition whose segments are in the bucket, in turn plain, zstd and encrypted."""
    root.mkdir()
    directory = write_history(root / "logs", count=120)
    world = VerifiedWorld(root, directory, LINEAGE, url=database)
    layout = bucket.layout()
    move_to(world.tier, layout, bucket.objects, VARIANTS)
    world.world.tier = layout  # type: ignore[assignment]
    try:
        yield world
    finally:
        world.close()


def compact(world: VerifiedWorld, bucket: Bucket, **how: object) -> list[object]:
    """Take a partition from its owner object to what is left; return what is read at last."""
    before, segments = world.tier.read().records(), world.tier.served()
    assert OBJECTS_A_SEGMENT * len(segments) == len(bucket.names())
    report = world.clean(MERGING, margin=4000, **how)  # type: ignore[arg-type]
    assert report.error is None, report.error
    done = report.end_offset or 0
    assert 0 < done
    expected = by_key_law(before, done)
    assert expected == world.tier.read().records()
    owners = [each for each in bucket.names() if each.startswith(".keeplast/owner-")]
    assert 1 == len(owners)
    assert world.replaced()
    assert all(each.verdict is Verdict.HOLDS for each in world.verify(MERGING).checks)
    world.collect()
    assert [] == world.replaced()
    assert expected == world.tier.read().records()
    served = world.tier.served()
    assert len(served) < len(segments)
    lying = [each for each in bucket.names() if not each.startswith(".keeplast/")]
    assert OBJECTS_A_SEGMENT * len(served) == len(lying)
    assert [] == [each for each in bucket.names() if each.startswith(".keeplast/work/")]
    report_after = world.verify(MERGING)
    assert [] == [each.name for each in report_after.checks if each.verdict is Verdict.BROKEN]
    return list(expected)


def test_a_round_on_threads_goes_from_the_owner_object_to_verify(
    new_bucket: NewBucket, database: str, tmp_path: Path
) -> None:
    """AT-30: a second decision log is refused by the object in the bucket."""
    bucket = new_bucket()
    with attached(tmp_path / "world", bucket, database) as world:
        compact(world, bucket)
        world.world._url = None
        with pytest.raises(RefusedError, match="decision log"):
            world.world.claim(world.world.log("another.db"))


def read_state(world: VerifiedWorld, session: SparkSession) -> None:
    """Have tasks read what is served as a table: its plan is written down, too."""
    cluster = world.cluster
    recipe = find_shown_topics(
        cluster, cluster.read_facts(), world.world.log(), world.tier.layout, lambda each: True, "c"
    )
    session.dataSource.register(source_of(recipe))
    logs = session.read.format("kafka-log-looked-at").options(**LOOKED_AT).load()
    found = {bytes(row.key): bytes(row.value) for row in logs.select("key", "value").collect()}
    end = world.tier.served()[-1].end_offset + 1
    expected = OpenLog(world.directory).state(MERGING, end_offset=end)
    assert {key: each.value for key, each in expected.items()} == found


def test_executors_go_to_the_bucket_themselves_and_spark_writes_no_secret_down(
    new_bucket: NewBucket, new_database: Callable[[], str], tmp_path: Path, s3_server: S3,
) -> None:  # fmt: skip
    events, scratch = tmp_path / "events", tmp_path / "cluster"
    events.mkdir()
    scratch.mkdir()
    settings = {
        **CLUSTER, "spark.eventLog.enabled": "true", "spark.eventLog.compress": "false",
        "spark.eventLog.dir": f"file://{events}", "spark.eventLog.logBlockUpdates.enabled": "true",
    }  # fmt: skip
    secret = s3_server.options[SECRET]
    with pytest.MonkeyPatch.context() as patch, standalone_cluster(scratch) as cluster:
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        with session_settings(settings), SparkRunner(cluster.master) as runner:
            for shape in (Shape.PARTITION, Shape.BUCKET):
                bucket = new_bucket()
                with attached(tmp_path / shape, bucket, new_database()) as world:
                    compact(world, bucket, runner=runner, shape=shape)
                    session = SparkSession(SparkContext.getOrCreate())
                    if shape is Shape.BUCKET:
                        read_state(world, session)
                    conf = session.sparkContext.getConf().getAll()
                    assert [] == [each for each in conf if secret in each[1]]
    written_files = [each for each in events.rglob("*") if each.is_file()]
    written = b"".join(each.read_bytes() for each in written_files)
    assert 2 <= written.count(b"SparkListenerTaskEnd")
    assert b"SparkListenerEnvironmentUpdate" in written
    assert b"SparkListenerSQLExecutionStart" in written
    everything = [*written_files, *(each for each in scratch.rglob("*") if each.is_file())]
    assert [] == [each for each in everything if secret.encode() in each.read_bytes()]
