"""What pages show: the same as the command line, escaped, in words next to every colour."""

from __future__ import annotations

import dataclasses
import html
import json
import re
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from keeplast.cleaner.erasure import BasisKind, ErasureBasis
from keeplast.cleaner.log_order import Choice
from keeplast.cleaner.reasons import (
    BoundNote,
    LagLimit,
    NothingBelow,
    OnlyActive,
    RatioTooLow,
    SkipReason,
)
from keeplast.cli.main import app
from keeplast.config.layers import Layer, SettingSources
from keeplast.config.precedence import Settings
from keeplast.inspect.status import ErasedBy
from keeplast.log.files import LocalFiles
from keeplast.log.root_files import RECEIPTS_NAME
from keeplast.model.partition import LogRegion, TopicPartition
from keeplast.run.events import RoundWork
from keeplast.service.console import pages, wording, work
from keeplast.service.console.gate import Entrance
from keeplast.service.console.rendering import breakable, unbroken_path
from keeplast.service.console.standing import cleaner_beside, dates_words
from keeplast.service.console.strip import log_parts
from keeplast.service.console.view import ConsoleView
from keeplast.service.console.wording import Need, is_wrong
from keeplast.service.document_text import ROWS_AT_ONCE, document_text
from keeplast.service.documents import status_document
from keeplast.service.live import Control, LiveProgress
from keeplast.service.receipt_shelf import ReceiptLine, ReceiptShelf
from keeplast.service.schedule import SetAside
from keeplast.service.snapshot import PartitionFacts, Snapshot
from keeplast.service.status import LastRound, PartitionStatus, State
from keeplast.survey.report import RoundReport
from keeplast.survey.wording import basis_words, skip_words
from tests.support import called
from tests.support.console_site import (
    NOW_MS,
    FixedSource,
    Site,
    directory_view,
    with_segments,
)
from tests.support.daemon_world import Narrated
from tests.support.existing import existing
from tests.support.manual_clock import ManualClock


def printed(*arguments: object) -> object:
    found = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    return json.loads(found.stdout)


def asked(root: Path, *more: str) -> object:
    return printed("status", root, "--now-ms", NOW_MS, "--tombstones", "skip", *more)


def test_documents_are_those_of_the_command_line(site: Site, root: Path) -> None:
    assert asked(root) == site.document("/overview.json")
    for topic, number in (("orders", 0), ("orders", 1), ("broken", 0)):
        expected = asked(root, "--topic", topic, "--partition", str(number))
        assert expected == site.document(f"/log/{topic}/{number}.json")
    settings = cast(dict[str, Any], printed("config", root, "--topic", "orders", "--effective"))
    for row in settings["settings"]:
        if row["source"] is not None:
            row["source"] = Path(row["source"]).name
    shown = cast(dict[str, Any], site.document("/log/orders/0/settings.json"))
    assert {"topic", "settings", "problems"} <= shown.keys()
    assert shown == {key: settings[key] for key in shown}


def test_a_file_elsewhere_that_is_a_source_is_shown_by_its_name(
    root: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("etc-of-a-broker")
    file = elsewhere / "server.properties"
    file.write_text("log.cleaner.io.max.bytes.per.second=7777777\n", encoding="utf-8")
    view = directory_view(root, SettingSources(broker_config=file))
    site = Site(FixedSource(view, control=Control(ManualClock(NOW_MS))))
    shown = {path: site.get(path).text for path in (
        "/", "/log/orders/0", "/work", "/time", "/log/orders/0/settings.json", "/work.json",
        "/overview.json",
    )}  # fmt: skip
    assert all(file.name in shown[path] for path in ("/work", "/log/orders/0/settings.json"))
    assert [] == [path for path, text in shown.items() if elsewhere.name in text]


def test_documents_have_what_a_filter_chooses(site: Site, root: Path) -> None:
    assert asked(root, "--topic", "orders") == site.document("/overview.json?q=orders")
    (only,) = site.document("/overview.json?state=unreadable")["partitions"]
    assert "broken" == only["topic"]


def test_the_overview_shows_every_partition_with_its_reason_in_words(
    site: Site, root: Path
) -> None:
    text = html.unescape(site.get("/partitions").text)
    for each in site.document("/overview.json")["partitions"]:
        assert f"{each['topic']}-{each['partition']}" in text
        reason = each["reason"]
        assert (wording.brief(reason) if is_wrong(each["state"]) else reason) in text
        assert each["state"] in text


def test_a_strip_has_a_text_twin_and_fills_its_width(site: Site, source: FixedSource) -> None:
    text = site.get("/log/orders/0").text
    strips = re.findall(r'<svg class="strip[^>]*aria-label="([^"]+)">(.*?)</svg>', text, re.DOTALL)
    assert strips
    for label, body in strips:
        assert "dirty" in label
        widths = [float(each) for each in re.findall(r'width="([0-9.]+)%"', body)]
        assert abs(100 - sum(widths)) < 0.1
    # A picture that is stretched has other patterns than its legend.
    assert "preserveAspectRatio" not in "".join(label for label, _ in strips)
    assert not re.search(r'<svg class="strip[^>]*viewBox', text + site.get("/").text)
    assert "first dirty 0" in text
    assert "log end 4" in text


def test_zones_are_those_of_the_figures(source: FixedSource) -> None:
    assert source.found.status is not None
    found = [each for each in source.found.status.partitions if each.log is not None]
    assert found
    for each in found:
        assert each.log is not None
        cleanable = each.log.figures.cleanable
        sizes = dict.fromkeys(LogRegion, 0)
        for part in log_parts(each.log):
            sizes[part.region] += part.size_bytes
        assert cleanable.cleanable_bytes == sizes[LogRegion.DIRTY]
        rest = sizes[LogRegion.UNCLEANABLE] + sizes[LogRegion.UNSTABLE] + sizes[LogRegion.ACTIVE]
        assert each.log.figures.uncleanable_bytes == rest


HOSTILE = "<img src=x onerror=alert(1)>\"'&{{7*7}}\u202e\x1b[31m"


def test_markup_of_strangers_is_text(source: FixedSource) -> None:
    strange = PartitionStatus(TopicPartition(HOSTILE, 0), State.UNREADABLE, HOSTILE)
    source.show([strange])
    source.found = replace(source.found, place=HOSTILE, problem=HOSTILE)
    site = Site(source)
    for path in ("/", "/work", "/?q=" + "%3Cimg%3E", pages.log_url(strange.partition)):
        answer = site.get(path)
        text = answer.text
        assert "<img" not in text
        assert "49" not in re.sub(r"\d{3,}", "", text) or "{{7*7}}" in text
        assert "\u202e" not in text
        assert "\x1b" not in text


def test_a_partition_set_aside_is_shown_with_place_and_remedy(root: Path) -> None:
    mark = {
        "version": 1,
        "partitions": [
            {
                "topic": "orders", "partition": 0, "reason": "crc mismatch", "fingerprint": "",
                "error_class": "CorruptError", "path": "orders-0/0.log", "position": 77,
                "since_ms": NOW_MS - 60_000,
            }
        ],
    }  # fmt: skip
    (root / "keeplast-set-aside").write_text(json.dumps(mark), encoding="utf-8")
    text = Site(FixedSource(directory_view(root))).get("/work").text
    assert "orders-0/0.log at byte 77" in re.sub("<[^>]+>", "", text)
    assert f"keeplast run {root} --retry" in text
    assert f"mv {root}/orders-0 {root}.orders-0.damaged" in text
    assert '<th scope="col">Since</th>' in text


def test_receipts_are_listed_and_passed_on_as_they_are(root: Path) -> None:
    called.run(
        "run", str(root), "--once", "--topic", "orders", "--runner", "local", "--cores", "1", code=0
    )
    source = FixedSource(directory_view(root))
    assert source.found.receipts
    source.shelf = ReceiptShelf(LocalFiles(), root / RECEIPTS_NAME)
    site = Site(source)
    assert (root / RECEIPTS_NAME).read_bytes() == site.get("/receipts.jsonl").content
    for path in ("/work", "/log/orders/0"):
        assert "1 superseded" in site.get(path).text
    assert 'aria-label="What the bars mean"' in site.get("/log/orders/0").text
    assert "No receipt fits" in site.get("/work?q=nothing").text
    found = site.document("/log/orders/0.json")["partitions"][0]["last_round"]
    lines = [json.loads(line) for line in (root / RECEIPTS_NAME).read_bytes().splitlines()]
    receipt = next(each for each in reversed(lines) if each["partition"] == 0)
    assert receipt["round"]["stats"]["messages_read"] == found["messages_read"]


def test_ten_thousand_partitions_are_paged_and_one_page_is_made(source: FixedSource) -> None:
    one = next(
        each for each in source.status.partitions if each.partition == TopicPartition("orders", 0)
    )
    source.show(replace(one, partition=TopicPartition("t", n)) for n in range(10_000))
    site = Site(source)
    text = site.get("/partitions?page=200").text
    assert pages.ROWS == text.count('<th scope="row">')
    assert "page 200 of 200" in text
    assert 'href="/log/t/9999"' in text
    assert len(text) < 200_000
    # One view a page: nothing is looked at for it.
    assert 1 == source.asked
    assert "page 200 of 200" in site.get("/partitions?page=999999").text
    assert 1 == site.get("/partitions?q=t-77777").text.count("No partition fits")


def test_a_log_of_two_thousand_segments_is_paged_and_each_is_found_from_the_strip(
    source: FixedSource,
) -> None:
    source.show(
        with_segments(each, 2000) if each.partition == TopicPartition("orders", 0) else each
        for each in source.status.partitions
    )
    site = Site(source)
    text = site.get("/log/orders/0?page=51").text
    assert "page 51 of 100, 2,000 segments" in text
    assert [str(number) for number in range(1000, 1020)] == re.findall(r'<tr id="s(\d+)">', text)
    assert len(text) < 60_000
    whole, page = re.findall(r'<svg class="strip tall".*?</svg>', text, re.DOTALL)
    assert 20 == page.count("<a ")
    ((x, width),) = re.findall(r'class="frame" x="([0-9.]+)%" width="([0-9.]+)%"', whole)
    assert (50, "1.0") == (round(float(x)), width)
    url, number = re.findall(r'<a href="([^"]*)#s(\d+)">', whole)[-1]
    assert f'<tr id="s{number}">' in site.get(f"/log/orders/0{url}").text


@pytest.mark.parametrize("path", ["/", "/log/orders/0", "/work", "/static/console.css"])
def test_an_unchanged_page_is_not_sent_again(source: FixedSource, path: str) -> None:
    site = Site(source)
    tag = site.get(path).headers["etag"]
    source.found = replace(source.found, serial=source.found.serial + 1, now_ms=NOW_MS + 2000)
    site.clock.advance(3000)
    again = site.get(path, if_none_match=tag)
    is_page = not path.startswith("/static")
    assert (304, b"") == (again.status_code, again.content)
    assert again.headers.get("x-looked-ms") == (str(NOW_MS + 2000) if is_page else None)
    assert 200 == site.get(path, if_none_match=tag[:-2] + '"').status_code
    source.found = replace(source.found, problem="no disk")
    assert is_page is ("no disk" in site.get(path, if_none_match=tag).text)


HOUR_MS = 3_600_000


def left(hours: int, count: int, end: int) -> ReceiptLine:
    """Return the receipt of a round so many hours ago, whose horizon was a day later."""
    at_ms = NOW_MS - hours * HOUR_MS
    last = LastRound(at_ms, 0, end, 10, 5, 2, 1, 1.0)
    return ReceiptLine(
        "round", at_ms, TopicPartition("orders", 0), 0, end, last, tombstones=count,
        horizon_ms=at_ms + 24 * HOUR_MS,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ((), "how many there are is not known"),
        ((left(30, 9, 2), left(3, 0, 4)), "tombstones: the last round left 0 below offset 4"),
        # What the first round dated had passed when the last began, and went.
        ((left(50, 9, 2), left(3, 7, 4)),
         "the last round left 7 below offset 4; the oldest delete horizon is 2027-01-16 05:00:00 "
         "UTC ( in 21 h ); what has passed it goes with the next round for new data"),
        ((left(27, 9, 2), left(5, 7, 4)),
         "the oldest delete horizon is 2027-01-15 05:00:00 UTC ( 3 h ago ), the newest 2027-01-16 "
         "03:00:00 UTC ( in 19 h );"),
        ((left(3, 7, 4), replace(left(2, 0, 4), kind="undo", tombstones=None)),
         "how many there are is not known"),
    ],
)  # fmt: skip
def test_tombstones_and_their_horizons_come_from_the_receipts_without_a_token(
    source: FixedSource, lines: tuple[ReceiptLine, ...], expected: str
) -> None:
    source.found = replace(source.found, receipts=lines)
    (words,) = re.findall(r"<li>(tombstones: .*?)</li>", Site(source).get("/log/orders/0").text)
    assert expected in shown(f"{words} ")


def test_a_page_works_without_script(site: Site) -> None:
    for path in ("/", "/partitions", "/log/orders/0", "/work"):
        text = site.get(path).text
        assert re.search(r'<noscript><meta http-equiv="refresh" content="\d+"></noscript>', text)
        assert '<html lang="en">' in text
        assert 'href="#main"' in text
        assert len(re.findall("<h1[ >]", text)) == 1
        labels = len(re.findall(r"<label>", text))
        fields = len(re.findall(r"<(?:input (?!type=\"hidden\")|select )", text))
        assert labels == fields
        for table in re.findall(r"<table[ >].*?</table>", text, re.DOTALL):
            assert 'scope="col"' in table


def test_the_overview_claims_an_order_only_where_it_has_it(site: Site) -> None:
    assert "the most urgent first" in site.get("/").text
    assert "the most urgent first" not in site.get("/?sort=name").text


def test_the_remedy_stands_next_to_the_problem(site: Site) -> None:
    for path in ("/", "/log/broken/0"):
        assert re.search("What to do: ?(<[^>]+>)*see what is damaged: ", site.get(path).text)
    assert "What to do" not in site.get("/log/orders/0").text


def shown(text: str) -> str:
    """Return a page without its tags."""
    return " ".join(re.sub(r"<[^>]+>", " ", html.unescape(text)).split())


def test_what_needs_a_person_a_round_and_nothing_are_three_groups_with_headings(
    source: FixedSource,
) -> None:
    refused = PartitionStatus(
        TopicPartition("strange", 0), State.REFUSED, "its policy is not known"
    )
    source.show([*source.status.partitions, refused])
    site = Site(source)
    text = site.get("/partitions").text
    rows = re.findall(
        r'<th scope="rowgroup" colspan="8">([^<]+)</th>|<th scope="row"><a [^>]+>([^<]+)</a>', text
    )
    expected = [
        Need.PERSON.value, "broken-0", "strange-0", Need.ROUND.value, "orders-0", "orders-1",
    ]  # fmt: skip
    assert expected == [heading or name for heading, name in rows]
    filters = re.findall(r'<a class="state [^"]*"[^>]*>([^<]+)</a>', text)
    assert ["1 unreadable", "1 refused", "2 overdue"] == filters
    # Another order has no groups; a document keeps that of the command line.
    assert 'scope="rowgroup"' not in site.get("/?sort=name").text
    names = [each["topic"] for each in site.document("/overview.json")["partitions"]]
    assert ["broken", "strange", "orders", "orders"] == names


def test_a_log_in_work_is_among_those_that_need_a_round(source: FixedSource) -> None:
    source.show(
        replace(each, state=State.NOT_DUE, decision=None)
        if each.partition == TopicPartition("orders", 0)
        else each
        for each in source.status.partitions
    )
    without_longest_lag(source)
    live, site = loop_of(source), Site(source)
    assert Need.NONE.value in site.get("/partitions").text
    live.chosen((Choice(TopicPartition("orders", 0), "asked for"),))
    assert Need.NONE.value not in site.get("/partitions").text


def test_a_log_that_is_skipped_says_what_for_and_what_to_do(source: FixedSource) -> None:
    for error_class, what, remedy in (
        ("CorruptError", "damaged file", "restore the whole partition directory, with its indexes"),
        ("InvariantError", "defect of keeplast", "report the reason: it is a defect of keeplast"),
    ):
        name = TopicPartition("orders", 0)
        mark = SetAside(name, "bad", error_class, NOW_MS, "")
        skipped = PartitionStatus(name, State.SET_ASIDE, "bad", set_aside=mark)
        source.show((skipped,))
        site = Site(source)
        for path in ("/partitions?rows=roomy", "/log/orders/0", "/work"):
            text = shown(site.get(path).text)
            assert f"skipped: {what} bad" in text
            assert remedy in text
        assert ">1 skipped</a>" in site.get("/").text
        # Documents and addresses have the state's name.
        assert ">orders-0</a>" in site.get("/?state=set+aside").text
        assert "set aside" == site.document("/overview.json")["partitions"][0]["state"]


def test_a_ratio_says_what_of_and_which_it_has_to_be_above(site: Site) -> None:
    assert "1.000 of closed segments; limit 0.5" in row(site, "orders-0")


def without_longest_lag(source: FixedSource) -> None:
    """Have the topics' settings say no max.compaction.lag.ms, and their logs no deadline."""
    source.show(
        each if each.log is None else replace(each, log=replace(each.log, deadline_ms=None))
        for each in source.status.partitions
    )
    source.found = replace(source.found, settings=Settings([]))


def test_a_date_that_there_is_not_says_why(source: FixedSource) -> None:
    without_longest_lag(source)
    site = Site(source)
    assert "no limit: max.compaction.lag.ms is not set" in row(site, "orders-0")
    assert 'is not set">no limit</span>' in site.get("/").text
    source.found = replace(source.found, settings=directory_view_settings(source))
    assert "no date: what is dirty has no timestamp" in row(site, "orders-0")
    source.show(
        each
        if each.log is None
        else replace(each, log=replace(each.log, figures=replace(each.log.figures, first_dirty=99)))
        for each in source.status.partitions
    )
    assert "nothing is dirty" in row(site, "orders-0")


def test_a_name_breaks_after_its_dots_and_markup_in_it_stays_text() -> None:
    assert "max.<wbr>lag 0.5 &lt;a.<wbr>b&gt;" == breakable("max.lag 0.5 <a.b>")


def test_what_was_not_read_has_no_date_and_says_so(site: Site) -> None:
    assert "not known: it was not read" in row(site, "broken-0")
    assert row(site, "broken-0").endswith("none known")
    # A cell without anything in it is left out on a narrow screen, with its heading.
    assert '<td data-label="Dirty"></td>' in site.get("/partitions?rows=roomy").text


def test_what_cannot_be_read_and_is_not_damaged_has_another_remedy(source: FixedSource) -> None:
    error = OSError("no such device")
    one = PartitionStatus(TopicPartition("orders", 0), State.UNREADABLE, "gone", error=error)
    source.show((one,))
    for failures, retry_at_ms, again in (
        (0, None, "keeplast tries again at its next look, 2nd try"),
        (2, NOW_MS - 1, "keeplast tries again at its next look, 3rd try"),
        (10, NOW_MS + 300_000, "keeplast tries again at 2027-01-15 08:05 UTC, 11th try"),
        (None, None, "this page looks again by itself, and keeplast run tries again"),
    ):
        known = PartitionFacts(
            one.partition, Path("x"), State.RETRYING, "", failures=failures or 0,
            retry_at_ms=retry_at_ms,
        )  # fmt: skip
        snapshot = None if failures is None else Snapshot("", NOW_MS, NOW_MS, 1, 1, (known,))
        source.found = replace(source.found, snapshot=snapshot)
        for path in ("/", "/log/orders/0", "/work"):
            words = f"nothing is known of the log until it can be read; {again}"
            assert words in Site(source).get(path).text


def test_a_log_held_past_its_deadline_is_late_and_names_its_release(root: Path) -> None:
    hold = ["hold", "add", str(root), "audit", "--topic", "orders", "--partition", "0"]
    assert 0 == CliRunner().invoke(app, [*hold, "--at", "0", "--max-age", "366d"]).exit_code
    site, command = Site(FixedSource(directory_view(root))), f"keeplast hold release {root} audit"
    assert 's-held-back s-overdue">held back, overdue<' in site.get("/partitions").text
    # Next to broken-0, which no hold keeps.
    assert 2 == site.document("/overview.json")["overdue"]
    for path in ("/partitions", "/log/orders/0", "/work"):
        assert command in html.unescape(site.get(path).text)
    held = rf'id="h-held".*>orders-0<.*>until 20\S+ \S+ UTC by the hold audit<.*>{command}<'
    assert re.search(held, html.unescape(site.get("/work").text), re.DOTALL)
    done = CliRunner().invoke(app, ["status", str(root), "--now-ms", str(NOW_MS)])
    printed = " ".join(done.stdout.split())
    assert (True, True) == ("2 overdue in sum" in printed, command in printed), printed


def directory_view_settings(source: FixedSource) -> Settings:
    """Return settings by which every log becomes overdue."""
    return Settings([Layer("here", cluster={"log.cleaner.max.compaction.lag.ms": "1000"})])


def test_a_deadline_that_is_over_counts_on_as_late(source: FixedSource) -> None:
    text = row(Site(source), "orders-0")
    assert re.search(r"overdue for \d+ (d|h|min|s)", text)
    assert "data-deadline" in Site(source).get("/").text
    assert "overdue for 1 min" == wording.deadline(NOW_MS - 60_000, NOW_MS).text
    assert ("in 1 min", False) == (
        wording.deadline(NOW_MS + 60_000, NOW_MS).text,
        wording.deadline(NOW_MS + 60_000, NOW_MS).is_deadline,
    )
    assert ("now", "") == (
        wording.deadline(NOW_MS, NOW_MS).text,
        wording.deadline(None, NOW_MS).text,
    )


def with_log(source: FixedSource, **changes: Any) -> None:
    """Have the log of orders-0 be another in something."""
    source.show(
        replace(each, log=replace(each.log, **changes))
        if each.log is not None and each.partition == TopicPartition("orders", 0)
        else each
        for each in source.status.partitions
    )


def test_a_log_in_work_says_what_the_running_round_does_and_leaves(source: FixedSource) -> None:
    live, site = loop_of(source), Site(source)
    live.chosen((Choice(TopicPartition("orders", 0), "overdue"),))
    found = row(site, "orders-0")
    takes = "; the running round takes offsets 0 to 3"
    assert f"{takes}: old values whose newer record is below 4 go when it ends" in found
    assert "these go when the running round ends" in found
    assert "due for a round" not in found
    with_log(source, undo_retention_ms=3_600_000)
    found = row(site, "orders-0")
    old = "old values whose newer record is below 4"
    assert f"{takes}: {old} are kept for undo then, and gone 1 h later" in found
    assert "these go when the running round ends" not in found
    log = next(
        e.log for e in source.status.partitions if e.partition == TopicPartition("orders", 0)
    )
    assert log is not None
    with_log(source, undo_retention_ms=0, eligibility=replace(log.eligibility, rounds_max=3))
    found = row(site, "orders-0")
    assert f"{takes}, as far as its key map reaches" in found
    assert "when the running round ends" not in found


def test_pages_say_whether_a_brokers_own_cleaner_works_too(source: FixedSource) -> None:
    site = Site(source)
    free = "no process holds the lock of the directory"
    for path in ("/", "/work"):
        assert free in site.get(path).text
    source.found = replace(source.found, status=dataclasses.replace(source.status, is_locked=True))
    assert "its own cleaner may be at work on these logs too" in site.get("/").text
    loop_of(source)
    assert "this loop holds the lock of the directory" in site.get("/").text
    view = ConsoleView("s", NOW_MS)
    assert "No broker's cleaner cleans what lies in object storage" in cleaner_beside(view)


def test_a_time_without_bound_is_shown_once(source: FixedSource) -> None:
    basis = ErasureBasis(BasisKind.NO_MAX_LAG)
    source.show(
        replace(each, erased_by=ErasedBy(None, None, basis)) for each in source.status.partitions
    )
    text = Site(source).get("/partitions?q=orders-0&rows=roomy").text.replace("<wbr>", "")
    assert 1 == text.count("no date")
    assert basis_words(basis) in text


def test_labels_of_offsets_keep_their_size_on_a_narrow_screen(site: Site) -> None:
    marks = re.search(r'<svg class="marks".*?</svg>', site.get("/log/orders/0").text, re.DOTALL)
    assert marks is not None
    assert "viewBox" not in marks[0]
    found = re.findall(r'<text x="([0-9.]+)%"', marks[0])
    assert 4 == len(found)
    assert all(0 <= float(each) <= 100 for each in found)


def test_a_figure_says_what_it_is_where_a_row_becomes_a_card(site: Site) -> None:
    for path in ("/", "/log/orders/0", "/work"):
        text = site.get(path).text
        tables = re.findall(r'<table class="cards[^"]*">.*?</table>', text, re.DOTALL)
        assert tables
        for cell in re.findall(r'<td class="n"[^>]*>', "".join(tables)):
            assert "data-label=" in cell


def test_what_runs_or_has_just_ended_is_not_next(source: FixedSource) -> None:
    clock = ManualClock(NOW_MS)
    choices = [Choice(TopicPartition("orders", n), "dirty") for n in range(4)]
    snapshot = Snapshot("here", 0, NOW_MS, 1, 2, (), queue=tuple(choices))
    source.found = replace(source.found, snapshot=snapshot)
    source.live = live = LiveProgress(Narrated(), clock, Control(clock))
    live.chosen(choices[:2])
    live.finished(choices[0].partition, RoundReport())
    site = Site(source)
    _, _, following = site.get("/work").text.partition('id="h-next"')
    text, _, _ = following.partition("</section>")
    assert ["orders-2", "orders-3"] == re.findall(r">(orders-\d)<", text)
    assert "orders-2</a>, it begins when orders-1 has ended: dirty." in site.get("/").text
    queue = site.document("/work.json")["queue"]
    assert [2, 3] == [each["partition"]["partition"] for each in queue]


def loop_of(source: FixedSource) -> LiveProgress:
    """Have the source show a loop, in whose queue are both logs of orders."""
    clock = ManualClock(NOW_MS)
    queue = tuple(Choice(TopicPartition("orders", n), "overdue") for n in range(2))
    snapshot = Snapshot("here", 0, NOW_MS, 1, 2, (), queue=queue)
    source.found = replace(source.found, snapshot=snapshot)
    source.live = LiveProgress(Narrated(), clock, Control(clock))
    return source.live


def row(site: Site, partition: str) -> str:
    """Return the row of the overview that is about a partition, without its tags."""
    text = html.unescape(site.get("/partitions?rows=roomy").text)
    (found,) = [e for e in re.findall(r"<tr>.*?</tr>", text, re.DOTALL) if f">{partition}<" in e]
    return " ".join(re.sub(r"<[^>]+>", " ", found.replace("<wbr>", "")).split())


def test_a_log_in_work_has_a_badge_until_a_look_finds_its_state(source: FixedSource) -> None:
    live, site = loop_of(source), Site(source)
    name = TopicPartition("orders", 0)
    assert "orders-0 overdue due for a round" in row(site, "orders-0")
    assert ">2 overdue<" in site.get("/").text
    live.chosen((Choice(name, "overdue"),))
    text = site.get("/").text
    assert ">1 cleaning<" in text
    assert ">2 overdue (1 cleaning)<" in text
    assert ">orders-0<" in site.get("/?state=cleaning").text
    assert ">orders-0<" in site.get("/?state=overdue").text
    (only,) = site.document("/overview.json?state=cleaning")["partitions"]
    assert 0 == only["partition"]
    assert "orders-0 cleaning " in row(site, "orders-0")
    live.planned(200, RoundWork(name, 50))
    live.progressed(142, name)
    assert "orders-0 cleaning 71 % " in row(site, "orders-0")
    log = html.unescape(site.get("/log/orders/0").text)
    assert 'max="100" value="71"' in log
    assert "71 % of both passes, pass 2 of 2: rewriting" in log
    assert "cleaning orders-0 71 %" in site.get("/work").text
    (running,) = site.document("/work.json")["progress"]["running"]
    assert (71, "pass 2 of 2: rewriting") == (running["percent"], running["pass"])
    live.finished(name, RoundReport())
    assert "orders-0 round over" in row(site, "orders-0")
    assert ">1 round over<" in site.get("/").text
    # What it was due for is done, or not: it is unknown before the look.
    assert ">1 overdue<" in site.get("/").text
    assert ">orders-0<" not in site.get("/?state=overdue").text


@pytest.mark.parametrize("why", [OnlyActive(0), RatioTooLow(0.4, 0.5)])
def test_no_page_names_an_option_of_the_command_line(source: FixedSource, why: SkipReason) -> None:
    source.show(
        replace(each, state=State.NOT_DUE, decision=why, reason=skip_words(why))
        if each.partition == TopicPartition("orders", 1)
        else each
        for each in source.status.partitions
    )
    site = Site(source)
    sentence = skip_words(why, names_options=False)
    assert sentence != skip_words(why)
    assert f"orders-1 not due, overdue {sentence}" in row(site, "orders-1")
    for path in ("/", "/log/orders/1", "/work"):
        assert skip_words(why) not in html.unescape(site.get(path).text)


def test_an_action_is_no_round_of_a_log(source: FixedSource) -> None:
    name = TopicPartition("orders", 0)
    asked = ReceiptLine("action", NOW_MS, name, words="pause")
    expired = ReceiptLine("expired", NOW_MS, name, words="a segment")
    source.found = replace(source.found, receipts=(asked, expired))
    site = Site(source)
    log = site.get("/log/orders/0").text
    assert "action: pause" not in log
    assert "expired: a segment" in log
    assert "What the bars mean" not in log
    assert "action: pause" in site.get("/work").text


def test_what_is_due_says_what_the_last_round_left_and_what_the_next_one_takes(
    source: FixedSource,
) -> None:
    site = Site(source)
    assert "The next round takes offsets 0 to 3." in row(site, "orders-0")
    loop_of(source)
    assert "The next round takes offsets 0 to 3; it is 1st in the queue." in row(site, "orders-0")
    for bound, is_shown in ((0, False), (2, True)):
        last = LastRound(NOW_MS - 5000, 0, 0, 9, 9, 1, 1, 1.0, bound=bound)
        source.show(replace(each, last_round=last) for each in source.status.partitions)
        words = "The last round ended below offset 0: its key map was full."
        assert is_shown is (words in row(site, "orders-0"))
        assert "5 s ago" in row(site, "orders-0")


def test_what_follows_the_rounds_under_way_says_whose_end_it_begins_with(
    source: FixedSource,
) -> None:
    live, site = loop_of(source), Site(source)
    one, two = (TopicPartition("orders", n) for n in range(2))
    assert "; it is 2nd in the queue." in row(site, "orders-1")
    live.chosen((Choice(one, "overdue"),))
    assert "; it begins when orders-0 has ended." in row(site, "orders-1")
    found = existing(source.found.snapshot)
    others = tuple(Choice(TopicPartition("more", n), "overdue") for n in range(6))
    queue = (*others[:2], Choice(two, "overdue"))
    source.found = replace(source.found, snapshot=replace(found, queue=queue))
    live.chosen((Choice(one, "overdue"), Choice(TopicPartition("b", 0), "overdue")))
    words = pages.queue_words(source.found, live)
    assert "it begins when orders-0 and b-0 have ended" == words[TopicPartition("more", 0)]
    assert "it is 3rd in the queue" == words[two]
    snapshot = replace(found, queue=queue, slots=3)
    source.found = replace(source.found, snapshot=snapshot)
    live.chosen((*others[1:], Choice(one, "overdue")))
    ended = "more-1, more-2, more-3, more-4 and 2 more have ended"
    assert f"it begins when {ended}" == pages.queue_words(source.found, live)[two]


def test_bytes_held_back_are_shown_next_to_cleanable_bytes(source: FixedSource) -> None:
    assert "held back" not in row(Site(source), "orders-0")
    log = next(
        e.log for e in source.status.partitions if e.partition == TopicPartition("orders", 0)
    )
    assert log is not None
    figures, lag = log.figures, LagLimit(0, 3_600_000, 60_000, is_undated=False)
    none = replace(figures.cleanable, bound=0, cleanable_bytes=0)
    held = replace(figures, cleanable=none)
    with_log(source, figures=held, decision=NothingBelow(lag), notes=(BoundNote(0, 0, lag),))
    found = row(Site(source), "orders-0")
    assert re.search(r"0 B cleanable now; [\d,.]+ K?i?B held back", found), found


def test_dates_say_what_they_rest_on_and_from_where_things_are_gone(source: FixedSource) -> None:
    found = Site(source).get("/").text
    assert "while keeplast run goes on and its rounds succeed" in found
    assert "gone from this directory; other replicas of a log have their own cleaning" in found
    stored = dates_words(ConsoleView("s", NOW_MS))
    assert "while keeplast run goes on" in stored
    assert "replicas" not in stored


def test_a_date_is_shown_to_the_minute_it_is_kept_by() -> None:
    at_ms = NOW_MS // 60_000 * 60_000
    assert "2027-01-15 08:00 UTC" == wording.moment(at_ms, NOW_MS).minute
    assert "2027-01-15 08:01 UTC" == wording.moment(at_ms + 1000, NOW_MS).minute
    assert "" == wording.moment(None, NOW_MS).minute


def test_a_filter_that_is_chosen_is_marked_and_can_be_left(source: FixedSource) -> None:
    site = Site(source)
    assert "aria-current" not in site.get("/").text.partition("Show only")[2]
    text = site.get("/?state=overdue").text
    assert 1 == text.count('aria-current="true">✓ 2 overdue<')
    assert '<a href="?">all</a>' in text


def test_pages_say_as_of_when_and_on_which_host(source: FixedSource) -> None:
    for path in ("/", "/work", "/log/orders/0"):
        assert '<p class="seen">As of 2027-01-15' in Site(source).get(path).text
    assert "" == Entrance("127.0.0.1", 1).own_name
    assert "here" == Entrance("127.0.0.1", 1, ("here", "there")).own_name


@pytest.mark.parametrize(
    ("where", "shown"),
    [
        ("/a/c-0/<0.log at byte 7", '/a/<span class="n">c-0/&lt;0.log</span> at byte 7'),
        ("/a b/c/0.log", '/a b/<span class="n">c/0.log</span>'),
        ("0.log", '<span class="n">0.log</span>'),
        ("", '<span class="n"></span>'),
    ],
)
def test_the_name_of_a_file_is_not_broken(where: str, shown: str) -> None:
    assert shown == unbroken_path(where)


@pytest.mark.parametrize(
    ("number", "words"), [(1, "1st"), (12, "12th"), (22, "22nd"), (113, "113th")]
)
def test_a_place_in_the_queue_has_its_ending(number: int, words: str) -> None:
    assert words == wording.ordinal(number)


def test_dates_of_the_overview_say_which_offsets_they_are_about(source: FixedSource) -> None:
    each = next(e for e in source.status.partitions if e.partition == TopicPartition("orders", 0))
    assert each.log is not None
    assert "with what is held back" not in row(Site(source), "orders-0")
    # The look counts the old active segment as left; a younger one stays.
    figures = each.log.figures
    figures = replace(figures, cleanable=replace(figures.cleanable, bound=3))
    each = replace(each, log=replace(each.log, figures=figures))
    source.show((each,))
    found = row(Site(source), "orders-0")
    assert "offsets 0 to 2" in found
    assert "with what is held back from 3 on" in found
    assert "some of them sooner" in Site(source).get("/").text
    words = r"closed segments:</strong> gone after the next round, which is <.*>In what is held b"
    assert re.search(words, Site(source).get("/log/orders/0").text, re.DOTALL)


def test_ages_count_from_the_page_and_not_from_the_look(source: FixedSource) -> None:
    site = Site(source)
    last = LastRound(NOW_MS - 60_000, 0, 0, 9, 9, 1, 1, 1.0)
    source.show(replace(each, last_round=last) for each in source.status.partitions)
    assert "1 min ago" in row(site, "orders-0")
    site.clock.advance(120_000)
    assert "3 min ago" in row(site, "orders-0")
    assert f'data-now="{NOW_MS + 120_000}"' in site.get("/").text
    # A clock that is behind the look makes nothing younger than it was.
    site.clock.advance(-500_000)
    assert "1 min ago" in row(site, "orders-0")


@pytest.mark.parametrize(
    ("reason", "brief"),
    [
        (
            "crc mismatch. path=/var/my logs/t-0/00500.log position=4437 expected=0x4c found=0xbf",
            "crc mismatch: 00500.log at byte 4437",
        ),
        ("it is torn; restore it. path=/x/a.log", "it is torn; restore it: a.log"),
        ("no such thing. class=3", "no such thing"),
        ("nothing to clean: all is clean", "nothing to clean: all is clean"),
        ("", ""),
    ],
)
def test_an_error_is_short_on_the_overview(reason: str, brief: str) -> None:
    assert brief == wording.brief(reason)


def test_an_error_is_whole_on_the_page_of_its_log(source: FixedSource) -> None:
    reason = "crc mismatch. path=/logs/broken-0/0.log position=7 expected=1 found=2"
    bad = next(each for each in source.status.partitions if each.log is None)
    source.show((replace(bad, reason=reason),))
    site = Site(source)
    assert reason in site.get(pages.log_url(bad.partition)).text
    text = site.get("/").text
    assert "crc mismatch: 0.log at byte 7" in text
    assert "expected=1" not in text


def test_a_long_document_is_the_same_piece_by_piece(source: FixedSource) -> None:
    one = source.status.partitions[0]
    for count in (0, 1, ROWS_AT_ONCE - 1, ROWS_AT_ONCE, ROWS_AT_ONCE + 1, 3 * ROWS_AT_ONCE):
        source.show(replace(one, partition=TopicPartition("t", n)) for n in range(count))
        head = {"place": str(source.status.root), "kind": "directory"}
        expected = json.loads(document_text(head | status_document(source.status)))
        assert expected == Site(source).document("/overview.json")


def test_a_partition_is_set_aside_at_no_time_of_the_future(root: Path) -> None:
    view = directory_view(root)
    assert view.status is not None
    first = view.status.partitions[0]
    mark = SetAside(first.partition, "crc mismatch", "CorruptError", NOW_MS + 511, "")
    first = replace(first, state=State.SET_ASIDE, set_aside=mark)
    status = dataclasses.replace(view.status, partitions=(first,))
    (found,) = work.troubles(replace(view, status=status))
    assert "now" == work.since(found, NOW_MS).text


def test_a_file_outside_the_place_is_shown_by_its_name_where_a_look_or_the_loop_failed(
    source: FixedSource,
) -> None:
    place = source.found.place
    problem = f"not a number. value='x' source=/etc/my broker/b.properties line=3 path={place}/t-0"
    source.found = replace(source.found, problem=problem)
    source.wishes.trouble = "no such file: '/etc/secret/keeplast.toml'"
    site = Site(source)
    texts = [site.get(path).text for path in ("/", "/work", "/work.json", "/healthz")]
    assert [] == [each for each in texts if "/etc" in each or "my broker" in each]
    assert f"source=b.properties line=3 path={place}/t-0" in texts[0]
    assert "no such file: &#39;keeplast.toml&#39;" in texts[0]
    looking = Site(FixedSource(replace(source.found)))
    assert "source=b.properties" in looking.get("/healthz").text


def test_a_log_that_is_refused_for_a_setting_names_no_folder(source: FixedSource) -> None:
    reason = "no policy; say one. source=/etc/kafka/keeplast.toml"
    refused = PartitionStatus(TopicPartition("orders", 0), State.REFUSED, reason)
    source.show((refused,))
    for path in ("/", "/log/orders/0", "/work"):
        text = Site(source).get(path).text
        assert "no policy; say one" in text
        assert "/etc/kafka" not in text


def test_health_says_why_not(source: FixedSource) -> None:
    site = Site(source)
    assert "ok\n" == site.get("/healthz").text
    source.wishes.trouble = "cannot be worked on now: no space"
    answer = site.get("/healthz")
    assert (503, True) == (answer.status_code, "no space" in answer.text)
    looking = Site(FixedSource(replace(source.found, problem="gone")))
    assert (503, "gone\n") == (
        looking.get("/healthz").status_code, looking.get("/healthz").text,
    )  # fmt: skip
