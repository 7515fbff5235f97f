"""A log start inside a batch: what readers get, what the Python object does about it."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

import keeplast
from keeplast.errors import CorruptError, RefusedError
from keeplast.format.batch import encode_batch
from keeplast.format.record import Record
from keeplast.log.lock import locked
from tests.support.expiring_log import BOTH, log_start_line, set_log_start, write_log
from tests.support.partition_maker import COMPACT, NOW_MS, bases_of, one, write_partition


@pytest.fixture
def log(tmp_path: Path) -> keeplast.OpenLog:
    """Three records a batch, ``a`` in each; it starts at offset 4, inside the second batch."""
    batches = [
        encode_batch([Record(base + i, NOW_MS, key, b"%d" % base) for i, key in enumerate(keys)])
        for base, keys in ((0, (b"a", b"x", b"y")), (3, (b"a", b"b", b"c")))
    ]
    directory = write_partition(tmp_path, {0: b"".join(batches), 6: one(6, b"b", b"6")})
    set_log_start(directory, 4)
    return keeplast.open_log(directory)


def test_records_below_it_do_not_count(log: keeplast.OpenLog) -> None:
    assert 4 == log.log_start_offset()
    assert [4, 5, 6] == [record.offset for record in log.records()]
    assert [5, 6] == [record.offset for record in log.records(from_offset=5)]


def test_batches_come_whole_and_none_that_ends_below_it(log: keeplast.OpenLog) -> None:
    assert [3, 6] == [batch.base_offset for batch in log.batches()]


def test_the_state_has_nothing_of_them(log: keeplast.OpenLog) -> None:
    """``a`` is in the file twice and in the state not at all."""
    assert {b"c": b"3", b"b": b"6"} == {k: r.value for k, r in log.state().items()}


def test_without_a_line_the_log_starts_at_its_first_segment(tmp_path: Path) -> None:
    directory = write_partition(tmp_path, {7: one(7, b"a"), 9: b""})
    assert 7 == keeplast.open_log(directory).log_start_offset()


def test_a_checkpoint_that_cannot_be_read_is_not_passed_over(log: keeplast.OpenLog) -> None:
    path = log.path.parent / "log-start-offset-checkpoint"
    path.write_text("0\n2\nt 0 4\n")
    with pytest.raises(CorruptError):
        list(log.records())


def test_records_are_deleted_and_segments_expire_from_python(tmp_path: Path) -> None:
    log = keeplast.open_log(write_log(tmp_path))
    report = log.delete_records(BOTH, before_offset=7)
    assert (0, 7) == (report.log_start_before, report.log_start)
    assert [0] == [segment.base for segment in log.expire(BOTH, now_ms=NOW_MS).segments]
    assert ([5, 10], 7) == (bases_of(log.path), log_start_line(log.path))
    log.delete_records(BOTH, before_offset=-1, high_watermark=12, removes=True)
    assert ([10], 12) == (bases_of(log.path), log.log_start_offset())


def test_python_is_refused_what_the_command_is(tmp_path: Path) -> None:
    log = keeplast.open_log(write_log(tmp_path))
    with pytest.raises(RefusedError):
        log.delete_records(COMPACT, before_offset=7)
    with locked(tmp_path), pytest.raises(RefusedError):
        log.expire(BOTH)
    assert isinstance(failing(log), RefusedError)


def failing(log: keeplast.OpenLog) -> Exception | None:
    set_log_start(log.path, 99)
    return log.expire(replace(BOTH, retention_ms=0)).failure
