"""A packed environment on executors that have nothing but Python and Java, through spark-submit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from msgspec import Struct
from msgspec.structs import replace

from keeplast.kernel_cache import SHIPPED
from keeplast.pipeline.pack import SITE
from tests.support import called
from tests.support.mixed_log import write_mixed_log
from tests.support.partition_maker import NOW_MS, SMALL_SEGMENTS, clean, clean_request
from tests.support.replay import tree
from tests.support.spark_cluster import SETTINGS, SPARK_HOME, standalone_cluster

pytestmark = pytest.mark.spark

SUBMIT_SECONDS_MAX = 800
BARE = ("PATH", "JAVA_HOME", "LANG")


class Packed(Struct, frozen=True):
    archive: Path
    document: dict[str, object]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    """Pack this environment without extras, and without compressing it."""
    archive = tmp_path_factory.mktemp("packed") / "environment.tar.gz"
    arguments = ["pack", "--to", str(archive), "--extra", "none", "--json"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("keeplast.pipeline.pack.GZIP_LEVEL", 0)
        done = called.run(*arguments, code=0)
    return Packed(archive, json.loads(done.stdout))


def bare_environment(home: Path) -> dict[str, str]:
    """Return an environment that leads to no package and to no cache of compiled kernels."""
    home.mkdir()
    kept = {name: os.environ[name] for name in BARE if name in os.environ}
    return {**kept, "HOME": str(home), "SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1"}


def kernel_files(environment: Path) -> dict[str, int]:
    """Return the compiled kernels of an unpacked environment with their times in seconds."""
    files = (
        path for path in (environment / SITE / "keeplast" / SHIPPED).rglob("*") if path.is_file()
    )
    return {path.name: int(path.stat().st_mtime) for path in files}


@pytest.mark.repeats("tests/spark/test_packed_environment.py::test_what_the_pack_holds")
def test_executors_need_nothing_but_python_and_java(packed: Packed, tmp_path: Path) -> None:
    expected = write_mixed_log(tmp_path / "expected")
    directory = shutil.copytree(expected.parent, tmp_path / "data") / expected.name
    clean(replace(clean_request(expected, topic=SMALL_SEGMENTS), first_dirty_offset=0))
    driver = tmp_path / "driver"
    driver.mkdir()
    subprocess.run(["tar", "-xzf", str(packed.archive), "-C", str(driver)], check=True)
    homes = tmp_path / "home of executors", tmp_path / "home of the driver"
    scratch = tmp_path / "cluster"
    scratch.mkdir()
    with standalone_cluster(scratch, bare_environment(homes[0])) as cluster:
        command = [
            str(SPARK_HOME / "bin" / "spark-submit"), "--master", cluster.master,
            *(word for each in SETTINGS.items() for word in ("--conf", "=".join(each))),
            "--archives", f"{packed.archive}#keeplast",
            "--conf", "spark.pyspark.python=./keeplast/bin/python",
            "--conf", f"spark.pyspark.driver.python={driver}/bin/python",
            str(driver / SITE / "keeplast" / "__main__.py"),
            "clean", str(directory.parent), "--json", "--despite", "dirty-ratio",
            "--now-ms", str(NOW_MS), "--despite", "log-bounds", "--shape", "bucket",
            "--first-dirty-offset", "0", "--memory", "128m",
            "--config", "cleanup.policy=compact",
            "--config", f"segment.bytes={SMALL_SEGMENTS.segment_bytes}",
        ]  # fmt: skip
        done = subprocess.run(
            command, env=bare_environment(homes[1]), cwd=tmp_path, capture_output=True, text=True,
            timeout=SUBMIT_SECONDS_MAX, check=False,
        )  # fmt: skip
    assert 0 == done.returncode, done.stderr[-4000:]
    # spark-submit puts what a driver says on stderr before the document.
    document = json.loads(done.stdout[done.stdout.index("{\n") :])
    assert "bucket" == document["partitions"][0]["shape"]
    assert tree(expected) == tree(directory)
    # Nothing was compiled: what was packed is all there is, and it was not written again.
    shipped = kernel_files(driver)
    assert packed.document["kernels"] == sum(name.endswith(".nbi") for name in shipped)
    unpacked = list(scratch.glob("work*/app-*/*/keeplast"))
    assert 1 <= len(unpacked)
    assert [shipped] * len(unpacked) == [kernel_files(path) for path in unpacked]
    assert [] == [path for home in homes for path in home.rglob("*keeplast*")]


def test_what_the_pack_holds(packed: Packed) -> None:
    with tarfile.open(packed.archive) as archive:
        names = archive.getnames()
        assert [] == [member.name for member in archive if not member.isfile()]
        starter = archive.extractfile("bin/python")
        assert starter is not None
        assert f"python={os.path.realpath(sys.executable)}\n" in starter.read().decode()
    top = {name.split("/")[3] for name in names if name.startswith(f"{SITE}/")}
    assert {"keeplast", "numba", "numpy", "zstandard"} <= top
    assert set() == {"pyspark", "py4j", "pytest", "pyarrow"} & top
    assert packed.document["packages"] == dict(packages_of(packed))
    assert [] == [name for name in names if name.startswith("/") or ".." in name.split("/")]


def packages_of(packed: Packed) -> list[tuple[str, str]]:
    with tarfile.open(packed.archive) as archive:
        texts = [
            archive.extractfile(member)
            for member in archive
            if member.name.endswith(".dist-info/METADATA")
        ]
        lines = [text.read().decode().splitlines() for text in texts if text is not None]
    return [(field_of(some, "Name: "), field_of(some, "Version: ")) for some in lines]


def field_of(lines: list[str], name: str) -> str:
    return next(line.removeprefix(name) for line in lines if line.startswith(name))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--to", "environment.tar"], "Spark unpacks by the ending"),
        (["--to", "nowhere/environment.tar.gz"], "no directory for the archive"),
        (["--to", "environment.tar.gz", "--extra", "kafka"], "choose from"),
    ],
)
def test_a_bad_argument_of_pack_is_named(
    arguments: list[str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = called.run("pack", *arguments, code=2)
    assert expected in done.stderr
    assert [] == list(tmp_path.iterdir())
