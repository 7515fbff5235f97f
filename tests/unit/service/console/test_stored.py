"""A store on the pages: why each partition is or is not cleaned, by when, with any owner."""

from __future__ import annotations

import html
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from keeplast.api.stored_logs import StoredLogs
from keeplast.config.layers import ALL_PARTITIONS
from keeplast.errors import InvalidError, UnavailableError
from keeplast.model.partition import TopicPartition
from keeplast.model.text import duration_text
from keeplast.service import store_facts
from keeplast.service.console import lines, pages, standing, wording, work
from keeplast.service.console.view import ConsoleView, Watcher
from keeplast.service.live import Control
from keeplast.service.place_loop import ViewTerms
from keeplast.service.snapshot import PartitionFacts, Snapshot
from keeplast.service.status import State
from keeplast.store import look, tiered_store
from keeplast.store.erasure import TierPace
from tests.support import called
from tests.support.console_site import ACTOR, NOW_MS, FixedSource, Site
from tests.support.existing import existing
from tests.support.manual_clock import ManualClock

SAMPLE = Path(__file__).parents[4] / "src" / "keeplast" / "samples" / "broker-4.3.0"
ORDERS = TopicPartition("orders", 0)
LAG_MS = 3_600_000


def printed(*words: object) -> Any:
    done = called.run(*map(str, words), "--json", code=0)
    return json.loads(done.stdout)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A host's data directory: a broker's log of a topic whose lag is an hour."""
    root = tmp_path / "data"
    shutil.copytree(SAMPLE / "orders-0", root / "orders-0")
    settings = f'[topic.orders]\n"cleanup.policy" = "compact"\n"max.compaction.lag.ms" = {LAG_MS}\n'
    (root / "keeplast.toml").write_text(settings, encoding="utf-8")
    return root


@pytest.fixture
def store(tmp_path: Path, data: Path) -> str:
    """A store that has taken it in."""
    return called.copied(data, tmp_path, "--topic", "orders")


@pytest.fixture
def view(store: str) -> ConsoleView:
    return looked(store)


def looked(store: str, local: Path | None = None) -> ConsoleView:
    with watcher_of(store, local) as watcher:
        return watcher.view()


def watcher_of(store: str, local: Path | None = None) -> Watcher:
    return StoredLogs(store, data_dir=local).view(ALL_PARTITIONS, ViewTerms()).watcher


def text_of(view: ConsoleView, path: str) -> str:
    answer = Site(FixedSource(view)).get(path)
    assert 200 == answer.status_code, answer.text
    return " ".join(html.unescape(answer.text).split())


def set_aside(view: ConsoleView, reason: str) -> ConsoleView:
    """Return the view of a store that keeps ``reason``, as a round of some host leaves it."""
    (tier,) = view.tiers
    return replace(view, tiers=(replace(tier, uncleanable_reason=reason),))


DAMAGE = "CorruptError: the checksum differs. path=orders/0/00000000000000000000.log position=77"


def test_a_partition_set_aside_needs_attention_with_file_position_and_remedy(
    view: ConsoleView,
) -> None:
    found = set_aside(view, DAMAGE)
    badge = '<span class="state s-set-aside">skipped: damaged file</span>'
    assert badge in text_of(found, "/")
    assert badge in text_of(found, "/work")
    page = text_of(found, "/work")
    assert "Nothing is skipped" not in page
    assert "the checksum differs" in page
    assert "00000000000000000000.log</span> at byte 77" in page
    (trouble,) = Site(FixedSource(found)).document("/work.json")["troubles"]
    assert ("orders/0/00000000000000000000.log", 77) == (trouble["path"], trouble["position"])
    assert "restore the object from a backup" in trouble["remedy"]
    assert "keeplast clean" in trouble["remedy"]
    assert "Nothing is skipped, and nothing fails." in text_of(view, "/work")


def test_a_loops_error_names_file_and_position_too(view: ConsoleView) -> None:
    reason = DAMAGE.partition(": ")[2]
    facts = PartitionFacts(ORDERS, Path("orders-0"), State.RETRYING, reason, set_aside_since_ms=7)
    snapshot = Snapshot("s", view.now_ms, view.now_ms, 1, 1, (facts,))
    (trouble,) = work.troubles(replace(view, snapshot=snapshot))
    assert ("orders/0/00000000000000000000.log at byte 77", 7) == (trouble.where, trouble.since_ms)
    # One that the watcher next to the loop has not seen yet is shown all the same.
    (trouble,) = work.troubles(replace(view, tiers=(), snapshot=snapshot))
    assert "retrying" == trouble.state
    elsewhere = replace(facts, state=State.ELSEWHERE, reason="owned by box-b")
    assert [] == work.troubles(replace(view, snapshot=replace(snapshot, partitions=(elsewhere,))))


def test_an_error_without_a_place_has_none() -> None:
    assert (None, None) == wording.place_in("no broker answers; try later")
    assert ("a b/c.log", None) == wording.place_in("gone. path=a b/c.log size=7")


def test_reason_and_deadline_are_shown_for_every_hosts_partitions(
    view: ConsoleView, store: str
) -> None:
    outlook = view.outlooks[ORDERS]
    assert State.OVERDUE is outlook.state
    overview = text_of(view, "/")
    assert '<span class="state s-overdue">overdue</span>' in overview
    assert outlook.reason in overview
    assert f"max.compaction.lag.ms is {duration_text(LAG_MS)}" in outlook.reason
    due_ms = outlook.figures.overdue_from_ms  # type: ignore[union-attr]
    deadline = wording.moment(due_ms, view.now_ms)
    assert deadline.title.split()[1] in overview
    (expected,) = printed("status", store, "--erased-by")["partitions"]
    erased = existing(outlook.erased)
    # Both count from when they were asked: what is overdue is due now.
    assert erased.by_ms is not None
    assert 0 <= expected["erased_by"]["by_ms"] - erased.by_ms < 600_000
    assert expected["erased_by"]["why"] == erased.why
    assert "old values: gone by " in text_of(view, "/log/orders/0")
    page = text_of(view, "/work")
    assert "A round is due, on every host" in page
    assert outlook.reason in page
    (due,) = Site(FixedSource(view)).document("/work.json")["due"]
    assert ("overdue", outlook.reason) == (due["state"], due["reason"])


def test_a_partition_of_another_host_is_overdue_all_the_same(view: ConsoleView) -> None:
    reason = "owned by box-b; --take-over fences it"
    facts = PartitionFacts(ORDERS, Path("orders-0"), State.ELSEWHERE, reason)
    snapshot = Snapshot("s", view.now_ms, view.now_ms, 1, 1, (facts,))
    found = replace(view, snapshot=snapshot)
    (row,) = pages.partition_rows(found, lines.lines_of(found), view.now_ms)
    assert ("overdue", f"{view.outlooks[ORDERS].reason}; {reason}") == (row.state, row.reason)
    calm = replace(view.outlooks[ORDERS], state=State.NOT_DUE, reason="clean enough")
    found = replace(found, outlooks={ORDERS: calm})
    (row,) = pages.partition_rows(found, lines.lines_of(found), view.now_ms)
    assert ("owned elsewhere", f"clean enough; {reason}") == (row.state, row.reason)


def test_after_a_round_it_is_clean(store: str) -> None:
    printed("clean", store, "--despite", "dirty-ratio", "--runner", "local", "--cores", 1)
    found = looked(store)
    assert State.CLEAN is found.outlooks[ORDERS].state
    overview = text_of(found, "/")
    assert '<span class="state s-clean">clean</span>' in overview
    assert found.outlooks[ORDERS].reason in overview
    assert [] == work.due_lines(found)


def test_the_most_urgent_come_first(view: ConsoleView) -> None:
    (tier,), outlook = view.tiers, view.outlooks[ORDERS]
    names = [TopicPartition("t", number) for number in range(5)]
    states = [State.CLEAN, State.NOT_DUE, State.OVERDUE, State.ELIGIBLE, State.OVERDUE]
    late = replace(outlook.figures, compaction_delay_ms=view.now_ms)  # type: ignore[type-var]
    outlooks = {
        name: replace(outlook, partition=name, state=state)
        for name, state in zip(names, states, strict=True)
    }
    outlooks[names[4]] = replace(outlooks[names[4]], figures=late)
    tiers = [replace(tier, partition=name) for name in names]
    tiers.append(replace(tier, partition=TopicPartition("t", 9), uncleanable_reason=DAMAGE))
    found = replace(view, tiers=tuple(tiers), outlooks=outlooks)
    assert [9, 4, 1, 2, 3, 0] == [each.partition.partition for each in standing.entries(found)]
    shown = re.findall(r'<th scope="row"><a href="/log/t/(\d)">', text_of(found, "/partitions"))
    assert list("942310") == shown
    assert ("overdue", "4 overdue") in lines.state_counts(lines.lines_of(found))


def test_objects_that_cannot_be_reached_are_asked_once_a_look(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def unreachable(*_: object, **__: object) -> None:
        asked.append(1)
        raise UnavailableError("the object store does not answer; try later")

    monkeypatch.setattr(tiered_store.TieredStore, "eligibility", unreachable)
    found = looked(store)
    assert "why it is or is not cleaned is not known: the object store" in text_of(found, "/")
    outlooks = store_facts.StoreOutlooks()
    asked.clear()
    with StoredLogs(store).opened() as opened:
        pace = TierPace(1, 1, 1, 1)
        many = outlooks.find(opened, [ORDERS, ORDERS, ORDERS], pace, lambda _: None)
    assert [1] == asked
    assert many[ORDERS].state is None


def test_no_look_reads_objects_for_long_and_the_next_goes_on(
    store: str, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(data / "orders-0", data / "orders-1")
    printed("copy", data, store, "--new", "--topic", "orders", "--partition", 1)
    monkeypatch.setattr(store_facts, "OBJECT_SECONDS", -1.0)
    outlooks, names = store_facts.StoreOutlooks(), [ORDERS, TopicPartition("orders", 1)]
    pace = TierPace(1, 1, 1, 1, has_followers=False)
    with StoredLogs(store).opened() as opened:
        first = outlooks.find(opened, names, pace, lambda _: None)
        assert store_facts.NOT_YET == first[names[1]].reason
        assert first[names[0]].state is not None
        second = outlooks.find(opened, names, pace, lambda _: None)
        assert {None} != {each.state for each in second.values()}
        assert all(each.state is not None for each in second.values())


def test_unchanged_rows_are_not_read_again(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    outlooks, pace = store_facts.StoreOutlooks(), TierPace(1, 1, 1, 1)
    with StoredLogs(store).opened() as opened:
        first = outlooks.find(opened, [ORDERS], pace, lambda _: None)

    def again(*_: object, **__: object) -> None:
        raise AssertionError("an object is read again")

    monkeypatch.setattr(tiered_store, "find_tier_eligibility", again)
    monkeypatch.setattr(look, "read_first_timestamp", again)
    with StoredLogs(store).opened() as opened:
        second = outlooks.find(opened, [ORDERS], pace, lambda _: None)
    assert first[ORDERS].state == second[ORDERS].state
    due = {each[ORDERS].figures.overdue_from_ms for each in (first, second)}  # type: ignore[union-attr]
    assert 1 == len(due)


def test_a_hosts_log_is_the_second_line_of_the_strip(
    view: ConsoleView, store: str, data: Path
) -> None:
    assert 1 == text_of(view, "/").count('<svg class="strip"')
    found = looked(store, data)
    overview = text_of(found, "/partitions?rows=roomy")
    assert 2 == overview.count('<svg class="strip"')
    page = text_of(found, "/log/orders/0")
    assert "In object storage:" in page
    assert "On this host, to the same scale:" in page
    (expected,) = printed("status", store, "--data-dir", data)["partitions"]
    assert expected["local_bytes"] is not None
    assert f"log end {expected['log_end']}" in page
    lines = re.findall(r'<svg class="strip tall"[^>]*>(.*?)</svg>', page)
    there = {True: {"remote", "both"}, False: {"local", "both"}}
    for line, wanted in zip(lines, (there[True], there[False]), strict=True):
        bases = [each["base_offset"] for each in expected["segments"] if each["place"] in wanted]
        numbers = [int(each) for each in re.findall(r'href="#s(\d+)"', line)]
        assert bases == [expected["segments"][each]["base_offset"] for each in numbers]


def test_a_host_without_such_a_directory_is_refused_at_the_start(
    store: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidError, match="nowhere"):
        watcher_of(store, tmp_path / "nowhere")


@pytest.fixture
def broken_local(data: Path) -> Path:
    """A host's log that cannot be read just now."""
    for each in (data / "orders-0").glob("*.log"):
        each.write_bytes(b"\xff" * 100)
    return data


def test_a_local_log_that_cannot_be_read_leaves_the_store_on_the_page(
    store: str, broken_local: Path
) -> None:
    found = looked(store, broken_local)
    assert found.tiers[0].local_bytes is None
    assert 1 == text_of(found, "/").count('<svg class="strip"')
    assert found.problem is None


def test_settings_and_budgets_of_a_store_are_shown(view: ConsoleView) -> None:
    site = Site(FixedSource(view))
    rows = {e["key"]: e for e in site.document("/log/orders/0/settings.json")["settings"]}
    assert str(LAG_MS) == rows["max.compaction.lag.ms"]["value"]
    assert "kept with the partition" == rows["max.compaction.lag.ms"]["source"]
    page = text_of(view, "/work")
    for key in work.BUDGET_KEYS:
        assert f'<th scope="row">{key}</th>' in page
    assert set(work.BUDGET_KEYS) == {e["key"] for e in site.document("/work.json")["budgets"]}


def test_in_a_store_the_button_is_named_for_what_it_does(view: ConsoleView) -> None:
    site = Site(FixedSource(view, control=Control(ManualClock(NOW_MS))), token=ACTOR)
    page = site.get("/log/orders/0").text
    assert "Try again now" in page
    assert "Clean now" not in page
    assert 'action="/do/retry"' in page


def test_in_a_store_a_round_that_is_asked_for_by_post_is_refused_and_not_taken_for_another_wish(
    view: ConsoleView,
) -> None:
    control = Control(ManualClock(NOW_MS))
    site = Site(FixedSource(view, control=control))
    headers = {"authorization": f"Bearer {ACTOR}"}
    which = {"topic": "orders", "partition": "0"}
    answer = site.ask("POST", "/do/clean", data=which, headers=headers)
    assert 409 == answer.status_code
    assert "keeplast clean --despite dirty-ratio" in answer.text
    assert [] == control.take()
    assert 303 == site.ask("POST", "/do/retry", data=which, headers=headers).status_code
    assert 1 == len(control.take())


def test_the_document_of_a_store_says_why_each_is_cleaned_or_not_and_by_when(
    view: ConsoleView, store: str
) -> None:
    site, outlook = Site(FixedSource(view)), view.outlooks[ORDERS]
    for path in ("/overview.json", "/log/orders/0.json"):
        document = site.document(path)
        (found,) = document["partitions"]
        shown = [found[name] for name in ("state", "reason", "deadline_ms")]
        assert ["overdue", outlook.reason, outlook.figures.overdue_from_ms] == shown  # type: ignore[union-attr]
        expected = printed("status", store, "--erased-by")
        # What is overdue is late, and due, by the time of each look.
        for each in (expected, document):
            (row,) = each["partitions"]
            del each["now_ms"], row["compaction_delay_ms"]
            del row["erased_by"]["by_ms"], row["erased_by"]["eligible_by_ms"]
        assert expected == document


def test_a_store_says_what_brokers_cleaners_do(view: ConsoleView) -> None:
    text = text_of(view, "/")
    assert "No broker's cleaner cleans what lies in object storage" in text
    # No active segment lies there.
    assert "when all values overwritten until now, in object storage are gone" in text
    assert "closed segments" not in text
