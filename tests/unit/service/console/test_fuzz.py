"""Whatever is asked, no route fails by itself: nothing is a 500."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.console_site import ACTOR, ORIGIN, FixedSource, Site, searches_in

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x00\r\n"), max_size=40)
PIECES = st.sampled_from(
    ["", "topic", "partitions",
     "log", "orders", "0", "0.json", "settings.json", "work", "work.json", "overview.json",
     "receipts.jsonl", "keys", "keys.json", "metrics", "healthz", "enter", "leave", "do", "clean",
     "static",
     "console.css", "..", ".", "%2f", "%00", "%", "٣", "9" * 30]
)  # fmt: skip
PATHS = st.lists(st.one_of(PIECES, TEXT.map(lambda text: text.replace("\\", "/"))), max_size=5)
FIELDS = st.dictionaries(
    st.one_of(
        st.sampled_from(["q", "state", "sort", "rows", "page", "token", "form", "topic",
                         "partition",
                         "key", "as", "values", "header"]),
        TEXT,
    ),
    st.one_of(st.sampled_from(["1", "-1", "name", "overdue", "orders", "hex"]), TEXT), max_size=5,
)  # fmt: skip
NAMES = st.sampled_from(
    ["cookie", "authorization", "origin", "host", "x-forwarded-host", "accept", "range",
     "if-none-match", "sec-fetch-site", "content-type"]
)  # fmt: skip
LATIN = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=40)


@settings(
    max_examples=150,
    suppress_health_check=[
        *settings().suppress_health_check, HealthCheck.function_scoped_fixture
    ],
)  # fmt: skip
@given(
    method=st.sampled_from(["GET", "GET", "HEAD", "POST", "OPTIONS"]),
    pieces=PATHS, fields=FIELDS, headers=st.dictionaries(NAMES, LATIN, max_size=3),
    is_actor=st.booleans(),
)  # fmt: skip
def test_nothing_makes_a_route_fail(
    source: FixedSource,
    root: Path,
    method: str,
    pieces: list[str],
    fields: dict[str, str],
    headers: dict[str, str],
    is_actor: bool,
) -> None:
    site = Site(source, searches=searches_in(root))
    given_headers = {"origin": ORIGIN} | headers
    if is_actor:
        given_headers["authorization"] = f"Bearer {ACTOR}"
    try:
        url = httpx.URL("/" + "/".join(pieces), params=fields if method != "POST" else None)
    except (httpx.InvalidURL, UnicodeError):
        return
    data = fields if method == "POST" else None
    try:
        answer = site.ask(method, str(url), headers=given_headers, data=data)
    except (httpx.InvalidURL, httpx.UnsupportedProtocol, UnicodeError):
        return  # no browser could ask for it
    assert answer.status_code < 500 or answer.status_code == 503
    if answer.headers.get("content-type", "").startswith("text/html") and answer.text:
        assert answer.text.startswith("<!doctype html>")


@pytest.mark.parametrize("path", ["/", "/work", "/log/orders/0"])
def test_a_head_has_no_body(source: FixedSource, path: str) -> None:
    answer = Site(source).ask("HEAD", path)
    assert (200, b"") == (answer.status_code, answer.content)
