"""What expires, what keeps the rest, and what is written down of it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.errors import CorruptError, RefusedError, StoppedError
from keeplast.log.files import LocalFiles
from keeplast.log.lock import locked
from keeplast.model.topic_config import TopicConfig
from keeplast.survey.receipt_book import ExpiryReceipt, RoundReceipt, read_entries, read_receipts
from tests.support.expiring_log import (
    BOTH,
    RECORD_BYTES,
    cleaner_checkpoint,
    epochs_of,
    expire,
    expiry_request,
    log_start_line,
    set_cleaner_checkpoint,
    set_log_start,
    snapshots_of,
    write_log,
)
from tests.support.observed_files import ObservedFiles
from tests.support.partition_maker import (
    DAY_MS,
    NOW_MS,
    bases_of,
    clean_request,
    coordinator,
    one,
    records_of,
    write_partition,
)

AGED = replace(BOTH, retention_ms=999)
OLD_MS = NOW_MS - 1000
SMALLER = replace(BOTH, retention_bytes=10 * RECORD_BYTES)


def failure(directory: Path, topic: TopicConfig = AGED) -> Exception | None:
    (partition,) = coordinator().expire(expiry_request(directory, topic)).partitions
    assert partition.expiry is not None
    return partition.expiry.failure


# --- what keeps a segment ---


def test_a_record_from_the_future_keeps_its_segment_and_all_later_ones(tmp_path: Path) -> None:
    directory = write_log(tmp_path, timestamp_ms=OLD_MS, times={1: NOW_MS + 3 * DAY_MS})
    report = expire(directory, AGED)
    assert [5, 10] == bases_of(directory)
    assert ("segment 5 stays: its newest record is 3 d in the future",) == report.notes


def test_without_timestamps_the_age_of_the_file_counts(tmp_path: Path) -> None:
    directory = write_log(tmp_path, timestamp_ms=-1)
    os.utime(directory / f"{0:020d}.log", ns=(OLD_MS * 10**6,) * 2)
    report = expire(directory, AGED)
    assert ["its file is 1 s old, retention.ms is 999 ms"] == [s.why for s in report.segments]
    assert ("segment 5 stays: its file is 0 ms old, retention.ms is 999 ms",) == report.notes


def test_minus_one_is_no_limit(tmp_path: Path) -> None:
    directory = write_log(tmp_path, timestamp_ms=0)
    assert () == expire(directory, replace(BOTH, retention_ms=-1, retention_bytes=-1)).segments


def test_rules_follow_one_another_and_each_is_counted(tmp_path: Path) -> None:
    directory = write_log(tmp_path, segments=6, timestamp_ms=NOW_MS, times={2: OLD_MS})
    set_log_start(directory, 7)
    topic = replace(AGED, retention_bytes=20 * RECORD_BYTES)
    report = expire(directory, topic)
    size = 5 * RECORD_BYTES
    assert {"log_start": (1, size), "size": (1, size), "time": (1, size)} == report.by_rule()
    assert (7, 15, 3 * size) == (report.log_start_before, report.log_start, report.bytes)
    assert [15, 20, 25] == bases_of(directory)


def test_an_index_that_lacks_what_was_appended_since_is_not_believed(tmp_path: Path) -> None:
    """An appender that died leaves the active segment the indexes of an earlier time."""
    directory = write_log(tmp_path, segments=1, times={0: OLD_MS})
    other = write_log(tmp_path / "other", segments=2, timestamp_ms=NOW_MS)
    path = directory / f"{0:020d}.log"
    path.write_bytes(path.read_bytes() + (other / f"{5:020d}.log").read_bytes())
    assert () == expire(directory, AGED).segments


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_log(tmp_path, timestamp_ms=OLD_MS)


def test_a_torn_active_segment_stays(directory: Path) -> None:
    path = directory / f"{10:020d}.log"
    path.write_bytes(path.read_bytes()[:-1])
    report = expire(directory, AGED)
    assert [10] == bases_of(directory)
    assert ("segment 10 stays: its tail is torn",) == report.notes


def test_a_closed_segment_that_cannot_be_read_stops_it(directory: Path) -> None:
    (directory / f"{5:020d}.log").write_bytes(b"\0" * 200)
    (directory / f"{5:020d}.timeindex").unlink()
    assert isinstance(failure(directory), CorruptError)
    assert [0, 5, 10] == bases_of(directory)


def test_a_log_start_beyond_the_log_end_is_refused(tmp_path: Path) -> None:
    directory = write_log(tmp_path)
    set_log_start(directory, 16)
    assert isinstance(failure(directory), RefusedError)
    assert [0, 5, 10] == bases_of(directory)


def test_unreadable_epochs_stop_it_before_anything_changes(directory: Path) -> None:
    (directory / "leader-epoch-checkpoint").write_bytes(b"0\n1\nx y\n")
    before = sorted(os.listdir(directory))
    error = failure(directory, SMALLER)
    assert isinstance(error, CorruptError)
    assert str(directory / "leader-epoch-checkpoint") == error.path
    assert (before, None) == (sorted(os.listdir(directory)), log_start_line(directory))


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    directory = write_log(tmp_path)
    with locked(tmp_path), pytest.raises(RefusedError):
        expire(directory)


def test_stopped_before_it_begins_nothing_goes(directory: Path) -> None:
    stopping = coordinator()
    stopping.stop()
    (partition,) = stopping.expire(expiry_request(directory, AGED)).partitions
    assert partition.expiry is not None
    assert isinstance(partition.expiry.failure, StoppedError)
    assert [0, 5, 10] == bases_of(directory)


# --- what goes along ---


def test_what_depends_on_the_log_start_follows_it(tmp_path: Path) -> None:
    directory = write_log(tmp_path, segments=4)
    set_log_start(directory, 12)
    set_cleaner_checkpoint(directory, 5)
    expire(directory)
    assert ([10, 15], [10, 15]) == (bases_of(directory), snapshots_of(directory))
    assert [(2, 12), (3, 15)] == epochs_of(directory)
    assert (12, 12) == (log_start_line(directory), cleaner_checkpoint(directory))
    assert not [path for path in directory.iterdir() if path.suffix == ".deleted"]


def test_a_cleaner_checkpoint_above_the_log_start_stays(tmp_path: Path) -> None:
    directory = write_log(tmp_path)
    set_cleaner_checkpoint(directory, 10)
    expire(directory, SMALLER)
    assert (5, 10) == (bases_of(directory)[0], cleaner_checkpoint(directory))


def test_a_log_that_was_never_cleaned_gets_no_checkpoint(tmp_path: Path) -> None:
    directory = write_log(tmp_path)
    expire(directory, SMALLER)
    assert cleaner_checkpoint(directory) is None


def test_the_log_start_is_durable_before_the_first_file_goes(tmp_path: Path) -> None:
    files = ObservedFiles()
    expire(write_log(tmp_path, timestamp_ms=OLD_MS), AGED, files=files)
    operations = files.operations

    def first(is_it: Callable[[str], bool]) -> int:
        return next(i for i, operation in enumerate(operations) if is_it(operation))

    rolled = first(lambda o: f"{15:020d}.log" in o)
    announced = first(lambda o: "log-start-offset-checkpoint" in o)
    retired = first(lambda o: o.startswith("rename") and o.endswith(".deleted"))
    removed = first(lambda o: o.startswith("unlink") and o.endswith(".deleted"))
    synced = max(i for i, o in enumerate(operations[:removed]) if o.startswith("flush t-0"))
    assert rolled < announced < retired < synced < removed


# --- together with rounds ---


def test_clean_cleans_first_and_expires_then(tmp_path: Path) -> None:
    """Cleaning shrinks the log: less of it is above the limit afterwards."""
    directory = write_log(tmp_path, segments=4)
    topic = replace(BOTH, retention_bytes=15 * RECORD_BYTES)
    (planned,) = coordinator().plan(expiry_request(directory, topic)).partitions
    assert planned.expiry is not None
    assert [0] == [segment.base for segment in planned.expiry.segments]
    assert [0, 5, 10, 15] == bases_of(directory)
    (done,) = coordinator().clean(expiry_request(directory, topic)).partitions
    assert done.expiry is not None
    assert done.rounds[-1].end_offset == 15
    # Three segments became one, as large as the three.
    assert ([0, 15], ()) == (bases_of(directory), done.expiry.segments)


def test_nothing_expires_unless_asked_for(directory: Path) -> None:
    (done,) = coordinator().clean(clean_request(directory, topic=AGED)).partitions
    assert (None, 15) == (done.expiry, records_of(directory)[-1].offset + 1)


def test_x46_a_log_that_cannot_be_cleaned_does_not_expire_either(directory: Path) -> None:
    path = directory / f"{5:020d}.log"
    path.write_bytes(b"\0" * 200)
    (done,) = coordinator().clean(expiry_request(directory, AGED)).partitions
    assert isinstance(done.rounds[-1].failure, CorruptError)
    assert (None, [0, 5, 10]) == (done.expiry, bases_of(directory))


def test_a_target_expires_and_its_source_does_not(tmp_path: Path) -> None:
    directory = write_log(tmp_path / "from", timestamp_ms=OLD_MS, times={2: NOW_MS})
    request = replace(expiry_request(directory, AGED), target=tmp_path / "to")
    (done,) = coordinator().clean(request).partitions
    assert done.expiry is not None
    assert [0] == [segment.base for segment in done.expiry.segments]
    assert [0, 5, 10] == bases_of(directory)
    assert [10] == bases_of(tmp_path / "to" / directory.name)


def test_x54_a_cleaned_segment_may_expire_earlier(tmp_path: Path) -> None:
    """Its youngest record is superseded; what is left of it is old."""
    directory = write_partition(
        tmp_path,
        {
            0: one(0, b"a", timestamp=OLD_MS) + one(1, b"b", timestamp=NOW_MS),
            2: one(2, b"b", timestamp=NOW_MS),
            3: one(3, b"c", timestamp=NOW_MS),
        },
    )
    topic = replace(AGED, segment_bytes=14)
    assert () == expire(directory, topic).segments
    (done,) = coordinator().clean(expiry_request(directory, topic)).partitions
    assert done.expiry is not None
    assert [0] == [segment.base for segment in done.expiry.segments]
    assert [2, 3] == bases_of(directory)


# --- receipts ---


def test_a_receipt_names_what_went(tmp_path: Path) -> None:
    directory = write_log(tmp_path / "log", timestamp_ms=OLD_MS, times={2: NOW_MS})
    receipt = tmp_path / "receipt.jsonl"
    request = replace(expiry_request(directory, AGED), receipt=receipt)
    coordinator().clean(request)
    round_, expiry = read_entries(receipt, LocalFiles())
    assert isinstance(round_, RoundReceipt)
    assert isinstance(expiry, ExpiryReceipt)
    assert ((0,), 0, 10) == (expiry.bases, expiry.log_start_before, expiry.log_start)
    (found,) = read_receipts(receipt, LocalFiles())
    assert frozenset({0}) == found.expired
    line = json.loads(receipt.read_text().splitlines()[1])
    assert {"cleanup.policy": "compact,delete", "retention.ms": 999, "retention.bytes": -1} == (
        line["config"]
    )


def test_without_anything_to_go_there_is_no_line(tmp_path: Path) -> None:
    receipt = tmp_path / "receipt.jsonl"
    request = expiry_request(write_log(tmp_path / "log"), AGED)
    coordinator().expire(replace(request, receipt=receipt))
    assert not receipt.exists()


def test_the_document_counts_by_rule(tmp_path: Path) -> None:
    report = coordinator().expire(expiry_request(write_log(tmp_path), SMALLER))
    (partition,) = report.to_json()["partitions"]
    size = 5 * RECORD_BYTES
    assert {"size": {"segments": 1, "bytes": size}} == partition["expiry"]["by_rule"]
    assert (0, 5, size) == tuple(
        partition["expiry"][name] for name in ("log_start_before", "log_start", "bytes")
    )
    assert [] == partition["rounds"]
