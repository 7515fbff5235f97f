"""A log as a Python object."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

import keeplast
from keeplast.format.batch import encode_batch
from keeplast.format.record import Record
from keeplast.log.files import LocalFiles
from keeplast.model.topic_config import Strategy
from keeplast.read.log_reader import read_segment
from tests.support.flipped import flip
from tests.support.small_log import EPOCH_MS, batch, write_log

COMPACT = keeplast.topic_config({"cleanup.policy": "compact"})


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_log(
        tmp_path,
        "t-0",
        {0: [(b"a", b"1"), (b"b", b"2")], 2: [(b"a", b"3"), (b"b", None)], 4: [(b"c", b"4")]},
    )


@pytest.fixture
def log(directory: Path) -> keeplast.OpenLog:
    return keeplast.open_log(directory)


def test_segments_batches_and_records_in_log_order(log: keeplast.OpenLog) -> None:
    assert keeplast.TopicPartition("t", 0) == log.partition
    assert [(0, False), (2, False), (4, True)] == [
        (each.base_offset, each.is_active) for each in log.segments()
    ]
    assert [0, 1, 2, 3, 4] == [each.base_offset for each in log.batches()]
    assert [
        (0, b"a", b"1"),
        (1, b"b", b"2"),
        (2, b"a", b"3"),
        (3, b"b", None),
        (4, b"c", b"4"),
    ] == [(each.offset, each.key, each.value) for each in log.records()]


def test_records_of_one_key_are_those_that_inspect_shows(log: keeplast.OpenLog) -> None:
    assert [(1, b"2"), (3, None)] == [(e.offset, e.value) for e in log.records(key=b"b")]
    assert [3] == [each.offset for each in log.records(from_offset=2, key=b"b")]
    assert [] == list(log.records(key=b"nobody"))


def test_a_key_that_is_no_bytes_is_refused_and_not_reported_as_absent(
    log: keeplast.OpenLog,
) -> None:
    found = keeplast.explain_keys(log, COMPACT, [b"a"])
    assert [0, 2] == [each.record.offset for each in found[b"a"].records]
    for keys in (["a"], "a", b"a"):
        with pytest.raises(keeplast.InvalidError, match="are bytes"):
            keeplast.explain_keys(log, COMPACT, keys)  # type: ignore[arg-type]
    with pytest.raises(keeplast.InvalidError, match="are bytes"):
        keeplast.explain(log, COMPACT, key="a")  # type: ignore[arg-type]
    with pytest.raises(keeplast.InvalidError, match="are bytes"):
        list(log.records(key="a"))  # type: ignore[arg-type]


@pytest.mark.parametrize("offset", range(7))
def test_reading_starts_at_an_offset(log: keeplast.OpenLog, offset: int) -> None:
    expected = list(range(offset, 5))
    assert expected == [record.offset for record in log.records(from_offset=offset)]
    assert expected == [each.base_offset for each in log.batches(from_offset=offset)]


def test_a_torn_tail_of_the_active_segment_ends_the_log_and_is_reported(directory: Path) -> None:
    path = directory / "00000000000000000004.log"
    path.write_bytes(path.read_bytes() + batch(5, b"x", b"y")[:40])
    with pytest.warns(UserWarning, match="torn at byte"):
        assert 5 == len(list(keeplast.open_log(directory).records()))


def test_damage_in_a_closed_segment_is_corrupt_with_path_and_position(directory: Path) -> None:
    path = directory / "00000000000000000002.log"
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    with pytest.raises(keeplast.CorruptError) as caught:
        list(keeplast.open_log(directory).batches())
    assert (str(path), len(batch(2, b"a", b"3"))) == (caught.value.path, caught.value.position)


def test_a_wrong_crc_is_an_error_for_records_only(directory: Path) -> None:
    path = directory / "00000000000000000000.log"
    flip(path)
    log = keeplast.open_log(directory)
    assert [True, False, True, True, True] == [each.is_valid for each in log.batches()]
    with pytest.raises(keeplast.CorruptError):
        list(log.records())


def test_another_directory_than_a_partitions_is_invalid(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    for name in ("plain", "missing-0"):
        with pytest.raises(keeplast.InvalidError):
            keeplast.open_log(tmp_path / name)


def test_a_plan_changes_nothing_and_a_clean_does_it(log: keeplast.OpenLog, directory: Path) -> None:
    before = sorted((p.name, p.read_bytes()) for p in directory.iterdir())
    planned = log.plan(COMPACT, exact=True, now_ms=EPOCH_MS, cores=1).rounds[-1]
    assert before == sorted((p.name, p.read_bytes()) for p in directory.iterdir())
    done = log.clean(COMPACT, now_ms=EPOCH_MS, cores=1).rounds[-1]
    assert planned.stats is not None
    assert done.stats is not None
    assert (4, 2) == (done.stats.messages_read, done.stats.messages_written)
    assert planned.stats.messages_written == done.stats.messages_written
    assert (4, None) == (done.end_offset, done.error)
    assert [(2, b"3"), (3, None), (4, b"4")] == [(r.offset, r.value) for r in log.records()]


def test_a_topic_without_compact_is_refused(directory: Path) -> None:
    with pytest.raises(keeplast.RefusedError):
        keeplast.open_log(directory).clean(keeplast.TopicConfig())


def test_a_replica_that_is_being_deleted_is_refused(tmp_path: Path) -> None:
    path = write_log(tmp_path, "t-0.0123456789abcdef0123456789abcdef-delete", {0: []})
    with pytest.raises(keeplast.RefusedError):
        keeplast.open_log(path).plan(COMPACT)


@pytest.mark.parametrize("window_bytes", [1, 12, 61, 70, 100, 150, 1 << 20])
def test_any_window_gives_the_same_batches(directory: Path, window_bytes: int) -> None:
    path = directory / "00000000000000000000.log"
    read = read_segment(LocalFiles(), path, window_bytes=window_bytes)
    assert [0, 1] == [each.base_offset for each in read]


def test_the_end_of_a_range_cuts_a_batch(directory: Path) -> None:
    path = directory / "00000000000000000000.log"
    half = path.stat().st_size // 2
    assert [0] == [each.base_offset for each in read_segment(LocalFiles(), path, end=half)]
    assert [1] == [each.base_offset for each in read_segment(LocalFiles(), path, start=half)]
    with pytest.raises(keeplast.CorruptError):
        list(read_segment(LocalFiles(), path, end=half + 20))


def test_the_state_of_a_brokers_own_topic_ranks_by_offset(tmp_path: Path) -> None:
    directory = write_log(tmp_path, "__consumer_offsets-0", {0: []})
    dated = [Record(0, EPOCH_MS + 9, b"g", b"older"), Record(1, EPOCH_MS + 1, b"g", b"newer")]
    (directory / f"{0:020d}.log").write_bytes(b"".join(encode_batch([each]) for each in dated))
    by_time = replace(COMPACT, strategy=Strategy.TIMESTAMP)
    assert b"newer" == keeplast.open_log(directory).state(by_time)[b"g"].value
    with pytest.raises(keeplast.RefusedError, match="by offset"):
        keeplast.open_log(directory).plan(by_time)


def test_a_state_names_the_ranking_of_its_records_and_its_source(tmp_path: Path) -> None:
    directory = write_log(tmp_path, "t-0", {0: []})
    dated = [Record(0, EPOCH_MS + 9, b"k", b"older"), Record(1, EPOCH_MS + 1, b"k", b"newer")]
    (directory / f"{0:020d}.log").write_bytes(b"".join(encode_batch([each]) for each in dated))
    found = keeplast.open_log(directory).state()
    assert b"newer" == found[b"k"].value
    assert "offset, Kafka's default: no source says another" == found.ranking
    file = tmp_path / "keeplast.toml"
    file.write_text("[topic.t]\n'compaction.strategy' = 'timestamp'\n")
    found = keeplast.open_log(directory).state()
    assert b"older" == found[b"k"].value
    assert f"timestamp, from {file}" == found.ranking
    assert (
        "timestamp, as given"
        == keeplast.open_log(directory).state(replace(COMPACT, strategy=Strategy.TIMESTAMP)).ranking
    )


@pytest.mark.parametrize("log_start", [0, 7])
def test_a_directory_without_segments_is_an_empty_log(tmp_path: Path, log_start: int) -> None:
    """As for a broker, which makes the first segment when it starts."""
    (tmp_path / "t-0").mkdir()
    if log_start:
        (tmp_path / "log-start-offset-checkpoint").write_text(f"0\n1\nt 0 {log_start}\n")
    log = keeplast.open_log(tmp_path / "t-0")
    assert () == log.segments()
    assert log_start == log.log_start_offset()
    assert ([], []) == (list(log.batches()), list(log.records()))
    assert {} == log.state(COMPACT)
    assert "nothing to clean: the log is empty" == log.plan(COMPACT).rounds[-1].reason


def test_a_directory_with_a_staged_segment_alone_is_no_empty_log(tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / f"{0:020d}.log.deleted").touch()
    log = keeplast.open_log(tmp_path / "t-0")
    for read in (log.segments, log.log_start_offset, lambda: list(log.records())):
        with pytest.raises(keeplast.RefusedError, match="no segment"):
            read()
