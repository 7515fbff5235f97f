"""A state as of an offset or a time is that of a plain replay, or it is refused where it must be.

One law, in a directory, a store and a live cluster's remote tier: random histories of every
strategy, with transactions, tombstones, rounds that expire them, some of which are cut short
between two commits of a store, holds, log starts that move, and leaders that copy over the end of
what a round wrote.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keeplast.errors import InvalidError
from keeplast.model.topic_config import Strategy
from tests.support.placed_log import PLACES, InStore, placed
from tests.support.turns import examples
from tests.support.written_log import (
    DELETE,
    END,
    PUT,
    ROLL,
    SECOND,
    SEND,
    TOPIC,
    WAIT,
    Steps,
    shown_state,
)

COPY = st.tuples(st.just("copy"))
HOLD = st.tuples(
    st.just("hold"), st.just("offset"), st.integers(0, 100),
    st.sampled_from([SECOND, 5 * SECOND]),
)  # fmt: skip
ROUND = st.tuples(st.just("round"), st.integers(0, 2))
ACTS = st.sampled_from(["clean", "clean", "collect", "cut", "expire", "overlay"])
SHARED = st.one_of(PUT, PUT, SEND, END, ROLL, ROUND, WAIT, DELETE, HOLD)
HISTORIES: dict[str, st.SearchStrategy[Steps]] = {
    "directory": st.lists(st.one_of(SHARED, SEND), min_size=8, max_size=40),
    "store": st.lists(st.one_of(SHARED, COPY), min_size=8, max_size=30),
    "cluster": st.tuples(
        st.integers(0, 1 << 32).map(
            lambda seed: [
                ("many", seed),
                ("put", 0, False, 0),
                ("roll",),
                ("copy",),
                *[("clean",)] * (seed % 2),
            ]
        ),
        st.lists(st.one_of(*[st.tuples(ACTS)] * 6, SHARED, COPY), max_size=12),
    ).map(lambda parts: [*parts[0], *parts[1]]),
}
OFFSETS = {"directory": (60, 5000), "store": (40, 3000), "cluster": (12, 1000)}
TIMES = {"directory": (40, 3000), "store": (20, 1500), "cluster": (8, 500)}
SUPERSEDED: Steps = [
    ("put", 0, False, 0), ("put", 1, False, 0), ("copy",), ("round", 0),
    ("put", 2, False, 0), ("put", 3, False, 0), ("put", 0, False, 0), ("copy",), ("round", 1),
]  # fmt: skip
"""What was clean loses a record to what is dirty, of which nothing goes, and the round is cut."""


@pytest.mark.parametrize("kind", PLACES)
def test_a_state_as_of_an_offset_is_the_replay_or_refused(kind: str) -> None:
    count, long = OFFSETS[kind]

    @settings(max_examples=examples(count, long=long))
    @given(HISTORIES[kind], st.sampled_from(Strategy))
    @example([*SUPERSEDED, ("roll",)], Strategy.OFFSET)
    def law(steps: Steps, strategy: Strategy) -> None:
        with tempfile.TemporaryDirectory() as root, placed(kind, Path(root), strategy) as place:
            place.play(steps)
            place.expected.check_offsets(partial(shown_state, place.open(), place.world.topic))
            place.judge()

    law()


@pytest.mark.parametrize("kind", PLACES)
def test_a_state_as_of_a_time_is_that_of_its_first_later_record_or_refused(kind: str) -> None:
    count, long = TIMES[kind]

    @settings(max_examples=examples(count, long=long))
    @given(HISTORIES[kind], st.sampled_from([Strategy.OFFSET, Strategy.HEADER]))
    def law(steps: Steps, strategy: Strategy) -> None:
        with tempfile.TemporaryDirectory() as root, placed(kind, Path(root), strategy) as place:
            place.play(steps)
            place.expected.check_times(partial(shown_state, place.open(), place.world.topic))

    law()


@settings(max_examples=examples(40, long=3000))
@given(HISTORIES["directory"], st.sampled_from(Strategy))
def test_without_snapshots_no_state_is_shown_wrong(steps: Steps, strategy: Strategy) -> None:
    with tempfile.TemporaryDirectory() as root, placed("directory", Path(root), strategy) as place:
        place.play(steps)
        for path in place.world.log.directory.glob("*.snapshot"):
            path.unlink()
        place.expected.check_offsets(place.shown, may_refuse=True)


def test_a_round_that_was_cut_short_is_known_by_its_end(tmp_path: Path) -> None:
    with placed("store", tmp_path) as place:
        assert isinstance(place, InStore)
        place.play(SUPERSEDED)
        assert (2, 5) == (place.state.first_dirty(), place.state.earliest_as_of)
        assert [None] * 2 == [place.shown(end_offset=end) for end in (2, 4)]
        assert place.expected.replay(5) == place.shown(end_offset=5) == place.shown()


def test_an_offset_that_the_log_does_not_have_is_a_mistake(tmp_path: Path) -> None:
    with placed("directory", tmp_path) as place:
        place.play([("put", 1, False, 0), ("put", 1, False, 0)])
        for wrong in ({"end_offset": 3}, {"end_offset": -1}, {"end_offset": 1, "as_of_ms": 1}):
            with pytest.raises(InvalidError, match=f"end_offset={wrong['end_offset']}"):
                place.open().state(
                    TOPIC, end_offset=wrong.get("end_offset"), as_of_ms=wrong.get("as_of_ms")
                )
