"""Rounds on objects by Spark's workers: the objects that a thread of this process would write."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from keeplast.api.open_store import open_store
from keeplast.cli.main import app
from keeplast.config.mapping import topic_config
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import CleanerConfig, Shape, Strategy
from keeplast.pipeline.runner import SparkRunner
from keeplast.rewrite.task import Runner
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN
from keeplast.run.local_runner import LocalRunner
from keeplast.store.tiered_store import TieredStore
from keeplast.survey.report import RoundReport
from tests.support import called
from tests.support.flipped import flip
from tests.support.keyed_history import CLEAN_SEGMENTS, KeyedHistory
from tests.support.keyed_history import TOPIC as KEYED_TOPIC
from tests.support.manual_clock import ManualClock
from tests.support.mixed_log import write_mixed_log
from tests.support.partition_maker import NOW_MS, PARTITION
from tests.support.reader import read_partition
from tests.support.replay import tree

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("shared_spark")]

SETTINGS = {
    "cleanup.policy": "compact", "segment.bytes": "700", "tier.chunk.bytes": str(1 << 30),
}  # fmt: skip
"""One chunk on threads too: Spark's round covers all dirty data, and chunks stamp horizons."""

KEYED = replace(KEYED_TOPIC, tier_chunk_bytes=1 << 30)

BY_TIMESTAMP = {**SETTINGS, "compaction.strategy": "timestamp"}


def opened(root: Path, directory: Path, settings: dict[str, str]) -> TieredStore:
    """Return a store below ``root`` with the partition of ``directory`` in it."""
    store = open_store(
        f"sqlite:///{root}.db", f"file://{root}-objects",
        owner="a", topic_of=topic_config, clock=ManualClock(NOW_MS),
    )  # fmt: skip
    store.import_directory(PARTITION, directory, settings, progressed=lambda count: None)
    return store


def cleaned(store: TieredStore, runner: Runner, shape: Shape | None) -> RoundReport:
    return store.clean(
        PARTITION, lambda files: nullcontext(runner), cleaner=CleanerConfig(),
        memory_bytes=MEMORY_BYTES_MIN, progressed=lambda count: None, force=True, grace_ms=0,
        shape=shape,
    )  # fmt: skip


def exported(store: TieredStore, directory: Path) -> dict[str, str]:
    store.export(PARTITION, directory, lambda count: None)
    return {name: digest for name, (digest, _) in tree(directory).items()}


@pytest.mark.rotates(2)
@pytest.mark.parametrize("settings", [SETTINGS, BY_TIMESTAMP], ids=["offset", "timestamp"])
def test_every_shape_on_spark_leaves_the_objects_of_a_thread(
    tmp_path: Path, spark_runner: SparkRunner, settings: dict[str, str]
) -> None:
    directory = write_mixed_log(tmp_path / "data")
    with LocalRunner(1) as local, opened(tmp_path / "local", directory, settings) as store:
        expected_report = cleaned(store, local, None)
        expected = exported(store, tmp_path / "out" / "local" / directory.name)
    assert len(expected) > 0
    for shape in Shape:
        with opened(tmp_path / shape, directory, settings) as store:
            report = cleaned(store, spark_runner, shape)
            actual = exported(store, tmp_path / "out" / shape / directory.name)
            assert () == store.verify(PARTITION, lambda count: None)
        assert expected == actual
        assert shape.value == report.shape
        assert expected_report.reasons == report.reasons


@pytest.mark.rotates(4)
@pytest.mark.parametrize("shape", [Shape.BROADCAST, Shape.BUCKET])
@pytest.mark.parametrize(
    "strategy", [Strategy.OFFSET, Strategy.TIMESTAMP], ids=lambda strategy: str(strategy.value)
)
def test_what_filters_let_stay_is_not_read_by_spark(
    tmp_path: Path, spark_runner: SparkRunner, shape: Shape, strategy: Strategy
) -> None:
    topic = replace(KEYED, strategy=strategy)
    lefts: list[object] = []
    for name in ("thread", "spark"):
        (tmp_path / name).mkdir()
        objects = tmp_path / f"{name}-objects"
        history = KeyedHistory(tmp_path / name, topic, f"file://{objects}")
        history.write(1)
        history.write(2)
        history.write(CLEAN_SEGMENTS)
        hidden = {path: path.with_suffix(".away") for path in objects.rglob(f"{0:020d}.log")}
        assert len(hidden) > 0
        if name == "thread":
            history.round_without_filters()
        else:
            history.tiered.take_in(history.log.directory)
            for path, away in hidden.items():
                path.rename(away)
            report, stats = history.round(shape, spark_runner)
            for path, away in hidden.items():
                away.rename(path)
            assert (CLEAN_SEGMENTS, 2) == (stats.clean_segments, stats.skipped_segments)
            assert (shape.value, 5) == (report.shape, stats.written)
        lefts.append(history.tiered.live_objects())
    assert lefts[0] == lefts[1]


def test_staged_objects_of_a_late_attempt_are_garbage_that_is_collected(
    tmp_path: Path, spark_runner: SparkRunner
) -> None:
    """As of a speculative attempt that ends after the round was committed."""
    directory = write_mixed_log(tmp_path / "data")
    with opened(tmp_path / "store", directory, SETTINGS) as store:
        cleaned(store, spark_runner, Shape.BROADCAST)
        state = store.state(PARTITION)
        place = tmp_path / "store-objects" / str(PARTITION) / state.topic_id / ("0" * 32)
        place.mkdir()
        late = place / f"{0:020d}.log"
        late.write_bytes(b"late")
        before = exported(store, tmp_path / "before" / directory.name)
        assert () == store.verify(PARTITION, lambda count: None)
        store.collect(PARTITION, garbage_age_ms=-(10**15))
        assert not late.exists()
        assert before == exported(store, tmp_path / "after" / directory.name)


def test_the_command_cleans_a_store_on_spark(tmp_path: Path) -> None:
    directory = write_mixed_log(tmp_path / "data")
    with opened(tmp_path / "store", directory, SETTINGS):
        pass
    values = read_partition(directory).final_values()
    url = f"sqlite:///{tmp_path / 'store.db'}"
    command = [
        "clean", url, "--runner", "spark", "--cores", "2", "--shape", "bucket",
        "--despite", "dirty-ratio", "--take-over", "--json",
    ]  # fmt: skip
    done = called.run(*command, code=0)
    (round_,) = json.loads(done.stdout)["partitions"]
    assert "bucket" == round_["shape"]
    out = tmp_path / "out"
    assert 0 == CliRunner().invoke(app, ["export", url, "--as", "log", "--to", str(out)]).exit_code
    assert values == read_partition(out / directory.name).final_values()


def test_partitions_of_a_call_are_cleaned_side_by_side(tmp_path: Path) -> None:
    """One that is damaged ends by itself: the others' jobs go on."""
    directory = write_mixed_log(tmp_path / "data")
    partitions = [TopicPartition(PARTITION.topic, number) for number in range(4)]
    with opened(tmp_path / "store", directory, SETTINGS) as store:
        for each in partitions[1:]:
            shutil.copytree(directory, tmp_path / "data" / str(each))
            store.import_directory(
                each, tmp_path / "data" / str(each), SETTINGS, progressed=lambda count: None
            )
        state = store.state(partitions[2])
        damaged = tmp_path / "store-objects" / str(partitions[2]) / state.topic_id
        log = max(damaged.glob("*/*.log"), key=lambda path: path.stat().st_size)
        flip(log, log.stat().st_size // 2, 0xFF)
    url = f"sqlite:///{tmp_path / 'store.db'}"
    command = ["clean", url, "--runner", "spark", "--cores", "2", "--despite", "dirty-ratio",
               "--take-over"]  # fmt: skip
    done = called.run(*command, "--json", code=3)
    errors = [each["error"] for each in json.loads(done.stdout)["partitions"]]
    assert [False, False, True, False] == [error is not None for error in errors]
    with open_store(url, owner="b", topic_of=topic_config) as store:
        ends = [store.state(each).first_dirty() for each in partitions]
    assert ends[2] == 0
    assert len({ends[0], ends[1], ends[3]}) == 1
    assert ends[0] > 0
