"""``keeplast export --to s3://…`` on a real S3 server: versions, changes, and two runs at once."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import keeplast
from keeplast.errors import CompactionError, ConflictError
from keeplast.format import leader_epoch
from keeplast.format.filename import LEADER_EPOCH_CHECKPOINT
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.tier.objects.stores import ObstoreObjects, open_tree
from tests.services.conftest import S3
from tests.support import called
from tests.support.log_builder import LogBuilder
from tests.support.partition_maker import SMALL_SEGMENTS

pytestmark = pytest.mark.services


@pytest.fixture
def log(tmp_path: Path) -> LogBuilder:
    built = LogBuilder(tmp_path / "data" / "t-0", SMALL_SEGMENTS)
    epochs = leader_epoch.encode([LeaderEpoch(0, 0)])
    (built.directory / LEADER_EPOCH_CHECKPOINT).write_bytes(epochs)
    for key in range(20):
        built.record(key, 1)
    return built


def read(bucket: ObstoreObjects, key: str) -> bytes:
    return bytes(bucket.read_range(key, 0, bucket.stat(key).size_bytes))


def version(bucket: ObstoreObjects) -> str:
    return str(json.loads(read(bucket, "states/current"))["version"])


def rows(bucket: ObstoreObjects, place: str) -> list[dict[str, Any]]:
    keys = sorted(each.key for each in bucket.list(f"states/{version(bucket)}/{place}/"))
    tables = [pq.read_table(pa.BufferReader(read(bucket, key))) for key in keys]
    return [row for table in tables for row in table.to_pylist()]


def test_versions_follow_each_other_and_say_what_changed(log: LogBuilder, s3: S3) -> None:
    bucket = open_tree(s3.url, s3.options)
    options = [f"--object-option={name}={value}" for name, value in s3.options.items()]
    arguments = (
        "export", str(log.directory.parent), "--to", f"{s3.url}/states", "--runner", "local",
        "--incremental", *options,
    )  # fmt: skip
    called.run(*arguments, code=0)
    log.tombstone(3)
    log.record(4, 9)
    done = called.run(*arguments, code=0)
    assert f"exported to {s3.url}/states/versions/00000002-" in done.stdout
    values = {row["key"]: row["value"] for row in rows(bucket, "t/partition=0")}
    assert (19, b"9") == (len(values), values[b"4"])
    changed = {row["key"]: row["deleted"] for row in rows(bucket, "_changes/t/partition=0")}
    assert {b"3": True, b"4": False} == changed
    state = keeplast.exported_state(
        f"{s3.url}/states", "t", keeplast.topic_config({}), object_options=s3.options
    )
    assert set(values) == {key for _, key in state}
    log.record(5, 9)
    called.run(*arguments, "--keep", "1", code=0)
    assert {version(bucket)} == {
        "/".join(each.key.split("/")[1:3]) for each in bucket.list("states/versions/")
    }


def test_of_runs_at_once_one_counts_and_the_others_leave_nothing(log: LogBuilder, s3: S3) -> None:
    bucket = open_tree(s3.url, s3.options)
    together = threading.Barrier(4)

    def run(number: int) -> CompactionError | None:
        together.wait()
        try:
            keeplast.export(
                log.directory.parent, f"{s3.url}/states", incremental=True, cores=1,
                object_options=s3.options,
            )  # fmt: skip
        except ConflictError as error:
            return error
        return None

    for _ in range(3):
        with ThreadPoolExecutor(4) as pool:
            results = list(pool.map(run, range(4)))
        assert None in results
        assert 20 == len(rows(bucket, "t/partition=0"))
    pointer = json.loads(read(bucket, "states/current"))
    there = {"/".join(each.key.split("/")[1:3]) for each in bucket.list("states/versions/")}
    assert {pointer["version"], *pointer["kept"]} == there
