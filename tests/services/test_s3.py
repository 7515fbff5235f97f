"""Objects on a real S3 server, and a whole round on it with PostgreSQL next to it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from keeplast.api.open_store import open_store
from keeplast.config.mapping import topic_config
from keeplast.log.files import FileSystem
from keeplast.model.topic_config import CleanerConfig
from keeplast.rewrite.task import Runner
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN
from keeplast.run.local_runner import LocalRunner
from keeplast.tier.objects.stores import PART_BYTES, open_objects
from tests.services.conftest import S3
from tests.support.mixed_log import write_mixed_log
from tests.support.partition_maker import PARTITION
from tests.support.reader import read_partition

pytestmark = pytest.mark.services


def test_objects_are_written_in_parts_and_read_by_ranges(s3: S3) -> None:
    objects = open_objects(s3.url, s3.options)
    data = bytes(range(256)) * (PART_BYTES // 128)
    writer = objects.open_write("a/b/one.log")
    for at in range(0, len(data), 1 << 20):
        writer.write(data[at : at + (1 << 20)])
    writer.close()
    assert len(data) == objects.stat("a/b/one.log").size_bytes
    middle = PART_BYTES - 10
    assert data[middle : middle + 20] == bytes(
        objects.read_range("a/b/one.log", middle, middle + 20)
    )
    assert ["a/b/one.log"] == [found.key for found in objects.list("a/b")]
    objects.delete(["a/b/one.log", "a/b/never.log"])
    with pytest.raises(FileNotFoundError):
        objects.stat("a/b/one.log")


def test_an_object_that_was_given_up_never_appears(s3: S3) -> None:
    objects = open_objects(s3.url, s3.options)
    writer = objects.open_write("a/late.log")
    writer.write(bytes(PART_BYTES * 2))
    writer.abort()
    assert [] == list(objects.list("a"))


def test_a_log_is_imported_cleaned_collected_and_exported(
    tmp_path: Path, s3: S3, database: str
) -> None:
    directory = write_mixed_log(tmp_path / "data")
    settings = {"cleanup.policy": "compact", "segment.bytes": "700"}

    def runner_for(files: FileSystem) -> Runner:
        return LocalRunner(1, files=files)

    with open_store(
        database, s3.url, owner="a", topic_of=topic_config, options=s3.options
    ) as store:
        store.import_directory(PARTITION, directory, settings, progressed=lambda count: None)
        expected = read_partition(directory).final_values()
        report = store.clean(
            PARTITION, runner_for, cleaner=CleanerConfig(), memory_bytes=MEMORY_BYTES_MIN,
            progressed=lambda count: None, force=True, grace_ms=0,
        )  # fmt: skip
        assert store.state(PARTITION).first_dirty() == report.end_offset
        assert () == store.verify(PARTITION, lambda count: None)
        assert store.collect(PARTITION).objects > 0
        assert () == store.verify(PARTITION, lambda count: None)
        store.export(PARTITION, tmp_path / "out" / str(PARTITION), lambda count: None)
    exported = read_partition(tmp_path / "out" / str(PARTITION))
    assert expected == exported.final_values()
    assert len(exported.records()) < len(read_partition(directory).records())


def test_an_object_is_put_where_none_is_and_by_one_of_many(s3: S3) -> None:
    """What the name of a store and the marks of its metadata rest on."""
    objects = open_objects(s3.url, s3.options)
    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda i: objects.put_new("place/one", b"%d" % i), range(8)))
    assert 1 == done.count(True)
    assert b"%d" % done.index(True) == bytes(objects.read_range("place/one", 0, 9))
    assert not objects.put_new("place/one", b"late")
