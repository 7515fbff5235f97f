"""Lists of topics and partitions: what a filter finds, how columns order, what a topic sums."""

from __future__ import annotations

import html
import re
from urllib.parse import quote_plus

import pytest
from msgspec.structs import replace

from keeplast.model.partition import TopicPartition
from keeplast.model.text import format_bytes
from keeplast.service import history
from keeplast.service.console import lines, pages
from keeplast.service.console.rendering import cut_name
from keeplast.service.status import LastRound, PartitionStatus, State
from tests.support.console_site import NOW_MS, FixedSource, Site

HOUR_MS = 3_600_000
FIGURES = (
    ("orders", 1, State.NOT_DUE, 2 << 30, 24), ("orders", 10, State.OVERDUE, 3 << 20, -30),
    ("orders", 2, State.HELD_BACK, 1 << 10, -2), ("orders-1", 0, State.CLEAN, 5 << 30, 1),
    ("payments.2024", 7, State.FAILING, 4 << 30, 0.5),
)  # fmt: skip
"""Topic, number, state, bytes that are clean and that are dirty, a round's deadline in hours."""


@pytest.fixture
def many(source: FixedSource) -> FixedSource:
    """Five logs of three topics, and one that was not read."""
    (log,) = (e.log for e in source.status.partitions if e.partition == TopicPartition("orders", 0))
    assert log is not None
    cleanable, figures = log.figures.cleanable, log.figures
    found = [
        PartitionStatus(
            TopicPartition(topic, number), state, f"why {number}",
            replace(
                log, deadline_ms=NOW_MS + round(hours * HOUR_MS),
                segments=(replace(log.segments[0], size_bytes=size), *log.segments[1:]),
                figures=replace(
                    figures, compaction_delay_ms=max(round(-hours * HOUR_MS), 0),
                    cleanable=replace(cleanable, cleanable_bytes=size, clean_bytes=size),
                ),
            ),
            last_round=LastRound(NOW_MS - number * HOUR_MS, 0, 0, 9, 9, 1, 1, 1.0),
        )
        for topic, number, state, size, hours in FIGURES
    ]  # fmt: skip
    source.show([*found, PartitionStatus(TopicPartition("sick", 0), State.UNREADABLE, "gone")])
    return source


def names(site: Site, query: str) -> list[str]:
    """Return what a list shows, in its order."""
    text = site.get(f"/partitions?{query}").text
    return re.findall(r'<th scope="row"><a href="[^"]+">(?:<[^>]+>)*([^<]+)', text)


@pytest.mark.rotates(4)
@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("orders-1", {"orders-1", "orders-1-0"}), ("orders-1 topic:orders", {"orders-1"}),
        ("topic:orders", {"orders-1", "orders-10", "orders-2"}), ("ORDERS 2", {"orders-2"}),
        ("2024", {"payments.2024-7"}), ("024", set()), (".20", set()), ("", 6),
        ("state:failing,held-back", {"payments.2024-7", "orders-2"}),
        ("state:clean", {"orders-1-0"}),
        ("state:overdue", {"orders-10", "orders-2"}),
        ("need:person", {"sick-0", "payments.2024-7"}),
        ("size:>1g due:<2h", {"payments.2024-7"}),
        ("dirty:<=1k", {"orders-2"}), ("ratio:>=0.5", 5), ("due:<0h", {"orders-10", "orders-2"}),
        ("last:>6h", {"orders-10", "payments.2024-7"}),
        ("State:Failing 7", {"payments.2024-7"}), ("gone:>1d", set()),
        ("state:skipped,not-due", {"orders-1"}),
    ],
)  # fmt: skip
def test_a_filter_finds_what_fits_all_of_it(
    many: FixedSource, asked: str, found: set[str] | int
) -> None:
    shown = names(Site(many), f"q={quote_plus(asked)}")
    assert found == (len(shown) if isinstance(found, int) else set(shown))
    assert len(shown) == len(set(shown))


@pytest.mark.rotates(3)
@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("colour:red", "colour: is no field. There are topic:, state:, need:, size:, dirty:"),
        ("state:bad", "state:bad is no state. There are holes, set-aside, skipped"),
        ("state:", "is no state"), ("need:you", "need:you is not known. There are person, round"),
        ("size:>big", "size:>big is no size to compare with. Write size:>1g or dirty:<500m"),
        ("size:1g", "is no size to compare with"), ("due:<1m", "Write due:<1h, gone:<7d"),
        ("ratio:>.", "is no ratio to compare with. Write ratio:>0.5"),
        ("last:>" + "9" * 99, "is no time"),
    ],
)  # fmt: skip
def test_what_a_filter_cannot_mean_is_said_at_the_box_with_what_it_can(
    many: FixedSource, asked: str, says: str
) -> None:
    site, asked = Site(many), f"orders {asked}"
    for path in ("/", "/partitions", "/topic/orders"):
        text = site.get(f"{path}?q={quote_plus(asked)}").text
        assert re.search(f'id="q-problem" role="alert">[^<]*{re.escape(html.escape(says))}', text)
        assert 'aria-invalid="true" aria-describedby="q-problem"' in text
        assert f'value="{html.escape(asked)}"' in text
    refused = site.get(f"/overview.json?q={quote_plus(asked)}")
    assert (400, True) == (refused.status_code, says in refused.text)


URGENT = "sick-0 payments.2024-7 orders-10 orders-2 orders-1 orders-1-0"
ORDERS = {
    "": URGENT, "state": URGENT, "partitions": URGENT, "-partitions": URGENT,
    "-state": "orders-1-0 orders-1 orders-2 orders-10 payments.2024-7 sick-0",
    "name": "orders-1 orders-2 orders-10 orders-1-0 payments.2024-7 sick-0",
    "-name": "sick-0 payments.2024-7 orders-1-0 orders-10 orders-2 orders-1",
    "size": "orders-1-0 payments.2024-7 orders-1 orders-10 orders-2 sick-0",
    "-size": "orders-2 orders-10 orders-1 payments.2024-7 orders-1-0 sick-0",
    "dirty": "orders-1-0 payments.2024-7 orders-1 orders-10 orders-2 sick-0",
    "-dirty": "orders-2 orders-10 orders-1 payments.2024-7 orders-1-0 sick-0",
    "due": "orders-10 orders-2 payments.2024-7 orders-1 sick-0 orders-1-0",
    "-due": "orders-1 payments.2024-7 orders-2 orders-10 sick-0 orders-1-0",
    "last": "orders-1-0 orders-1 orders-2 payments.2024-7 orders-10 sick-0",
    "-last": "orders-10 payments.2024-7 orders-2 orders-1 orders-1-0 sick-0",
    "ratio": "payments.2024-7 orders-10 orders-2 orders-1 orders-1-0 sick-0",
    "-ratio": "payments.2024-7 orders-10 orders-2 orders-1 orders-1-0 sick-0",
    "gone": URGENT, "-gone": URGENT,
}  # fmt: skip
"""The rows of a list by each column, both ways."""


@pytest.mark.rotates(4)
@pytest.mark.parametrize("sort", ORDERS)
def test_every_column_orders_both_ways_and_what_is_not_known_is_last(
    many: FixedSource, sort: str
) -> None:
    site = Site(many)
    assert ORDERS[sort].split() == names(site, f"sort={sort}")
    name, other = sort.removeprefix("-") or "state", "" if sort.startswith("-") else "-"
    descends = (name in ("size", "dirty", "last", "ratio", "partitions")) is bool(other)
    heading = (
        f'c-{name}" aria-sort="{"de" if descends else "a"}scending"><a href="?sort={other}{name}"'
    )
    text = site.get(f"{'/' if name == 'partitions' else '/partitions'}?sort={sort}").text
    assert (1, 1) == (text.count("aria-sort="), text.count(heading))


def shown(text: str) -> str:
    """Return a part of a page without its tags."""
    return " ".join(html.unescape(re.sub("<[^>]+>", " ", text)).split())


def test_a_topic_sums_its_partitions_and_is_as_its_most_urgent_one(many: FixedSource) -> None:
    its = [e.size_bytes or 0 for e in many.status.partitions if e.partition.topic == "orders"]
    row = Site(many).get("/?sort=name").text.split("<tr>")[2]
    dirty = format_bytes((2 << 30) + (3 << 20) + (1 << 10))
    cells = [shown(f"<td{each}") for each in row.split("<td")[1:]]
    assert ["3", "overdue 1 of 3: orders-10 why 10", cells[2], format_bytes(sum(its)), dirty,
            "overdue for 1 d 6 h", "", "1 h ago in 3 logs 27 B to 27 B"] == cells[:8]  # fmt: skip
    assert re.search(rf"dirty {dirty} .*0\.500$", cells[2])
    line = next(e for e in lines.topic_lines(lines.lines_of(many.found)) if e.topic == "orders")
    assert 1000 == round(sum(each.width for each in lines.topic_strip(line)[0]))


def test_totals_count_what_is_late_also_where_it_is_held(
    many: FixedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(many)
    text = site.get("/").text.partition("<form")[0]
    size = format_bytes(sum(each.size_bytes or 0 for each in many.status.partitions))
    assert re.search(
        rf"sick-0 unreadable .*\. What to do partitions 6 in 4 topics size {size} dirty "
        "[0-9.]+ GiB overdue 2 held back 1 unreadable or failing 2 freed in 30 days 0 B Next round",
        shown(text),
    )  # fmt: skip
    for link in ("/log/sick/0", "?q=state%3Aoverdue", "?q=state%3Aheld-back", "?q=need%3Aperson"):
        assert f'href="{link}"' in text
    topic = shown(site.get("/topic/orders").text)
    assert re.search(r"orders-10 overdue why 10, since .* When its round comes partit", topic)
    assert 404 == site.get("/topic/none").status_code
    # What the history has no room for is not nothing.
    monkeypatch.setattr(history, "TOPICS_MAX", -1)
    assert "freed in 30 days not known" in shown(site.get("/topic/orders").text)
    assert 5 == site.get("/time?topic=orders").text.count('"says">Not known in 30 days: ')
    many.show([])
    assert "No topic fits" in site.get("/").text


def test_pages_of_a_list_keep_filter_and_order_and_show_no_row_twice(many: FixedSource) -> None:
    one = many.status.partitions[0]
    many.show(replace(one, partition=TopicPartition("t", n)) for n in range(2 * pages.ROWS + 1))
    site, shown, query = Site(many), [], "q=t&sort=-name&rows=roomy"
    for _ in range(3):
        text = html.unescape(site.get(f"/partitions?{query}").text)
        shown += re.findall(r'<th scope="row"><a href="([^"]+)"', text)
        query = next(iter(re.findall(r'rel="next" href="\?([^"]+)"', text)), "")
    assert [pages.log_url(TopicPartition("t", n)) for n in range(2 * pages.ROWS, -1, -1)] == shown
    assert "" == query
    assert "/topic/t?q=t" in site.get("/?q=t&page=1").text


def test_a_long_name_is_whole_in_the_page_and_in_a_tip() -> None:
    name = "org.team.customer-preferences<b>-changelog-17"
    assert "short-1" == cut_name("short-1")
    found = str(cut_name(name))
    assert name == html.unescape(re.sub(r"<[^>]+>", "", found))
    assert f'title="{html.escape(name)}"' in found
    assert found.endswith("angelog-17</span>")
