"""A hold keeps every round from passing its point, whatever is asked for, until it is over."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import keeplast
import keeplast.run.holds as holds_module
from keeplast.cleaner.erasure import BasisKind
from keeplast.cleaner.reasons import BoundNote, HoldLimit
from keeplast.errors import (
    ConflictError,
    CorruptError,
    InvalidError,
    RefusedError,
    UnavailableError,
)
from keeplast.inspect.status import LogStatus, TombstoneReading, find_statuses
from keeplast.log.append import NewRecord
from keeplast.log.data_directory import open_data_directory
from keeplast.log.files import LocalFiles
from keeplast.log.lock import locked
from keeplast.log.root_files import HOLDS_NAME, read_holds, write_holds
from keeplast.model.hold import AGE_MS_MAX, Hold, HoldPoint
from keeplast.model.partition import INT64_MAX, TopicPartition
from keeplast.model.topic_config import TopicConfig
from keeplast.run.coordinator import Coordinator
from keeplast.run.events import NoEvents
from keeplast.run.holds import add_holds, choose_entries, release_holds
from keeplast.run.local_runner import LocalRunner
from keeplast.survey.report import RoundReport
from keeplast.survey.request import CleanRequest, PartitionRequest
from tests.support.heard_calls import hear
from tests.support.log_builder import LogBuilder, Producer
from tests.support.manual_clock import ManualClock
from tests.support.partition_maker import COMPACT, NOW_MS, PARTITION

FILES = LocalFiles()
HOUR = 3_600_000
SEGMENT = 10


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A data directory with a log of four segments, in which five keys are written by turns."""
    return write(tmp_path / "data")


def write(root: Path, name: str = "t-0") -> Path:
    log = LogBuilder(root / name, COMPACT)
    for number in range(4 * SEGMENT):
        if number and number % SEGMENT == 0:
            log.roll()
        log.append(NewRecord(b"%d" % (number % 5), b"%d" % number, NOW_MS + number))
    log.close()
    return root


def hold(root: Path, name: str = "h", age_ms: int = HOUR, **point: int) -> tuple[Hold, ...]:
    directory = open_data_directory(root, FILES)
    return add_holds(
        directory,
        directory.partitions,
        name,
        HoldPoint(**point),
        age_ms,
        FILES,
        ManualClock(NOW_MS),
    )


def clean(
    root: Path,
    at_ms: int = NOW_MS,
    *,
    topic: TopicConfig = COMPACT,
    meanwhile: Callable[[], object] = lambda: None,
    **wishes: Any,
) -> list[RoundReport]:
    request = CleanRequest((PartitionRequest(PARTITION, root / str(PARTITION), topic),), force=True)
    request = replace(request, **wishes)

    class Events(NoEvents):
        """Calls ``meanwhile`` while the round is read."""

        def progressed(self, read_bytes: int, partition: TopicPartition | None = None) -> None:
            meanwhile()

    with LocalRunner(1) as runner:
        report = Coordinator(runner, ManualClock(at_ms), FILES, Events()).clean(request)
    return list(report.partitions[0].rounds)


def state_as_of(root: Path, offset: int) -> set[int]:
    found = keeplast.open_log(root / "t-0").state(COMPACT, end_offset=offset)
    return {record.offset for record in found.values()}


def test_a_round_ends_where_a_hold_is_and_goes_on_when_it_is_over(root: Path) -> None:
    hold(root, offset=25)
    (report,) = clean(root)
    assert (20, 20) == (report.bound, report.end_offset)
    limit = HoldLimit(25, "h", NOW_MS + HOUR, 25)
    assert BoundNote(20, 25, limit) in report.remarks
    assert set(range(20, 25)) == state_as_of(root, 25)
    assert clean(root, NOW_MS + HOUR - 1)[0].skipped
    assert 30 == clean(root, NOW_MS + HOUR)[0].end_offset
    with pytest.raises(RefusedError, match="cleaned_to=30"):
        state_as_of(root, 25)


@pytest.mark.parametrize(
    "wishes",
    [
        {"uncleanable_offset": 30, "is_unsafe": True},
        {"now_ms": NOW_MS + 2 * HOUR, "is_unsafe": True},
        {"high_watermark": 40, "is_unsafe": True},
        {"first_dirty_offset": 0, "rounds": None},
        {"roll_active": True, "rounds": None},
        {"expired": True},
    ],
)
def test_no_option_overrides_a_hold(root: Path, wishes: dict[str, Any]) -> None:
    hold(root, offset=25)
    for report in clean(root, **wishes):
        assert report.failure is None
        assert 20 == report.bound
    assert set(range(20, 25)) == state_as_of(root, 25)


def test_the_lowest_hold_counts_and_each_is_released_by_its_name(root: Path) -> None:
    hold(root, "later", offset=28)
    hold(root, "earlier", offset=12, age_ms=2 * HOUR)
    assert 10 == clean(root)[0].end_offset
    directory = open_data_directory(root, FILES)
    (released,) = release_holds(directory, "earlier", FILES)
    assert 12 == released.offset
    assert 20 == clean(root)[0].end_offset
    release_holds(directory, "later", FILES)
    assert not (root / HOLDS_NAME).exists()
    assert 30 == clean(root)[0].end_offset
    with pytest.raises(InvalidError, match=r"there are: none\. name=later"):
        release_holds(directory, "later", FILES)


def test_a_hold_within_a_transaction_keeps_what_the_state_has_instead_of_it(
    tmp_path: Path,
) -> None:
    """The transaction is in flight at the point: a round would believe that it was committed."""
    log = LogBuilder(tmp_path / "data" / "t-0", COMPACT)
    producer = log.producer(1)
    log.append(NewRecord(b"a", b"before", NOW_MS))
    producer.send_records(NewRecord(b"a", b"within", NOW_MS))
    log.roll()
    log.append(NewRecord(b"b", b"2", NOW_MS), NewRecord(b"c", b"3", NOW_MS))
    producer.commit()
    log.roll()
    log.append(NewRecord(b"b", b"5", NOW_MS))
    log.close()
    (added,) = hold(tmp_path / "data", offset=3)
    assert (3, 1) == (added.offset, added.limit)
    clean(tmp_path / "data")
    assert {0, 2} == state_as_of(tmp_path / "data", 3)


def overlapping(root: Path) -> tuple[LogBuilder, Producer]:
    """Offset 1 is of a transaction that ends at 4, committed; what begins at 3 is undecided."""
    log = LogBuilder(root / "t-0", COMPACT)
    first, second = log.producer(1), log.producer(2)
    log.append(NewRecord(b"1", b"before", NOW_MS))
    first.send(1)
    log.append(NewRecord(b"2", b"x", NOW_MS))
    log.roll()
    second.send(3)
    first.commit()
    return log, second


def go_on(log: LogBuilder, producer: Producer) -> None:
    producer.commit()
    log.append(NewRecord(b"2", b"y", NOW_MS))
    log.roll()
    log.append(NewRecord(b"4", b"z", NOW_MS))
    log.close()


def test_a_hold_as_of_now_keeps_what_a_transaction_replaces_that_overlaps_an_open_one(
    tmp_path: Path,
) -> None:
    """A round would believe the first, which is committed behind where what is decided ends."""
    log, producer = overlapping(tmp_path)
    (added,) = hold(tmp_path)
    assert (3, 1) == (added.offset, added.limit)
    clean(tmp_path)
    go_on(log, producer)
    clean(tmp_path)
    assert {3: {0, 2}, 4: {0, 2}, 5: {1, 2}, 6: {1, 2, 3}} == {
        offset: state_as_of(tmp_path, offset) for offset in (3, 4, 5, 6)
    }


def test_a_hold_as_of_now_is_at_the_first_point_that_can_be_kept(tmp_path: Path) -> None:
    """A round has believed the first already, so that the state as of 3 is gone."""
    log, producer = overlapping(tmp_path)
    assert 3 == clean(tmp_path)[0].end_offset
    for offset in (3, 4):
        with pytest.raises(RefusedError, match="earliest_offset=5"):
            hold(tmp_path, offset=offset)
    (added,) = hold(tmp_path)
    assert (5, 3) == (added.offset, added.limit)
    assert added == replace(hold(tmp_path, "h5", offset=5)[0], name="h")
    go_on(log, producer)
    clean(tmp_path)
    assert {5: {1, 2}, 6: {1, 2, 3}} == {each: state_as_of(tmp_path, each) for each in (5, 6)}


@pytest.mark.parametrize("is_over", [False, True])
def test_a_hold_as_of_now_reckons_with_a_round_that_is_under_way(
    tmp_path: Path, *, is_over: bool
) -> None:
    """One that has looked for holds before: it believes what is committed, up to what is open."""
    log, producer = overlapping(tmp_path)
    staged = tmp_path / "t-0" / f"{0:020d}.log.0123456789abcdef.deleted"

    def look_late(*_: object) -> None:
        known = read_holds(FILES, tmp_path)
        if known and is_over:
            write_holds(FILES, tmp_path, ())
            assert 3 == clean(tmp_path)[0].end_offset
            write_holds(FILES, tmp_path, known)
        elif known:
            staged.touch()

    with pytest.MonkeyPatch.context() as patch:
        hear(patch, holds_module, "look_at_entry", look_late)
        (added,) = hold(tmp_path)
    assert (5, 1) == (added.offset, added.limit)
    assert (added,) == read_holds(FILES, tmp_path)
    staged.unlink(missing_ok=True)
    go_on(log, producer)
    clean(tmp_path)
    assert {5: {1, 2}, 6: {1, 2, 3}} == {each: state_as_of(tmp_path, each) for each in (5, 6)}


def test_without_a_snapshot_rounds_end_where_one_names_the_producers_in_flight(
    tmp_path: Path,
) -> None:
    """A later reader would not know that no producer was in flight at the point."""
    log = LogBuilder(tmp_path / "t-0", COMPACT)
    producer = log.producer(1)
    for _ in range(3):
        log.append(NewRecord(b"a", b"%d" % log.log_end, NOW_MS))
        producer.send(1)
        producer.commit()
        log.roll()
    (tmp_path / "t-0" / f"{6:020d}.snapshot").unlink()
    (tmp_path / "t-0" / f"{9:020d}.snapshot").unlink()
    (added,) = hold(tmp_path, offset=8)
    assert (8, 3) == (added.offset, added.limit)
    clean(tmp_path)
    producer.send(1)
    producer.commit()
    log.append(NewRecord(b"a", b"%d" % log.log_end, NOW_MS))
    log.finish()
    clean(tmp_path)
    assert {6, 4} == state_as_of(tmp_path, 8)


def test_a_log_that_was_cleaned_further_than_noted_is_not_held(root: Path) -> None:
    clean(root)
    (root / "cleaner-offset-checkpoint").unlink()
    with pytest.raises(RefusedError, match="clean the log first"):
        hold(root)
    clean(root)
    assert [40] == [each.offset for each in hold(root)]


def test_a_hold_of_a_time_keeps_the_record_in_front_of_it(tmp_path: Path) -> None:
    """Without one that is left it would not be known that the time lies there."""
    log = LogBuilder(tmp_path / "t-0", COMPACT)
    for number in range(3):
        log.append(NewRecord(b"k", b"%d" % number, NOW_MS + 10 * number))
    producer = log.producer(1)
    producer.send_records(NewRecord(b"k", b"aborted", NOW_MS + 25))
    producer.abort()
    log.roll()
    log.append(NewRecord(b"k", b"later", NOW_MS + 40))
    log.finish()
    (added,) = hold(tmp_path, time_ms=NOW_MS + 30)
    assert (5, 4) == (added.offset, added.limit)
    assert clean(tmp_path)[0].skipped
    opened = keeplast.open_log(tmp_path / "t-0")
    assert [2] == [each.offset for each in opened.state(COMPACT, as_of_ms=NOW_MS + 30).values()]


def test_a_hold_as_of_now_or_of_a_time(root: Path) -> None:
    assert [40] == [each.offset for each in hold(root)]
    assert [13] == [each.offset for each in hold(root, "time", time_ms=NOW_MS + 12)]
    assert 10 == clean(root)[0].end_offset


@pytest.mark.parametrize("offset", [5, 29])
def test_a_point_that_cleaning_has_passed_is_not_held(root: Path, offset: int) -> None:
    clean(root)
    with pytest.raises(RefusedError, match=f"cleaned_to=30 end_offset={offset}"):
        hold(root, offset=offset)
    assert () == read_holds(FILES, root)
    assert [30] == [each.offset for each in hold(root, offset=30)]


@pytest.mark.parametrize(
    ("name", "age_ms", "offset", "said"),
    [
        ("a b", HOUR, 5, "not a name"),
        ("", HOUR, 5, "not a name"),
        ("../x", HOUR, 5, "not a name"),
        ("n" * 65, HOUR, 5, "not a name"),
        ("h", 999, 5, "max_age_ms=999"),
        ("h", AGE_MS_MAX + 1, 5, "366 d at most"),
        ("h", HOUR, 41, "offset=41 log_start=0 log_end=40"),
        ("h", HOUR, -1, "offset=-1"),
    ],
)
def test_an_impossible_hold_is_refused(
    root: Path, name: str, age_ms: int, offset: int, said: str
) -> None:
    with pytest.raises(InvalidError, match=said):
        hold(root, name, age_ms, offset=offset)
    assert not (root / HOLDS_NAME).exists()


def test_a_name_is_of_one_hold_until_that_is_over(root: Path) -> None:
    hold(root, offset=12)
    with pytest.raises(RefusedError, match="there is a hold of this name"):
        hold(root, offset=13)
    write_holds(FILES, root, [Hold("h", PARTITION, 12, NOW_MS - 10, NOW_MS, 12)])
    assert 13 == hold(root, offset=13)[0].offset
    assert [13] == [each.offset for each in read_holds(FILES, root)]


def test_an_offset_is_of_one_partition(root: Path) -> None:
    write(root, "t-1")
    with pytest.raises(InvalidError, match="partitions=2 offset=5"):
        hold(root, offset=5)
    assert 2 == len(hold(root))
    directory = open_data_directory(root, FILES)
    (entry,) = choose_entries(directory, ["t"], [1])
    assert "t-1" == str(entry.partition)
    for topics, numbers, said in ((["u"], [], "no such topic"), (["t"], [2], "partition=t-2")):
        with pytest.raises(InvalidError, match=said):
            choose_entries(directory, topics, numbers)


def test_a_round_that_is_under_way_does_not_pass_a_new_hold(root: Path) -> None:
    """The hold is written while it reads: before it looks for holds again."""
    (report,) = clean(
        root,
        meanwhile=lambda: write_holds(
            FILES, root, [Hold("h", PARTITION, 25, NOW_MS, INT64_MAX, 25)]
        ),
    )
    assert isinstance(report.failure, ConflictError)
    assert "hold=h offset=25 bound=30" in str(report.failure)
    assert list(range(40)) == [r.offset for r in keeplast.open_log(root / "t-0").records()]
    assert ["t-0"] == sorted(path.name for path in root.iterdir() if path.is_dir())
    assert not list(root.rglob("*.deleted"))
    assert 20 == clean(root)[0].end_offset


def test_a_hold_waits_for_a_round_and_is_taken_back_when_that_may_pass_it(root: Path) -> None:
    (root / "t-0" / f"{0:020d}.log.0123456789abcdef.deleted").touch()
    with locked(root), pytest.raises(UnavailableError, match="partition=t-0 offset=25"):
        hold(root, offset=25)
    with pytest.raises(RefusedError, match="keeplast clean or keeplast run"):
        hold(root, offset=25)
    assert () == read_holds(FILES, root)
    # No round passes what is decided, so that the end is held at once.
    assert [40] == [each.offset for each in hold(root)]


def test_a_damaged_list_of_holds_stops_rounds(root: Path) -> None:
    hold(root, offset=25)
    path = root / HOLDS_NAME
    whole = path.read_bytes()
    for damaged in (b"", whole[:-10], whole.replace(b"25", b"-1"), whole.replace(b'"h"', b'"/"')):
        path.write_bytes(damaged)
        (report,) = clean(root)
        assert isinstance(report.failure, CorruptError), damaged
        assert HOLDS_NAME in str(report.failure)
    path.write_bytes(whole.replace(b'"version": 1', b'"version": 2'))
    with pytest.raises(InvalidError, match="newer keeplast"):
        read_holds(FILES, root)


def test_receipts_have_the_holds(root: Path, tmp_path: Path) -> None:
    hold(root, offset=25)
    clean(root, receipt=tmp_path / "receipts")
    line = json.loads((tmp_path / "receipts").read_text().splitlines()[0])
    assert [{"name": "h", "offset": 25, "until_ms": NOW_MS + HOUR}] == line["holds"]


def test_a_target_is_held_too(root: Path, tmp_path: Path) -> None:
    hold(root, offset=25)
    target = tmp_path / "to"
    for report in clean(root, target=target, rounds=None):
        assert 20 == report.bound
    assert [25] == [each.offset for each in read_holds(FILES, target)]
    assert 20 == clean(target)[0].bound


def status_of(root: Path, topic: TopicConfig, now_ms: int) -> LogStatus:
    request = CleanRequest((PartitionRequest(PARTITION, root / str(PARTITION), topic),))
    ((_, found),) = find_statuses(
        request, root, FILES, now_ms, timestamp_ahead_max_ms=lambda _: INT64_MAX,
        tombstones=TombstoneReading.SKIP, progressed=lambda _: None,
    )  # fmt: skip
    assert isinstance(found, LogStatus)
    return found


def test_what_is_erased_by_when_waits_for_the_hold_that_ends_last(root: Path) -> None:
    hold(root, "long", offset=38, age_ms=9 * HOUR)
    hold(root, "short", offset=25)
    hold(root, "end", age_ms=100 * HOUR)
    topic = replace(COMPACT, max_compaction_lag_ms=2 * HOUR, segment_ms=HOUR)
    found = status_of(root, topic, NOW_MS)
    assert (NOW_MS + 9 * HOUR, BasisKind.HOLD) == (
        found.eligibility.by_ms,
        found.eligibility.basis.kind,
    )
    assert {"long", "short", "end"} == {each.name for each in found.holds}
    later = status_of(root, topic, NOW_MS + 9 * HOUR)
    assert BasisKind.HOLD is not later.eligibility.basis.kind
