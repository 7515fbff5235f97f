"""What a producer sends again: found among its last five batches, as a broker finds it."""

from __future__ import annotations

from pathlib import Path

import pytest

from keeplast.errors import InvalidError
from keeplast.format.record import ControlType
from keeplast.log.active_segment import BATCHES_KEPT
from keeplast.log.append import LogAppender, NewRecord
from keeplast.log.files import LocalFiles
from keeplast.model.partition import INT32_MAX
from keeplast.model.topic_config import TopicConfig

PRODUCER = 7


def opened(directory: Path) -> LogAppender:
    return LogAppender(directory / "t-0", LocalFiles(), topic=TopicConfig())


def send(log: LogAppender, sequence: int, count: int, *, epoch: int = 0) -> int:
    records = [NewRecord(b"k", b"v", 1)] * count
    return log.append(records, producer_id=PRODUCER, producer_epoch=epoch, base_sequence=sequence)


def test_each_of_the_last_five_batches_is_found_and_the_sixth_is_refused(tmp_path: Path) -> None:
    """A producer may have five requests on their way, and send all of them again."""
    with opened(tmp_path) as log:
        offsets = {n: send(log, 2 * n, 2) for n in range(BATCHES_KEPT + 1)}
        found = {n: log.find_duplicate(PRODUCER, 0, 2 * n, 2) for n in range(1, BATCHES_KEPT + 1)}
        assert {n: offsets[n] for n in range(1, BATCHES_KEPT + 1)} == found
        with pytest.raises(InvalidError, match="does not follow"):
            log.find_duplicate(PRODUCER, 0, 0, 2)
        assert log.find_duplicate(PRODUCER, 0, 2 * BATCHES_KEPT + 2, 2) is None


def test_a_batch_of_other_bounds_is_no_duplicate(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        send(log, 0, 2)
        send(log, 2, 3)
        for sequence, count in ((0, 1), (0, 5), (1, 1), (4, 1), (6, 1)):
            with pytest.raises(InvalidError, match="does not follow"):
                log.find_duplicate(PRODUCER, 0, sequence, count)


def test_sequences_wrap_after_the_greatest(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        first = send(log, INT32_MAX - 1, 4)
        assert first == log.find_duplicate(PRODUCER, 0, INT32_MAX - 1, 4)
        assert log.find_duplicate(PRODUCER, 0, 2, 1) is None
        second = send(log, 2, 1)
        assert [first, second] == [
            log.find_duplicate(PRODUCER, 0, INT32_MAX - 1, 4),
            log.find_duplicate(PRODUCER, 0, 2, 1),
        ]


@pytest.mark.parametrize("by_marker", [False, True])
def test_a_newer_epoch_forgets_the_older_ones_batches(tmp_path: Path, by_marker: bool) -> None:
    with opened(tmp_path) as log:
        send(log, 0, 2)
        if by_marker:
            log.append_marker(
                ControlType.ABORT, producer_id=PRODUCER, producer_epoch=1, timestamp_ms=1
            )
        else:
            send(log, 5, 1, epoch=1)
            with pytest.raises(InvalidError, match="does not follow"):
                log.find_duplicate(PRODUCER, 1, 0, 2)
        with pytest.raises(InvalidError, match="newer epoch"):
            log.find_duplicate(PRODUCER, 0, 0, 2)
        if by_marker:
            assert log.find_duplicate(PRODUCER, 1, 0, 2) is None


def test_after_a_start_what_the_log_still_has_is_found(tmp_path: Path) -> None:
    """Kafka rebuilds from the snapshot, which has the last batch, and the batches behind it."""
    with opened(tmp_path) as log:
        send(log, 0, 2)
        last = send(log, 2, 2)
    with opened(tmp_path) as log:
        assert last == log.find_duplicate(PRODUCER, 0, 2, 2)
