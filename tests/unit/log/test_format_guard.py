"""What a newer Kafka wrote, and names that are none of ours: refused by name or left alone."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from keeplast.errors import CorruptError, RefusedError
from keeplast.format.filename import is_unknown_kind
from keeplast.log.files import LocalFiles
from keeplast.log.log_end import check_understood
from keeplast.survey.report import RoundReport
from tests.support.mixed_log import write_mixed_log
from tests.support.partition_maker import SMALL_SEGMENTS, clean_request, coordinator, last_round
from tests.support.replay import tree

BASE = f"{10:020d}"
Damage = Callable[[Path], None]


def cleaned(directory: Path) -> RoundReport:
    return last_round(coordinator().clean(clean_request(directory, topic=SMALL_SEGMENTS)))


def writing(name: str, data: bytes = b"") -> Damage:
    def damage(directory: Path) -> None:
        (directory / name).write_bytes(data)

    return damage


def with_magic(base: int, magic: int) -> Damage:
    def damage(directory: Path) -> None:
        path = directory / f"{base:020d}.log"
        data = bytearray(path.read_bytes())
        data[16] = magic
        path.write_bytes(data)

    return damage


def with_last_magic(directory: Path) -> None:
    """The last batch of the active segment is of a later format, as after an upgrade."""
    path = directory / f"{60:020d}.log"
    data = bytearray(path.read_bytes())
    data[len(data) // 2 + 16] = 3
    path.write_bytes(data)


NEWER: dict[str, tuple[Damage, str]] = {
    "kind of file": (writing(f"{BASE}.vectorindex"), f"{BASE}.vectorindex"),
    "kind of staged file": (writing(f"{BASE}.vectorindex.swap"), f"{BASE}.vectorindex.swap"),
    "partition.metadata": (
        writing("partition.metadata", b"version: 1\ntopic_id: lZ6vvmajTWKDBUTV6SQAtQ"),
        "partition.metadata",
    ),
    "leader epochs": (writing("leader-epoch-checkpoint", b"7\n0\n"), "leader-epoch-checkpoint"),
    "meta.properties": (writing("../meta.properties", b"#x\nversion=2\n"), "meta.properties"),
    "magic of a closed segment": (with_magic(10, 3), f"{BASE}.log"),
    "magic of the active segment": (with_magic(60, 3), f"{60:020d}.log"),
    "magic of the newest batch": (with_last_magic, f"{60:020d}.log"),
}


@pytest.mark.parametrize("newer", NEWER)
def test_files_of_a_newer_kafka_are_refused_by_name_and_left_alone(
    newer: str, tmp_path: Path
) -> None:
    damage, name = NEWER[newer]
    directory = write_mixed_log(tmp_path)
    damage(directory)
    before = tree(directory)
    report = cleaned(directory)
    assert isinstance(report.failure, RefusedError)
    assert name in str(report.failure)
    assert before == tree(directory)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_mixed_log(tmp_path)


def test_a_newer_kafkas_interrupted_swap_is_not_finished_here(directory: Path) -> None:
    for suffix in (".log", ".index", ".timeindex"):
        shutil.copy(directory / f"{BASE}{suffix}", directory / f"{BASE}{suffix}.swap")
    (directory / f"{BASE}.vectorindex.swap").write_bytes(b"")
    before = tree(directory)
    assert isinstance(cleaned(directory).failure, RefusedError)
    assert before == tree(directory)


def test_the_first_bytes_of_logs_are_returned_and_of_staged_ones_not(directory: Path) -> None:
    logs = sorted(directory.glob("*.log"))
    expected = {int(path.stem): path.read_bytes()[:61] for path in logs}
    first = logs[0]
    for stage in (".swap", ".0123456789abcdef.deleted"):
        first.with_name(first.name + stage).write_bytes(b"another log")
    assert expected == check_understood(directory, LocalFiles())[0]


def test_versions_that_are_known_pass(directory: Path) -> None:
    writing("partition.metadata", b"version: 0\ntopic_id: lZ6vvmajTWKDBUTV6SQAtQ")(directory)
    writing("../meta.properties", b"#x\nversion=1\ncluster.id=c\nnode.id=1\n")(directory)
    check_understood(directory, LocalFiles())


@pytest.mark.parametrize(
    "name", [f"{BASE}.log.bak", "notes.txt", "..log", f"{BASE}-0000000001.checkpoint", "a\nb", "ü"]
)
def test_other_names_are_ignored_and_reported(name: str, directory: Path) -> None:
    (directory / name).write_bytes(b"whatever")
    report = cleaned(directory)
    assert report.failure is None
    assert b"whatever" == (directory / name).read_bytes()
    assert any(repr(name) in note for note in report.notes), report.notes


@pytest.mark.parametrize("name", [f"{BASE}.foo", f"{BASE}.foo.deleted", f"{BASE}.x-1.cleaned"])
def test_unknown_kinds_are_distinguished_from_other_names(name: str) -> None:
    assert is_unknown_kind(name)


@pytest.mark.parametrize(
    "name", [f"{BASE}.log", f"{BASE}.index.swap", f"{BASE}.log.bak", BASE, f"1{BASE}.foo", "x.foo"]
)
def test_other_names_are_no_unknown_kinds(name: str) -> None:
    assert not is_unknown_kind(name)


SPECIAL: dict[str, Damage] = {
    "link out of the directory": lambda path: path.symlink_to("/etc/passwd"),
    "link to itself": lambda path: path.symlink_to(path),
    "dangling link": lambda path: path.symlink_to(path.parent / "nowhere"),
    "pipe": lambda path: os.mkfifo(path),
    "directory": lambda path: path.mkdir(),
    "link to a device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex", ".txnindex"])
@pytest.mark.parametrize("special", SPECIAL)
def test_an_irregular_file_is_refused(special: str, suffix: str, directory: Path) -> None:
    path = directory / f"{BASE}{suffix}"
    path.unlink(missing_ok=True)
    SPECIAL[special](path)
    before = tree(directory)
    report = cleaned(directory)
    assert isinstance(report.failure, RefusedError)
    assert str(path) in str(report.failure)
    assert before == tree(directory)


@pytest.mark.parametrize("special", ["link out of the directory", "pipe", "dangling link"])
@pytest.mark.parametrize("stage", [".swap", ".cleaned", ".deleted"])
def test_staged_names_of_strangers_do_not_reach_outside(
    directory: Path, stage: str, special: str, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"not yours")
    path = directory / f"{BASE}.log{stage}"
    if special == "link out of the directory":
        path.symlink_to(secret)
    else:
        SPECIAL[special](path)
    report = cleaned(directory)
    assert report.failure is None or isinstance(report.failure, RefusedError | CorruptError)
    assert b"not yours" == secret.read_bytes()


def test_an_index_that_claims_to_be_huge_takes_no_memory(directory: Path) -> None:
    for suffix in (".index", ".timeindex", ".txnindex"):
        path = directory / f"{BASE}{suffix}"
        path.touch()
        os.truncate(path, 1 << 40)
    report = cleaned(directory)
    assert report.failure is None


def test_a_partition_that_changes_meanwhile_is_noticed(directory: Path) -> None:
    before = tree(directory)
    request = clean_request(directory, topic=SMALL_SEGMENTS)
    log = directory / f"{60:020d}.log"

    class Appending(LocalFiles):
        """Somebody appends to the active segment once the first staged file is written."""

        def set_mtime(self, path: Path, mtime_ns: int) -> None:
            super().set_mtime(path, mtime_ns)
            log.write_bytes(log.read_bytes() + b"more")

    report = last_round(coordinator(files=Appending()).clean(request))
    assert "ConflictError" == type(report.failure).__name__
    after = tree(directory)
    assert before.keys() == after.keys()
    assert {log.name} == {name for name in before if before[name] != after[name]}
