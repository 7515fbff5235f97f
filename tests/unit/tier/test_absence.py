"""An object that is not there: the owner is fenced, the segment was replaced, or it is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from keeplast.errors import ConflictError, CorruptError, FencedError
from keeplast.tier.metadata.stored_logs import explained
from tests.support.metadata_contract import GRACE_MS, LINEAGE, PARTITION, Opened, new_id, segment

SOURCE = segment(0, 9)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    made = Opened(f"sqlite:///{tmp_path / 'meta.db'}")
    made.copy(SOURCE)
    yield made
    made.store.close()


def look(opened: Opened, *, epoch: int | None = 0) -> None:
    with explained(opened.store, PARTITION, epoch=epoch):
        name = f"s3://bucket/t-0/topic/{SOURCE.segment_id}/{0:020d}.log"
        raise FileNotFoundError(2, "no such object", name)


def test_object_of_a_live_segment_is_lost(opened: Opened) -> None:
    """I-14."""
    with pytest.raises(CorruptError) as caught:
        look(opened)
    assert SOURCE.segment_id in str(caught.value.path)


def test_object_of_a_replaced_segment_was_collected(opened: Opened) -> None:
    opened.store.commit_swap(
        PARTITION, new_id(), epoch=0, sources=[SOURCE.segment_id], outputs=[segment(0, 9)],
        grace_ms=GRACE_MS,
    )  # fmt: skip
    for epoch in (0, None):
        with pytest.raises(ConflictError):
            look(opened, epoch=epoch)


def test_object_that_a_newer_leader_removed_fences(opened: Opened) -> None:
    opened.store.take_over(PARTITION, epoch=1, owner="b", lineage=LINEAGE, log_end=10)
    with pytest.raises(FencedError):
        look(opened)


def test_another_file_that_is_missing_is_what_it_is(opened: Opened) -> None:
    with pytest.raises(FileNotFoundError), explained(opened.store, PARTITION):
        raise FileNotFoundError(2, "no such file", "/var/log/t-0/00000000000000000000.log")
