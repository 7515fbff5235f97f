"""What a commit costs follows from what it changes, not from what the partition holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from sqlite3 import Connection

import pytest
from sqlalchemy import event, select, update

from keeplast.tier.metadata import schema
from keeplast.tier.state.segment import RemoteSegment, SegmentKind
from tests.support.metadata_contract import LINEAGE, PARTITION, Opened, new_id, segment

FEW, MANY = 8, 200


class Steps:
    """Counts the steps of the database's machine, which are as many each time."""

    def __init__(self, opened: Opened) -> None:
        self._count = 0
        event.listen(opened.engine, "checkout", self._listen)

    def _listen(self, connection: Connection, *_: object) -> None:
        connection.set_progress_handler(self._step, 1)

    def _step(self) -> int:
        self._count += 1
        return 0

    @contextmanager
    def counting(self) -> Iterator[Callable[[], int]]:
        before = self._count
        yield lambda: self._count - before


def filled(url: str, count: int) -> tuple[Opened, list[RemoteSegment]]:
    opened = Opened(url)
    made = [segment(10 * i, 10 * i + 9) for i in range(count)]
    known = opened.state()
    for each in made:
        known = opened.store.commit_copy(
            PARTITION, new_id(), epoch=0, segment=each, lineage=LINEAGE, known=known
        )
    assert opened.state() == known
    return opened, made


def steps_of(url: str, count: int, change: str) -> int:
    """Return what one change costs in a partition of ``count`` segments."""
    opened, made = filled(url, count)
    steps, store = Steps(opened), opened.store
    known = opened.state()
    with steps.counting() as taken:
        if change == "copy":
            new = segment(10 * count, 10 * count + 9)
            store.commit_copy(
                PARTITION, new_id(), epoch=0, segment=new, lineage=LINEAGE, known=known
            )
        elif change == "swap":
            output = segment(20, 39, kind=SegmentKind.CLEANED)
            store.commit_swap(
                PARTITION, new_id(), epoch=0, outputs=[output], grace_ms=0,
                sources=[made[2].segment_id, made[3].segment_id],
            )  # fmt: skip
        elif change == "publish":
            store.publish(PARTITION, new_id(), epoch=0, cleaned_to=5)
        else:
            store.commit_expiry(
                PARTITION, new_id(), epoch=0, log_start=20, grace_ms=0,
                segments=[each.segment_id for each in made[:2]],
            )  # fmt: skip
        found = taken()
    state = opened.state()
    assert state.effective_bytes() == state.remote_bytes
    store.close()
    return found


@pytest.mark.parametrize("change", ["copy", "swap", "publish", "expire"])
def test_a_commit_costs_what_it_changes(tmp_path: Path, change: str) -> None:
    few = steps_of(f"sqlite:///{tmp_path}/few.db", FEW, change)
    many = steps_of(f"sqlite:///{tmp_path}/many.db", MANY, change)
    assert 0 < many < 1.5 * few


def test_a_copy_that_knew_an_older_state_returns_the_newest(tmp_path: Path) -> None:
    opened, made = filled(f"sqlite:///{tmp_path}/meta.db", 3)
    old = opened.state()
    opened.store.publish(PARTITION, new_id(), epoch=0, cleaned_to=5)
    found = opened.store.commit_copy(
        PARTITION, new_id(), epoch=0, segment=segment(30, 39), lineage=LINEAGE, known=old
    )
    assert opened.state() == found
    assert len(made) + 1 == len(found.routes)
    opened.store.close()


def test_a_size_that_drifted_is_mended_by_a_takeover_of_the_partition(tmp_path: Path) -> None:
    opened, _ = filled(f"sqlite:///{tmp_path}/meta.db", 3)
    with opened.engine.begin() as connection:
        connection.execute(update(schema.PARTITIONS).values(remote_bytes=7))
    found = opened.store.take_over(PARTITION, epoch=1, owner="b", lineage=LINEAGE, log_end=30)
    assert (300, found) == (found.remote_bytes, opened.state())
    with opened.engine.connect() as connection:
        assert connection.execute(select(schema.PARTITIONS.c.remote_bytes)).scalar() == 300
    opened.store.close()
