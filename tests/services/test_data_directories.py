"""``keeplast`` on data directories in a bucket: what it leaves is what it leaves on a disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct
from pyspark.sql import SparkSession

import keeplast
from keeplast.format.filename import INCOMPLETE
from keeplast.log.files import FileSystem
from keeplast.log.paths import place_path
from keeplast.pipeline.runner import start_session
from keeplast.tier.objects.object_files import mount
from tests.services.conftest import S3
from tests.support import called
from tests.support.mixed_log import write_mixed_log

pytestmark = pytest.mark.services

POLICY = (
    "--config",
    "cleanup.policy=compact",
    "--config",
    "segment.bytes=700",
    "--despite",
    "dirty-ratio",
)
NOW = ("--now-ms", "1700000000000", "--despite", "log-bounds")
"""Else delete horizons would count from the machine's clock, which no two runs share."""


class Bucket(Struct, frozen=True):
    """A prefix in a bucket and what is needed to reach it."""

    s3: S3

    @property
    def flags(self) -> list[str]:
        return [x for k, v in self.s3.options.items() for x in ("--object-option", f"{k}={v}")]

    def url(self, name: str) -> str:
        return f"{self.s3.url}/{name}"

    def files(self) -> FileSystem:
        return mount((place_path(self.s3.url),), self.s3.options).open()

    def upload(self, source: Path, name: str) -> None:
        """Put every file below ``source`` at ``name``, as any other tool would."""
        files = self.files()
        for path in sorted(source.rglob("*")):
            if path.is_file():
                relative = path.relative_to(source)
                files.write_durable(place_path(self.url(name)) / relative, path.read_bytes())

    def digests(self, name: str) -> dict[str, bytes]:
        """Return the bytes of every file below a directory."""
        files, root = self.files(), place_path(self.url(name))
        return {each: files.read_bytes(root / each, 1 << 30) for each in files.listdir(root)}


@pytest.fixture
def bucket(s3: S3) -> Bucket:
    return Bucket(s3)


def run(*arguments: object, code: int = 0) -> Any:
    return called.run(*arguments, code=code)


def on_disk(source: Path, target: Path) -> dict[str, bytes]:
    """Clean ``source`` to ``target`` on disks; return the bytes of the partition."""
    run("clean", source, "--to", target, "--runner", "local", *POLICY, *NOW)
    return {path.name: path.read_bytes() for path in sorted((target / "t-0").iterdir())}


@pytest.mark.parametrize("runner", ["local", "spark"])
def test_a_directory_in_a_bucket_is_cleaned_to_the_bytes_of_one_on_a_disk(
    tmp_path: Path, bucket: Bucket, runner: str
) -> None:
    source = write_mixed_log(tmp_path / "data").parent
    expected = on_disk(source, tmp_path / "expected")
    bucket.upload(source, "data")
    before = bucket.digests("data/t-0")
    flags = ["--runner", runner, *bucket.flags, *POLICY, *NOW]
    if runner == "spark":
        flags += ["--cores", "2", "--shape", "broadcast"]
    done = run(
        "clean", bucket.url("data"), "--to", bucket.url("out"), *flags, "--json",
    )  # fmt: skip
    assert expected == bucket.digests("out/t-0")
    assert before == bucket.digests("data/t-0")
    assert "s3:/" not in done.stdout.replace("s3://", "")
    run("clean", source, "--to", bucket.url("up"), *flags)
    assert expected == bucket.digests("up/t-0")
    run("clean", bucket.url("data"), "--to", tmp_path / "down", *flags)
    assert expected == {p.name: p.read_bytes() for p in sorted((tmp_path / "down/t-0").iterdir())}


def test_commands_that_only_read_work_on_a_bucket(tmp_path: Path, bucket: Bucket) -> None:
    source = write_mixed_log(tmp_path / "data").parent
    bucket.upload(source, "data")
    local = ("--runner", "local")
    there, here = (
        run("plan", place, *local, *flags, *POLICY, *NOW, "--exact", "--json").stdout
        for place, flags in ((bucket.url("data"), bucket.flags), (source, []))
    )
    for each in (there, here):
        assert json.loads(each)["partitions"][0]["rounds"][0]["groups"]
    assert [_facts(here)] == [_facts(there)]
    done = run("inspect", bucket.url("data/t-0"), *bucket.flags)
    assert f"t-0 ({bucket.url('data/t-0')})" in done.stdout
    done = run("status", bucket.url("data"), *bucket.flags, *POLICY[:4], "--json")
    assert 1 == len(json.loads(done.stdout)["partitions"])
    run("clean", bucket.url("data"), "--to", bucket.url("out"), *local, *bucket.flags, *POLICY)
    run("verify", bucket.url("data"), bucket.url("out"), *bucket.flags, *POLICY[:4])


def _facts(document: str) -> tuple[Any, ...]:
    (round_,) = json.loads(document)["partitions"][0]["rounds"]
    return round_["bound"], round_["groups"], round_["reasons"]


def test_a_bucket_is_not_cleaned_in_place_nor_where_something_is(
    tmp_path: Path, bucket: Bucket
) -> None:
    source = write_mixed_log(tmp_path / "data").parent
    bucket.upload(source, "data")
    flags = ("--runner", "local", *bucket.flags, *POLICY)
    done = run("clean", bucket.url("data"), *flags, code=4)
    assert "give --to" in done.stderr
    done = run("clean", source, "--to", bucket.url("data"), *flags, code=4)
    assert "--despite existing-target" in done.stderr


@pytest.mark.parametrize(
    ("url", "option", "said"),
    [
        ("s3://no-such-bucket/data", None, "NoSuchBucket"),
        (None, "secret_access_key=wrong", "SignatureDoesNotMatch"),
        (None, "access_key_id=nobody", "access key"),
    ],
)
def test_a_problem_of_a_store_is_said_in_a_line(
    bucket: Bucket, url: str | None, option: str | None, said: str
) -> None:
    flags = [*bucket.flags, *(() if option is None else ("--object-option", option))]
    done = run("status", url or bucket.url("data"), *flags, code=5)
    assert said in done.stderr
    assert 1 == len(done.stderr.splitlines())
    assert bucket.s3.options["secret_access_key"] not in done.stderr


def test_a_run_that_was_killed_is_done_again(tmp_path: Path, bucket: Bucket) -> None:
    source = write_mixed_log(tmp_path / "data").parent
    expected = on_disk(source, tmp_path / "expected")
    files = bucket.files()
    place = place_path(bucket.url("out")) / "t-0"
    files.write_durable(place / INCOMPLETE, b"a run that is no more")
    files.write_durable(place / f"{0:020d}.log", b"half of it")
    files.write_durable(place / f"{7:020d}.log.0123456789abcdefx3.deleted", b"staged")
    flags = ("--runner", "local", *bucket.flags, *POLICY, *NOW)
    done = run("plan", bucket.url("out"), *flags, code=4)
    assert "run it again" in done.stderr
    run("clean", source, "--to", bucket.url("out"), *flags)
    assert expected == bucket.digests("out/t-0")


def test_a_program_reads_and_cleans_a_log_in_a_bucket(tmp_path: Path, bucket: Bucket) -> None:
    source = write_mixed_log(tmp_path / "data").parent
    bucket.upload(source, "data")
    here = keeplast.open_log(source / "t-0")
    there = keeplast.open_log(bucket.url("data/t-0"), object_options=bucket.s3.options)
    assert list(here.records()) == list(there.records())
    topic = keeplast.topic_config({"cleanup.policy": "compact"})
    with pytest.raises(keeplast.RefusedError):
        there.clean(topic)
    assert there.clean(topic, to=bucket.url("out"), force=True).rounds[0].error is None
    cleaned = keeplast.open_log(bucket.url("out/t-0"), object_options=bucket.s3.options)
    assert here.state() == cleaned.state()


def test_a_bucket_is_read_as_a_dataframe_and_exported(tmp_path: Path, bucket: Bucket) -> None:
    source = write_mixed_log(tmp_path / "data").parent
    bucket.upload(source, "data")
    flags = ("--runner", "local", "--json", *POLICY[:2])
    here = run("export", source, "--to", tmp_path / "here", *flags)
    there = run("export", bucket.url("data"), "--to", tmp_path / "there", *flags, *bucket.flags)
    assert json.loads(here.stdout)["partitions"] == json.loads(there.stdout)["partitions"]
    session = SparkSession(start_session("local[1]", 1))
    try:
        keeplast.register(session)
        options = {f"object.{name}": value for name, value in bucket.s3.options.items()}
        read = session.read.format("kafka-log").option("subscribe", "t")
        frames = [
            read.options(**given).load(place).select("offset", "key", "value").collect()
            for place, given in ((str(source), {}), (bucket.url("data"), options))
        ]
    finally:
        session.stop()
    assert frames[0] == frames[1]
    assert len(frames[0]) > 0
