"""A hold keeps its promise: the states as of its point and later are shown, and are the replay's.

One law, in a directory, a store and a live cluster's remote tier: random histories of transactions
that overlap, of tombstones, rounds and log starts, with holds that are added and released at any
moment, as of now, of an offset and of a time. The model keeps every record that was ever written.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keeplast.model.topic_config import Strategy
from tests.support.placed_log import PLACES, placed
from tests.support.turns import examples
from tests.support.written_log import ROLL, SECOND, Steps

KEYS = st.integers(0, 2)
SEND = st.tuples(st.just("send"), st.integers(1, 2), KEYS, st.booleans(), st.integers(0, 3))
ROUND = st.tuples(st.just("round"), st.just(0))
STEPS = st.one_of(
    st.tuples(st.just("put"), KEYS, st.booleans(), st.integers(0, 3)),
    SEND,
    SEND,
    st.tuples(st.just("end"), st.integers(1, 2), st.booleans()),
    st.tuples(st.just("end"), st.integers(1, 2), st.just(True)),
    ROLL,
    ROLL,
    ROUND,
    ROUND,
    st.tuples(st.just("wait"), st.sampled_from([1, 10 * SECOND])),
    st.tuples(st.just("delete"), st.integers(0, 60)),
    st.tuples(
        st.just("hold"), st.sampled_from(["now", "now", "offset", "time"]), st.integers(0, 100),
        st.sampled_from([5 * SECOND, 1000 * SECOND]),
    ),
    st.tuples(st.just("release"), st.integers(0, 3)),
)  # fmt: skip
CLEAN = ("round", 0)
START: Steps = [("put", 0, False, 0), ("roll",)]
OVERLAPPING: Steps = [
    ("put", 1, False, 0), ("send", 1, 1, False, 0), ("put", 2, False, 0), ("roll",),
    ("send", 2, 0, False, 0), ("end", 1, True),
]  # fmt: skip
FILLED: Steps = [*OVERLAPPING, ("roll",), *(("put", 2, False, 0), ("roll",)) * 4]
"""What begins at the second offset has ended, what overlaps it has not, and all of it is closed."""
NOW = ("hold", "now", 0, 1000 * SECOND)
LATE_ABORT: Steps = [
    ("put", 0, False, 0), ("send", 1, 0, False, 0), ("wait", 10 * SECOND), ("end", 1, False),
    ("roll",), ("wait", 10 * SECOND), ("put", 1, False, 0), ("hold", "time", 70, 1000 * SECOND),
    ("roll",), *(("put", 2, False, 0), ("roll",)) * 4, CLEAN, ("wait", 10 * SECOND),
]  # fmt: skip
"""The time that is held lies in front of a record that goes, the last one of what is clean."""
END: Steps = [
    ("end", 1, True), ("end", 2, True), ("put", 0, False, 0), ("roll",), ("put", 1, False, 0),
    ("roll",), CLEAN, ("wait", 10 * SECOND), CLEAN,
]  # fmt: skip
EXAMPLES = {"directory": (40, 4000), "store": (25, 2000), "cluster": (15, 1000)}


@pytest.mark.parametrize("kind", PLACES)
def test_every_state_that_a_hold_promises_is_shown_and_right(kind: str) -> None:
    count, long = EXAMPLES[kind]

    @settings(max_examples=examples(count, long=long))
    @given(st.lists(STEPS, min_size=8, max_size=30), st.sampled_from(Strategy))
    @example([*OVERLAPPING, NOW], Strategy.OFFSET)
    @example([*OVERLAPPING, CLEAN, NOW], Strategy.OFFSET)
    @example([*FILLED, NOW], Strategy.OFFSET)
    @example([*FILLED, CLEAN, NOW], Strategy.OFFSET)
    @example(LATE_ABORT, Strategy.OFFSET)
    def law(steps: Steps, strategy: Strategy) -> None:
        with (
            tempfile.TemporaryDirectory() as root,
            placed(kind, Path(root), strategy, follows=True) as place,
        ):
            place.play(START)
            for history in (steps, END):
                place.play(history)
                place.judge()

    law()
