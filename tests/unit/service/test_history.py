"""What is kept of a place's past: rings that gaps, steps of the clock and damage leave right."""

from __future__ import annotations

import errno
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from keeplast.errors import CorruptError, code_in
from keeplast.log.files import LocalFiles
from keeplast.log.root_files import RECEIPTS_NAME
from keeplast.model.partition import TopicPartition
from keeplast.rewrite.stats import Stats
from keeplast.service.history import (
    ALL,
    FREED,
    HISTORY_BYTES_MAX,
    LONGEST,
    OVERDUE,
    ROUNDS,
    SECONDS,
    SIZE,
    SPANS,
    TOPICS_MAX,
    Entry,
    History,
    Span,
    look_entries,
    read_history,
    round_entries,
)
from keeplast.service.history_file import PlaceHistory
from keeplast.service.receipt_shelf import ReceiptLine, ReceiptShelf
from keeplast.service.snapshot import Snapshot, TierFacts
from keeplast.service.status import LastRound
from keeplast.survey.report import RoundReport
from tests.support.durations import DAY_MS
from tests.support.faulty_files import FaultyFiles
from tests.support.manual_clock import ManualClock
from tests.unit.service.test_gauges import NOW_MS, facts

DAY, MONTH, YEAR = SPANS
FILE = f"{RECEIPTS_NAME}.history"
ONE = TopicPartition("t", 0)


def measured(size: float, topic: str = "t", at_ms: int = NOW_MS) -> Entry:
    return topic, at_ms, (size, 0.5, math.nan, 0, 0, 0, 0)


def history_of(*entries: Entry, now_ms: int = NOW_MS) -> History:
    found = History()
    found.add(entries, now_ms)
    return found


@pytest.mark.parametrize("span", SPANS)
def test_a_gap_is_no_zero_and_a_time_without_a_round_is_one(span: Span) -> None:
    past = NOW_MS - 3 * span.slot_ms * span.bar_slots
    found = history_of(
        measured(7, at_ms=past), measured(9, at_ms=past), measured(8),
        *round_entries("t", past, 40, 2.0), *round_entries("t", past, -100, 3.0),
    )  # fmt: skip
    bars = found.series("t", span, NOW_MS).bars[-4:]
    assert "[ 9. nan nan  8.]" == str(bars[:, SIZE])
    # What made the log larger has freed less than nothing.
    rounds = [[3, -60, 2, 5], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert rounds == bars[:, [LONGEST, FREED, ROUNDS, SECONDS]].tolist()


def test_what_lies_a_lap_of_the_ring_back_is_gone() -> None:
    found = history_of(measured(7, at_ms=NOW_MS - DAY_MS - 1), *round_entries("t", 0, 5, 1.0))
    later = found.series("t", DAY, NOW_MS).bars
    assert np.isnan(later[:, SIZE]).all()
    assert 0 == later[:, ROUNDS].sum()
    assert 7 == np.nanmax(found.series("t", MONTH, NOW_MS).bars[:, SIZE])


def test_a_clock_that_was_ahead_keeps_no_slot_from_the_one_that_is_right() -> None:
    ahead = NOW_MS + 5 * YEAR.slots * YEAR.slot_ms
    found = history_of(measured(1, at_ms=ahead), now_ms=ahead)
    found.add([measured(2)], NOW_MS)
    for span in SPANS:
        assert 2 == np.nanmax(found.series("t", span, NOW_MS).bars[:, SIZE])
    # It steps back: what is of the same time joins, and what was dated ahead counts as of now.
    found.add([measured(3, at_ms=NOW_MS), measured(9, at_ms=NOW_MS)], NOW_MS - DAY.slot_ms)
    bars = found.series("t", DAY, NOW_MS).slots[:, SIZE]
    assert [9, 2] == bars[~np.isnan(bars)].tolist()


def test_further_topics_are_in_the_sum_alone_until_others_are_gone() -> None:
    names = [f"{n}".zfill(249) for n in range(TOPICS_MAX + 5)]
    found = history_of(measured(1, ALL), *(measured(1, each) for each in names))
    assert [ALL, *names[:TOPICS_MAX]] == list(found.topics)
    assert len(found.encode()) < HISTORY_BYTES_MAX
    freed = [found.series(each, MONTH, NOW_MS).sum_of(FREED) for each in (names[0], names[-1])]
    assert "[0.0, nan]" == str(freed)
    found.make_room({names[0], "new"})
    found.add([measured(5, "new")], NOW_MS)
    assert [ALL, names[0], "new"] == list(found.topics)
    asked = (names[0], "new", names[1])
    last = [float(found.series(each, YEAR, NOW_MS).bars[-1, SIZE]) for each in asked]
    assert "[1.0, 5.0, nan]" == str(last)


def test_a_look_sums_what_it_could_look_at() -> None:
    seen = [facts(0, delay_ms=2000), facts(1, ratio=None), facts(2, ratio=0.0, size_bytes=100)]
    total, topic = look_entries(seen, NOW_MS)
    # Without a deadline a dirty log is neither late nor in time; a clean one is in time.
    assert (600, 100 / 500, 0.0) == total[2][:3]
    assert (ALL, "t", total[1:]) == (total[0], topic[0], topic[1:])
    (late, _) = look_entries([facts(0)], NOW_MS)
    assert math.isnan(late[2][OVERDUE])
    assert [] == look_entries([facts(1, ratio=None)], NOW_MS)
    # Another host's: its size alone.
    other = replace(facts(1, ratio=None), tier=TierFacts("box-b", 3, 700, 0, 0))
    assert "(700, nan, nan, 0, 0, 0, 0)" == str(look_entries([other], NOW_MS)[0][2])
    assert (1150, 0.25) == look_entries([facts(0), other], NOW_MS)[0][2][:2]


def test_the_history_that_is_read_is_the_written_one_and_nothing_else() -> None:
    data = history_of(
        measured(7), measured(8, "x\ny"), *round_entries("t", NOW_MS, 5, 1.0)
    ).encode()
    assert data == read_history(data, "f").encode()
    newer = data.replace(b"keeplast-history 1", b"keeplast-history 2", 1)
    cut = [data[:at] for at in range(0, len(data), 997)]
    flipped = [
        data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :] for at in range(0, len(data), 997)
    ]
    for damaged in (newer, b"", *cut, *flipped):
        with pytest.raises(CorruptError) as caught:
            read_history(damaged, "f")
        assert ("K720", "f") == (caught.value.code, caught.value.path)


FILES = LocalFiles()


def place(
    root: Path | None,
    files: LocalFiles = FILES,
    warned: Callable[[str], None] = print,
    clock: ManualClock | None = None,
) -> PlaceHistory:
    shelf = ReceiptShelf(files, None if root is None else root / RECEIPTS_NAME)
    return PlaceHistory(files, shelf, clock or ManualClock(NOW_MS), warned)


def published(*ended: RoundReport) -> Snapshot:
    seen = tuple(facts(number, last_round=each) for number, each in enumerate(ended))
    names = tuple(each.partition for each in seen)
    return Snapshot("root", NOW_MS, NOW_MS, 1, 1, seen or (facts(0, ratio=0.5),), names)


ROUND = RoundReport(stats=Stats(bytes_read=100, bytes_written=40, total_seconds=2.0))


def test_a_loop_keeps_what_it_publishes_and_the_next_one_goes_on(tmp_path: Path) -> None:
    for rounds in (2, 3):
        with place(tmp_path) as kept:
            failed = replace(ROUND, failure=OSError("no"))
            kept.published(published(ROUND, failed, RoundReport(skipped=True)))
            kept.published(published())  # The same round is not counted again.
            if rounds == 3:
                kept.published(published(ROUND))
    found = place(tmp_path).series(ALL, DAY, NOW_MS).bars[-1]
    assert (3, 180) == (found[ROUNDS], found[FREED])
    assert [FILE] == [each.name for each in tmp_path.iterdir()]


def test_a_history_that_another_loop_writes_too_is_warned_of_and_its_own_writes_are_not(
    tmp_path: Path,
) -> None:
    said = list[str]()
    with place(tmp_path, warned=said.append) as kept:
        kept.published(published())
        kept.keep()
        kept.keep(ends=True)
        (tmp_path / FILE).write_bytes(b"what the other one wrote")
    assert [f"another loop keeps its history in {FILE} too"] == [e.partition(":")[0] for e in said]


def test_before_the_first_history_receipts_count_once(tmp_path: Path) -> None:
    shelf = ReceiptShelf(FILES, tmp_path / RECEIPTS_NAME)
    past = NOW_MS - 2 * DAY_MS
    lines = [
        ReceiptLine("round", at, ONE, 0, 9, LastRound(at, 0, 9, 90, 30, 1, 1, 4.0))
        for at in (past, NOW_MS)
    ]
    shelf.lines = lambda: (lines[0], replace(lines[0], has_ended=False), *lines[1:])  # type: ignore[method-assign]
    for _ in range(2):
        with PlaceHistory(FILES, shelf, ManualClock(NOW_MS)) as kept:
            kept.published(published())
    bars = place(tmp_path).series("t", MONTH, NOW_MS).bars
    assert [(1, 60, 4.0), (0, 0, 0)] == [
        (each[ROUNDS], each[FREED], each[SECONDS]) for each in (bars[-3], bars[-1])
    ]


@pytest.mark.parametrize("data", [b"", b"keeplast-history 9 00000000\nwhat is to come"])
def test_an_unreadable_history_is_put_aside_and_reported(tmp_path: Path, data: bytes) -> None:
    (tmp_path / FILE).write_bytes(data)
    looking, said = place(tmp_path), list[str]()
    assert np.isnan(looking.series(ALL, DAY, NOW_MS).bars[:, SIZE]).all()
    assert "the history is damaged" in looking.problem
    with place(tmp_path, warned=said.append) as kept:
        kept.published(published())
    (message,) = said
    assert message.startswith(f"the history was put aside as {FILE}.unreadable: ")
    assert ("K720", data) == (code_in(message), (tmp_path / f"{FILE}.unreadable").read_bytes())
    assert 450 == looking.series(ALL, DAY, NOW_MS).bars[-1, SIZE]
    assert "" == looking.problem


def test_a_full_disk_is_said_once_leaves_nothing_half_written_and_is_tried_again(
    tmp_path: Path,
) -> None:
    said, clock = list[str](), ManualClock(NOW_MS)
    files = FaultyFiles(frozenset({"write"}), errno.ENOSPC, fail_at=0, lasts=True)
    with place(tmp_path, files, said.append, clock) as kept:
        for _ in range(3):
            kept.published(published())
            kept.keep()
            clock.advance(DAY.slot_ms)
        assert ("K721", 1, []) == (code_in(said[0]), len(said), list(tmp_path.iterdir()))
        assert 450 == np.nanmax(kept.series(ALL, DAY, NOW_MS).bars[:, SIZE])
        files._fail_at = None
        kept.keep()
        assert ("", [FILE]) == (kept.problem, [each.name for each in tmp_path.iterdir()])


def test_a_history_that_cannot_be_put_aside_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"of a newer one")
    files = FaultyFiles(frozenset({"rename"}), errno.EACCES, fail_at=0, lasts=True)
    with place(tmp_path, files) as kept:
        kept.published(published())
    assert "K721" == code_in(kept.problem)
    assert b"of a newer one" == (tmp_path / FILE).read_bytes()


def test_without_receipts_it_is_in_memory_alone() -> None:
    with place(None) as kept:
        kept.published(published(ROUND))
    assert (None, "") == (kept.path, kept.problem)
    assert 1 == kept.series("t", DAY, NOW_MS).bars[-1, ROUNDS]
