"""``keeplast export --to s3://…``: versions in a bucket, and the object that leads to one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import keeplast
from keeplast.errors import ConflictError, CorruptError, RefusedError, UnavailableError
from keeplast.format import leader_epoch
from keeplast.format.filename import LEADER_EPOCH_CHECKPOINT
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.pipeline.increment import CURRENT, BucketVersions, decode_pointer
from keeplast.tier.objects.object_files import MountedRecipe
from keeplast.tier.objects.stores import ObstoreObjects, open_tree
from tests.support import called
from tests.support.log_builder import LogBuilder
from tests.support.partition_maker import SMALL_SEGMENTS

BUCKET = Path("/s3:/bucket")
TO = "s3://bucket/states"
POINTER = f"states/{CURRENT}"


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> ObstoreObjects:
    """A bucket in memory, which heeds conditions as S3 does."""
    tree = open_tree("memory://")
    recipe = MountedRecipe(((BUCKET, tree),))
    monkeypatch.setattr("keeplast.service.exporting.mounted", lambda remote, options: recipe)
    monkeypatch.setattr("keeplast.pipeline.exported_rows.recipe_of", lambda places, given: recipe)
    return tree


@pytest.fixture
def log(tmp_path: Path) -> LogBuilder:
    built = LogBuilder(tmp_path / "data" / "t-0", SMALL_SEGMENTS)
    epochs = leader_epoch.encode([LeaderEpoch(0, 0)])
    (built.directory / LEADER_EPOCH_CHECKPOINT).write_bytes(epochs)
    built.record(1, 1)
    built.record(2, 1)
    return built


def export(log: LogBuilder, *more: str, code: int = 0) -> Any:
    data = str(log.directory.parent)
    return called.run("export", data, "--to", TO, "--runner", "local", "--json", *more, code=code)


def pointer(bucket: ObstoreObjects) -> dict[str, Any]:
    return dict(json.loads(bytes(bucket.read_range(POINTER, 0, 1 << 20))))


def keys_of(bucket: ObstoreObjects, prefix: str = "states") -> list[str]:
    return sorted(each.key for each in bucket.list(f"{prefix}/"))


def rows(bucket: ObstoreObjects, key: str) -> list[dict[str, Any]]:
    size = bucket.stat(key).size_bytes
    table = pq.read_table(pa.BufferReader(bytes(bucket.read_range(key, 0, size))))
    return list(table.to_pylist())


def state(bucket: ObstoreObjects) -> dict[bytes, bytes | None]:
    """Follow the pointer as a reader does."""
    place = f"states/{pointer(bucket)['version']}/t/partition=0"
    return {row["key"]: row["value"] for key in keys_of(bucket, place) for row in rows(bucket, key)}


def changes(bucket: ObstoreObjects) -> dict[bytes, bytes | None]:
    place = f"states/{pointer(bucket)['version']}/_changes/t/partition=0"
    found = [row for key in keys_of(bucket, place) for row in rows(bucket, key)]
    assert all(row["deleted"] is (row["value"] is None) for row in found)
    return {row["key"]: row["value"] for row in found}


def versions(bucket: ObstoreObjects) -> list[str]:
    return sorted({key.split("/")[2][:8] for key in keys_of(bucket, "states/versions")})


def test_a_small_object_leads_to_the_version_that_counts(
    bucket: ObstoreObjects, log: LogBuilder
) -> None:
    done = json.loads(export(log).stdout)
    assert {b"1": b"1", b"2": b"1"} == state(bucket)
    place = pointer(bucket)["version"]
    assert f"{TO}/{place}" == done["target"]
    assert [] == pointer(bucket)["kept"]
    names = {key.removeprefix(f"states/{place}/") for key in keys_of(bucket, f"states/{place}")}
    expected = {"_base.json", "_offsets.json", "_state.json", "t/partition=0/part-00000.parquet"}
    assert expected == names
    assert {"states/current"} == {key for key in keys_of(bucket) if "versions" not in key}


def test_the_next_version_goes_on_from_the_last_and_has_what_changed(
    bucket: ObstoreObjects, log: LogBuilder
) -> None:
    export(log, "--incremental")
    log.tombstone(1)
    log.record(3, 7)
    export(log, "--incremental")
    assert {b"2": b"1", b"3": b"7"} == state(bucket)
    assert {b"1": None, b"3": b"7"} == changes(bucket)
    export(log, "--incremental")
    assert {b"2": b"1", b"3": b"7"} == state(bucket)
    assert {} == changes(bucket)
    assert ["00000002", "00000003"] == versions(bucket)
    export(log, "--incremental", "--keep", "1")
    assert ["00000004"] == versions(bucket)


def test_an_export_that_is_there_is_replaced_on_request_alone(
    bucket: ObstoreObjects, log: LogBuilder
) -> None:
    export(log)
    before = keys_of(bucket)
    refused = export(log, code=4)
    assert "--despite existing-target" in refused.stderr
    assert before == keys_of(bucket)
    log.record(2, 9)
    export(log, "--despite", "existing-target")
    assert {b"1": b"1", b"2": b"9"} == state(bucket)
    assert ["00000002"] == versions(bucket)


def test_a_directory_without_an_export_is_left_alone(
    bucket: ObstoreObjects, log: LogBuilder
) -> None:
    bucket.put_new("states/other", b"mine")
    assert "not made by an export" in export(log, "--incremental", code=4).stderr
    assert ["states/other"] == keys_of(bucket)
    bucket.put_new(POINTER, b'{"format": 9}')
    assert "not what leads to the versions" in export(log, "--incremental", code=3).stderr
    assert [POINTER, "states/other"] == keys_of(bucket)


class Died(BaseException):
    """The process ends here."""


WRITES = ("open_write", "put_new", "replace", "copy", "delete")


@pytest.mark.rotates(3)
@pytest.mark.parametrize("when", range(10))
def test_a_crash_at_any_write_leaves_a_whole_state_and_the_next_export_goes_on(
    bucket: ObstoreObjects, log: LogBuilder, when: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    export(log, "--incremental")
    log.tombstone(1)
    log.record(3, 7)
    old, new = {b"1": b"1", b"2": b"1"}, {b"2": b"1", b"3": b"7"}
    writes = iter(range(10_000))
    real = {name: getattr(ObstoreObjects, name) for name in WRITES}

    def dying(name: str) -> Callable[..., Any]:
        def call(self: ObstoreObjects, *given: Any) -> Any:
            if next(writes) >= when:
                raise Died
            return real[name](self, *given)

        return call

    data, read = str(log.directory.parent), state
    with monkeypatch.context() as patch:
        for name in WRITES:
            patch.setattr(ObstoreObjects, name, dying(name))
        died = True
        try:
            keeplast.export(data, TO, incremental=True)
            died = False
        except Died:
            pass
    assert died is (when < 8), next(writes)
    assert read(bucket) == (old if died and pointer(bucket)["version"][9:17] == "00000001" else new)
    export(log, "--incremental")
    assert new == read(bucket)
    assert len(versions(bucket)) == 2
    led_to = {pointer(bucket)["version"], *pointer(bucket)["kept"]}
    assert led_to == {"/".join(key.split("/")[1:3]) for key in keys_of(bucket, "states/versions")}


def test_of_two_exports_at_once_one_counts_and_the_other_leaves_nothing(
    bucket: ObstoreObjects, log: LogBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    export(log, "--incremental")
    settle = BucketVersions.settle

    def overtaken(place: BucketVersions, version: Path, kept: int) -> None:
        monkeypatch.setattr(BucketVersions, "settle", settle)
        log.record(3, 7)
        export(log, "--incremental")
        settle(place, version, kept)

    monkeypatch.setattr(BucketVersions, "settle", overtaken)
    with pytest.raises(ConflictError, match="another export has added a version meanwhile"):
        keeplast.export(log.directory.parent, TO, incremental=True)
    assert {b"1": b"1", b"2": b"1", b"3": b"7"} == state(bucket)
    led_to = {pointer(bucket)["version"], *pointer(bucket)["kept"]}
    assert led_to == {"/".join(key.split("/")[1:3]) for key in keys_of(bucket, "states/versions")}


def test_of_two_first_exports_at_once_one_counts(
    bucket: ObstoreObjects, log: LogBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle = BucketVersions.settle

    def overtaken(place: BucketVersions, version: Path, kept: int) -> None:
        monkeypatch.setattr(BucketVersions, "settle", settle)
        export(log)
        settle(place, version, kept)

    monkeypatch.setattr(BucketVersions, "settle", overtaken)
    with pytest.raises(ConflictError):
        keeplast.export(log.directory.parent, TO)
    assert 1 == len(versions(bucket)) == len({key.split("/")[2] for key in keys_of(bucket)[1:]})


def test_where_it_is_unknown_whether_the_pointer_moved_nothing_is_removed(
    bucket: ObstoreObjects, log: LogBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    export(log, "--incremental")
    log.record(3, 7)
    replace = ObstoreObjects.replace

    def lost(self: ObstoreObjects, key: str, data: bytes, expected: bytes) -> bool:
        replace(self, key, data, expected)
        raise UnavailableError("the answer was lost")

    with monkeypatch.context() as patch:
        patch.setattr(ObstoreObjects, "replace", lost)
        with pytest.raises(UnavailableError):
            keeplast.export(log.directory.parent, TO, incremental=True)
    assert {b"1": b"1", b"2": b"1", b"3": b"7"} == state(bucket)


def test_a_store_without_conditions_is_refused_before_anything_is_written(
    bucket: ObstoreObjects, log: LogBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ObstoreObjects, "is_conditional", lambda self, key: False)
    with pytest.raises(RefusedError, match="writes over objects whatever the condition"):
        keeplast.export(log.directory.parent, TO)
    assert [] == keys_of(bucket)


def test_a_consumer_goes_on_from_the_version_that_counts(
    bucket: ObstoreObjects, log: LogBuilder
) -> None:
    export(log, "--incremental")
    log.record(3, 7)
    export(log, "--incremental")
    found = keeplast.exported_state(TO, "t", keeplast.topic_config({}))
    assert {(0, b"1"), (0, b"2"), (0, b"3")} == set(found)
    assert {0: 3} == found.positions


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": 1, "version": "../x", "kept": []}', '{"format": 1}']
)
def test_a_bad_pointer_is_corrupt(text: str) -> None:
    with pytest.raises(CorruptError, match="not what leads to the versions"):
        decode_pointer(text.encode(), Path("/s3:/b/current"))
