"""Who is let in: every route, from everywhere, with what a stranger can make up."""

from __future__ import annotations

import html
import re
from pathlib import Path
from urllib.parse import urlencode

import anyio
import pytest
from msgspec.structs import replace
from starlette.responses import PlainTextResponse
from starlette.types import Message, Receive, Scope, Send

from keeplast.service.console import gate
from keeplast.service.console.addresses import enter_url
from keeplast.service.console.gate import (
    HEADERS,
    Brake,
    Entrance,
    Gate,
    Sessions,
    VisitorRole,
    is_loopback,
)
from keeplast.service.live import Deed
from tests.support.console_site import (
    ACTOR,
    CLOSED,
    HOME,
    OPEN,
    ORIGIN,
    PORT,
    STRANGER,
    TOKENS,
    VIEWER,
    FixedSource,
    Site,
    searches_in,
)
from tests.support.manual_clock import ManualClock

PAGES = ["/", "/partitions", "/topic/orders", "/log/orders/0", "/work", "/time"]
DOCUMENTS = [
    "/overview.json", "/log/orders/0.json", "/log/orders/0/settings.json", "/work.json",
    "/time.json", "/receipts.jsonl", "/events",
]  # fmt: skip
MEASURED = ["/metrics", "/healthz"]
ACTIONS = ["/do/clean", "/do/retry", "/do/pause", "/do/resume"]
WHICH = {"topic": "orders", "partition": "0"}


def refused(words: str, status: int) -> str:
    return f"{status} {words}"


@pytest.fixture
def closed(source: FixedSource) -> Site:
    """A console on another address than the loopback."""
    return Site(source, CLOSED, peer=STRANGER)


@pytest.mark.rotates(3)
@pytest.mark.parametrize("path", [*PAGES, *DOCUMENTS, *MEASURED, "/enter", "/static/console.css"])
def test_on_loopback_everything_may_be_looked_at(site: Site, path: str) -> None:
    answer = site.get(path)
    assert 200 == answer.status_code, answer.text
    for name, value in HEADERS.items():
        assert value == answer.headers[name]
    assert "cache-control" in answer.headers


# A topic has dots, too.
@pytest.mark.parametrize("path", [*PAGES, "/log/com.acme.orders/0", "/log/orders.json/0"])
def test_from_elsewhere_a_page_asks_for_a_token(closed: Site, path: str) -> None:
    answer = closed.get(path)
    assert (303, enter_url(path)) == (answer.status_code, answer.headers["location"])
    assert "orders" not in answer.text


@pytest.mark.rotates(5)
@pytest.mark.parametrize(
    ("wanted", "landed"),
    [
        ("/work?q=orders-0&page=2", "/work?q=orders-0&page=2"),
        ("/log/a.b_c-d/0", "/log/a.b_c-d/0"),
        *dict.fromkeys(
            ("", "//evil.example", "/\\evil.example", "\\\\evil.example", "https:evil.example",
             "https://evil.example", "/\t/evil.example", "/a\r\nset-cookie: x=y", "/\x00", "/ä",
             "work", "@evil.example", "///evil.example", "/do/pause", "/leave", "/enter?next=/work",
             "javascript:alert(1)", "/" + "a" * 1100, "/work#x", "/work\n"), "/"
        ).items(),
        ("/%2f%2fevil.example", "/%2f%2fevil.example"), ("/%5cevil.example", "/%5cevil.example"),
        ("/?next=//evil.example", "/?next=//evil.example"),
    ],
)  # fmt: skip
def test_a_login_lands_where_one_wanted_to_go_and_on_no_other_host(
    closed: Site, wanted: str, landed: str
) -> None:
    page = closed.get(f"/enter?{urlencode({'next': wanted})}").text
    assert f'name="next" value="{html.escape(landed)}"' in page
    answer = closed.post("/enter", {"token": VIEWER, "next": wanted})
    assert (303, landed) == (answer.status_code, answer.headers["location"])


@pytest.mark.parametrize(
    "path", [*DOCUMENTS, *MEASURED, "/nothing.json", "/log/com.acme.orders/0.json"]
)
def test_from_elsewhere_a_document_is_refused_without_a_token(closed: Site, path: str) -> None:
    answer = closed.get(path)
    assert 401 == answer.status_code
    assert "orders" not in answer.text
    wrong = closed.get(path, authorization="Bearer wrong")
    assert 401 == wrong.status_code


@pytest.mark.rotates(3)
@pytest.mark.parametrize("path", [*PAGES, *DOCUMENTS, *MEASURED])
def test_a_token_opens_everything_that_shows(closed: Site, path: str) -> None:
    assert 200 == closed.get(path, authorization=f"Bearer {VIEWER}").status_code
    entered = closed.enter(VIEWER)
    assert (303, "/") == (entered.status_code, entered.headers["location"])
    cookie = entered.headers["set-cookie"].casefold()
    assert {"httponly", "samesite=strict", "secure", "path=/"} <= {
        each.strip() for each in cookie.split(";")
    }
    assert VIEWER not in cookie
    assert 200 == closed.get(path).status_code


@pytest.mark.rotates(3)
@pytest.mark.parametrize("path", [*PAGES, *DOCUMENTS])
def test_no_token_counts_in_a_url(closed: Site, path: str) -> None:
    assert closed.get(f"{path}?token={VIEWER}").status_code in (303, 401)


def test_a_wrong_token_begins_no_session(closed: Site) -> None:
    answer = closed.enter("wrong")
    assert 403 == answer.status_code
    assert "set-cookie" not in answer.headers
    assert "no token of this console" in answer.text


def test_a_session_ends_when_its_visitor_leaves_and_by_itself(closed: Site) -> None:
    closed.enter(VIEWER)
    kept = dict(closed.cookies)
    assert 403 == closed.post("/leave", {"form": "0" * 64}).status_code
    assert 200 == closed.get("/work.json").status_code
    assert 303 == closed.post("/leave", {"form": closed.form_token()}).status_code
    closed.cookies = kept
    assert 401 == closed.get("/work.json").status_code
    closed.enter(VIEWER)
    form, before = {"form": closed.form_token()}, closed.get("/enter").text
    closed.clock.advance(13 * 3_600_000)
    words, after = "Your session has ended", closed.get("/enter").text
    assert (False, True) == (words in before, words in after)
    # A button of a page that was open meanwhile leads back to that page.
    asked = {"accept": "text/html", "referer": f"{closed.base}/log/orders/0?x=y"}
    answers = (closed.post("/leave", form, **asked), closed.post("/leave", form))
    assert [303, 401] == [each.status_code for each in answers]
    assert enter_url("/log/orders/0?x=y") == answers[0].headers["location"]
    assert 401 == closed.get("/work.json").status_code


def test_where_no_token_is_needed_a_session_that_has_ended_says_so(site: Site) -> None:
    site.enter(ACTOR)
    site.clock.advance(13 * 3_600_000)
    page = site.get("/work?sort=size").text
    link = '<a href="/enter?next=%2Fwork%3Fsort%3Dsize">log in again</a>'
    assert (True, False) == (f"Your session has ended: {link}" in page, "Log out" in page)


def test_what_there_is_not_and_what_is_not_allowed_are_pages_for_people(site: Site) -> None:
    site.enter(VIEWER)
    # What Chromium sends.
    person = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    for code, heading, method, path, origin in (
        (404, "There is no such page", "GET", "/log/nobody/0", ORIGIN),
        (404, "There is no such page", "GET", "/<b>", ORIGIN),
        (403, "This is not allowed", "POST", "/leave", ORIGIN),
        (403, "This is not allowed", "POST", "/", "null"),
    ):
        plain, found = (
            site.ask(method, path, headers={"origin": origin} | more, data={"form": "x"})
            for more in ({}, person)
        )
        assert (code, code) == (found.status_code, plain.status_code)
        assert (True, False) == (f"<h1>{heading}</h1>" in found.text, "<b>" in found.text)
        assert HEADERS.items() <= dict(found.headers).items()
        assert plain.headers["content-type"].startswith("text/plain")
    assert site.get("/log/nobody/0.json", **person).headers["content-type"].startswith("text/plain")


def test_a_paused_loop_is_resumed_from_the_page_that_says_so(
    site: Site, source: FixedSource
) -> None:
    source.wishes.is_paused = True
    command = 'curl -d "" -H "Authorization: Bearer TOKEN" http://127.0.0.1:9590/do/resume'
    assert command in html.unescape(site.get("/").text)
    site.enter(ACTOR)
    assert 'action="/do/resume"' in site.get("/").text


@pytest.mark.parametrize("path", MEASURED)
def test_metrics_may_be_opened_alone(source: FixedSource, path: str) -> None:
    site = Site(source, replace(CLOSED, metrics_open=True), peer=STRANGER)
    answer = site.get(path)
    assert 200 == answer.status_code
    # No stranger is shown where files lie.
    assert str(Path(source.found.place).parent) not in answer.text
    assert 303 == site.get("/").status_code


@pytest.mark.rotates(8)
@pytest.mark.parametrize("path", [*PAGES, *DOCUMENTS, *MEASURED, "/enter", "/static/console.js"])
@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:9590", "127.0.0.1:80", "127.0.0.1@evil", "", "a b", "[:"]
)
def test_a_foreign_name_reaches_nothing(site: Site, path: str, host: str) -> None:
    assert 421 == site.get(path, host=host).status_code


@pytest.mark.parametrize("host", ["127.0.0.1:9590", "localhost:9590", "LOCALHOST:9590", "box:9590"])
def test_a_name_of_ours_is_known(source: FixedSource, host: str) -> None:
    site = Site(source, replace(OPEN, names=("box",)))
    assert 200 == site.get("/", host=host).status_code


@pytest.mark.rotates(4)
@pytest.mark.parametrize("path", [*ACTIONS, "/enter", "/leave"])
@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:9591", ""])
def test_a_form_of_another_origin_does_nothing(
    site: Site, source: FixedSource, path: str, origin: str
) -> None:
    site.enter(ACTOR)
    form = WHICH | {"form": site.form_token(), "token": ACTOR}
    answer = site.ask("POST", path, headers={"origin": origin}, data=form)
    assert 403 == answer.status_code
    assert "set-cookie" not in answer.headers
    assert not source.wishes.has_wishes
    # Neither from a browser that names no origin, unless it says that the page is ours.
    assert 403 == site.ask("POST", path, data=form).status_code


@pytest.mark.parametrize("path", ACTIONS)
def test_an_action_needs_the_actors_token_on_loopback_too(
    site: Site, source: FixedSource, path: str
) -> None:
    assert 401 == site.post(path, WHICH).status_code
    site.enter(VIEWER)
    assert 403 == site.post(path, WHICH).status_code
    assert 403 == site.post(path, WHICH, authorization=f"Bearer {VIEWER}").status_code
    assert not source.wishes.has_wishes


@pytest.mark.parametrize(
    ("path", "deed"),
    [
        ("/do/clean", Deed.CLEAN), ("/do/retry", Deed.RETRY), ("/do/pause", Deed.PAUSE),
        ("/do/resume", Deed.RESUME),
    ],
)  # fmt: skip
def test_a_visitor_who_may_act_leaves_a_wish_with_the_loop(
    site: Site, source: FixedSource, path: str, deed: Deed
) -> None:
    site.enter(ACTOR)
    assert 403 == site.post(path, WHICH | {"form": "0" * 64}).status_code
    assert not source.wishes.has_wishes
    answer = site.post(path, WHICH | {"form": site.form_token()})
    assert 303 == answer.status_code
    # Who asked sees that it was heard, and that it is not done yet.
    assert "What was asked for waits" in site.get("/work").text
    (wish,) = source.wishes.take()
    assert "What was asked for waits" not in site.get("/work").text
    assert deed is wish.deed
    assert "127.0.0.1" in wish.by
    by_header = site.ask("POST", path, data=WHICH, headers={"authorization": f"Bearer {ACTOR}"})
    assert 303 == by_header.status_code


@pytest.mark.parametrize("header", ["Basic eDp5", "Digest x", "x", "Bearer", "Bearer wrong"])
def test_a_header_that_is_no_token_of_ours_stands_for_no_form(
    site: Site, source: FixedSource, header: str
) -> None:
    # Browsers send what was typed for a proxy by themselves, whichever page asks.
    site.enter(ACTOR)
    for headers in ({"origin": ORIGIN}, {}):
        given = {"authorization": header, **headers}
        answer = site.ask("POST", "/do/pause", headers=given, data={"a": "b"})
        assert answer.status_code in (401, 403)
    assert not source.wishes.has_wishes


def test_credentials_for_a_proxy_keep_no_reader_out(site: Site) -> None:
    site.enter(ACTOR)
    form = {"form": site.form_token()}
    assert 303 == site.post("/do/pause", form, authorization="Basic eDp5").status_code


@pytest.mark.parametrize("path", ["/", "/work.json", "/keys", "/healthz"])
@pytest.mark.parametrize("entrance", [OPEN, CLOSED], ids=["open", "closed"])
def test_too_many_wrong_tokens_are_refused_on_every_route_and_a_right_one_never(
    source: FixedSource, monkeypatch: pytest.MonkeyPatch, entrance: Entrance, path: str
) -> None:
    monkeypatch.setattr(gate, "GUESS_SECONDS", 60.0)
    site = Site(source, entrance)
    codes = [site.get(path, authorization="Bearer wrong").status_code for _ in range(12)]
    assert [401] * gate.GUESSES_MAX + [429] * 2 == codes
    refused = site.enter("wrong")
    assert (429, "60", "close") == (
        refused.status_code, refused.headers["retry-after"], refused.headers["connection"],
    )  # fmt: skip
    assert 200 == site.get("/work.json", authorization=f"Bearer {VIEWER}").status_code
    assert 303 == site.enter(VIEWER).status_code


def test_guesses_are_counted_by_network_and_in_sum_and_given_back_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = ManualClock(0)
    monkeypatch.setattr(gate, "GUESS_SECONDS", 60.0)
    brake = Brake(clock)
    found = [brake.refusal(f"2001:db8::{n}") for n in range(gate.GUESSES_MAX + 1)]
    assert [None] * gate.GUESSES_MAX == found[:-1]
    assert found[-1] is not None
    assert brake.refusal("2001:db8:0:1::1") is None
    found = [brake.refusal(f"192.0.2.{n}") for n in range(gate.GUESSES_SUM_MAX)]
    assert found[0] is None
    assert found[-1] is not None
    clock.advance(60_000)
    assert brake.refusal("2001:db8::1") is None


def test_pages_leave_answers_for_what_is_measured(source: FixedSource) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await PlainTextResponse("done")(scope, receive, send)

    made = Gate(app, OPEN, Sessions(TOKENS, ManualClock(0)), Brake(ManualClock(0)), None, refused)

    def code(path: str, under_way: int) -> int:
        made._answers = under_way
        codes: list[int] = []

        async def send(message: Message) -> None:
            codes.append(message.get("status", 0))

        async def receive() -> Message:
            raise AssertionError("nothing is read")

        anyio.run(made, request_of(path), receive, send)
        assert under_way == made._answers
        return codes[0]

    pages_max = gate.ANSWERS_MAX - gate.RESERVED_MAX
    assert [200, 503] == [code("/work", pages_max - 1), code("/work", pages_max)]
    assert [200, 503] == [code("/healthz", n) for n in (gate.ANSWERS_MAX - 1, gate.ANSWERS_MAX)]


@pytest.mark.parametrize("name", ["via", "forwarded", "x-forwarded-for", "x-forwarded-proto"])
def test_a_proxy_that_was_not_declared_opens_nothing_without_a_token(site: Site, name: str) -> None:
    assert 200 == site.get("/work.json").status_code
    assert 401 == site.get("/work.json", **{name: "x"}).status_code
    answer = site.get("/work.json", **{name: "x"}, authorization=f"Bearer {VIEWER}")
    assert 200 == answer.status_code


def test_a_weaker_token_leaves_a_session_and_a_new_one_ends_it() -> None:
    sessions = Sessions(TOKENS, ManualClock(0))
    actor = sessions.begin(ACTOR)
    assert actor == sessions.begin(VIEWER, actor)
    again = sessions.begin(ACTOR, actor)
    assert again not in (None, actor)
    assert VisitorRole.STRANGER == sessions.role(actor, {})
    assert VisitorRole.ACTOR == sessions.role(again, {})


@pytest.mark.parametrize(
    ("entrance", "cookie"),
    [
        (OPEN, f"keeplast-{PORT}="), (CLOSED, f"__Host-keeplast-{PORT}="),
        # The proxy speaks TLS, whether it says so or not.
        (Entrance("127.0.0.1", PORT, proxies=(STRANGER[0],)), f"__Host-keeplast-{PORT}="),
    ],
)  # fmt: skip
def test_over_tls_the_cookie_is_of_this_host_alone_and_browsers_stay_with_tls(
    source: FixedSource, entrance: Entrance, cookie: str
) -> None:
    site, is_fenced = Site(source, entrance, peer=STRANGER), cookie.startswith("__Host-")
    headers = site.enter(VIEWER).headers
    assert headers["set-cookie"].startswith(cookie)
    assert is_fenced is ("secure" in headers["set-cookie"].casefold())
    assert is_fenced is ("strict-transport-security" in headers)
    assert 200 == site.get("/work.json").status_code


def test_receipts_name_the_browser_and_not_the_proxy(source: FixedSource) -> None:
    entrance = Entrance("127.0.0.1", PORT, proxies=(STRANGER[0],), allows_actions=True)
    site = Site(source, entrance, peer=STRANGER)
    peer, other = STRANGER[0], "203.0.113.5"
    for given, said, named in (
        (["198.51.100.9, 203.0.113.5"], [], other), (["junk"], [], peer),
        (["1.2.3.4", other], [], other),
        (["203.0.113.5:4711"], [], other), ([], ["for=203.0.113.5"], other),
        ([], ['for=1.2.3.4, For="203.0.113.5:80";proto=https;by=_x'], other),
        ([], ["for=1.2.3.4", f"for={other}"], other),
        ([], ['for="[2001:db8::7]:47"'], "2001:db8::7"),
        ([], ['for="\\2\\03.0.113.5"'], other), ([other], [f"for={other}"], other),
        # Malformed, hidden, twice or contradicting: no word of others counts.
        ([], ['for="203.0.113.5'], peer), ([], ["for=_hidden"], peer), ([], ["for=unknown"], peer),
        ([], ["for=203.0.113.5;for=1.2.3.4"], peer), ([], ["for=203.0.113.5,"], peer),
        ([], [f"for={other}" + ';x="' * 3000], peer), ([], ['for="[fe80::1%a]"'], peer),
        ([other], ["for=1.2.3.4"], peer), ([other], ["for=unknown"], peer),
    ):  # fmt: skip
        headers = [
            ("authorization", f"Bearer {ACTOR}"), *(("x-forwarded-for", each) for each in given),
            *(("forwarded", each) for each in said),
        ]  # fmt: skip
        answer = site.ask("POST", "/do/retry", data=WHICH, headers=headers)
        assert 303 == answer.status_code
        assert f"console, {named}'" in str(source.wishes.take()), (given, said)


def request_of(path: str) -> Scope:
    return {
        "type": "http", "method": "GET", "path": path, "query_string": b"",
        "headers": [(b"host", f"127.0.0.1:{PORT}".encode())], "client": HOME,
    }  # fmt: skip


def test_a_client_that_does_not_take_its_answer_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "REQUEST_SECONDS", 0.01)
    taken: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(3):
            await send({"type": "http.response.body", "body": b"x", "more_body": True})

    async def receive() -> Message:
        raise AssertionError("nothing is read")

    async def send(message: Message) -> None:
        taken.append(message["type"])
        if len(taken) > 1:
            await anyio.sleep_forever()

    made = Gate(app, OPEN, Sessions(TOKENS, ManualClock(0)), Brake(ManualClock(0)), None, refused)
    for path in ("/work", "/events"):
        taken.clear()
        anyio.run(made, request_of(path), receive, send)
        assert ["http.response.start", "http.response.body"] == taken


def test_trying_again_is_offered_in_place_of_a_round_where_something_is_wrong(site: Site) -> None:
    site.enter(ACTOR)
    offered = {
        path: [deed in site.get(path).text for deed in ("/do/clean", "/do/retry")]
        for path in ("/log/orders/0", "/log/broken/0")
    }
    assert {"/log/orders/0": [True, False], "/log/broken/0": [False, True]} == offered


def test_the_way_in_is_called_by_its_usual_name_and_stands_where_it_leads_somewhere(
    source: FixedSource, root: Path
) -> None:
    looks = replace(OPEN, allows_actions=False)
    for entrance, searches, is_offered in (
        (OPEN, None, True), (OPEN, searches_in(root), True), (looks, searches_in(root), True),
        (looks, None, False),
    ):  # fmt: skip
        site = Site(source, entrance, searches=searches)
        assert is_offered is ('<a href="/enter">Log in</a>' in site.get("/").text)
    site = Site(source)
    assert "<button>Log in</button>" in site.get("/enter").text
    site.enter(ACTOR)
    assert "<button>Log out</button>" in site.get("/").text


def test_wishes_are_bounded(site: Site, source: FixedSource) -> None:
    headers = {"authorization": f"Bearer {ACTOR}"}
    codes = [
        site.ask("POST", "/do/pause", headers=headers, data={"a": "b"}).status_code
        for _ in range(101)
    ]
    assert [303] * 100 + [503] == codes


@pytest.mark.parametrize("form", [{}, {"topic": "orders"}, {"topic": "../x", "partition": "0"}])
def test_a_wish_is_about_a_partition_that_is_shown(
    site: Site, source: FixedSource, form: dict[str, str]
) -> None:
    answer = site.ask(
        "POST", "/do/clean", headers={"authorization": f"Bearer {ACTOR}"}, data={"x": "y", **form}
    )
    assert answer.status_code in (400, 404)
    assert not source.wishes.has_wishes


@pytest.mark.parametrize("path", ACTIONS)
def test_actions_are_off_unless_they_were_allowed(source: FixedSource, path: str) -> None:
    nothing_runs = FixedSource(source.found)
    for shown, console in (
        (source, replace(OPEN, allows_actions=False)), (nothing_runs, OPEN),
    ):  # fmt: skip
        site = Site(shown, console, token=ACTOR)
        answer = site.post(path, WHICH, authorization=f"Bearer {ACTOR}")
        assert 403 == answer.status_code
        assert "do/pause" not in site.get("/work").text


def test_a_large_body_and_one_that_is_no_form_are_refused(site: Site) -> None:
    headers = {"origin": ORIGIN, "content-type": "application/x-www-form-urlencoded"}

    def code(content: bytes, **more: str) -> int:
        given = headers | {name.replace("_", "-"): value for name, value in more.items()}
        return site.ask("POST", "/enter", headers=given, content=content).status_code

    assert 413 == code(b"token=" + b"x" * 5000)
    assert 413 == code(b"token=x", content_length="9" * 400)
    assert 411 == code(b"token=x", content_length="-1")
    assert 415 == code(b"{}", content_type="application/json")
    assert 400 == code(b"&".join(b"a%d=1" % n for n in range(99)))
    assert 400 == code(b"token=\xff")
    assert 414 == site.get("/?q=" + "x" * 3000).status_code
    assert 414 == site.get("/log/" + "x" * 2000 + "/0").status_code
    assert 405 == site.ask("PUT", "/").status_code
    assert 405 == site.ask("DELETE", "/log/orders/0").status_code


@pytest.mark.parametrize(
    "query",
    ["?page=0", "?page=-1", "?page=x", "?page=99999999", "?page=%C2%B2", "?sort=x", "?other=1",
     "?q=a&q=b&q=c&q=d&q=e&q=f&q=g&q=h&q=i", "?state=" + "x" * 301],
)  # fmt: skip
def test_a_query_that_means_nothing_is_refused(site: Site, query: str) -> None:
    for path in ("/", "/work", "/overview.json"):
        assert 400 == site.get(path + query).status_code


@pytest.mark.rotates(4)
@pytest.mark.parametrize(
    "path",
    [
        "/static/..%2fapp.py", "/static/../app.py", "/static/%2e%2e/app.py", "/static/app.py",
        "/static//etc/passwd", "/log/..%2f..%2fetc/0", "/log/../../etc/passwd", "/log/orders/0/..",
        "/log/orders/99999999999999999999", "/log/orders/-1", "/log/nobody/0.json",
        "/receipts.jsonl/../../x", "/%00", "/do/clean",
    ],
)  # fmt: skip
def test_no_path_leads_to_a_file(site: Site, path: str) -> None:
    answer = site.get(path)
    assert answer.status_code in (303, 404, 405)
    assert "root:" not in answer.text
    assert "import" not in answer.text


def test_only_a_listed_proxy_is_heard(source: FixedSource) -> None:
    console = Entrance("127.0.0.1", 9590, names=("logs.example",), proxies=("192.0.2.9",))
    stranger = Site(source, console)
    given = {"host": "logs.example", "x_forwarded_proto": "https"}
    assert 403 == stranger.get("/", **given).status_code
    proxied = Site(source, console, peer=("192.0.2.9", 1))
    assert 303 == proxied.get("/", **given).status_code
    assert 421 == proxied.get("/", host="evil.example").status_code
    entered = proxied.post("/enter", {"token": VIEWER}, origin="https://logs.example", **given)
    assert 303 == entered.status_code
    assert "secure" in entered.headers["set-cookie"].casefold()
    entered = proxied.post(
        "/enter", {"token": VIEWER}, origin="https://logs.example", host="inside",
        forwarded="host=evil.example;proto=http, host=logs.example;proto=https",
    )  # fmt: skip
    assert 303 == entered.status_code
    assert 421 == proxied.get("/", host="inside", forwarded="host=evil.example").status_code
    # Redirects come after the gate, and name no host.
    for path in ("/work/", "//evil.example/", "/log/orders/0/"):
        assert proxied.get(path, **given).headers.get("location", "") in ("", enter_url(path))
    # Without a proxy no word of others counts.
    assert 421 == Site(source).get("/", host="x", x_forwarded_host="127.0.0.1").status_code


def test_idle_streams_are_counted_and_pages_still_come(source: FixedSource) -> None:
    site = Site(source)
    assert [200] * 4 == [site.get("/events").status_code for _ in range(4)]
    assert 200 == site.get("/").status_code


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("127.9.9.9", True),
     ("0.0.0.0", False), ("::", False), ("192.0.2.1", False), ("box", False)],
)  # fmt: skip
def test_what_loopback_is(host: str, expected: bool) -> None:
    assert expected is is_loopback(host)


def test_pages_have_no_script_and_no_style_in_them(site: Site) -> None:
    for path in [*PAGES, "/enter"]:
        text = site.get(path).text
        assert not re.search(r"<script(?![^>]* src=\"/static/)", text)
        assert not re.search(r"\son\w+=|\sstyle=|<style|javascript:", text)
        assert not re.search(r"(src|href|action)=\"(https?:)?//", text)
