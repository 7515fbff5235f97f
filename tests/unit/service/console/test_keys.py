"""Key search from a page: what ``keeplast explain`` answers, closed to strangers, within limits."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import anyio
import httpx
import pytest
from typer.testing import CliRunner

from keeplast.api.directory_logs import DirectoryLogs
from keeplast.api.stored_logs import StoredLogs
from keeplast.cli.main import app
from keeplast.config.layers import ALL_PARTITIONS, PartitionChoice
from keeplast.errors import InvalidError, StoppedError, UnavailableError
from keeplast.inspect.explain import AskedKey
from keeplast.model.partition import TopicPartition
from keeplast.service.console.searches import KeySearches, SearchLimits
from keeplast.service.console.searching import ROWS_MAX
from keeplast.service.explained import KeyAnswer
from keeplast.service.place_loop import ViewTerms
from tests.support import called
from tests.support.console_site import (
    ACTOR,
    NOW_MS,
    ORIGIN,
    VIEWER,
    FixedSource,
    Site,
    directory_view,
    searches_in,
)
from tests.support.existing import existing
from tests.support.manual_clock import ManualClock
from tests.support.small_log import batch, write_log
from tests.support.waiting import wait_until

SECRET = "customer-17@example.org"
BEARER = {"authorization": f"Bearer {VIEWER}"}
SAMPLE = Path(__file__).parents[4] / "src" / "keeplast" / "samples" / "broker-4.3.0"


@pytest.fixture
def keys(source: FixedSource, root: Path) -> Site:
    """A console on loopback that finds keys; its visitor has a viewer's session."""
    return Site(source, searches=searches_in(root), token=VIEWER)


def asked(site: Site, path: str = "/keys", **fields: str) -> httpx.Response:
    """Send the form as its page would."""
    given = {"topic": "orders", "key": "a", "form": site.form_token("/keys")} | fields
    return site.post(path, given)


def page_text(site: Site, path: str = "/keys", **fields: str) -> str:
    answer = asked(site, path, **fields)
    assert 200 == answer.status_code, answer.text
    return " ".join(html.unescape(answer.text).split())


def explained(root: Path, key: str, *more: str) -> Any:
    arguments = ["explain", str(root), key, "--topic", "orders", "--now-ms", str(NOW_MS), *more]
    return json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)


@pytest.mark.rotates(4)
@pytest.mark.parametrize(
    ("fields", "key", "more"),
    [
        ({}, "a", ()),
        ({"key": "61", "as": "hex"}, "a", ()),
        ({"key": "YQ==", "as": "base64"}, "a", ()),
        ({"partition": "1"}, "a", ("--partition", "1")),
        ({"values": "shown"}, "a", ("--values",)),
        ({"header": "v"}, "a", ("--header", "v")),
        ({"key": "@/etc/passwd"}, "text:@/etc/passwd", ()),
        ({"key": "", "as": "hex"}, "hex:", ()),
    ],
)
def test_the_document_is_that_of_explain(
    keys: Site, root: Path, fields: dict[str, str], key: str, more: tuple[str, ...]
) -> None:
    assert explained(root, key, *more) == asked(keys, "/keys.json", **fields).json()


def test_an_unreadable_log_is_shown_next_to_the_others(keys: Site, root: Path) -> None:
    path = root / "orders-0" / f"{0:020d}.log"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    document = explained(root, "a")
    assert [0] == [each["partition"] for each in document["errors"]]
    assert document == asked(keys, "/keys.json").json()
    assert document["errors"][0]["error"]["message"] in page_text(keys)


def test_where_nothing_could_be_read_no_count_is_shown(keys: Site, root: Path) -> None:
    path = root / "orders-0" / f"{0:020d}.log"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    text = page_text(keys, key="key-00100", partition="0")
    assert 'key "key-00100": not known, 1 of 1 partition could not be read' in text
    assert "0 records" not in text
    text = page_text(keys)
    assert 'key "a": 1 record in 1 of 1 partition; 1 of 2 partitions could not be read' in text
    arguments = ["explain", str(root), "b", "--topic", "orders", "--partition", "0"]
    assert 'key "b": not known, 1 of 1 partition' in CliRunner().invoke(app, arguments).stdout


def test_a_value_above_a_tombstone_names_its_offset_first(keys: Site, root: Path) -> None:
    write_log(root, "orders-2", {0: [(b"z", b"1"), (b"z", None)], 2: [(b"z", b"2")]})
    text = page_text(keys, key="z")
    assert "<ul><li>last trace: never while its value wins: no tombstone supersedes its winning " \
        "value (offset 2)</li>" in text  # fmt: skip


def test_the_page_has_every_record_with_its_fate_and_no_value(keys: Site, root: Path) -> None:
    text = page_text(keys)
    for part in explained(root, "a")["partitions"]:
        assert f"{part['topic']}-{part['partition']}" in text
        for each in part["records"]:
            assert f'<th scope="row" class="n">{each["offset"]}</th>' in text
    assert (
        "the record that stays: by offset the record at 2, by timestamp the record at 2; "
        "this topic goes by offset" in text
    )
    assert "goes with the next round: superseded by offset 2" in text
    assert '<span class="state">next round</span><span class="abs">gone by 2027-01-15' in text
    assert "As of 2027-01-15 08:00:00 UTC" in text
    assert "never while its value wins" in text
    assert '"3"' not in text
    assert '"3"' in page_text(keys, values="shown")


def test_files_next_to_the_logs_are_shown_as_explain_shows_them(keys: Site, root: Path) -> None:
    gone = batch(0, b"gone", b"1")
    (root / "orders-0" / f"{0:020d}.log.deleted").write_bytes(gone)
    (root / "orders-1" / f"{0:020d}.log.abc.deleted").write_bytes(gone + gone[:-1])
    write_log(root, f"orders-9.{'a' * 32}-delete", {5: [(b"gone", b"x")]})
    document = explained(root, "gone")
    assert document == asked(keys, "/keys.json", key="gone").json()
    assert [1, 1] == [len(each["replaced_copies"]) for each in document["partitions"]]
    assert [1] == [len(each["replaced_copies"]) for each in document["out_of_service"]]
    text = page_text(keys, key="gone")
    assert f"offset 0 also in {0:020d}.log.deleted, which is no part of the log" in text
    assert "not searched: 00000000000000000000.log.abc.deleted: it cannot be read to its" in text
    assert f"orders-9: offset 5 also in orders-9.{'a' * 32}-delete/{5:020d}.log" in text


def test_files_next_to_a_log_count_for_the_budget(source: FixedSource, root: Path) -> None:
    path = root / "orders-0" / f"{0:020d}.log.deleted"
    limits = SearchLimits(bytes_max=sum(e.stat().st_size for e in root.glob("orders-*/*.log")))
    site = Site(source, searches=searches_in(root, limits), token=VIEWER)
    assert 200 == asked(site).status_code
    path.write_bytes(batch(0, b"gone", b"x" * limits.bytes_max))
    assert "more than the" in asked(site).text


def test_a_key_that_is_nowhere_is_reported(keys: Site) -> None:
    text = page_text(keys, key="nobody")
    assert 'key "nobody": 0 records in 0 of 2 partitions' in text
    assert "Nothing in orders-0, orders-1." in text


def test_forbidden_values_are_never_shown(source: FixedSource, root: Path) -> None:
    site = Site(source, searches=searches_in(root, SearchLimits(shows_values=False)), token=ACTOR)
    assert 'name="values"' not in site.get("/keys").text
    for path in ("/keys", "/keys.json"):
        answer = asked(site, path, values="shown")
        assert (403, True) == (answer.status_code, "--no-values" in answer.text)
        assert 200 == asked(site, path).status_code


def test_a_token_is_needed_also_on_loopback(source: FixedSource, root: Path) -> None:
    site = Site(source, searches=searches_in(root))
    page = site.get("/keys").text
    assert 'name="key"' not in page
    assert "/enter" in page
    for path in ("/keys", "/keys.json"):
        answer = site.post(path, {"topic": "orders", "key": "a"})
        assert 401 == answer.status_code
        assert 401 == site.post(path, {"topic": "orders", "key": "a"}, authorization="Bearer x" * 9
                                ).status_code  # fmt: skip


def test_a_form_of_elsewhere_is_refused(keys: Site) -> None:
    fields = {"topic": "orders", "key": "a"}
    for path in ("/keys", "/keys.json"):
        assert 403 == keys.post(path, fields | {"form": "0" * 64}).status_code
        assert 403 == keys.post(path, fields, origin="http://elsewhere").status_code
        assert 405 == keys.ask("PUT", path, headers={"origin": ORIGIN}).status_code
    assert 405 == keys.get("/keys.json").status_code
    # A script says whose it is in a header, and needs no form.
    assert 200 == keys.ask("POST", "/keys.json", headers=BEARER, data=fields).status_code


def test_a_key_is_in_no_address_no_header_and_no_other_page(
    keys: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(0)
    answer = asked(keys, key=SECRET)
    assert SECRET in html.unescape(answer.text)
    assert "no-store" == answer.headers["cache-control"]
    assert "same-origin" == answer.headers["referrer-policy"]
    assert not [each for each in answer.headers.values() if SECRET in each]
    assert SECRET not in str(answer.url)
    for path in ("/keys", "/work", "/", "/work.json", "/events", "/metrics", "/receipts.jsonl"):
        assert SECRET not in html.unescape(keys.get(path).text)
    assert SECRET not in caplog.text
    assert 400 == keys.get(f"/keys?{urlencode({'key': SECRET})}").status_code


@pytest.mark.rotates(3)
@pytest.mark.parametrize(
    ("fields", "code", "said"),
    [
        ({"key": SECRET, "as": "hex"}, 400, "pairs of hexadecimal digits"),
        ({"key": SECRET + "\u00e9", "as": "base64"}, 400, "base64 cannot be read"),
        ({"key": SECRET, "as": "rot13"}, 400, "text, hex, base64"),
        ({"key": ""}, 400, "no key is given"),
        ({"key": SECRET, "partition": "-1"}, 400, "a partition is a number"),
        ({"key": SECRET, "partition": "9999999999"}, 400, "a partition is a number"),
        ({"key": SECRET, "partition": "7"}, 404, "no such topic or partition"),
        ({"key": SECRET, "topic": "../orders"}, 404, "no such topic or partition"),
        ({"key": SECRET, "header": "h" * 301}, 400, "too long"),
        ({"key": "k" * (64 << 10)}, 413, "too large"),
    ],
)
def test_a_bad_question_is_refused_without_the_key(
    keys: Site, fields: dict[str, str], code: int, said: str
) -> None:
    answer = asked(keys, "/keys.json", **fields)
    assert (code, True) == (answer.status_code, said in answer.text)
    assert SECRET not in answer.text
    page = asked(keys, "/keys", **fields)
    assert (code, True) == (page.status_code, said in html.unescape(page.text))


def test_a_long_key_fits_into_a_form(keys: Site) -> None:
    assert "0 records" in page_text(keys, key="\u00e9" * 9000)


def test_markup_in_a_key_and_in_a_value_is_text(source: FixedSource, root: Path) -> None:
    hostile = "<img src=x onerror=alert(1)>\"'{{7*7}}"
    write_log(root, "orders-2", {0: [(hostile.encode(), hostile.encode() + b"\x1b[31m")], 1: []})
    site = Site(source, searches=searches_in(root), token=VIEWER)
    page = asked(site, key=hostile, values="shown").text
    assert "<img" not in page
    assert "\x1b" not in page
    assert "1 record in 1 of 3" in page


def test_topics_are_closed_by_pattern(source: FixedSource, root: Path) -> None:
    site = Site(
        source, searches=searches_in(root, SearchLimits(closed=("x*", "or?ers"))), token=ACTOR
    )
    assert '<option value="broken">' in site.get("/keys").text
    assert '<option value="orders">' not in site.get("/keys").text
    for path in ("/keys", "/keys.json"):
        answer = asked(site, path)
        assert (403, True) == (answer.status_code, "--closed-topics" in answer.text)
        assert 200 == asked(site, path, topic="broken").status_code


def test_a_search_that_would_read_too_much_is_not_begun(source: FixedSource, root: Path) -> None:
    site = Site(source, searches=searches_in(root, SearchLimits(bytes_max=100)), token=VIEWER)
    answer = asked(site, "/keys.json")
    assert (422, True) == (answer.status_code, "--search-bytes" in answer.text)
    assert "explain" in answer.text


def no_answer(asked: AskedKey) -> KeyAnswer:
    return KeyAnswer(asked.key, ())


def test_a_search_that_takes_too_long_ends() -> None:
    clock, read = ManualClock(0), []

    def find(
        topic: str, partition: int | None, asked: AskedKey, now_ms: int, *,
        planned: Callable[[int], None], progressed: Callable[[int], None],
    ) -> KeyAnswer:  # fmt: skip
        for _ in range(10):
            read.append(1)
            clock.sleep(3.0)
            progressed(1 << 20)
        return no_answer(asked)

    searches = KeySearches(find, clock, SearchLimits(seconds=10))
    with pytest.raises(StoppedError, match=r"--search-seconds.*4\.00 MiB"):
        searches.search("t", None, SECRET.encode(), None, lambda: False)
    assert 4 == len(read)
    # The next one has a budget of its own, and may begin.
    with pytest.raises(StoppedError, match="has closed the connection"):
        searches.search("t", None, b"k", None, lambda: True)


def test_one_search_runs_at_a_time(source: FixedSource) -> None:
    codes: list[int] = []

    def find(
        topic: str, partition: int | None, asked: AskedKey, now_ms: int, *,
        planned: Callable[[int], None], progressed: Callable[[int], None],
    ) -> KeyAnswer:  # fmt: skip
        with pytest.raises(UnavailableError, match="one search runs at a time"):
            searches.search("orders", None, b"k", None, lambda: False)
        fields = {"topic": "orders", "key": "b"}
        codes.append(site.ask("POST", "/keys.json", headers=BEARER, data=fields).status_code)
        return no_answer(asked)

    searches = KeySearches(find, ManualClock(0), SearchLimits())
    site = Site(source, searches=searches)
    for _ in range(2):
        fields = {"topic": "orders", "key": "a"}
        assert 200 == site.ask("POST", "/keys.json", headers=BEARER, data=fields).status_code
    assert [429, 429] == codes


def test_a_browser_that_leaves_ends_its_search(source: FixedSource) -> None:
    ended: list[str] = []

    def find(
        topic: str, partition: int | None, asked: AskedKey, now_ms: int, *,
        planned: Callable[[int], None], progressed: Callable[[int], None],
    ) -> KeyAnswer:  # fmt: skip
        def has_ended() -> bool:
            try:
                progressed(1)
            except StoppedError as error:
                ended.append(str(error))
                return True
            return False

        wait_until(has_ended)
        raise StoppedError(ended[0])

    site = Site(source, searches=KeySearches(find, ManualClock(0), SearchLimits()))
    body = urlencode({"topic": "orders", "key": "a"}).encode()
    messages: list[MutableMapping[str, Any]] = [
        {"type": "http.request", "body": body}, {"type": "http.disconnect"},
    ]  # fmt: skip
    headers = {
        "host": site.base.removeprefix("http://"), "content-length": str(len(body)),
        "content-type": "application/x-www-form-urlencoded", **BEARER,
    }  # fmt: skip
    scope = {
        "type": "http", "method": "POST", "path": "/keys.json", "raw_path": b"/keys.json",
        "query_string": b"", "scheme": "http", "client": ("127.0.0.1", 1), "server": None,
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }  # fmt: skip

    async def receive() -> MutableMapping[str, Any]:
        return messages.pop(0)

    async def send(message: MutableMapping[str, Any]) -> None:
        """There is no listener."""

    anyio.run(site.app, scope, receive, send)
    assert ["the browser has closed the connection"] == ended


def test_a_page_has_so_many_rows(source: FixedSource, root: Path) -> None:
    many = [(b"a", b"v")] * (ROWS_MAX + 3)
    write_log(root, "orders-2", {0: many, len(many): []})
    site = Site(source, searches=searches_in(root), token=VIEWER)
    page = asked(site).text
    assert page.count('<td data-label="Record">') == ROWS_MAX
    assert "more; the JSON has them" in page


def test_the_page_stays_and_works_without_script(keys: Site) -> None:
    for page in (keys.get("/keys").text, asked(keys).text):
        assert "http-equiv" not in page
        assert "data-still" in page
        assert 'method="post" action="/keys"' in page
    assert '<a href="/keys?topic=orders&amp;partition=0">' in keys.get("/log/orders/0").text
    assert 'name="topic" value="orders"' in keys.get("/keys?topic=orders&partition=0").text


def test_without_search_there_is_no_page_and_no_link(site: Site) -> None:
    assert 404 == site.get("/keys").status_code
    assert "/keys" not in site.get("/").text


def test_a_store_is_searched_as_tier_explain_does(source: FixedSource, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'meta.db'}"
    objects = f"file://{tmp_path / 'objects'}"
    for arguments in (
        ("copy", str(SAMPLE), url, "--new", "--objects", objects, "--topic", "orders"),
    ):
        called.run(*arguments, code=0)
    find = existing(StoredLogs(url).view(ALL_PARTITIONS, ViewTerms()).find)
    searches = KeySearches(find, ManualClock(NOW_MS), SearchLimits())
    site = Site(source, searches=searches)
    expected = CliRunner().invoke(
        app, ["explain", url, "order-041", "--topic", "orders",
              "--now-ms", str(NOW_MS), "--json"],
    )  # fmt: skip
    fields = {"topic": "orders", "key": "order-041"}
    answer = site.ask("POST", "/keys.json", headers=BEARER, data=fields)
    found, document = answer.json(), json.loads(expected.stdout)
    for each in (*found["partitions"], *document["partitions"]):
        # It rests on the clock of the store.
        each.pop("erased_by")
        each["last_trace"].pop("values_by_ms")
    assert document == found
    assert 10 == len(found["partitions"][0]["records"])


def test_an_answer_on_a_page_names_no_option_of_the_command_line(root: Path) -> None:
    (root / "keeplast.toml").write_text(
        '[topic.orders]\n"cleanup.policy" = "compact"\n"min.cleanable.dirty.ratio" = 1.0\n',
        encoding="utf-8",
    )
    site = Site(FixedSource(directory_view(root)), searches=searches_in(root), token=VIEWER)
    page = page_text(site, partition="0")
    assert "dirty ratio 1.000 is not above min.cleanable.dirty.ratio 1.0" in page
    assert "--despite dirty-ratio" not in page
    shown = CliRunner().invoke(app, ["explain", str(root), "a", "--topic", "orders"])
    assert "to go past this: clean --despite dirty-ratio" in shown.stdout


def test_a_console_of_a_directory_finds_nothing_of_what_it_does_not_show(root: Path) -> None:
    chosen = PartitionChoice(topics=("orders",), partitions=(0,))
    view = DirectoryLogs(root).view(chosen, ViewTerms(clock=ManualClock(NOW_MS)))
    assert view.find is not None
    assert view.scan is not None
    searches = KeySearches(view.find, ManualClock(NOW_MS), SearchLimits(), view.scan)
    assert searches.search("orders", 0, b"a", None, lambda: False).parts
    for topic, partition in (("secrets", 0), ("secrets", None), ("orders", 1)):
        with pytest.raises(InvalidError, match="shown here"):
            searches.search(topic, partition, b"a", None, lambda: False)
    for other in (TopicPartition("secrets", 0), TopicPartition("orders", 1)):
        with pytest.raises(InvalidError, match="look again"):
            searches.scan(other, 1, lambda: False)
