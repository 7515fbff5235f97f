"""``keeplast copy``: what a directory has gained or has again, and whose log it is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from keeplast.format.filename import REPLICATION_CHECKPOINT
from keeplast.format.leader_epoch import LeaderEpoch, encode
from keeplast.log.append import NewRecord
from keeplast.log.checkpoints import update_checkpoint
from keeplast.log.files import LocalFiles
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import TopicConfig
from keeplast.tier.metadata.fencing import Transactions
from keeplast.tier.objects.stores import ObstoreObjects
from tests.support import called
from tests.support.log_builder import LogBuilder, text
from tests.support.reader import read_partition
from tests.unit.cli.conftest import Command

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
    return called.copied(log.directory.parent, tmp_path, "--config", "cleanup.policy=compact")


def test_copy_takes_closed_segments_that_the_store_lacks(
    tmp_path: Path, keeplast: Command, store: str, log: LogBuilder
) -> None:
    fill(log, 2)
    log.record(9, 9)
    run = keeplast("copy", tmp_path / "data", store, "--json", code=0)
    (found,) = run.document["partitions"]
    assert (2, 20, log.active_base) == (found["added"], found["remote_end"], 20)
    assert "t-0: holds" in keeplast("verify", store).out


def test_an_import_goes_on_in_the_middle_of_a_segment_that_has_grown(
    tmp_path: Path, keeplast: Command, store: str, log: LogBuilder
) -> None:
    log.record(7, 1)
    again = keeplast(
        "copy", tmp_path / "data", store, "--new", "--config", "cleanup.policy=compact"
    )
    assert (0, "t-0: 1 segment copied") == (again.code, again.out[:21])
    log.record(7, 2)
    log.roll()
    run = keeplast("copy", tmp_path / "data", store)
    assert "t-0: 1 segment copied, 5 in the store" in run.out
    assert 0 == keeplast("clean", store, "--despite", "dirty-ratio").code
    assert "t-0: holds" in keeplast("verify", store).out
    assert 0 == keeplast("export", store, "--as", "log", "--to", tmp_path / "out").code
    expected = read_partition(log.directory).final_values()
    assert expected == read_partition(tmp_path / "out" / "t-0").final_values()


def test_copy_leaves_what_is_not_replicated_or_not_decided(
    tmp_path: Path, keeplast: Command, store: str, log: LogBuilder
) -> None:
    fill(log, 2)
    (tmp_path / "data" / "replication-offset-checkpoint").write_text("0\n1\nt 0 17\n")
    run = keeplast("copy", tmp_path / "data", store, "--json")
    assert 16 == run.document["partitions"][0]["remote_end"]


def test_segments_copied_after_a_takeover_are_cleaned_like_the_rest(
    tmp_path: Path, keeplast: Command, store: str, log: LogBuilder
) -> None:
    fill(log, 1)
    keeplast("copy", tmp_path / "data", store, "--owner", "b", "--take-over", code=0)
    run = keeplast("clean", store, "--owner", "b", "--despite", "dirty-ratio", "--json")
    assert (0, 16) == (run.code, run.document["partitions"][0]["end_offset"])
    assert "t-0: holds" in keeplast("verify", store).out


def test_a_directory_with_another_history_is_refused(
    tmp_path: Path, keeplast: Command, log: LogBuilder
) -> None:
    write_epochs(log, LeaderEpoch(0, 0), LeaderEpoch(1, 8))
    url = called.copied(tmp_path / "data", tmp_path, "--config", "cleanup.policy=compact")
    write_epochs(log, LeaderEpoch(0, 0), LeaderEpoch(2, 4))
    fill(log, 1)
    run = keeplast("copy", tmp_path / "data", url, code=5)
    assert "the directory has another history than the store" in run.err


def test_an_import_of_another_history_is_refused_before_anything_is_claimed(
    tmp_path: Path, keeplast: Command, store: str
) -> None:
    other = LogBuilder(tmp_path / "other" / "t-0", TOPIC)
    fill(other, 5)
    write_epochs(other, LeaderEpoch(0, 0), LeaderEpoch(1, 4))
    policy = ("--config", "cleanup.policy=compact")
    for more in ((), ("--new", *policy)):
        run = keeplast("copy", tmp_path / "other", store, *more, code=5)
        assert "the directory has another history than the store" in run.err
    assert "t-0: holds" in keeplast("verify", store).out
    (found,) = keeplast("status", store, "--json").document["partitions"]
    assert 12 == found["remote_end"]


def test_a_log_that_begins_at_another_epoch_than_the_store_has_there_is_refused(
    tmp_path: Path, keeplast: Command, store: str, log: LogBuilder
) -> None:
    fill(log, 1)
    write_epochs(log, LeaderEpoch(5, 4))
    run = keeplast("copy", tmp_path / "data", store, code=5)
    assert "its leader epochs differ" in run.err


def test_records_of_newer_leaders_are_cleaned_to_their_end(
    tmp_path: Path, keeplast: Command, store: str, log: LogBuilder
) -> None:
    fill(log, 4)
    write_epochs(log, LeaderEpoch(0, 0), LeaderEpoch(1, 12), LeaderEpoch(3, 20))
    assert 0 == keeplast("copy", tmp_path / "data", store).code
    assert 0 == keeplast("clean", store, "--despite", "dirty-ratio").code
    again = keeplast("clean", store, "--despite", "dirty-ratio", "--json")
    (found,) = again.document["partitions"]
    assert (True, 28) == (found["skipped"], found["first_dirty"])


def test_epochs_that_a_broker_forgot_with_its_log_start_are_kept(
    tmp_path: Path, keeplast: Command, log: LogBuilder
) -> None:
    write_epochs(log, LeaderEpoch(0, 0), LeaderEpoch(1, 4), LeaderEpoch(2, 8))
    url = called.copied(tmp_path / "data", tmp_path, "--config", "cleanup.policy=compact")
    fill(log, 1)
    for path in [*log.directory.glob(f"{0:020d}.*"), *log.directory.glob(f"{4:020d}.*")]:
        path.unlink()
    write_epochs(log, LeaderEpoch(2, 8), LeaderEpoch(4, 12))
    assert 0 == keeplast("copy", tmp_path / "data", url).code
    assert "t-0: holds" in keeplast("verify", url).out
    assert 0 == keeplast("clean", url, "--despite", "dirty-ratio").code


def test_a_hole_is_not_copied_over(
    tmp_path: Path, keeplast: Command, store: str, log: LogBuilder
) -> None:
    fill(log, 3)
    for base in (0, 4, 8, 12):
        for path in log.directory.glob(f"{base:020d}.*"):
            path.unlink()
    run = keeplast("copy", tmp_path / "data", store, code=5)
    assert "what lay between was removed before it was copied" in run.err


def test_copy_of_a_directory_without_known_partitions_says_what_to_do(
    tmp_path: Path, keeplast: Command, store: str
) -> None:
    (tmp_path / "other").mkdir()
    run = keeplast("copy", tmp_path / "other", store, code=2)
    assert "keeplast copy --new takes new ones in" in run.err


def test_one_partition_that_fails_stops_no_other(
    tmp_path: Path, keeplast: Command, store: str, log: LogBuilder
) -> None:
    shutil.copytree(log.directory, tmp_path / "data" / "t-1")
    keeplast("copy", tmp_path / "data", store, "--new", "--config", "cleanup.policy=compact")
    shutil.copytree(tmp_path / "data" / "t-1", tmp_path / "out" / "t-0")
    run = keeplast("export", store, "--as", "log", "--to", tmp_path / "out", "--json", code=4)
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
        "copy", log.directory.parent, store, "--new", "--config",
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
    taken = keeplast(
        "copy",
        data,
        url,
        "--new",
        "--objects",
        f"file://{tmp_path / 'objects'}",
        "--config",
        "cleanup.policy=compact",
        "--json",
        code=0,
    )
    (found,) = taken.document["partitions"]
    assert (0, log_start, log_start) == (
        found["added"], found["log_start"], found["remote_end"],
    )  # fmt: skip
    return url


def test_a_directory_without_segments_is_taken_in_at_its_log_start(
    tmp_path: Path, keeplast: Command
) -> None:
    url = import_empty(tmp_path, keeplast, 7)
    again = keeplast("copy", tmp_path / "data", url)
    assert (0, "t-0: 0 segments copied") == (again.code, again.out[:22]), again.err
    assert "t-0: holds" in keeplast("verify", url).out


def test_a_directory_without_segments_is_copied_when_it_fills(
    tmp_path: Path, keeplast: Command
) -> None:
    url = import_empty(tmp_path, keeplast, 0)
    (tmp_path / "data" / "t-0").rmdir()
    fill(LogBuilder(tmp_path / "data" / "t-0", TOPIC), 1)
    run = keeplast("copy", tmp_path / "data", url)
    assert "t-0: 1 segment copied, 1 in the store" in run.out, run.err
    assert "t-0: holds" in keeplast("verify", url).out


def test_a_directory_that_has_lost_its_segments_takes_nothing_from_the_store(
    tmp_path: Path, keeplast: Command, store: str, log: LogBuilder
) -> None:
    for path in log.directory.iterdir():
        path.unlink()
    run = keeplast("copy", tmp_path / "data", store, "--json")
    (found,) = run.document["partitions"]
    assert (3, 0, 12) == (found["segments"], found["log_start"], found["remote_end"])
    assert "t-0: holds" in keeplast("verify", store).out


NEW = ("--new", "--config", "cleanup.policy=compact")


def test_without_new_unknown_partitions_are_left_alone_and_listed(
    tmp_path: Path, keeplast: Command, store: str, log: LogBuilder
) -> None:
    shutil.copytree(log.directory, tmp_path / "data" / "u-0")
    fill(log, 1)
    run = keeplast("copy", tmp_path / "data", store, "--json")
    assert (0, [{"topic": "u", "partition": 0}]) == (run.code, run.document["unknown"])
    assert [("t", 1)] == [(each["topic"], each["added"]) for each in run.document["partitions"]]
    assert (store, "store") == (run.document["place"], run.document["kind"])
    assert "note: not in the store, and left alone: u-0; --new takes in what is new" in run.err
    assert "had nothing new; 1 left alone" in keeplast("copy", tmp_path / "data", store).out
    taken = keeplast("copy", tmp_path / "data", store, *NEW, "--topic", "u", "--json")
    assert (0, []) == (taken.code, taken.document["unknown"])
    assert [12] == [each["remote_end"] for each in taken.document["partitions"]]
    # A default that is spelled out is no other setting.
    same = (*NEW, "--config", "compaction.strategy=offset", "--topic", "u")
    assert "had nothing new" in keeplast("copy", tmp_path / "data", store, *same).out


def test_a_topic_that_is_named_and_not_known_is_no_copy_of_nothing(
    tmp_path: Path, keeplast: Command, store: str, log: LogBuilder
) -> None:
    shutil.copytree(log.directory, tmp_path / "data" / "u-0")
    run = keeplast("copy", tmp_path / "data", store, "--topic", "t", "--topic", "u")
    assert (2, True) == (run.code, "copy --new. topic=u" in run.err), run.err


def test_a_partition_that_is_kept_with_other_settings_keeps_no_other_from_being_copied(
    tmp_path: Path, keeplast: Command, store: str, log: LogBuilder
) -> None:
    shutil.copytree(log.directory, tmp_path / "data" / "u-0")
    assert 0 == keeplast("configure", store, "segment.bytes=4096").code
    more = ("--config", "segment.bytes=8192", "--topic", "t", "--topic", "u")
    run = keeplast("copy", tmp_path / "data", store, *NEW, *more, "--json")
    first, second = run.document["partitions"]
    assert (4, 12) == (run.code, second["remote_end"])
    assert "kept with other settings" in first["error"]["message"]
    assert "t-0: the partition is kept with other settings" in run.err
    kept = keeplast("config", store, "--topic", "t", "--key", "segment.bytes", "--json")
    assert "4096" in kept.out
    assert 0 == keeplast("copy", tmp_path / "data", store).code


def test_a_topic_of_unknown_policy_keeps_no_other_from_being_taken_in(
    tmp_path: Path, keeplast: Command, store: str, log: LogBuilder
) -> None:
    for name in ("u-0", "v-0"):
        shutil.copytree(log.directory, tmp_path / "data" / name)
    (tmp_path / "data" / "keeplast.toml").write_text(
        '[topic.t]\ncleanup.policy = "compact"\n[topic.u]\ncleanup.policy = "compact"\n'
    )
    run = keeplast("copy", tmp_path / "data", store, "--new", "--json")
    t, u, v = run.document["partitions"]
    assert (4, 12, 12) == (run.code, t["remote_end"], u["remote_end"])
    assert "cleanup.policy of the topic is unknown" in v["error"]["message"]
    other = f"sqlite:///{tmp_path / 'other.db'}"
    new = ("--new", "--objects", f"file://{tmp_path / 'others'}")
    run = keeplast("copy", tmp_path / "data", other, *new, "--topic", "v", "--json")
    assert (4, "v") == (run.code, run.document["partitions"][0]["topic"])
    assert not (tmp_path / "other.db").exists()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("{data}", "{data}"), 4, "copies go into a store"),
        (("{data}", "kafka://127.0.0.1:1"), 4, "brokers copy a live cluster's topics"),
        (("{store}", "{store}"), 2, "a copy begins with a data directory"),
        (("s3://bucket/data", "{store}"), 4, "a disk of this host"),
        (("{data}", "{store}", "--config", "segment.ms=1"), 2, "kept with it"),
        (("{data}", "{store}", "--storage", "local:/x"), 2, "no such property"),
        (("{data}/none", "{store}"), 2, "none"),
    ],
)
def test_a_bad_call_of_copy_is_reported_and_changes_nothing(
    tmp_path: Path, keeplast: Command, store: str, words: tuple[str, ...], code: int, said: str
) -> None:
    before = (tmp_path / "meta.db").read_bytes()
    given = [each.format(data=tmp_path / "data", store=store) for each in words]
    run = keeplast("copy", *given)
    assert (code, True) == (run.code, said in run.err), run.err
    assert before == (tmp_path / "meta.db").read_bytes()


def test_a_named_directory_and_a_named_store_say_the_rest(
    tmp_path: Path, keeplast: Command, log: LogBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    broker = tmp_path / "server.properties"
    broker.write_text("log.cleaner.delete.retention.ms=5\n")
    (tmp_path / "keeplast.toml").write_text(
        f'[place.broker]\nat = "data"\nbroker-config = "server.properties"\n'
        '[place.broker.topic.t]\n"cleanup.policy" = "compact"\n'
        f'[place.history]\nat = "sqlite:///{tmp_path}/meta.db"\n'
        f'objects = "file://{tmp_path}/objects"\nowner = "a"\n[place.history.copy]\nnew = true\n'
    )
    run = keeplast("copy", "broker", "history", "--json")
    assert (0, 12) == (run.code, run.document["partitions"][0]["remote_end"]), run.err
    kept = keeplast("configure", "history", "--plan", "retention.ms=1", "--json").document
    (found,) = kept["partitions"]
    assert ("compact", "5") == tuple(
        found["settings"][key] for key in ("cleanup.policy", "delete.retention.ms")
    )
    (status,) = keeplast("status", f"sqlite:///{tmp_path}/meta.db", "--json") \
        .document["partitions"]  # fmt: skip
    assert "a" == status["owner"]


def test_a_copy_that_is_cut_off_is_gone_on_with(
    tmp_path: Path, keeplast: Command, log: LogBuilder
) -> None:
    """Cut off in front of each object and each transaction, until a call has got through."""
    url = f"sqlite:///{tmp_path / 'meta.db'}"
    new = (*NEW, "--objects", f"file://{tmp_path / 'objects'}")
    codes: list[int] = []
    while 0 not in codes:
        with pytest.MonkeyPatch.context() as patch:
            cut_at(patch, len(codes) + 1)
            codes.append(keeplast("copy", tmp_path / "data", url, *new).code)
    assert ({130}, 10) == (set(codes[:-1]), min(len(codes), 10))
    assert "t-0: holds" in keeplast("verify", url).out
    assert 0 == keeplast("export", url, "--as", "log", "--to", tmp_path / "out").code
    written = read_partition(tmp_path / "out" / "t-0")
    assert read_partition(log.directory).records() == written.records()


def test_metadata_that_is_older_than_its_objects_takes_nothing_in(
    tmp_path: Path, keeplast: Command, store: str, log: LogBuilder
) -> None:
    shutil.copy(tmp_path / "meta.db", tmp_path / "backup.db")
    assert 0 == keeplast("clean", store, "--despite", "dirty-ratio").code
    for path in tmp_path.glob("meta.db*"):
        path.unlink()
    shutil.copy(tmp_path / "backup.db", tmp_path / "meta.db")
    shutil.copytree(log.directory, tmp_path / "data" / "u-0")
    fill(log, 1)
    for more in ((), (*NEW, "--topic", "t", "--topic", "u")):
        run = keeplast("copy", tmp_path / "data", store, *more)
        assert (4, True) == (run.code, "the metadata is older than its objects" in run.err)
    (found,) = keeplast("status", store, "--json").document["partitions"]
    assert ("t", 12) == (found["topic"], found["remote_end"])


def cut_at(patch: pytest.MonkeyPatch, step: int) -> None:
    """Interrupt a call in front of this step of what it writes, from 1 on."""
    steps = iter(range(1, step + 1))

    def cut(of: type, name: str) -> None:
        act = getattr(of, name)

        def acted(*arguments: Any, **more: Any) -> Any:
            if next(steps, None) == step:
                raise KeyboardInterrupt
            return act(*arguments, **more)

        patch.setattr(of, name, acted)

    for name in ("open_write", "put_new", "delete"):
        cut(ObstoreObjects, name)
    cut(Transactions, "writing")
