"""``keeplast tier copy`` and ``import``: what a directory has gained, and whose log it is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from keeplast.format.filename import REPLICATION_CHECKPOINT
from keeplast.format.leader_epoch import LeaderEpoch, encode
from keeplast.log.append import NewRecord
from keeplast.log.checkpoints import update_checkpoint
from keeplast.log.files import LocalFiles
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import TopicConfig
from tests.support.log_builder import LogBuilder, text
from tests.support.reader import read_partition
from tests.unit.cli.conftest import Run

Command = Callable[..., Run]

TOPIC = TopicConfig(cleanup_policy=frozenset({"compact"}), segment_bytes=1 << 20)
EPOCHS = "leader-epoch-checkpoint"


def fill(log: LogBuilder, segments: int) -> None:
    """Close so many segments of four records, always of the same keys."""
    for _ in range(segments):
        for key in range(4):
            log.append(NewRecord(text(key), text(log.log_end), log.now_ms))
        log.roll()


def write_epochs(log: LogBuilder, *entries: LeaderEpoch) -> None:
    (log.directory / EPOCHS).write_bytes(encode(list(entries)))


@pytest.fixture
def log(tmp_path: Path) -> LogBuilder:
    """A log of three closed segments, in the store's directory-to-be ``data``."""
    log = LogBuilder(tmp_path / "data" / "t-0", TOPIC)
    fill(log, 3)
    return log


@pytest.fixture
def store(tmp_path: Path, keeplast: Command, log: LogBuilder) -> str:
    """A store that has imported the log once."""
    url = f"sqlite:///{tmp_path / 'meta.db'}"
    keeplast("tier", "init", "--store", url, "--objects", f"file://{tmp_path / 'objects'}")
    taken = keeplast(
        "tier", "import", log.directory.parent, "--store", url, "--config", "cleanup.policy=compact"
    )
    assert 0 == taken.code
    return url


def test_copy_takes_closed_segments_that_the_store_lacks(
    tmp_path: Path, keeplast: Command, store: str, log: LogBuilder
) -> None:
    fill(log, 2)
    log.record(9, 9)
    run = keeplast("tier", "copy", tmp_path / "data", "--store", store, "--json")
    assert 0 == run.code
    (found,) = run.document["partitions"]
    assert (2, 20, log.active_base) == (found["added"], found["remote_end"], 20)
    assert "t-0: holds" in keeplast("verify", store).out


def test_an_import_goes_on_in_the_middle_of_a_segment_that_has_grown(
    tmp_path: Path, keeplast: Command, store: str, log: LogBuilder
) -> None:
    log.record(7, 1)
    again = keeplast(
        "tier", "import", tmp_path / "data", "--store", store, "--config", "cleanup.policy=compact"
    )
    assert (0, "t-0: 1 segment copied") == (again.code, again.out[:21])
    log.record(7, 2)
    log.roll()
    run = keeplast("tier", "copy", tmp_path / "data", "--store", store)
    assert "t-0: 1 segment copied, 5 in the store" in run.out
    assert 0 == keeplast("clean", store, "--force").code
    assert "t-0: holds" in keeplast("verify", store).out
    assert 0 == keeplast("tier", "export", "--store", store, "--to", tmp_path / "out").code
    expected = read_partition(log.directory).final_values()
    assert expected == read_partition(tmp_path / "out" / "t-0").final_values()


def test_copy_leaves_what_is_not_replicated_or_not_decided(
    tmp_path: Path, keeplast: Command, store: str, log: LogBuilder
) -> None:
    fill(log, 2)
    (tmp_path / "data" / "replication-offset-checkpoint").write_text("0\n1\nt 0 17\n")
    run = keeplast("tier", "copy", tmp_path / "data", "--store", store, "--json")
    assert 16 == run.document["partitions"][0]["remote_end"]


def test_what_was_copied_after_a_takeover_is_cleaned_like_the_rest(
    tmp_path: Path, keeplast: Command, store: str, log: LogBuilder
) -> None:
    fill(log, 1)
    taken = keeplast(
        "tier", "copy", tmp_path / "data", "--store", store, "--owner", "b", "--take-over"
    )
    assert 0 == taken.code
    run = keeplast("clean", store, "--owner", "b", "--force", "--json")
    assert (0, 16) == (run.code, run.document["partitions"][0]["end_offset"])
    assert "t-0: holds" in keeplast("verify", store).out


def test_a_directory_with_another_history_is_refused(
    tmp_path: Path, keeplast: Command, log: LogBuilder
) -> None:
    url = f"sqlite:///{tmp_path / 'meta.db'}"
    write_epochs(log, LeaderEpoch(0, 0), LeaderEpoch(1, 8))
    keeplast("tier", "init", "--store", url, "--objects", f"file://{tmp_path / 'objects'}")
    keeplast(
        "tier", "import", tmp_path / "data", "--store", url, "--config", "cleanup.policy=compact"
    )
    write_epochs(log, LeaderEpoch(0, 0), LeaderEpoch(2, 4))
    fill(log, 1)
    run = keeplast("tier", "copy", tmp_path / "data", "--store", url)
    assert 5 == run.code
    assert "the directory has another history than the store" in run.err


def test_an_import_of_another_history_is_refused_before_anything_is_claimed(
    tmp_path: Path, keeplast: Command, store: str
) -> None:
    other = LogBuilder(tmp_path / "other" / "t-0", TOPIC)
    fill(other, 5)
    write_epochs(other, LeaderEpoch(0, 0), LeaderEpoch(1, 4))
    policy = ("--config", "cleanup.policy=compact")
    for call in (("copy", tmp_path / "other"), ("import", tmp_path / "other", *policy)):
        run = keeplast("tier", *call, "--store", store)
        assert 5 == run.code
        assert "the directory has another history than the store" in run.err
    assert "t-0: holds" in keeplast("verify", store).out
    (found,) = keeplast("tier", "status", "--store", store, "--json").document["partitions"]
    assert 12 == found["remote_end"]


def test_a_log_that_begins_at_another_epoch_than_the_store_has_there_is_refused(
    tmp_path: Path, keeplast: Command, store: str, log: LogBuilder
) -> None:
    fill(log, 1)
    write_epochs(log, LeaderEpoch(5, 4))
    run = keeplast("tier", "copy", tmp_path / "data", "--store", store)
    assert 5 == run.code
    assert "its leader epochs differ" in run.err


def test_what_newer_leaders_wrote_is_cleaned_to_its_end(
    tmp_path: Path, keeplast: Command, store: str, log: LogBuilder
) -> None:
    fill(log, 4)
    write_epochs(log, LeaderEpoch(0, 0), LeaderEpoch(1, 12), LeaderEpoch(3, 20))
    assert 0 == keeplast("tier", "copy", tmp_path / "data", "--store", store).code
    assert 0 == keeplast("clean", store, "--force").code
    again = keeplast("clean", store, "--force", "--json")
    (found,) = again.document["partitions"]
    assert (True, 28) == (found["skipped"], found["first_dirty"])


def test_epochs_that_a_broker_forgot_with_its_log_start_are_kept(
    tmp_path: Path, keeplast: Command, log: LogBuilder
) -> None:
    url = f"sqlite:///{tmp_path / 'meta.db'}"
    write_epochs(log, LeaderEpoch(0, 0), LeaderEpoch(1, 4), LeaderEpoch(2, 8))
    keeplast("tier", "init", "--store", url, "--objects", f"file://{tmp_path / 'objects'}")
    keeplast(
        "tier", "import", tmp_path / "data", "--store", url, "--config", "cleanup.policy=compact"
    )
    fill(log, 1)
    for path in [*log.directory.glob(f"{0:020d}.*"), *log.directory.glob(f"{4:020d}.*")]:
        path.unlink()
    write_epochs(log, LeaderEpoch(2, 8), LeaderEpoch(4, 12))
    assert 0 == keeplast("tier", "copy", tmp_path / "data", "--store", url).code
    assert "t-0: holds" in keeplast("verify", url).out
    assert 0 == keeplast("clean", url, "--force").code


def test_a_hole_is_not_copied_over(
    tmp_path: Path, keeplast: Command, store: str, log: LogBuilder
) -> None:
    fill(log, 3)
    for base in (0, 4, 8, 12):
        for path in log.directory.glob(f"{base:020d}.*"):
            path.unlink()
    run = keeplast("tier", "copy", tmp_path / "data", "--store", store)
    assert 5 == run.code
    assert "what lay between was removed before it was copied" in run.err


def test_copy_of_a_directory_without_known_partitions_says_what_to_do(
    tmp_path: Path, keeplast: Command, store: str
) -> None:
    (tmp_path / "other").mkdir()
    run = keeplast("tier", "copy", tmp_path / "other", "--store", store)
    assert 2 == run.code
    assert "keeplast tier import takes new ones in" in run.err


def test_one_partition_that_fails_stops_no_other(
    tmp_path: Path, keeplast: Command, store: str, log: LogBuilder
) -> None:
    shutil.copytree(log.directory, tmp_path / "data" / "t-1")
    keeplast(
        "tier", "import", tmp_path / "data", "--store", store, "--config", "cleanup.policy=compact"
    )
    shutil.copytree(tmp_path / "data" / "t-1", tmp_path / "out" / "t-0")
    run = keeplast("tier", "export", "--store", store, "--to", tmp_path / "out", "--json")
    assert 4 == run.code
    first, second = json.loads(run.out)["partitions"]
    assert "the target exists" in first["error"]["message"]
    assert 12 == second["log_end"]


def test_an_import_says_what_it_has_left_out_above_the_high_watermark(
    tmp_path: Path, keeplast: Command, store: str, log: LogBuilder
) -> None:
    """As after kill -9: a broker notes the high watermark every five seconds."""
    fill(log, 1)
    noted = {TopicPartition("t", 0): 14}
    update_checkpoint(LocalFiles(), log.directory.parent, REPLICATION_CHECKPOINT, noted)
    bring = (
        "tier", "import", log.directory.parent, "--store", store, "--config",
        "cleanup.policy=compact",
    )  # fmt: skip
    run = keeplast(*bring)
    assert (0, True) == (run.code, "offsets 0..14" in run.out)
    assert "offsets 14..16 are left out: they are above the high watermark" in run.err
    noted = {TopicPartition("t", 0): 16}
    update_checkpoint(LocalFiles(), log.directory.parent, REPLICATION_CHECKPOINT, noted)
    run = keeplast(*bring)
    assert (True, False) == ("offsets 0..16" in run.out, "left out" in run.err)


def import_empty(tmp_path: Path, keeplast: Command, log_start: int) -> str:
    """Take in a directory without segments; returns the store."""
    data, url = tmp_path / "data", f"sqlite:///{tmp_path / 'meta.db'}"
    (data / "t-0").mkdir(parents=True)
    (data / "log-start-offset-checkpoint").write_text(f"0\n1\nt 0 {log_start}\n")
    keeplast("tier", "init", "--store", url, "--objects", f"file://{tmp_path / 'objects'}")
    taken = keeplast(
        "tier", "import", data, "--store", url, "--config", "cleanup.policy=compact", "--json"
    )
    assert 0 == taken.code, taken.err
    (found,) = taken.document["partitions"]
    assert (0, log_start, log_start) == (
        found["added"], found["log_start"], found["remote_end"],
    )  # fmt: skip
    return url


def test_a_directory_without_segments_is_taken_in_at_its_log_start(
    tmp_path: Path, keeplast: Command
) -> None:
    url = import_empty(tmp_path, keeplast, 7)
    again = keeplast("tier", "copy", tmp_path / "data", "--store", url)
    assert (0, "t-0: 0 segments copied") == (again.code, again.out[:22]), again.err
    assert "t-0: holds" in keeplast("verify", url).out


def test_a_directory_without_segments_is_copied_when_it_fills(
    tmp_path: Path, keeplast: Command
) -> None:
    url = import_empty(tmp_path, keeplast, 0)
    (tmp_path / "data" / "t-0").rmdir()
    fill(LogBuilder(tmp_path / "data" / "t-0", TOPIC), 1)
    run = keeplast("tier", "copy", tmp_path / "data", "--store", url)
    assert "t-0: 1 segment copied, 1 in the store" in run.out, run.err
    assert "t-0: holds" in keeplast("verify", url).out


def test_a_directory_that_has_lost_its_segments_takes_nothing_from_the_store(
    tmp_path: Path, keeplast: Command, store: str, log: LogBuilder
) -> None:
    for path in log.directory.iterdir():
        path.unlink()
    run = keeplast("tier", "copy", tmp_path / "data", "--store", store, "--json")
    (found,) = run.document["partitions"]
    assert (3, 0, 12) == (found["segments"], found["log_start"], found["remote_end"])
    assert "t-0: holds" in keeplast("verify", store).out
