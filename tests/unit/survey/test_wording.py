"""Every reason and note, as it is said."""

from __future__ import annotations

import pytest

from keeplast.cleaner.cleanable_range import (
    FirstDirty,
    FirstUncleanable,
    IdleRoll,
    find_first_uncleanable,
)
from keeplast.cleaner.dirty_section import (
    Dating,
    dating_notes,
    due_reason,
    find_dirty_section,
    skip_reason,
)
from keeplast.cleaner.reasons import (
    ActiveLimit,
    BoundNote,
    CheckpointRepaired,
    ExpiredDue,
    GivenLimit,
    LagLimit,
    Limit,
    NothingBelow,
    TransactionLimit,
    WatermarkLimit,
)
from keeplast.model.partition import INT64_MAX, SegmentSummary
from keeplast.model.topic_config import TopicConfig
from keeplast.survey.notes import (
    GivenOption,
    Lift,
    LiftNote,
    Note,
    RollNote,
    RollStage,
    TornTail,
    UnknownFiles,
)
from keeplast.survey.wording import (
    decision_words,
    due_briefly,
    due_words,
    note_words,
    sentences,
    skip_words,
)

NOW_MS = 1_700_000_000_000
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS


def segment(base_offset: int, largest: int, *, mtime: int = NOW_MS) -> SegmentSummary:
    return SegmentSummary(base_offset, 100, mtime, largest, 0, 0)


def lag_limit(largest: int, *, mtime: int = NOW_MS) -> Limit:
    """Return what holds segment 812 back with a least lag of an hour."""
    found = find_first_uncleanable(
        [segment(812, largest, mtime=mtime), segment(900, -1)],
        first_dirty=0, high_watermark=900, open_transaction=None,
        min_compaction_lag_ms=HOUR_MS, now_ms=NOW_MS,
    )  # fmt: skip
    return found.limit


def lag_words(largest: int, *, mtime: int = NOW_MS) -> str:
    words = note_words(BoundNote(812, 812, lag_limit(largest, mtime=mtime)))
    return words.removeprefix("not cleaned past offset 812: ")


def test_a_young_segment_says_how_much_is_missing() -> None:
    limit = lag_limit(NOW_MS - 56 * MINUTE_MS)
    assert LagLimit(812, 56 * MINUTE_MS, HOUR_MS) == limit
    assert (
        "not cleaned past offset 812: segment 812 is held back for another 4 min by "
        "min.compaction.lag.ms (1 h)" == note_words(BoundNote(812, 812, limit))
    )


def test_a_log_of_which_all_is_too_young_says_so_and_what_is_held_otherwise_does_not() -> None:
    young = skip_words(NothingBelow(lag_limit(NOW_MS - 56 * MINUTE_MS)))
    assert "too young to clean: segment 812 is held back for another 4 min" == young[:62]
    open_since = skip_words(NothingBelow(TransactionLimit(5)))
    assert "nothing to clean: a transaction is open since offset 5" == open_since


def test_a_segment_without_timestamps_says_that_its_file_is_young() -> None:
    assert (
        "segment 812 has no timestamps; its file keeps it back for another 30 min by "
        "min.compaction.lag.ms (1 h)" == lag_words(-1, mtime=NOW_MS - 30 * MINUTE_MS)
    )


def test_a_segment_from_the_future_says_how_far_and_how_long_it_waits() -> None:
    assert (
        "segment 812 is dated 3 d in the future and waits 3 d for min.compaction.lag.ms (1 h)"
        == lag_words(NOW_MS + 3 * DAY_MS)
    )


@pytest.mark.parametrize(
    ("limit", "bound", "uncleanable", "expected"),
    [
        (ActiveLimit(900), 900, 900, "900: the active segment starts at 900"),
        (
            WatermarkLimit(815), 812, 815,
            "812: the high watermark is 815, what follows may not be on every replica, "
            "and a segment is cleaned as a whole",
        ),
        (
            TransactionLimit(815), 812, 815,
            "812: a transaction is open since offset 815, and a segment is cleaned as a whole",
        ),
        (TransactionLimit(812), 812, 812, "812: a transaction is open since offset 812"),
        (GivenLimit(812), 812, 812, "812: 812 was given as the first uncleanable offset"),
    ],
)  # fmt: skip
def test_where_a_round_ends(limit: Limit, bound: int, uncleanable: int, expected: str) -> None:
    found = note_words(BoundNote(bound, uncleanable, limit))
    assert f"not cleaned past offset {expected}" == found


@pytest.mark.parametrize(
    ("first_dirty", "first_base", "active_base", "expected"),
    [
        (0, 0, 0, "there is only the active segment, from 0; clean --roll-active closes it"),
        (900, 0, 900, "all is clean up to the active segment at 900"),
        (905, 0, 900, "all is clean up to the active segment at 900"),
        (500, 0, 900, "a transaction is open since offset 815"),
    ],
)
def test_why_there_is_nothing_to_clean(
    first_dirty: int, first_base: int, active_base: int, expected: str
) -> None:
    bases = sorted({first_base, active_base})
    section = find_dirty_section(
        [segment(base, -1) for base in bases], TopicConfig(),
        first_dirty=FirstDirty(first_dirty), uncleanable=FirstUncleanable(0, TransactionLimit(815)),
        now_ms=NOW_MS,
    )  # fmt: skip
    reason = skip_reason(section, [segment(b, -1) for b in bases], TopicConfig(), is_forced=False)
    assert reason is not None
    assert f"nothing to clean: {expected}" == skip_words(reason)


def test_an_empty_log_says_so() -> None:
    empty = [SegmentSummary(0, 0, NOW_MS, -1, 0, 0)]
    section = find_dirty_section(
        empty, TopicConfig(), first_dirty=FirstDirty(0),
        uncleanable=FirstUncleanable(0, ActiveLimit(0)), now_ms=NOW_MS,
    )  # fmt: skip
    reason = skip_reason(section, empty, TopicConfig(), is_forced=True)
    assert reason is not None
    assert "nothing to clean: the log is empty" == skip_words(reason)


@pytest.mark.parametrize(
    ("cleanable_bytes", "delayed", "forced", "expected"),
    [
        (45, False, False, "dirty ratio 0.310 is not above min.cleanable.dirty.ratio 0.5; "
         "to go past this: clean --despite dirty-ratio"),
        (10, True, False, "due for a round: overdue for 3 h, max.compaction.lag.ms is 1 d"),
        (900, True, False, "due for a round: overdue for 3 h, max.compaction.lag.ms is 1 d"),
        (900, False, False, "due for a round: dirty ratio 0.900 is above min.cleanable.dirty.ratio "
         "0.5"),
        (100, False, True, "forced: dirty ratio 0.500, min.cleanable.dirty.ratio is "
         "0.5"),
    ],
)  # fmt: skip
def test_why_a_log_is_cleaned_or_not(
    cleanable_bytes: int, delayed: bool, forced: bool, expected: str
) -> None:
    first_ms = NOW_MS - DAY_MS - 3 * HOUR_MS
    log = [
        SegmentSummary(0, 100, NOW_MS, -1, 0, 0),
        SegmentSummary(10, cleanable_bytes, NOW_MS, -1, 0, 0, first_ms),
        SegmentSummary(20, 5, NOW_MS, -1, 0, 0),
    ]
    topic = TopicConfig(max_compaction_lag_ms=DAY_MS if delayed else INT64_MAX)
    section = find_dirty_section(
        log, topic, first_dirty=FirstDirty(10), uncleanable=FirstUncleanable(20, ActiveLimit(20)),
        now_ms=NOW_MS,
    )  # fmt: skip
    reason = skip_reason(section, log, topic, is_forced=forced)
    assert expected == decision_words(reason or due_reason(section, topic))


@pytest.mark.parametrize(
    ("tombstones", "markers", "expected"),
    [
        (1, 0, "1 tombstone batch"),
        (2, 1, "2 tombstone batches and 1 marker batch"),
        (0, 3, "3 marker batches"),
    ],
)
def test_expired_segments_are_counted(tombstones: int, markers: int, expected: str) -> None:
    due = ExpiredDue(tombstones, markers)
    assert f"a round for what has expired: {expected}" == due_words(due)
    assert "tombstones or markers have expired" == due_briefly(due)


@pytest.mark.parametrize(
    ("note", "expected"),
    [
        (CheckpointRepaired(3, 10), "checkpoint 3 is below the log start; starting at 10"),
        (CheckpointRepaired(30, 0, 20),
         "checkpoint 30 is beyond the log end 20; everything from 0 is dirty again"),
        (RollNote(RollStage.FORESEEN), "the active segment will be rolled (as asked)"),
        (RollNote(RollStage.DONE, IdleRoll(2 * DAY_MS, DAY_MS, "segment.ms")),
         "the active segment was rolled (first record 2 d old, segment.ms is 1 d)"),
        (TornTail(5, 70, "short batch", 9),
         "the active segment 5 is torn at byte 70 (short batch); the log is taken to end at "
         "offset 9"),
        (UnknownFiles(2, ("a", "b")), "2 files with names that mean nothing, left alone: 'a', 'b'"),
        (LiftNote(Lift(GivenOption.NOW, 9, 5), stands=False),
         "clean refuses this: --now-ms 9 is ahead of the clock, 5; to go past this: --despite "
         "log-bounds"),
        (LiftNote(Lift(GivenOption.UNCLEANABLE, 9, 5, ActiveLimit(5)), stands=True),
         "unsafe: --uncleanable-offset 9 is above the first uncleanable offset, 5: the active "
         "segment starts at 5"),
    ],
)  # fmt: skip
def test_notes_name_what_they_are_about(note: Note, expected: str) -> None:
    assert expected == note_words(note)


def test_odd_dates_are_said_with_what_follows_for_the_lag() -> None:
    dating = Dating(future=1, missing=2, backdated=1, ahead_ms=3 * DAY_MS)
    assert (
        "1 dirty segment is dated in the future, by up to 3 d: min.compaction.lag.ms holds back "
        "what follows until then",
        "2 dirty segments are without timestamps: the file's time counts for min.compaction.lag.ms",
        "1 dirty segment is dated before what is in front of it: min.compaction.lag.ms protects "
        "for less than 1 h after the append",
    ) == sentences(dating_notes(dating, TopicConfig(min_compaction_lag_ms=HOUR_MS)))
    assert (
        "1 dirty segment is dated in the future, by up to 3 d: max.compaction.lag.ms counts from "
        "then",
        "2 dirty segments are without timestamps: max.compaction.lag.ms never makes them overdue",
    ) == sentences(dating_notes(dating, TopicConfig(max_compaction_lag_ms=DAY_MS)))
