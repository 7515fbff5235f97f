"""Addresses: of hosts, of browsers as the nearest proxy names them, and of pages to come back to.

The rules that a reader must not break. Of what proxies say only what the nearest one has added
counts: anybody may have written the rest. After a login no browser lands on another host.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from urllib.parse import quote, urlencode

from starlette.datastructures import Headers
from starlette.types import Scope

ENTER_PATH = "/enter"
DOCUMENT_ENDINGS = (".json", ".jsonl")


def find_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address that ``host`` is, None where it is a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


_WAY = re.compile(
    r"/(?!enter|leave|do/)(?:[\w.~%-][\w.~%/-]*)?(?:\?[\w.~%&=+:,;@!$'()*/?-]*)?", re.ASCII
)
WAY_BYTES_MAX = 1024


def way_back(text: str) -> str:
    """Return where a login may land: ``text`` where it is a page of this console, else ``/``.

    Only a path and a query, of characters that no browser takes for a host's.
    """
    return text if len(text) <= WAY_BYTES_MAX and _WAY.fullmatch(text) else "/"


def enter_url(way: str) -> str:
    """Return where to log in, and to land on ``way`` afterwards."""
    way = way_back(way)
    return ENTER_PATH if way == "/" else f"{ENTER_PATH}?{urlencode({'next': way})}"


_SENDER = re.compile(r"https?://[^/?#]*([^#]*)")


def asked_way(scope: Scope) -> str:
    """Return path and query of a request, of a form those of the page that sent it."""
    path, query = quote(scope["path"]), scope["query_string"].decode("latin-1")
    if scope["method"] == "POST":
        sender = _SENDER.match(Headers(scope=scope).get("referer", ""))
        return "/" if sender is None else sender[1]
    return f"{path}?{query}" if query else path


def wants_page(scope: Scope) -> bool:
    """Say whether a person reads the answer: a browser asked, and for no document."""
    accepted = Headers(scope=scope).get("accept", "")
    return "text/html" in accepted and not scope["path"].endswith(DOCUMENT_ENDINGS)


_PAIR = re.compile(r'[ \t]*([A-Za-z]+)=("(?:[^"\\]|\\.)*"|[^\s,;"]+)[ \t]*(;|,|$)')


def last_of(headers: Headers, name: str) -> str:
    """Return what the nearest proxy has added to a list: more lines of a header go on with it."""
    return ",".join(headers.getlist(name)).rpartition(",")[2].strip()


def forwarded_by(headers: Headers) -> dict[str, str]:
    """Return what the nearest proxy says in ``Forwarded`` (RFC 7239), nothing of a malformed one.

    It is as long as all headers may be.
    """
    text, at, found = ",".join(headers.getlist("forwarded")), 0, dict[str, str]()
    while at < len(text):
        pair = _PAIR.match(text, at)
        if pair is None or pair[1].casefold() in found:
            return {}
        value = re.sub(r"\\(.)", r"\1", pair[2][1:-1]) if pair[2].startswith('"') else pair[2]
        found[pair[1].casefold()] = value
        at = pair.end()
        if pair[3] == ",":
            # What stands before it was added farther away: anybody may have written it.
            found = {}
    return found


def client_of(headers: Headers, said: Mapping[str, str], peer: str) -> str:
    """Return the address that the proxy ``peer`` has added, ``peer`` where it has added none.

    A proxy passes on the one header that it does not write: where both are there and differ, the
    browser may have written either.
    """
    named = {
        _node_address(each)
        for each in (last_of(headers, "x-forwarded-for"), said.get("for", ""))
        if each
    }
    return (named.pop() if len(named) == 1 else "") or peer


def _node_address(text: str) -> str:
    """Return the address of a node, which may have a port; empty for what is none."""
    host = text[1:].partition("]")[0] if text.startswith("[") else text
    found = find_address(host.partition(":")[0] if host.count(":") == 1 else host)
    return "" if found is None or "%" in host else str(found)
