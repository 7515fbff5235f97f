"""The work page: what bounds rounds, and what they did lately; and what a round would free."""

from __future__ import annotations

import dataclasses
import html
from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.api.stored_logs import StoredLogs
from keeplast.cleaner.log_order import Choice
from keeplast.config.layers import ALL_PARTITIONS
from keeplast.config.selection import select_partitions
from keeplast.log.files import LocalFiles
from keeplast.model.partition import TopicPartition
from keeplast.model.text import format_bytes
from keeplast.service.console import anatomy, lines, pages, reading, standing, work
from keeplast.service.console.pages import ROWS
from keeplast.service.console.query import Query
from keeplast.service.console.view import ConsoleView, Looked, LoopFeed, Watcher
from keeplast.service.gauges import GaugeObserver
from keeplast.service.live import Control, LiveProgress
from keeplast.service.place_loop import ViewTerms
from keeplast.service.receipt_shelf import ReceiptLine, ReceiptShelf
from keeplast.service.snapshot import AttachedTotals, Snapshot, look_at_directory
from keeplast.service.status import LastRound, State
from keeplast.service.status_words import seconds_text
from keeplast.survey.report import RoundReport
from tests.support import called
from tests.support.console_site import NOW_MS, FixedSource, Site, directory_view
from tests.support.daemon_world import Narrated
from tests.support.manual_clock import ManualClock
from tests.support.waiting import wait_until

DAY_MS = 86_400_000
SAMPLE = Path(__file__).parents[4] / "src" / "keeplast" / "samples" / "broker-4.3.0"
ONE, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)


def line(days_ago: int, read: int, written: int, partition: TopicPartition = ONE) -> ReceiptLine:
    at_ms = NOW_MS - days_ago * DAY_MS
    found = LastRound(at_ms, 0, 9, read, written, 10, 5, 1.0)
    return ReceiptLine("round", at_ms, partition, 0, 9, found)


def view_of(*lines: ReceiptLine) -> ConsoleView:
    return ConsoleView("a", NOW_MS, receipts=lines)


def test_what_took_no_time_to_speak_of_took_some() -> None:
    assert ["< 0.1 s", "0.1 s", "0.5 s", "119.9 s", "2 min"] == [
        seconds_text(each) for each in (0.0, 0.05, 0.475, 119.9, 120)
    ]


def test_the_work_page_counts_what_waits_for_nothing(root: Path) -> None:
    view = directory_view(root)
    assert view.status is not None
    waiting = tuple(
        replace(each, state=state)
        for each, state in zip(
            view.status.partitions, (State.NOT_DUE, State.NOT_DUE, State.OVERDUE), strict=False
        )
    )
    view = replace(view, status=dataclasses.replace(view.status, partitions=waiting))
    assert "2 not due" == work.others_words(view)


@pytest.mark.parametrize(
    ("slots", "running", "expected"),
    [
        (1, 1, "One round at a time."),
        (2, 0, "Up to 2 rounds at once."),
        (
            2, 1,
            "1 round under way, up to 2 at once: they begin together, and the next ones when the "
            "last of them has ended.",
        ),
    ],
)  # fmt: skip
def test_the_limit_of_rounds_at_once_is_shown_with_their_number(
    slots: int, running: int, expected: str
) -> None:
    view = replace(view_of(), snapshot=Snapshot("here", 0, NOW_MS, 1, slots, ()))
    assert expected == work.slots_words(view, {"running": [{}] * running})
    assert "" == work.slots_words(view, None)


def test_the_page_has_budgets_with_where_they_come_from(root: Path) -> None:
    settings = (root / "keeplast.toml").read_text("utf-8")
    limit = '[cluster]\n"log.cleaner.io.max.bytes.per.second" = 1048576.0\n'
    (root / "keeplast.toml").write_text(settings.replace("[cluster]\n", limit), "utf-8")
    view = replace(directory_view(root), receipts=(line(1, 2048, 1024),))
    text = " ".join(html.unescape(Site(FixedSource(view)).get("/work").text).split())
    for key in work.BUDGET_KEYS:
        assert f'<th scope="row">{key}</th>' in text
    assert "1048576.0 (1.00 MiB/s)" in text
    assert "keeplast.toml, cluster" in text


def test_the_bytes_a_round_would_free_follow_from_the_share_of_the_last_one(root: Path) -> None:
    view = directory_view(root)
    entry = next(e for e in view.status.partitions if e.partition == ONE)  # type: ignore[union-attr]
    cleanable = entry.log.figures.cleanable.cleanable_bytes  # type: ignore[union-attr]
    clean = entry.log.figures.cleanable.clean_bytes  # type: ignore[union-attr]
    words = f"a round reads {cleanable + clean} B, of them {cleanable} B dirty"
    assert f"{words}; no receipt says how much rounds of this log free" == anatomy.saving_words(
        entry, None
    )
    for written, share, percent in ((75, 0.25, 25), (0, 1, 100), (200, 0, 0)):
        about = f"and frees about {round((cleanable + clean) * share)} B, if it does as the last"
        assert f"{words}, {about} one: {percent} %" == anatomy.saving_words(
            entry, line(1, 100, written).round
        )
    broken = next(e for e in view.status.partitions if e.log is None)  # type: ignore[union-attr]
    assert "" == anatomy.saving_words(broken, None)
    assert "a round reads" in Site(FixedSource(view)).get("/log/orders/0").text


def test_the_pages_have_the_verdict_next_to_the_round(root: Path) -> None:
    broken = replace(line(1, 2048, 1024), verdict="broken: winners 2026-11-23")
    view = replace(directory_view(root), receipts=(line(2, 2048, 1024), broken))
    site = Site(FixedSource(view))
    for address in ("/work", "/log/orders/0"):
        text = site.get(address).text
        assert '<th scope="col">Verdict</th>' in text
        assert 1 == text.count('<td data-label="Verdict">broken: winners 2026-11-23</td>')
        assert 1 == text.count('<td data-label="Verdict"></td>')
    assert [broken] == work.receipts_found(view, Query(text="BROKEN"))
    plain = Site(FixedSource(replace(view, receipts=(line(2, 2048, 1024),))))
    assert "Verdict" not in plain.get("/work").text + plain.get("/log/orders/0").text


def test_caps_of_a_live_cluster_are_shown_with_their_use() -> None:
    totals = AttachedTotals(
        swaps=3, swaps_max=500, metadata_records=40, metadata_records_max=20_000, requests=7,
        moved_bytes=4096, slow_downs=2, waited_seconds=61.5,
    )  # fmt: skip
    snapshot = Snapshot("b:9092", NOW_MS, NOW_MS, 1, 1, (), tier=totals)
    view = ConsoleView("b:9092", NOW_MS, snapshot=snapshot)
    text = " ".join(html.unescape(Site(FixedSource(view)).get("/work").text).split())
    for said in ("3 of 500 swaps", "40 of 20,000 records", "7 requests", "2 times", "61.5 s"):
        assert said in text
    assert [] == work.cap_lines(replace(view, snapshot=None))


def test_a_store_shows_the_rounds_of_every_host(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'meta.db'}"
    for arguments in (
        ("copy", str(SAMPLE), url, "--new", "--objects", f"file://{tmp_path / 'objects'}",
         "--topic", "orders"),
        ("clean", url, "--despite", "dirty-ratio", "--runner", "local", "--cores", "1"),
        ("hold", "add", url, "audit", "--topic", "orders", "--at", "now",
         "--max-age", "7d"),
    ):  # fmt: skip
        called.run(*arguments, code=0)
    with StoredLogs(url).view(ALL_PARTITIONS, ViewTerms()).watcher as looking:
        view = looking.view()
    (day,) = view.round_days
    sums = day.sums
    # A round that is done in chunks counts each of them.
    assert sums.rounds >= 1
    assert sums.bytes_read >= sums.bytes_written > 0
    assert sums.came_bytes > 0
    there = replace(day, host="box-b", sums=replace(sums, last_ms=sums.last_ms + 1))
    site = Site(FixedSource(replace(view, round_days=(day, there))))
    site.clock.advance(sums.last_ms - NOW_MS)
    freed = 2 * (sums.bytes_read - sums.bytes_written)
    for path in ("/time", "/time?topic=orders"):
        said = f"{2 * sums.rounds} rounds freed {format_bytes(freed)} in 30 days."
        assert said in site.get(path).text
    assert "on box-b" in html.unescape(site.get("/partitions?rows=roomy").text)
    kept = [each["host"] for each in site.document("/work.json")["rounds_by_day"]]
    assert [day.host, "box-b"] == kept
    # What is kept with the partition is shown as a setting, with its source.
    log = html.unescape(site.get("/log/orders/0").text)
    assert "kept with the partition, topic" in log
    assert "clean by its leaders: epoch" in log
    assert "hold audit: not cleaned past 339 until" in log


def test_the_document_has_what_its_page_has(root: Path) -> None:
    lines = tuple(line(1, 2048, 1024 + at) for at in range(ROWS + 2))
    view = replace(
        directory_view(root), receipts=(*lines, replace(line(0, 90, 80, OTHER), words="w"))
    )
    found = Site(FixedSource(view)).document("/work.json")
    assert len(view.receipts) == found["receipts_held"]
    assert ROWS == len(found["receipts"])
    newest = found["receipts"][0]
    assert ("orders", 1, 90, 80) == tuple(
        newest[name] for name in ("topic", "partition", "bytes_read", "bytes_written")
    )
    assert set(work.BUDGET_KEYS) == {each["key"] for each in found["budgets"]}
    (trouble,) = found["troubles"]
    assert ("broken", "unreadable") == (trouble["topic"], trouble["state"])
    assert trouble["path"].endswith(".log")
    assert ("orders", "overdue") == (found["due"][0]["topic"], found["due"][0]["state"])
    assert [] == found["caps"]


def test_a_list_that_is_not_all_says_so(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    view = replace(directory_view(root), receipts=tuple(line(1, 9, 8) for _ in range(60)))
    site = Site(FixedSource(view))
    page = " ".join(site.get("/work").text.split())
    assert "60 in all" in page
    assert "the files have all" not in page
    monkeypatch.setattr(reading, "LINES_MAX", 60)
    page = " ".join(site.get("/work").text.split())
    assert "Searched and shown are the newest 60; the files have all." in page
    assert "60 held here" in page
    log = " ".join(html.unescape(site.get("/log/orders/0").text).split())
    assert f"the newest first; {anatomy.ROUNDS_MAX} of 60" in log
    assert '<a href="/work?q=orders-0#h-receipts">30 older ones</a>' in log
    few = replace(view, receipts=view.receipts[:3])
    assert "older ones" not in Site(FixedSource(few)).get("/log/orders/0").text


def test_a_round_that_runs_is_not_its_own_last_round(root: Path) -> None:
    clock = ManualClock(NOW_MS)
    live = LiveProgress(Narrated(), clock, Control(clock))
    live.chosen((Choice(ONE, "overdue"),))
    view = directory_view(root)
    assert view.status is not None
    (line,) = [each for each in lines.lines_of(view) if each.first.partition == ONE]
    for at_ms, is_shown in ((NOW_MS, False), (NOW_MS - 1, True)):
        last = LastRound(at_ms, 0, 9, 10, 5, 10, 5, 1.0)
        now = replace(line, parts=(replace(line.first, last_round=last),))
        (row,) = pages.partition_rows(view, [now], NOW_MS, live)
        assert is_shown is bool(row.last.iso)
        assert is_shown is (row.last_of != "the running one")


def test_a_page_is_as_new_as_its_last_look_also_during_a_round_of_hours(root: Path) -> None:
    files, clock = LocalFiles(), ManualClock(NOW_MS)
    live, shelf = LiveProgress(Narrated(), clock, Control(clock)), ReceiptShelf(files, None)

    def look() -> Looked:
        return Looked(look_at_directory(select_partitions(root, files), files, clock.now_ms()))

    watcher = Watcher(str(root), look, clock, files, shelf, second=True)
    watcher.pause_seconds = 0.0
    with watcher:
        feed = LoopFeed(
            live, Control(clock), GaugeObserver(), files, clock, watcher, watcher.history
        )
        feed.published(Snapshot(root, NOW_MS, NOW_MS, 1, 2, (), look=look().directory))
        assert (NOW_MS, True) == (feed.view().now_ms, feed.view() is feed.view())
        live.chosen((Choice(ONE, "overdue"), Choice(OTHER, "dirty")))
        live.finished(OTHER, RoundReport())
        assert live.progress.has_ended(OTHER)
        # As in the midst of a swap.
        (root / "orders-0" / f"{2:020d}.log").write_bytes(b"\xff" * 100)
        clock.advance(3_600_000)
        wait_until(lambda: feed.view().now_ms == clock.now_ms())
        states = {str(each.partition): each.state for each in standing.entries(feed.view())}
        assert (State.OVERDUE, State.UNREADABLE) == (states["orders-0"], states["broken-0"])
        assert not live.progress.has_ended(OTHER)
