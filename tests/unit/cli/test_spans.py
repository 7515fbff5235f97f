"""Spans of time on the command line: a number as before, or one with a unit."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from keeplast.cli.frame.values import span_ms, span_seconds
from keeplast.model.text import SPAN_MS_MAX
from tests.unit.cli.conftest import Run


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("0", 0),
        ("3600000", 3_600_000),
        ("1h", 3_600_000),
        (" 7 d ", 604_800_000),
        ("30min", 1_800_000),
        ("250ms", 250),
        (str(SPAN_MS_MAX), SPAN_MS_MAX),
    ],
)
def test_a_number_is_milliseconds_and_a_unit_says_so(text: str, milliseconds: int) -> None:
    assert milliseconds == span_ms(text)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        *itertools.product(
            ["write milliseconds, or 90s, 30min, 12h or 7d"],
            ["", "-1", "+1", "1.5h", "h", "7 days", "1g", "\u0661", "9" * 30],
        ),
        ("too long", str(SPAN_MS_MAX + 1)),
        ("too long", "999999999999999d"),
    ],
)
def test_a_bad_span_and_one_that_no_clock_can_hold_are_refused(text: str, words: str) -> None:
    with pytest.raises(typer.BadParameter, match=words):
        span_ms(text)


def test_a_bare_number_counts_in_the_unit_of_its_option() -> None:
    assert [7, 7, 300] == [span_seconds(text) for text in ("7", "7s", "5min")]


@pytest.mark.parametrize("text", ["0", "0s", "500ms", "1500ms"])
def test_a_span_of_seconds_is_whole(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="whole seconds"):
        span_seconds(text)


@pytest.mark.parametrize(
    ("verb", "option"),
    [
        *((verb, "--grace-ms") for verb in ("clean", "plan", "run", "repair", "detach", "collect")),
        ("collect", "--garbage-age-ms"),
    ],
)
def test_a_wrong_span_of_a_place_ends_with_2_before_its_store_is_opened(
    keeplast: Callable[..., Run], tmp_path: Path, verb: str, option: str
) -> None:
    store = tmp_path / "meta.db"
    run = keeplast(verb, f"sqlite:///{store}", option, "soon")
    assert (2, False) == (run.code, store.exists())
    assert "value='soon'" in run.err.replace("\n", " ")
