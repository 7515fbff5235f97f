"""``keeplast place check``: what is there, what is absent, and what would end a round."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import obstore
import pytest

from keeplast.config.layers import USUAL_SOURCES
from keeplast.errors import UnavailableError
from keeplast.log.data_directory import open_data_directory
from keeplast.log.files import LocalFiles
from keeplast.log.lock import locked
from keeplast.service.place_check import CheckState, check_directory, find_java, find_rights
from keeplast.service.store_check import check_clock, probe_objects
from keeplast.tier.objects.stores import open_objects
from tests.support import called
from tests.support.checked_place import findings, problems
from tests.support.heard_calls import hear
from tests.support.ports import free_port
from tests.support.refusing_s3 import RefusingS3, refusing_s3
from tests.support.small_log import write_log
from tests.unit.cli.conftest import Command, Run


def states(run: Run) -> dict[str, str]:
    return {each["name"]: each["state"] for each in run.document["checks"]}


def test_everything_is_looked_at_in_one_go(keeplast: Command, settled_dir: Path) -> None:
    run = keeplast("place", "check", settled_dir, "--json")
    assert (0, "") == (run.code, run.err)
    assert [
        "keeplast", "kernels", "Java", "pyspark", "extra s3", "extra tier", "extra cluster",
        "directory", "rights", "lock", "disk", "clock", "policies",
    ] == [*states(run)]  # fmt: skip
    assert "nothing is in the way" == keeplast("place", "check", settled_dir).out.splitlines()[-1]


def test_nothing_is_changed(keeplast: Command, settled_dir: Path) -> None:
    before = sorted((str(p), p.stat().st_mtime_ns) for p in settled_dir.rglob("*"))
    keeplast("place", "check", settled_dir)
    assert before == sorted((str(p), p.stat().st_mtime_ns) for p in settled_dir.rglob("*"))


def test_a_host_without_a_directory_is_looked_at_too(keeplast: Command) -> None:
    run = keeplast("place", "check", "--json")
    assert (0, False) == (run.code, "lock" in states(run))


def test_an_unknown_policy_is_in_the_way(keeplast: Command, data_dir: Path) -> None:
    run = keeplast("place", "check", data_dir, "--json")
    assert (1, "problem") == (run.code, states(run)["policies"])
    assert "1 in the way of a clean" == keeplast("place", "check", data_dir).out.splitlines()[-1]


def test_a_default_policy_alone_is_in_the_way(keeplast: Command, data_dir: Path) -> None:
    (data_dir / "keeplast.toml").write_text("[cluster]\n'log.cleanup.policy' = 'compact'\n")
    run = keeplast("place", "check", data_dir, "--json")
    assert (1, "problem") == (run.code, states(run)["policies"])


def test_a_lock_that_is_held_is_in_the_way(settled_dir: Path) -> None:
    with locked(settled_dir):
        looked = check_directory(settled_dir, LocalFiles(), USUAL_SOURCES)
    found = {each.name: each for each in looked.checks}
    assert CheckState.PROBLEM is found["lock"].state
    assert "stop it, or clean a copy" in found["lock"].words


def test_a_missing_right_is_in_the_way(settled_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    protected = sorted((settled_dir / "t-0").iterdir())[0]
    real = os.access

    def access(path: Path, mode: int) -> bool:
        return real(path, mode) and not (Path(path) == protected and mode == os.W_OK)

    monkeypatch.setattr("keeplast.log.paths.os.access", access)
    found = find_rights(open_data_directory(settled_dir, LocalFiles()))
    assert CheckState.PROBLEM is found.state
    assert f"may not write {protected}" in found.words


def test_a_disk_without_room_is_in_the_way(
    keeplast: Command, settled_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalFiles, "free_bytes", lambda self, place: 0)
    assert "problem" == states(keeplast("place", "check", settled_dir, "--json"))["disk"]


def test_a_directory_that_is_not_there_is_said(keeplast: Command, tmp_path: Path) -> None:
    run = keeplast("place", "check", tmp_path / "nowhere", "--json")
    assert (1, "problem") == (run.code, states(run)["directory"])


def test_damage_is_a_line_and_no_traceback(keeplast: Command, tmp_path: Path) -> None:
    for name in ("t-0", "t-00"):
        write_log(tmp_path, name, {0: [(b"k", b"v")]})
    run = keeplast("place", "check", tmp_path, code=1)
    assert "two directories are of one partition" in run.out.replace("\n", " ")


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo 'openjdk version \"11.0.2\"' >&2", "11, Spark needs 17"),
        ("echo hello", "an unknown version, Spark needs 17"),
        ("echo 'openjdk version \"21.0.2\"' >&2", "21 at "),
        (None, "none in "),
    ],
)
def test_java_is_called_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, words: str
) -> None:
    (tmp_path / "bin").mkdir()
    if script is not None:
        (tmp_path / "bin" / "java").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bin" / "java").chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    found: Any = find_java()
    assert words in found.words
    assert (CheckState.OK if "21" in words else CheckState.ABSENT) is found.state


@pytest.fixture
def store(tmp_path: Path, settled_dir: Path, keeplast: Command) -> str:
    """A store with one partition, in which nothing is in the way."""
    return called.copied(settled_dir, tmp_path)


def test_a_store_is_looked_at_and_nothing_stays_in_it(
    keeplast: Command, store: str, tmp_path: Path
) -> None:
    before = sorted(str(p) for p in (tmp_path / "objects").rglob("*"))
    run = keeplast("place", "check", store, "--json")
    assert (0, "") == (run.code, run.err)
    assert ["database", "rights", "objects", "clock", "settings"] == [*states(run)][7:]
    assert {"ok"} == set([*states(run).values()][7:])
    assert (["t"], "store") == (run.document["topics"], run.document["kind"])
    assert before == sorted(str(p) for p in (tmp_path / "objects").rglob("*"))


def test_a_store_that_is_not_there_is_not_made(keeplast: Command, tmp_path: Path) -> None:
    run = keeplast("place", "check", f"sqlite:///{tmp_path / 'none.db'}", "--json")
    assert (1, "problem") == (run.code, states(run)["database"])
    assert not (tmp_path / "none.db").exists()


def test_objects_of_another_store_are_in_the_way_and_get_no_probe(
    keeplast: Command, store: str, tmp_path: Path
) -> None:
    name = tmp_path / "objects" / "keeplast-store"
    name.write_bytes(bytes(reversed(name.read_bytes())))
    run = keeplast("place", "check", store, "--json")
    (found,) = problems(run.document)
    assert (1, "objects") == (run.code, found["name"])
    assert "belong to another store" in found["words"]


def test_a_volume_that_is_not_mounted_hides_no_other_row(
    keeplast: Command, store: str, tmp_path: Path
) -> None:
    (tmp_path / "objects").rename(tmp_path / "away")
    run = keeplast("place", "check", store, "--json")
    assert ["objects"] == [each["name"] for each in problems(run.document)]
    assert ("ok", "ok") == (states(run)["clock"], states(run)["settings"])
    assert not (tmp_path / "objects").exists()


def test_rights_that_others_have_of_a_store_are_a_warning(
    keeplast: Command, store: str, tmp_path: Path
) -> None:
    (tmp_path / "meta.db").chmod(0o644)
    run = keeplast("place", "check", store, "--json")
    (found,) = findings(run.document)
    assert (0, "rights", "warning") == (run.code, found["name"], found["state"])
    assert 0o644 == (tmp_path / "meta.db").stat().st_mode & 0o777


def test_topics_are_those_of_a_live_cluster(
    keeplast: Command, store: str, settled_dir: Path
) -> None:
    for place in (store, settled_dir):
        run = keeplast("place", "check", place, "--topic", "t")
        assert (2, True) == (run.code, "leave --topic out" in run.err)
    assert 2 == keeplast("place", "check", "--topic", "t").code


def test_a_cluster_that_does_not_answer_is_a_row(
    keeplast: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keeplast.cluster.client.TIMEOUT_SECONDS", 0.5)
    run = keeplast("place", "check", f"kafka://127.0.0.1:{free_port()}", "--json")
    (found,) = problems(run.document)
    assert (1, "cluster") == (run.code, found["name"])
    assert "no broker answers" in found["words"]


RIGHTS = {"s3:PutObject", "s3:GetObject", "s3:ListBucket", "s3:DeleteObject"}


@pytest.fixture
def s3() -> Iterator[RefusingS3]:
    with refusing_s3() as made:
        yield made


@pytest.mark.parametrize("denied", [set(), *({each} for each in sorted(RIGHTS)), RIGHTS])
def test_each_right_that_objects_lack_is_named_and_no_other(
    s3: RefusingS3, denied: set[str]
) -> None:
    s3.denied = denied
    found = [*probe_objects(open_objects(s3.url, s3.options), s3.url)]
    # Whether what was not written may be read, nothing says.
    named = denied - ({"s3:GetObject"} if denied == RIGHTS else set())
    assert sorted(named) == sorted(each.words.rpartition("needs ")[2] for each in found)
    if "s3:DeleteObject" not in denied:
        assert {} == s3.objects


def test_a_probe_that_may_not_be_removed_is_one_however_often_it_is_tried(s3: RefusingS3) -> None:
    s3.denied = {"s3:DeleteObject"}
    for _ in range(3):
        (found,) = probe_objects(open_objects(s3.url, s3.options), s3.url)
        assert found.remedy.startswith("allow s3:DeleteObject")
    assert ["keeplast-probe"] == [*s3.objects]


def test_objects_that_heed_no_condition_are_in_the_way(s3: RefusingS3) -> None:
    s3.heeds_conditions = False
    (found,) = probe_objects(open_objects(s3.url, s3.options), s3.url)
    assert "ignores the condition" in found.words
    assert {} == s3.objects


def test_a_probe_that_another_check_removes_in_between_says_nothing(
    s3: RefusingS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    puts = [0]

    def put_after_removal(*_: object, **__: object) -> None:
        puts[0] += 1
        if puts[0] == 2:
            s3.objects.clear()

    hear(monkeypatch, obstore, "put", put_after_removal)
    assert [] == [*probe_objects(open_objects(s3.url, s3.options), s3.url)]
    assert {} == s3.objects


def test_a_clock_that_differs_from_the_databases_is_in_the_way() -> None:
    differs = Mock(
        side_effect=UnavailableError("this host's clock and the metadata store's differ")
    )
    assert CheckState.PROBLEM is check_clock(differs, is_shared=True).state
    assert "this host agrees" in check_clock(lambda: 0, is_shared=True).words
    assert "by this host" in check_clock(lambda: 0, is_shared=False).words


def test_a_named_place_is_checked_with_what_its_table_says(
    keeplast: Command, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keeplast.toml"
    file.write_text(
        f'[place.prod]\nat = "{data_dir}"\n[place.prod.topic.t]\n"cleanup.policy" = "compact"\n'
    )
    monkeypatch.setenv("KEEPLAST_CONFIG", str(file))
    run = keeplast("place", "check", "prod", "--json")
    assert (0, "ok") == (run.code, states(run)["policies"])
