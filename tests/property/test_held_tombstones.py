"""Held tombstones and markers never go early, and always go in the end.

Random logs with tombstones and transactions, several groups that read on, go back, lose what they
have committed or never commit, while the clock runs on and a loop asks for rounds. Next to each log
lies one that waits for no group: nothing goes from the first that is still in the second, but for
markers that no round of the second has stamped, and in the end both are the same.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from keeplast.format.batch import RecordBatch
from keeplast.format.record import ControlType
from keeplast.model.topic_config import TopicConfig
from keeplast.run.coordinator import Coordinator
from keeplast.survey.group_offsets import FRESH_MS
from tests.support.manual_clock import ManualClock
from tests.support.partition_maker import (
    DAY_MS,
    NOW_MS,
    SMALL_SEGMENTS,
    batches_of,
    coordinator,
    data_batch,
    marker,
    one,
    write_partition,
)
from tests.support.turns import examples
from tests.unit.run.test_reader_wait import clean, commit

WAIT_MS = 10 * DAY_MS
GROUPS = ("g", "other", "third")
KEYS = st.integers(0, 5)
WRITES = st.lists(
    st.one_of(
        st.tuples(st.just("value"), KEYS),
        st.tuples(st.just("tombstone"), KEYS),
        st.tuples(st.just("commit"), KEYS),
        st.tuples(st.just("abort"), KEYS),
        st.tuples(st.just("roll"), KEYS),
    ),
    min_size=4,
    max_size=24,
)
READS = st.lists(
    st.tuples(st.sampled_from(GROUPS), st.one_of(st.none(), st.integers(0, 40)), st.integers(0, 5)),
    max_size=10,
)
"""Who commits which offset, None for nothing any more, and how many days pass then."""


def write(root: Path, writes: Sequence[tuple[str, int]]) -> Path:
    """Write a batch a step, and close the last segment."""
    segments, base, at, sequence = {0: b""}, 0, 0, 0
    for what, number in writes:
        key = b"%d" % number
        if what == "roll":
            if segments[base]:
                base = at
                segments[base] = b""
        elif what in ("commit", "abort"):
            outcome = ControlType.COMMIT if what == "commit" else ControlType.ABORT
            segments[base] += data_batch(at, 7, [key], sequence=sequence)
            segments[base] += marker(at + 1, 7, outcome)
            at, sequence = at + 2, sequence + 1
        else:
            segments[base] += one(at, key, None if what == "tombstone" else b"v")
            at += 1
    if segments[base]:
        base = at
    segments[base] = one(at, b"last")
    return write_partition(root, segments)


def expiring(directory: Path) -> dict[int, int | None]:
    """Return the offsets of tombstones and markers, each with its horizon, None before it has."""
    return {
        record.offset: batch.delete_horizon_ms if isinstance(batch, RecordBatch) else None
        for batch in batches_of(directory)
        for record in batch.records()
        if batch.is_control or record.value is None
    }


def there(directory: Path) -> set[int]:
    """Return the offsets of all records and markers."""
    return {record.offset for batch in batches_of(directory) for record in batch.records()}


@settings(max_examples=examples(25, long=2000))
@given(
    writes=WRITES,
    reads=READS,
    groups=st.lists(st.sampled_from(GROUPS), min_size=1, max_size=3, unique=True),
    delete_retention_ms=st.sampled_from([0, DAY_MS]),
)
def test_held_tombstones_and_markers_never_go_early_and_always_go_in_the_end(
    writes: list[tuple[str, int]],
    reads: list[tuple[str, int | None, int]],
    groups: list[str],
    delete_retention_ms: int,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        free = replace(SMALL_SEGMENTS, delete_retention_ms=delete_retention_ms)
        held = replace(
            free, tombstones_wait_for_groups=tuple(groups), tombstones_wait_max_ms=WAIT_MS
        )
        directory = write(root / "held", writes)
        clock = ManualClock(NOW_MS)
        loops = [coordinator(clock=clock), coordinator(clock=clock)]
        # What a second one finds of transactions, whose data the first has taken.
        for _ in range(2):
            clean(directory, NOW_MS, topic=held, expired=False, cleaning=loops[0])
        shutil.copytree(root / "held", root / "free")
        twin = root / "free" / directory.name
        committed: dict[str, int | None] = dict.fromkeys(groups)

        def turn() -> None:
            before, was = expiring(directory), there(directory)
            for loop, path, topic in zip(loops, (directory, twin), (held, free), strict=True):
                round_at(path, topic, loop, clock.now_ms())
            for gone in was - there(directory):
                horizon_ms = before[gone]
                assert horizon_ms is not None, gone
                is_read = all(offset is not None and gone < offset for offset in committed.values())
                over_ms = horizon_ms + (0 if is_read else WAIT_MS)
                assert clock.now_ms() >= over_ms, (gone, horizon_ms, committed)
            # Its twin keeps nothing longer but a marker that no round has stamped yet. Without
            # retention a round more finds what another one has just stamped.
            assert not delete_retention_ms or all(
                expiring(twin)[at] is None for at in there(twin) - there(directory)
            )

        log_end = max(there(directory)) + 1
        for group, offset, days in reads:
            if group in committed:
                # Beyond the log's end it is of an earlier topic of this name, and counts as none.
                committed[group] = offset if offset is None or offset <= log_end else None
                commit(directory, offset, group)
            # What groups have committed is read again after so long.
            clock.advance(days * DAY_MS + FRESH_MS)
            turn()
        for _ in range(4):
            clock.advance(DAY_MS + WAIT_MS)
            turn()
        # A marker whose data went with the last round has no horizon yet: a round for another
        # reason stamps it, and the next one takes it.
        for _ in range(4):
            clock.advance(DAY_MS + WAIT_MS)
            for loop, path, topic in zip(loops, (directory, twin), (held, free), strict=True):
                clean(path, clock.now_ms(), topic=topic, expired=False, cleaning=loop)
        assert there(twin) == there(directory)


def round_at(path: Path, topic: TopicConfig, loop: Coordinator, now_ms: int) -> None:
    """Ask for a round as a loop does."""
    clean(path, now_ms, topic=topic, cleaning=loop)
