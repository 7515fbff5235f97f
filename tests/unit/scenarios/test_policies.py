"""A topic's policy changes (cleaning.md section 1.10), and which logs are looked at (8.2, CM)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from keeplast.config.layers import SettingSources
from keeplast.config.selection import Selection, select_partitions
from keeplast.log.files import LocalFiles
from keeplast.survey.report import PartitionReport
from keeplast.survey.request import CleanRequest
from tests.support.expiring_log import cleaner_checkpoint, write_log
from tests.support.partition_maker import (
    DAY_MS,
    NOW_MS,
    bases_of,
    coordinator,
    one,
    records_of,
    write_partition,
)


def select(directory: Path, policy: str, **settings: object) -> Selection:
    values: Mapping[str, object] = {"cleanup.policy": policy, **settings}
    flags = tuple(f"{key}={value}" for key, value in values.items())
    sources = SettingSources(flags=flags, environment={})
    return select_partitions(directory.parent, LocalFiles(), sources=sources)


def clean(directory: Path, policy: str, **settings: object) -> PartitionReport:
    """Do what the command does for a topic with this policy now."""
    selection = select(directory, policy, **settings)
    if selection.decided:
        return selection.decided[0]
    request = CleanRequest(selection.partitions, now_ms=NOW_MS, is_unsafe=True, retention=True)
    (report,) = coordinator().clean(request).partitions
    assert report.rounds[-1].failure is None
    return report


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize(
    ("policy", "is_looked_at"),
    [("delete", False), ("compact,delete", True), ("compact", True), ("", False)],
    ids=["cm10 delete", "cm11 compact,delete", "cm12 compact", "none"],
)
def test_cm10_cm11_cm12_logs_that_a_cleaner_looks_at(
    tmp_path: Path, policy: str, is_looked_at: bool
) -> None:
    selection = select(write_log(tmp_path), policy)
    assert (int(is_looked_at), int(not is_looked_at)) == (
        len(selection.partitions), len(selection.decided),
    )  # fmt: skip


def test_from_delete_to_compact_all_of_the_log_is_dirty_and_loses_what_has_no_key(
    tmp_path: Path,
) -> None:
    directory = write_partition(
        tmp_path,
        {0: one(0, None) + one(1, b"a"), 2: one(2, b"a") + one(3, None), 4: one(4, b"b")},
    )
    skipped = clean(directory, "delete")
    assert "cleanup.policy is delete: the topic is not compacted" == skipped.rounds[-1].reason
    (round_,) = clean(directory, "compact").rounds
    assert (0, 4) == (round_.first_dirty, round_.end_offset)
    # The last batch of the round stays as an empty one.
    assert [2, 4] == [record.offset for record in records_of(directory)]
    assert round_.reasons is not None
    assert 2 == round_.reasons.keyless_records


def test_from_compact_to_delete_and_back_the_checkpoint_waits(tmp_path: Path) -> None:
    directory = write_log(tmp_path)
    clean(directory, "compact")
    assert 10 == cleaner_checkpoint(directory)
    before = contents(directory)
    skipped = clean(directory, "delete", **{"retention.ms": 1})
    assert skipped.rounds[-1].skipped
    assert (10, before) == (cleaner_checkpoint(directory), contents(directory))
    again = clean(directory, "compact").rounds[-1]
    assert (True, 10) == (again.skipped, again.first_dirty)


def test_back_to_compact_below_the_log_start_the_checkpoint_is_repaired(tmp_path: Path) -> None:
    """What deletion by the other policy passed meanwhile."""
    directory = write_log(tmp_path, segments=4)
    clean(directory, "compact")
    for base in (0, 5, 10):
        for path in directory.glob(f"{base:020d}.*"):
            path.unlink()
    (tmp_path / "cleaner-offset-checkpoint").write_text("0\n1\nt 0 5\n")
    again = clean(directory, "compact").rounds[-1]
    assert (15, 15) == (again.first_dirty, cleaner_checkpoint(directory))


def test_compact_and_delete_does_both(tmp_path: Path) -> None:
    old_ms = NOW_MS - DAY_MS
    directory = write_partition(
        tmp_path,
        {
            0: one(0, b"old", timestamp=old_ms),
            10: one(10, b"a", timestamp=NOW_MS) + one(11, b"a", timestamp=NOW_MS),
            20: one(20, b"b", timestamp=NOW_MS),
        },
    )
    report = clean(directory, "compact,delete", **{"retention.ms": DAY_MS - 1, "segment.bytes": 14})
    assert report.expiry is not None
    assert [0] == [segment.base for segment in report.expiry.segments]
    assert [11, 20] == [record.offset for record in records_of(directory)]
    assert [10, 20] == bases_of(directory)
