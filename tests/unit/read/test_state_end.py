"""A state as of an offset is right or refused: behind a cleaner, and while one is at work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

import keeplast
from keeplast.clock import SystemClock
from keeplast.config.log_source import KafkaLogSource
from keeplast.errors import ConflictError, InvalidError, RefusedError, UnavailableError
from keeplast.format.checkpoint import encode_offsets
from keeplast.log.append import LogAppender, NewRecord
from keeplast.log.files import LocalFiles, ReadHandle
from keeplast.log.lock import locked
from keeplast.model.partition import TopicPartition
from keeplast.pipeline.data_source import SCHEMA
from keeplast.read.state_end import first_missing
from keeplast.run.coordinator import Coordinator
from keeplast.run.events import NoEvents
from keeplast.run.local_runner import LocalRunner
from keeplast.survey.request import CleanRequest, PartitionRequest
from tests.support.committed_offsets import commit_offsets
from tests.support.log_builder import LogBuilder
from tests.support.manual_clock import ManualClock
from tests.support.partition_maker import COMPACT, NOW_MS

RECORDS = 30
"""Records of a segment; every fifteenth has the same key, in all segments."""
TORN_AT = 2 * RECORDS


def write(directory: Path, *, segments: int = 4) -> LogBuilder:
    log = LogBuilder(directory, COMPACT)
    for number in range(segments * RECORDS):
        if number and number % RECORDS == 0:
            log.roll()
        log.append(NewRecord(b"%d" % (number % 15), b"%d" % number, NOW_MS))
    return log


@pytest.fixture
def log(tmp_path: Path) -> LogBuilder:
    """A log of four segments in which every key has eight values."""
    log = write(tmp_path / "data/t-0")
    log.close()
    return log


def clean(directory: Path, end: int | None = None) -> None:
    """Clean up to ``end``, or all that may be."""
    topic = keeplast.topic_config({"cleanup.policy": "compact"})
    if end is not None:
        # What the active segment has is left alone: so is what lies behind the end.
        later = sorted(p for p in directory.iterdir() if p.stem.isdigit() and int(p.stem) > end)
        hidden = directory.parent.parent / "hidden"
        hidden.mkdir()
        for path in later:
            path.rename(hidden / path.name)
    report = keeplast.open_log(directory).clean(topic, force=True, now_ms=NOW_MS)
    assert report.rounds[-1].failure is None
    if end is not None:
        for path in hidden.iterdir():
            path.rename(directory / path.name)


def planned(log: LogBuilder, end: int | None = None, **options: str) -> Callable[[], list[int]]:
    """Plan a query for the state; what is returned reads the offsets of its rows."""
    given = {"path": str(log.directory.parent), "state": "latest", **options}
    if end is not None:
        given["endingOffsets"] = f'{{"t":{{"0":{end}}}}}'
    reader = KafkaLogSource(given).reader(SCHEMA)
    parts = reader.partitions()
    return lambda: sorted(
        offset
        for part in parts
        for batch in reader.read(part)
        for offset in batch.column("offset").to_pylist()
    )


def without_checkpoint(log: LogBuilder) -> None:
    (log.directory.parent / "cleaner-offset-checkpoint").unlink()


@pytest.mark.parametrize("end", [20, 45, 60, 100, 120])
def test_a_log_that_was_never_cleaned_has_the_state_of_every_offset(
    log: LogBuilder, end: int
) -> None:
    assert list(range(end - 15, end)) == planned(log, end)()


@pytest.mark.parametrize(
    ("end", "is_refused"), [(45, True), (59, True), (60, False), (100, False), (120, False)]
)
def test_a_state_before_the_cleaned_end_is_refused_and_no_other(
    log: LogBuilder, end: int, is_refused: bool
) -> None:
    clean(log.directory, end=TORN_AT)
    if is_refused:
        with pytest.raises(RefusedError, match=f"cleaned_to=60 end_offset={end} partition=t-0"):
            planned(log, end)
    else:
        assert list(range(end - 15, end)) == planned(log, end)()


@pytest.mark.parametrize("end", [45, 60, 119])
def test_a_log_that_was_cleaned_without_saying_how_far_has_its_last_state_only(
    log: LogBuilder, end: int
) -> None:
    clean(log.directory, end=TORN_AT)
    without_checkpoint(log)
    with pytest.raises(RefusedError, match="missing_offset=0 end_offset"):
        planned(log, end)
    assert list(range(105, 120)) == planned(log)() == planned(log, 120)()


def test_a_checkpoint_from_before_the_last_round_is_found_out(log: LogBuilder) -> None:
    clean(log.directory, end=TORN_AT)
    checkpoint = log.directory.parent / "cleaner-offset-checkpoint"
    before = checkpoint.read_bytes()
    clean(log.directory)
    checkpoint.write_bytes(before)
    with pytest.raises(RefusedError, match="missing_offset=60 end_offset=70"):
        planned(log, 70)


def test_a_checkpoint_beyond_the_active_segment_is_another_logs(log: LogBuilder) -> None:
    checkpoint = log.directory.parent / "cleaner-offset-checkpoint"
    checkpoint.write_bytes(encode_offsets({TopicPartition("t", 0): 1000}))
    assert list(range(35, 50)) == planned(log, 50)()
    assert list(range(105, 120)) == planned(log)()


def test_a_round_that_was_interrupted_is_named_with_what_ends_it(log: LogBuilder) -> None:
    (log.directory / f"{0:020d}.log.cleaned").touch()
    with pytest.raises(RefusedError, match="keeplast clean or keeplast run"):
        planned(log, 50)
    with locked(log.directory.parent), pytest.raises(RefusedError, match="wait for the end"):
        planned(log, 50)
    assert list(range(105, 120)) == planned(log)()


def in_flight(tmp_path: Path) -> LogBuilder:
    """Offsets 0 and 1 are of transactions that end at 3, committed, and 4, aborted."""
    log = LogBuilder(tmp_path / "data/t-0", COMPACT)
    committed, aborted = log.producer(1), log.producer(2)
    committed.send(1)
    aborted.send(2)
    log.record(3, 30)
    committed.commit()
    aborted.abort()
    log.record(4, 40)
    log.close()
    return log


@pytest.mark.parametrize("options", [{}, {"minPartitions": "3"}])
@pytest.mark.parametrize(("end", "expected"), [(1, []), (3, [2]), (4, [0, 2]), (5, [0, 2])])
def test_a_transaction_counts_as_it_was_decided_at_the_end(
    tmp_path: Path, end: int, expected: list[int], options: dict[str, str]
) -> None:
    log = in_flight(tmp_path)
    assert expected == planned(log, end, **options)()
    opened = keeplast.open_log(log.directory)
    assert expected == [record.offset for record in opened.state(end_offset=end).values()]


def test_uncommitted_records_are_in_a_state_that_asks_for_them(tmp_path: Path) -> None:
    log = in_flight(tmp_path)
    assert [0, 1, 2] == planned(log, 3, **{"isolation.level": "read_uncommitted"})()


def spanning(tmp_path: Path, *, commits: bool) -> LogBuilder:
    """A log that is clean up to 3; the transaction of the record at 1 ends at 4."""
    log = LogBuilder(tmp_path / "data/t-0", COMPACT)
    log.record(1, 10)
    producer = log.producer(7)
    producer.send(1)
    log.record(2, 20)
    log.roll()
    log.record(3, 30)
    _ = producer.commit() if commits else producer.abort()
    log.record(4, 40)
    log.finish()
    clean(log.directory, end=3)
    return log


def test_values_replaced_by_a_transaction_that_ended_after_the_cleaner_are_refused(
    tmp_path: Path,
) -> None:
    log = spanning(tmp_path, commits=True)
    with pytest.raises(RefusedError, match="earliest_offset=5 end_offset=4 partition=t-0"):
        planned(log, 4)
    assert [1, 2, 3] == planned(log, 5)()
    # Without the snapshot the transaction is unknown, and it may have begun anywhere.
    (log.directory / f"{3:020d}.snapshot").unlink()
    with pytest.raises(RefusedError, match="earliest_offset=5 end_offset=4 partition=t-0"):
        planned(log, 4)


def test_an_aborted_transaction_replaced_nothing(tmp_path: Path) -> None:
    log = spanning(tmp_path, commits=False)
    assert [0, 2, 3] == planned(log, 4)()
    (log.directory / f"{3:020d}.snapshot").unlink()
    assert [0, 2, 3] == planned(log, 4)()


def test_a_producer_whose_sequence_begins_after_the_cleaner_had_nothing_before_it(
    tmp_path: Path,
) -> None:
    log = LogBuilder(tmp_path / "data/t-0", COMPACT)
    log.record(1, 10)
    log.record(1, 11)
    log.roll()
    producer = log.producer(7)
    producer.send(2)
    log.record(3, 30)
    producer.commit()
    log.record(4, 40)
    log.close()
    clean(log.directory)
    for path in log.directory.glob("*.snapshot"):
        path.unlink()
    assert [1, 3] == planned(log, 4)()


def test_the_time_of_a_state_is_that_of_its_first_later_record(log: LogBuilder) -> None:
    log = write(log.directory.parent / "u-0", segments=1)
    for number in range(5):
        log.append(NewRecord(b"x", b"%d" % number, NOW_MS + 10 * (number + 1)))
        log.roll()
    log.close()

    def shown(ending_ms: int) -> list[int]:
        reader = KafkaLogSource(
            {
                "path": str(log.directory.parent), "subscribe": "u", "state": "latest",
                "endingTimestamp": str(ending_ms),
            }
        ).reader(SCHEMA)  # fmt: skip
        return [
            offset
            for part in reader.partitions()
            for batch in reader.read(part)
            for offset in batch.column("offset").to_pylist()
        ]

    base = list(range(15, 30))
    assert [] == shown(NOW_MS)
    assert base == shown(NOW_MS + 1) == shown(NOW_MS + 10)
    assert [*base, 30] == shown(NOW_MS + 11)
    assert [*base, 33] == shown(NOW_MS + 50)
    assert [*base, 34] == shown(NOW_MS + 51)
    opened = keeplast.open_log(log.directory)
    assert [*base, 31] == [r.offset for r in opened.state(as_of_ms=NOW_MS + 20).values()]


def test_a_time_before_all_records_that_are_not_cleaned_is_shown_if_the_last_record_is_there(
    tmp_path: Path,
) -> None:
    log = LogBuilder(tmp_path / "data/t-0", COMPACT)
    log.append(NewRecord(b"k", b"1", NOW_MS))
    log.append(NewRecord(b"l", b"2", NOW_MS + 10))
    log.append(NewRecord(b"l", None, NOW_MS + 20))
    log.roll()
    log.append(NewRecord(b"m", b"3", NOW_MS + 30))
    log.close()
    opened = keeplast.open_log(log.directory)
    topic = replace(COMPACT, delete_retention_ms=50)
    partitions = (PartitionRequest(opened.partition, log.directory, topic),)
    request = CleanRequest(partitions, force=True, expired=True)
    clock = ManualClock(NOW_MS + 100)
    with LocalRunner(1) as runner:
        coordinator = Coordinator(runner, clock, LocalFiles(), NoEvents())
        assert None is coordinator.clean(request).partitions[0].rounds[-1].failure
        assert [0] == [record.offset for record in opened.state(as_of_ms=NOW_MS + 25).values()]
        clock.advance(100)
        assert None is coordinator.clean(request).partitions[0].rounds[-1].failure
    assert [0, 3] == [record.offset for record in opened.records()]
    with pytest.raises(RefusedError, match="earliest_offset=3 partition=t-0"):
        opened.state(as_of_ms=NOW_MS + 15)
    assert [0, 3] == [record.offset for record in opened.state(as_of_ms=NOW_MS + 30).values()]


@pytest.mark.parametrize("options", [{}, {"minPartitions": "3"}])
def test_a_log_that_is_cleaned_past_the_end_meanwhile_is_an_error(
    log: LogBuilder, options: dict[str, str]
) -> None:
    read = planned(log, 50, **options)
    assert list(range(35, 50)) == read()
    clean(log.directory)
    with pytest.raises(ConflictError, match="cleaned past the end of this state while it was read"):
        read()


def test_a_round_that_ends_below_changes_nothing(log: LogBuilder) -> None:
    read = planned(log, 100)
    clean(log.directory)
    assert list(range(85, 100)) == read()


def test_what_was_active_may_be_rolled_and_not_cleaned(tmp_path: Path) -> None:
    log = write(tmp_path / "data/t-0", segments=2)
    read, lenient = planned(log), planned(log, failOnDataLoss="false")
    for number in range(3):
        log.append(NewRecord(b"%d" % number, b"later", NOW_MS))
    log.roll()
    log.append(NewRecord(b"last", b"v", NOW_MS))
    assert list(range(45, 60)) == read()
    log.close()
    clean(log.directory)
    with pytest.raises(ConflictError, match="end_offset=60"):
        read()
    # Keys 0 to 2 are those that a reader from offset 60 on gets.
    assert list(range(48, 60)) == lenient()


def test_missing_offsets_are_found_wherever_they_are(log: LogBuilder) -> None:
    def missing(first: int, end: int) -> int | None:
        partition = TopicPartition("t", 0)
        return first_missing(partition, log.directory, first, end, LocalFiles(), SystemClock())

    assert None is missing(0, 120)
    assert 120 == missing(0, 121)
    clean(log.directory)
    assert 0 == missing(0, 120)
    assert (70, None) == (missing(70, 120), missing(75, 120))


def test_records_that_are_missing_in_a_batch_are_found(tmp_path: Path) -> None:
    with LogAppender(tmp_path / "t-0", LocalFiles(), topic=COMPACT) as log:
        for keys in (b"abc", b"dac"):
            log.append([NewRecord(bytes([key]), b"v", NOW_MS) for key in keys])
        log.roll()
    directory = tmp_path / "t-0"
    arguments = (TopicPartition("t", 0), directory, 0, 6, LocalFiles(), SystemClock())
    assert None is first_missing(*arguments)
    clean(directory)
    assert 0 == first_missing(*arguments)


class CleaningFiles(LocalFiles):
    """Cleans the log before its last segment is opened for the second time."""

    def __init__(self, directory: Path, *, times: int) -> None:
        self.opened = 0
        self._directory = directory
        self._times = times

    def open_read(self, path: Path) -> ReadHandle:
        handle = super().open_read(path)
        if path.name == f"{0:020d}.log":
            self.opened += 1
            # The second pass of every call begins here.
            if self.opened % 2 == 0 and self.opened <= 2 * self._times:
                with LogAppender(self._directory, LocalFiles(), topic=COMPACT) as log:
                    log.append([NewRecord(b"0", b"newer", NOW_MS)])
                    log.roll()
                    log.append([NewRecord(b"1", b"newer", NOW_MS)])
                clean(self._directory)
                handle.close()
                return super().open_read(path)
        return handle


@pytest.mark.parametrize("times", [1, 100])
def test_the_state_of_an_open_log_is_read_again_when_it_was_cleaned_meanwhile(
    log: LogBuilder, times: int
) -> None:
    topic = keeplast.topic_config({"cleanup.policy": "compact"})
    files = CleaningFiles(log.directory, times=times)
    opened = type(keeplast.open_log(log.directory))(log.directory, files=files)
    if times == 100:
        with pytest.raises(UnavailableError, match="cleaned faster than its state can be read"):
            opened.state(topic)
        return
    found = opened.state(topic)
    assert {b"%d" % number for number in range(15)} == set(found)
    assert b"newer" == found[b"0"].value


def test_a_log_that_was_cleaned_past_an_open_transaction_has_no_state(tmp_path: Path) -> None:
    log = LogBuilder(tmp_path / "t-0", COMPACT)
    log.record(1, 1)
    log.producer(7).send(2)
    log.record(1, 1)
    log.finish()
    opened = keeplast.open_log(log.directory)
    assert [0] == [record.offset for record in opened.state().values()]
    checkpoint = tmp_path / "cleaner-offset-checkpoint"
    checkpoint.write_bytes(encode_offsets({TopicPartition("t", 0): 3}))
    with pytest.raises(RefusedError, match="cleaned_to=3 end_offset=1 partition=t-0"):
        opened.state()


class AppendingFiles(LocalFiles):
    """Calls ``append`` before a log is opened for the second time."""

    def __init__(self, append: Callable[[], object]) -> None:
        self._opened = 0
        self._append = append

    def open_read(self, path: Path) -> ReadHandle:
        self._opened += path.suffix == ".log"
        if self._opened == 2:
            self._opened += 1
            self._append()
        return super().open_read(path)


def test_the_state_of_an_open_log_ends_where_its_transactions_are_known(tmp_path: Path) -> None:
    log = LogBuilder(tmp_path / "t-0", COMPACT)
    log.record(1, 10)
    undecided = log.producer(7)
    files = AppendingFiles(lambda: undecided.send(1, 2))
    opened = type(keeplast.open_log(log.directory))(log.directory, files=files)
    topic = keeplast.topic_config({"cleanup.policy": "compact"})
    assert [0] == [record.offset for record in opened.state(topic).values()]
    log.close()


def test_a_state_without_settings_ranks_as_its_directory_says(tmp_path: Path) -> None:
    log = LogBuilder(tmp_path / "t-0", COMPACT)
    log.append(NewRecord(b"k", b"late", NOW_MS + 9))
    log.append(NewRecord(b"k", b"early", NOW_MS))
    log.close()
    opened = keeplast.open_log(tmp_path / "t-0")
    assert b"early" == opened.state()[b"k"].value
    settings = '[topic."t"]\ncleanup.policy = "compact"\ncompaction.strategy = "timestamp"\n'
    (tmp_path / "keeplast.toml").write_text(settings)
    assert b"late" == opened.state()[b"k"].value
    unknown = type(opened)(tmp_path / "t-0")
    with pytest.raises(InvalidError, match="give state"):
        unknown.state()


@pytest.mark.parametrize("end", [1, 60, 95, 120])
def test_the_committed_offset_of_a_group_is_an_end(log: LogBuilder, end: int) -> None:
    commit_offsets(log.directory.parent, "readers", {TopicPartition("t", 0): end})
    expected = planned(log, end)()
    assert expected == planned(log, endingGroup="readers")()
    assert expected == planned(log, endingGroup="readers", assign='{"t":[0]}')()
    opened = keeplast.open_log(log.directory)
    assert expected == [record.offset for record in opened.state(end_group="readers").values()]


@pytest.mark.parametrize(
    ("committed", "group", "error", "said"),
    [
        ({"t": None}, "readers", InvalidError, "it has committed nothing"),
        ({"gone": 1}, "readers", InvalidError, "it has committed nothing"),
        ({"t": 1}, "others", InvalidError, "is not in this directory"),
        ({"t": 121}, "readers", RefusedError, "beyond the log end"),
        ({"t": 1}, "x" * (1 << 15), InvalidError, "not the name of a consumer group"),
    ],
)
def test_what_is_no_end_of_a_group_is_said(
    log: LogBuilder,
    committed: dict[str, int | None],
    group: str,
    error: type[Exception],
    said: str,
) -> None:
    offsets = {TopicPartition(topic, 0): offset for topic, offset in committed.items()}
    commit_offsets(log.directory.parent, "readers", offsets)
    with pytest.raises(error, match=said):
        planned(log, endingGroup=group)
    with pytest.raises(error, match=said):
        keeplast.open_log(log.directory).state(end_group=group)


def test_what_a_group_has_not_committed_is_of_no_end(tmp_path: Path) -> None:
    """Where a query chooses no topics, those are read of which the group has committed anything."""
    for name in ("t-0", "t-1", "u-0"):
        write(tmp_path / "data" / name).close()
    log = write(tmp_path / "data/v-0")
    log.close()
    root = log.directory.parent
    commit_offsets(root, "readers", {TopicPartition("u", 0): 30, TopicPartition("t", 0): 1})
    with pytest.raises(InvalidError, match=r"names no offset of this partition.*partition=t-1"):
        planned(log, endingGroup="readers")
    assert planned(log, endingGroup="readers", assign='{"t":[0],"u":[0]}')()
    assert planned(log, endingGroup="readers", subscribe="u")()
    with pytest.raises(InvalidError, match="committed nothing"):
        planned(log, endingGroup="readers", subscribe="v")
    opened = keeplast.open_log(log.directory)
    with pytest.raises(InvalidError, match="one point at a time"):
        opened.state(end_group="readers", end_offset=1)


def test_a_group_s_end_below_what_was_cleaned_is_refused(log: LogBuilder) -> None:
    clean(log.directory, end=60)
    commit_offsets(log.directory.parent, "readers", {TopicPartition("t", 0): 59})
    with pytest.raises(RefusedError, match="cleaned_to=60"):
        planned(log, endingGroup="readers")
    with pytest.raises(RefusedError, match="cleaned_to=60"):
        keeplast.open_log(log.directory).state(end_group="readers")
