"""An idle active segment is left before a round, and ``plan`` says so before it happens."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

import keeplast
from keeplast.errors import CorruptError, RefusedError
from keeplast.format.filename import REPLICATION_CHECKPOINT as HIGH_WATERMARK
from keeplast.format.record import ControlType
from keeplast.run.foresight import RESERVE_BYTES_MIN
from keeplast.survey.request import CleanRequest
from tests.support.observed_files import ObservedFiles
from tests.support.partition_maker import (
    COMPACT,
    DAY_MS,
    NOW_MS,
    bases_of,
    clean,
    clean_request,
    coordinator,
    data_batch,
    last_round,
    marker,
    one,
    write_partition,
)
from tests.support.replay import tree

LAGGING = replace(COMPACT, max_compaction_lag_ms=DAY_MS)
SINGLE = replace(LAGGING, segment_bytes=14)
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


@pytest.mark.parametrize("roll_active", [False, True])
def test_a_round_that_is_refused_has_rolled_nothing(tmp_path: Path, roll_active: bool) -> None:
    request = replace(idle_log(tmp_path), roll_active=roll_active)
    before = tree(tmp_path)
    files = ObservedFiles(free_bytes=RESERVE_BYTES_MIN)
    report = last_round(coordinator(files=files).clean(request))
    assert isinstance(report.failure, RefusedError)
    assert "not enough free disk" in str(report.failure)
    assert before == tree(tmp_path)
    (tmp_path / HIGH_WATERMARK).write_bytes(b"no checkpoint")
    before = tree(tmp_path)
    report = last_round(coordinator().clean(request))
    assert isinstance(report.failure, CorruptError)
    assert before == tree(tmp_path)


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


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("rounds", [1, None])
def test_with_a_target_it_is_rolled_there_and_the_source_stays_as_it_is(
    tmp_path: Path, rounds: int | None
) -> None:
    request = replace(idle_log(tmp_path / "from"), rounds=rounds)
    (partition,) = request.partitions
    before = tree(tmp_path / "from")
    report = clean(replace(request, target=tmp_path / "to"))
    assert f"the active segment is rolled at --to, the source stays {REASON}" == report.notes[0]
    assert (13, 13) == (report.bound, report.end_offset)
    assert before == tree(tmp_path / "from")
    # As a round in place leaves it, file by file.
    clean(request)
    assert contents(partition.path) == contents(tmp_path / "to" / partition.path.name)


def test_plan_foresees_what_happens_at_a_target(tmp_path: Path) -> None:
    request = replace(idle_log(tmp_path / "from"), target=tmp_path / "to")
    planned = last_round(coordinator().plan(request))
    assert (13, f"the active segment is rolled at --to, the source stays {REASON}") == (
        planned.bound, planned.notes[0],
    )  # fmt: skip
    assert planned.groups == clean(request).groups


def test_what_nothing_supersedes_is_closed_at_a_target_with_whole_indexes(tmp_path: Path) -> None:
    old = {0: one(0, b"a", timestamp=OLD_MS), 10: one(10, b"b", timestamp=OLD_MS)}
    directory = write_partition(tmp_path / "from", old)
    # As a broker has it that was killed: what was appended last is in no index.
    with (directory / f"{10:020d}.log").open("ab") as log:
        log.write(one(13, b"c", timestamp=OLD_MS + 5))
    twin = tmp_path / "twin" / directory.name
    shutil.copytree(directory, twin)
    request = replace(clean_request(directory, topic=SINGLE), rolls_idle=True)
    report = clean(replace(request, target=tmp_path / "to"))
    assert report.stats is not None
    assert 1 == report.stats.segments_left_alone  # that one had all in its indexes
    clean(replace(clean_request(twin, topic=SINGLE), rolls_idle=True))
    assert contents(twin) == contents(tmp_path / "to" / directory.name)


def test_an_aborted_transaction_of_what_was_active_is_indexed_at_a_target(tmp_path: Path) -> None:
    data = data_batch(10, 7, [b"x"]) + marker(11, 7, ControlType.ABORT, timestamp=OLD_MS)
    segments = {0: one(0, b"a", timestamp=OLD_MS), 9: one(9, b"b", timestamp=OLD_MS) + data}
    directory = write_partition(tmp_path / "from", segments)
    request = replace(clean_request(directory, topic=LAGGING), rolls_idle=True)
    clean(replace(request, target=tmp_path / "to"))
    clean(request)
    assert contents(directory) == contents(tmp_path / "to" / directory.name)


def test_what_must_not_be_cleaned_remains_at_a_target_and_that_is_said(tmp_path: Path) -> None:
    request = idle_log(tmp_path / "from")
    (partition,) = request.partitions
    request = replace(request, target=tmp_path / "to", high_watermark=11)
    report = clean(request)
    assert (
        "the active segment from 10 on is old enough and remains at --to: the high watermark is "
        "11, what follows may not be on every replica"
    ) == report.notes[0]
    assert [0, 10] == bases_of(tmp_path / "to" / partition.path.name)


def test_in_python_it_is_rolled_at_a_target_too(tmp_path: Path) -> None:
    (partition,) = idle_log(tmp_path / "from").partitions
    report = keeplast.open_log(partition.path).clean(
        LAGGING, to=tmp_path / "to", force=True, rolls_idle=True
    )
    assert (None, 13) == (report.rounds[-1].failure, report.rounds[-1].end_offset)
    assert [0, 13] == bases_of(tmp_path / "to" / partition.path.name)


def test_the_least_lag_holds_for_what_is_closed_at_a_target(tmp_path: Path) -> None:
    request = idle_log(tmp_path / "from")
    (partition,) = request.partitions
    with (partition.path / f"{10:020d}.log").open("ab") as log:
        log.write(one(13, b"k", timestamp=NOW_MS - 1))  # in no index yet
    topic = replace(LAGGING, min_compaction_lag_ms=DAY_MS)
    lagging = replace(partition, topic=topic)
    report = clean(replace(request, partitions=(lagging,), target=tmp_path / "to"))
    assert 10 == report.bound
    assert [0, 10] == bases_of(tmp_path / "to" / partition.path.name)


def test_in_python_a_target_is_overwritten_only_on_request(tmp_path: Path) -> None:
    (partition,) = idle_log(tmp_path / "from").partitions
    log = keeplast.open_log(partition.path)
    log.clean(LAGGING, to=tmp_path / "to", force=True)
    with pytest.raises(keeplast.RefusedError, match="--despite existing-target"):
        log.clean(LAGGING, to=tmp_path / "to", force=True)
    report = log.clean(LAGGING, to=tmp_path / "to", force=True, overwrites=True)
    assert report.rounds[-1].failure is None
