"""Executors of a real cluster read and write an S3 server, and one of them is lost meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.api.open_store import open_store
from keeplast.clock import SystemClock
from keeplast.config.mapping import topic_config
from keeplast.log.paths import place_path
from keeplast.model.topic_config import CleanerConfig, Shape
from keeplast.pipeline.runner import SparkRunner
from keeplast.rewrite.task import Runner
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN
from keeplast.run.coordinator import Coordinator
from keeplast.run.events import NoEvents
from keeplast.run.local_runner import LocalRunner
from keeplast.store.tiered_store import TieredStore
from keeplast.tier.objects.object_files import mount
from keeplast.tier.objects.object_store import segment_of_key
from keeplast.tier.objects.stores import open_objects
from tests.services.conftest import S3
from tests.support.cluster_faults import Act, Fault, Moment, Stage, inject
from tests.support.manual_clock import ManualClock
from tests.support.mixed_log import write_mixed_log
from tests.support.partition_maker import (
    NOW_MS,
    PARTITION,
    SMALL_SEGMENTS,
    clean,
    clean_request,
    last_round,
)
from tests.support.replay import tree
from tests.support.spark_cluster import SETTINGS as CLUSTER
from tests.support.spark_cluster import Cluster, session_settings, standalone_cluster

pytestmark = pytest.mark.services

SETTINGS = {
    "cleanup.policy": "compact", "segment.bytes": "700", "tier.chunk.bytes": str(1 << 30),
}  # fmt: skip
YEARS_MS = 100 * 365 * 86_400_000
"""Objects are as old as the server says, and the store's clock stands still long ago."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with standalone_cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture(scope="module")
def runner(cluster: Cluster) -> Iterator[SparkRunner]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        with session_settings(CLUSTER), SparkRunner(cluster.master) as started:
            yield started


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    directory = tmp_path / "fault"
    directory.mkdir()
    return directory


def test_a_bucket_is_cleaned_to_a_bucket_though_a_host_dies(
    tmp_path: Path, s3: S3, runner: SparkRunner, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had written and checked its group, and no other process has heard of that."""
    fault = Fault(Stage.REWRITE, Moment.AFTER, Act.HOST, scratch)
    directory = write_mixed_log(tmp_path / "data")
    recipe = mount((place_path(s3.url),), s3.options)
    files, root = recipe.open(), place_path(s3.url)
    for path in directory.iterdir():
        files.write_durable(root / "data" / directory.name / path.name, path.read_bytes())
    request = clean_request(directory, topic=SMALL_SEGMENTS)
    clean(replace(request, target=tmp_path / "expected"))
    partition = replace(request.partitions[0], path=root / "data" / directory.name)
    coordinator = Coordinator(runner, SystemClock(), recipe.open(), NoEvents(), recipe)
    inject(monkeypatch, fault)
    request = replace(request, partitions=(partition,), target=root / "out", shape=Shape.BROADCAST)
    report = last_round(coordinator.clean(request))
    assert fault.has_struck
    assert report.error is None, report.error
    out = root / "out" / directory.name
    files = recipe.open()
    expected = tmp_path / "expected" / directory.name
    assert {path.name: path.read_bytes() for path in expected.iterdir()} == {
        name: files.read_bytes(out / name, 1 << 30) for name in files.listdir(out)
    }


@pytest.mark.parametrize(
    ("shape", "stage"), [(Shape.PARTITION, Stage.WHOLE), (Shape.BUCKET, Stage.REWRITE)]
)
def test_a_round_on_the_tier_is_the_same_though_a_host_dies(
    tmp_path: Path,
    s3: S3,
    runner: SparkRunner,
    scratch: Path,
    monkeypatch: pytest.MonkeyPatch,
    shape: Shape,
    stage: Stage,
) -> None:
    """What it had written is garbage, and collected."""
    directory = write_mixed_log(tmp_path / "data")

    def opened(name: str) -> TieredStore:
        store = open_store(
            f"sqlite:///{tmp_path / name}.db", f"{s3.url}/{name}",
            owner="a", topic_of=topic_config, clock=ManualClock(NOW_MS), options=s3.options,
        )  # fmt: skip
        store.import_directory(PARTITION, directory, SETTINGS, progressed=lambda count: None)
        return store

    def cleaned(store: TieredStore, by: Runner, shape: Shape | None) -> dict[str, str]:
        store.clean(
            PARTITION, lambda files: nullcontext(by), cleaner=CleanerConfig(),
            memory_bytes=MEMORY_BYTES_MIN, progressed=lambda count: None, force=True, grace_ms=0,
            shape=shape,
        )  # fmt: skip
        assert () == store.verify(PARTITION, lambda count: None)
        store.collect(PARTITION, garbage_age_ms=-YEARS_MS)
        assert () == store.verify(PARTITION, lambda count: None)
        place = tmp_path / "out" / f"{by}{shape}" / directory.name
        store.export(PARTITION, place, lambda count: None)
        return {name: digest for name, (digest, _) in tree(place).items()}

    with LocalRunner(1) as local, opened("local") as store:
        expected = cleaned(store, local, None)
    fault = Fault(stage, Moment.AFTER, Act.HOST, scratch)
    inject(monkeypatch, fault)
    with opened("cluster") as store:
        assert expected == cleaned(store, runner, shape)
        state = store.state(PARTITION)
    assert fault.has_struck
    objects = open_objects(f"{s3.url}/cluster", s3.options)
    found = {segment_of_key(stored.key) for stored in objects.list(str(PARTITION))}
    assert {route.segment_id for route in state.routes} == found
