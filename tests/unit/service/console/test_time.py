"""The page of time: what its sentences, charts and table say of a history, and of none."""

from __future__ import annotations

import html
import math
import re
from pathlib import Path

import pytest

from keeplast.log.root_files import RECEIPTS_NAME
from keeplast.service.console import charts
from keeplast.service.history import ALL, SPANS, Entry, History, Span, round_entries
from tests.support.console_site import NOW_MS, FixedSource, Site, with_past

MIB, DAY_MS = 1 << 20, 86_400_000


def measured(days_ago: float, size: float, dirty: float, late: float = math.nan) -> list[Entry]:
    at_ms = NOW_MS - round(days_ago * DAY_MS)
    return [(each, at_ms, (size, dirty, late, 0, 0, 0, 0)) for each in (ALL, "orders")]


def rounds(days_ago: float, freed: int, seconds: float = 60.0) -> list[Entry]:
    return round_entries("orders", NOW_MS - round(days_ago * DAY_MS), freed, seconds)


def said(*entries: list[Entry], span: Span = SPANS[1]) -> list[str]:
    history = History()
    history.add([each for its in entries for each in its], NOW_MS)
    return [each.sentence for each in drawn(history, span)]


def drawn(history: History, span: Span = SPANS[1]) -> tuple[charts.Chart, ...]:
    return charts.charts_of(history.series(ALL, span, NOW_MS))[: charts.DRAWN]


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([], [
            "Not known in 30 days: nothing was measured.",
            "Not known in 30 days: nothing was measured.",
            "No round ended in 30 days.",
            "No round ended in 30 days.",
            "Not known in 30 days: no log has a deadline, or nothing was measured.",
        ]),
        ([measured(29, 500 * MIB, 0.41, 7200), rounds(3, 2 * MIB), rounds(2, -MIB, 90),
          measured(0, 700 * MIB, 0.12, 0)], [
            "The size grew from 500 MiB to 700 MiB in 30 days.",
            "The dirty ratio fell from 41 % to 12 % in 30 days.",
            "2 rounds freed 1.00 MiB in 30 days.",
            "The longest round took 90.0 s; 2 rounds took 2 min 30 s together, in 30 days.",
            "The most overdue log came down from 2 h to 0 s in 30 days.",
        ]),
        ([measured(3, 9 * MIB, 0.2, 0), rounds(0, -MIB), measured(0, 9 * MIB, 0.25, 0)], [
            "The size stayed at 9.00 MiB since 01-12.",
            "The dirty ratio rose from 20 % to 25 % since 01-12.",
            "1 round made logs larger by 1.00 MiB in 30 days.",
            "The longest round took 60.0 s; 1 round took 60.0 s together, in 30 days.",
            "Nothing was overdue since 01-12.",
        ]),
    ],
)  # fmt: skip
def test_a_sentence_says_whether_it_is_getting_better(
    entries: list[list[Entry]], expected: list[str]
) -> None:
    assert expected == said(*entries)


@pytest.mark.parametrize(
    ("before", "after", "ends"),
    [
        ((0.4, 7200.0), (0.4, 90_000.0), "from 2 h to 1 d 1 h in 24 hours: getting worse."),
        ((0.4, 7200.0), (0.9, 0.0), "from 2 h to 0 s in 24 hours: getting better."),
        ((0.4, 7200.0), (0.4, 7800.0), "from 2 h to 2 h 10 min in 24 hours: late, and no better."),
        ((0.1, 0.0), (0.9, 0.0), "Nothing was overdue in 24 hours: keeping up."),
        ((0.4, math.nan), (0.44, math.nan), "from 40 % to 44 % in 24 hours: keeping up."),
        ((0.4, math.nan), (0.5, math.nan), "from 40 % to 50 % in 24 hours: getting worse."),
        ((math.nan, math.nan), (math.nan, math.nan), "in 24 hours: nothing was measured."),
    ],
)
def test_a_verdict_goes_by_lateness_and_without_deadlines_by_the_dirty_ratio(
    before: tuple[float, float], after: tuple[float, float], ends: str
) -> None:
    history = History()
    history.add([*measured(22.9 / 24, MIB, *before), *measured(0, MIB, *after)], NOW_MS)
    assert charts.verdict_of(history.series(ALL, SPANS[0], NOW_MS)).endswith(ends)


@pytest.mark.parametrize(
    ("span", "begins"),
    [
        (SPANS[0], ["12:00", "18:00", "00:00", "06:00"]),
        (SPANS[1], ["12-21", "12-28", "01-04", "01-11"]),
    ],
)
def test_ticks_are_even_and_at_round_times(span: Span, begins: list[str]) -> None:
    assert begins == [
        chart.begins[at] for chart in drawn(History(), span)[:1] for at in chart.ticks
    ]


def test_a_line_has_gaps_and_what_made_logs_larger_lies_below_the_axis() -> None:
    history = History()
    history.add([*measured(20, 3 * MIB, 0), *measured(1, 5 * MIB, 0)], NOW_MS)
    history.add([*rounds(2, 3 * MIB), *rounds(1, -MIB)], NOW_MS)
    size, dirty, freed, _, late = drawn(history)
    # Two runs, each as wide as a slot, from 0 to 6 MiB; a ratio of 0 lies on the axis.
    assert [("50.0", 1), ("16.7", 1)] == [
        (y, int(end) - int(x)) for x, y, end in re.findall(r"M(\d+) ([\d.]+)H(\d+)", size.line)
    ]
    assert ("6.00 MiB", "", 100.0) == (size.top, size.low, size.zero)
    assert (2, "") == (dirty.line.count("100.0H"), late.line)
    assert ("3.00 MiB", "-1.00 MiB", 75.0) == (freed.top, freed.low, freed.zero)
    assert [(75.0, 0.0), (25.0, 75.0), (0.0, 75.0)] == list(freed.bars[-3:])
    assert ("3.00 MiB", "-1.00 MiB", "0 B") == freed.words[-3:]
    assert ("not measured", "5.00 MiB", "not measured") == size.words[-3:]


@pytest.mark.parametrize("value", [1e-9, 0.3, 1, 7, 59, 61, 999, 3700, 1e6, 3e9, 7e17, 3e38])
def test_an_axis_has_room_and_is_no_more_than_twice_as_high(value: float) -> None:
    for column in charts._FIGURES:
        end = charts._axis_end(column, value)
        assert value <= end <= max(2 * value, charts._FIGURES[column][2][0])


@pytest.fixture
def site(source: FixedSource, root: Path) -> Site:
    with_past(source, root)
    return Site(source)


def test_the_page_says_draws_and_lists_all_of_it(site: Site, source: FixedSource) -> None:
    for path in ("/time", "/time?span=24h", "/time?span=1y&topic=orders"):
        text = html.unescape(site.get(path).text)
        assert charts.DRAWN == text.count('role="img"') == len(re.findall("<desc id=", text))
        bars = {"24h": 24, "1y": 53}.get(path[11:].partition("&")[0], 30)
        assert bars * charts.DRAWN == text.count('class="mark"')
        assert bars * len(charts._FIGURES) == text.count('<td class="n" data-label=')
        assert '<a href="/time" aria-current="page">' in text
    found = site.document("/time.json?topic=orders")
    assert ("orders", "30d", DAY_MS, 30) == (
        found["topic"], found["span"], found["bar_ms"], len(found["bars"])
    )  # fmt: skip
    last = found["bars"][-1]
    its = [each.log for each in source.status.partitions if each.log is not None]
    late = max(each.figures.compaction_delay_ms for each in its) / 1000
    assert (sum(each.size_bytes for each in its), late, 0, 0) == tuple(
        last[each] for each in ("size_bytes", "overdue_seconds", "rounds", "freed_bytes")
    )
    assert 2 == sum(each["dirty_ratio"] is None for each in found["bars"])
    assert found == site.document("/time.json?topic=orders&span=30d")


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/time?topic=nope", 404), ("/time.json?topic=nope", 404), ("/time?span=2y", 400),
        ("/time?q=1", 400), ("/time?topic=%3Cscript%3E", 404),
        ("/time?" + "&".join(["topic=orders"] * 20), 400),
    ],
)  # fmt: skip
def test_other_times_and_topics_are_refused(site: Site, path: str, code: int) -> None:
    answer = site.get(path)
    assert (code, False) == (answer.status_code, "script" in answer.text)


def test_a_history_that_cannot_be_read_is_said(site: Site, root: Path) -> None:
    (root / f"{RECEIPTS_NAME}.history").write_bytes(b"damaged")
    text = site.get("/time").text
    assert "The history:</strong> the history cannot be read" in text
    assert "nothing was measured" in text
    assert "nan" not in text
