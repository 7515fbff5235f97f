"""The demo from end to end on the local runner: what it prints, and that it would notice a loss."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from keeplast.cli.demo.cleaning import SAMPLE, clean_broker_sample
from keeplast.cli.demo.history import GitHistory
from keeplast.cli.demo.reading import LogReading, read_log
from keeplast.cli.main import app
from keeplast.clock import SystemClock
from keeplast.format.compression import Codec
from keeplast.format.record import ControlType
from keeplast.log.append import LogAppender, NewRecord
from keeplast.log.files import FileSystem, LocalFiles
from keeplast.model.topic_config import TopicConfig
from keeplast.run.coordinator import Coordinator
from keeplast.run.events import NoEvents
from keeplast.run.local_runner import LocalRunner
from tests.support.git_repository import GitRepository, long_history

FILES = LocalFiles()


def run_demo(path: Path, *more: str) -> Result:
    return CliRunner().invoke(app, ["demo", "--runner", "local", "--git", str(path), *more])


def document(result: Result) -> Any:
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> GitRepository:
    return long_history(tmp_path_factory.mktemp("history"), 3_000)


def test_long_history_is_compacted_to_gits_tree(repository: GitRepository) -> None:
    result = run_demo(repository.path, "--json")
    history, sample = document(result)["parts"]
    assert (result.exit_code, document(result)["equal"]) == (0, True)
    assert history["keys"] == len(dict(GitHistory(repository.path).tree()))
    assert history["before"]["segments"] > 5
    assert history["after"]["records"] < history["before"]["records"] // 2
    # What is left of tombstones lies in the active segment, which is never cleaned.
    assert history["after"]["tombstones"] < history["before"]["tombstones"] // 2
    assert (sample["keys"], sample["equal"]) == (58, True)
    assert (sample["before"]["tombstones"], sample["after"]["tombstones"]) == (12, 0)


def test_people_get_pictures_counts_and_a_verdict(repository: GitRepository) -> None:
    result = run_demo(repository.path)
    assert result.exit_code == 0
    for expected in (
        "3,000 commits",
        "first dirty offset",
        "equal: all",
        "keeplast clean DATA_DIR",
    ):
        assert expected in result.stdout


def test_what_comes_next_names_a_directory_to_copy_that_is_there(
    repository: GitRepository,
) -> None:
    text = run_demo(repository.path).stdout
    (line,) = [each for each in text.splitlines() if "a copy to try the rest on" in each]
    copied = Path(line.split("cp -r ")[1].split()[0])
    assert SAMPLE.samefile(copied)
    assert (copied / "orders-0").is_dir()


def test_without_a_history_around_it_the_brokers_directory_alone_is_cleaned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    result = CliRunner().invoke(app, ["demo", "--runner", "local", "--json"])
    assert (0, ["data directory of a Kafka 4.3.0 broker"]) == (
        result.exit_code,
        [part["name"] for part in document(result)["parts"]],
    )
    assert "keeplast demo --git PATH" in result.stderr


@pytest.mark.parametrize("name", ["a", b"not \xff utf-8", "x" * 200, None])
def test_single_commit_is_compacted_too_and_one_without_any_file(
    tmp_path: Path, name: str | bytes | None
) -> None:
    repository = GitRepository(tmp_path)
    if name is not None:
        repository.write(name)
    repository.commit()
    result = run_demo(tmp_path, "--json")
    keys = document(result)["parts"][0]["keys"]
    assert (result.exit_code, keys) == (0, 0 if name is None else 1)


@pytest.mark.parametrize("kind", ["empty repository", "no repository"])
def test_nothing_to_replay_is_a_usage_error(tmp_path: Path, kind: str) -> None:
    if kind == "empty repository":
        GitRepository(tmp_path)
    result = run_demo(tmp_path, "--json")
    assert (result.exit_code, document(result)["error"]["class"]) == (2, "InvalidError")


def test_lost_record_ends_with_one(
    repository: GitRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The judge is not part of what is judged: a reader that misses a key is noticed."""

    def read_all_but_one(partition: Path, files: FileSystem) -> LogReading:
        log = read_log(partition, files)
        log.state.pop(next(iter(log.state)))
        return log

    monkeypatch.setattr("keeplast.cli.demo.cleaning.read_log", read_all_but_one)
    result = run_demo(repository.path)
    assert result.exit_code == 1
    assert "NOT EQUAL: 1 keys" in result.stdout


def test_sample_stays_as_the_broker_left_it(tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in SAMPLE.rglob("*") if path.is_file()}
    with LocalRunner(1) as runner:
        coordinator = Coordinator(runner, SystemClock(), FILES, NoEvents())
        outcome = clean_broker_sample(tmp_path / "copy", coordinator, FILES, SystemClock())
    assert outcome.is_equal
    assert before == {path: path.read_bytes() for path in SAMPLE.rglob("*") if path.is_file()}


def test_reader_sees_committed_records_at_their_own_offsets(tmp_path: Path) -> None:
    with LogAppender(tmp_path / "t-0", FILES, topic=TopicConfig()) as log:
        for producer_id, word in ((1, b"committed"), (2, b"aborted"), (3, b"open")):
            log.append(
                [NewRecord(b"a", word), NewRecord(word, word)],
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=0,
                is_transactional=True,
            )
        log.append([NewRecord(b"a", b"later"), NewRecord(None, b"no key")], codec=Codec.ZSTD)
        log.append([NewRecord(b"gone", b"1"), NewRecord(b"gone", None)])
        for producer_id, outcome in ((2, ControlType.ABORT), (1, ControlType.COMMIT)):
            log.append_marker(outcome, producer_id=producer_id, producer_epoch=0, timestamp_ms=1)
    reading = read_log(tmp_path / "t-0", FILES)
    assert reading.state == {b"a": b"later", b"committed": b"committed"}
    assert (reading.records, reading.tombstones) == (12, 1)
    assert [(each.base_offset, each.end_offset) for each in reading.segments] == [(0, 12)]
