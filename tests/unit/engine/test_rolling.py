"""An idle active segment is left before a round, and ``plan`` says so before it happens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from keeplast.engine.request import CleanRequest
from tests.support.partition_maker import (
    COMPACT,
    DAY_MS,
    NOW_MS,
    bases_of,
    clean,
    clean_request,
    coordinator,
    last_round,
    one,
    write_partition,
)

LAGGING = replace(COMPACT, max_compaction_lag_ms=DAY_MS)
OLD_MS = NOW_MS - 8 * DAY_MS
REASON = "(first record 8 d old, max.compaction.lag.ms is 1 d)"


def idle_log(root: Path, *, first_ms: int = OLD_MS) -> CleanRequest:
    """Return a request about a log whose newest record is in an active segment of three."""
    active = b"".join(one(10 + i, b"k", timestamp=first_ms + i) for i in range(3))
    directory = write_partition(root, {0: one(0, b"k", timestamp=OLD_MS), 10: active})
    return replace(clean_request(directory, topic=LAGGING), rolls_idle=True)


def test_it_is_rolled_and_cleaned(tmp_path: Path) -> None:
    request = idle_log(tmp_path)
    report = clean(request)
    assert f"the active segment was rolled {REASON}" == report.notes[0]
    assert (13, 13) == (report.bound, report.end_offset)
    assert [0, 13] == bases_of(request.partitions[0].path)
    again = last_round(coordinator().clean(request))
    assert not any("rolled" in note for note in again.notes)


@pytest.mark.parametrize("exact", [False, True])
def test_plan_foresees_it_and_what_becomes_cleanable(tmp_path: Path, exact: bool) -> None:
    request = idle_log(tmp_path)
    before = {p: p.read_bytes() for p in request.partitions[0].path.iterdir()}
    planned = last_round(coordinator().plan(request, exact=exact))
    assert before == {p: p.read_bytes() for p in request.partitions[0].path.iterdir()}
    assert f"the active segment will be rolled {REASON}" == planned.notes[0]
    done = clean(request)
    assert (done.bound, done.cleanable_bytes, done.ratio) == (
        planned.bound, planned.cleanable_bytes, planned.ratio,
    )  # fmt: skip
    assert done.groups == planned.groups
    if exact:
        assert done.reasons == planned.reasons


def test_plan_foresees_a_roll_that_was_asked_for(tmp_path: Path) -> None:
    request = replace(idle_log(tmp_path, first_ms=-1), roll_active=True)
    planned = last_round(coordinator().plan(request))
    assert "the active segment will be rolled (as asked)" == planned.notes[0]
    assert clean(request).bound == planned.bound


@pytest.mark.parametrize("first_ms", [-1, NOW_MS - DAY_MS])
def test_without_a_timestamp_or_not_older_than_allowed_it_stays(
    tmp_path: Path, first_ms: int
) -> None:
    request = idle_log(tmp_path, first_ms=first_ms)
    request = replace(request, now_ms=NOW_MS)
    assert 10 == clean(request).bound


def test_kafkas_rules_roll_nothing(tmp_path: Path) -> None:
    assert 10 == clean(replace(idle_log(tmp_path), rolls_idle=False)).bound


def test_a_torn_segment_stays_and_the_rest_is_cleaned(tmp_path: Path) -> None:
    request = idle_log(tmp_path)
    path = request.partitions[0].path / f"{10:020d}.log"
    path.write_bytes(path.read_bytes()[:-1])
    report = clean(request)
    assert 10 == report.bound
    assert not any("rolled" in note for note in report.notes)


def test_with_a_target_the_source_stays_as_it_is(tmp_path: Path) -> None:
    request = replace(idle_log(tmp_path / "from"), target=tmp_path / "to")
    report = clean(request)
    told = f"the active segment is not rolled, --to leaves the source as it is {REASON}"
    assert (told, 10) == (report.notes[0], report.bound)
    assert [0, 10] == bases_of(request.partitions[0].path)
