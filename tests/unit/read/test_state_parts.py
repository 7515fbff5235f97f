"""A state in parts: what its stages hold, and that they agree on a log that changes meanwhile."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from keeplast.log.append import NewRecord
from keeplast.model.topic_config import Strategy
from keeplast.read import log_state
from keeplast.read.log_state import CutState, send_keys
from keeplast.rewrite.standings import ROWS_MIN, WaitingRows
from tests.support.heard_calls import hear
from tests.support.log_builder import LogBuilder
from tests.support.mixed_log import write_mixed_log
from tests.support.partition_maker import NOW_MS, SMALL_SEGMENTS, clean, clean_request
from tests.support.source_reading import read_log_state
from tests.support.state_in_parts import parts_of_log, rows_by_buckets


@pytest.mark.parametrize("strategy", [Strategy.OFFSET, Strategy.TIMESTAMP])
def test_a_log_that_is_cleaned_between_the_stages_has_the_same_state(
    tmp_path: Path, strategy: Strategy
) -> None:
    directory = write_mixed_log(tmp_path)
    topic = replace(SMALL_SEGMENTS, strategy=strategy)
    before = read_log_state(directory, topic=topic)
    parts = parts_of_log(directory, topic, split_bytes=300, buckets=3)
    sizes: list[int] = []

    def clean_it() -> None:
        for _ in range(2):
            sizes.append(sum(path.stat().st_size for path in directory.glob("*.log")))
            clean(replace(clean_request(directory, topic=topic), first_dirty_offset=0))
        sizes.append(sum(path.stat().st_size for path in directory.glob("*.log")))

    assert len(parts) > 2
    assert before == rows_by_buckets(parts, between=clean_it)
    assert sizes[0] > sizes[-1]
    assert before == read_log_state(directory, topic=topic)


def test_a_bounded_map_is_given_up_when_it_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = LogBuilder(tmp_path / "t-0", SMALL_SEGMENTS)
    for segment in range(8):
        if segment:
            log.roll()
        first = 1000 * segment
        log.append(*(NewRecord(b"%d" % n, b"v", NOW_MS) for n in range(first, first + 1500)))
    log.close()
    sizes: list[int] = []

    hear(
        monkeypatch, log_state, "winning_offsets",
        lambda key_map, ranking: sizes.append(key_map.size_bytes),
    )  # fmt: skip
    whole = read_log_state(tmp_path / "t-0")
    assert 8500 == len(whole)
    (largest,) = sizes
    sizes.clear()
    assert whole == read_log_state(tmp_path / "t-0", key_bytes_max=120_000)
    assert len(sizes) > 2
    # What passes the bound is one slice of a window: here, a segment of 1,500 keys.
    assert max(sizes) < 120_000 + 1500 * 48 < largest


def test_a_part_sends_only_the_best_row_of_a_key(tmp_path: Path) -> None:
    directory = write_mixed_log(tmp_path)
    (part,) = parts_of_log(directory, SMALL_SEGMENTS, split_bytes=1 << 30, buckets=3)
    sent = list(send_keys(part, lambda read_bytes: None))
    keys = [tuple(row[:2]) for each in sent for row in each.rows.tolist()]
    assert len(set(keys)) == len(keys) > 0
    assert {0, 1, 2} >= {each.bucket for each in sent}


def test_winners_go_to_the_part_that_has_their_offset() -> None:
    state = CutState(0, SMALL_SEGMENTS, (10, 20, 20, 30), 1, 1)
    winners = np.array([10, 19, 20, 29, 31], np.int64)
    found = [(number, its.tolist()) for number, its in state.by_part(winners)]
    assert [(0, [10, 19]), (2, [20, 29]), (3, [31])] == found


def test_rows_wait_until_there_are_enough() -> None:
    waiting = WaitingRows(1, 0)
    block = np.zeros((ROWS_MIN // 2, 3), np.uint64)
    starts = np.zeros(65, np.int64)
    starts[1:] = len(block)
    waiting.add(block, starts)
    assert not waiting.is_full
    waiting.add(block, starts)
    assert waiting.is_full
    ((cell, rows),) = waiting.take()
    assert (0, ROWS_MIN) == (cell, len(rows))
    assert not waiting.is_full
    assert [] == list(waiting.take())
