"""A state as of an offset is right or refused: behind a cleaner, and while one is at work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import keeplast
from keeplast.clock import SystemClock
from keeplast.config.log_source import KafkaLogSource
from keeplast.errors import ConflictError, InvalidError, RefusedError, UnavailableError
from keeplast.format.checkpoint import encode_offsets
from keeplast.log.append import LogAppender, NewRecord
from keeplast.log.files import LocalFiles, ReadHandle
from keeplast.model.partition import TopicPartition
from keeplast.pipeline.data_source import SCHEMA
from keeplast.read.state_end import first_missing
from tests.support.log_builder import LogBuilder
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
def test_the_state_behind_the_cleaner_is_refused_and_no_other(
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


def test_a_round_that_is_half_done_is_waited_for(log: LogBuilder) -> None:
    (log.directory / f"{0:020d}.log.cleaned").touch()
    with pytest.raises(RefusedError, match="when the round is over"):
        planned(log, 50)
    assert list(range(105, 120)) == planned(log)()


def test_a_transaction_counts_as_it_ended_also_behind_the_end(tmp_path: Path) -> None:
    log = LogBuilder(tmp_path / "data/t-0", COMPACT)
    committed, aborted = log.producer(1), log.producer(2)
    committed.send(1)
    aborted.send(2)
    log.record(3, 30)
    committed.commit()
    aborted.abort()
    log.close()
    assert [0, 2] == planned(log, 3)()


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
    # Keys 0 to 2 are those that whoever reads on from offset 60 gets.
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
    log.roll()
    log.close()
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
