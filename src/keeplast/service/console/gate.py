"""The gate in front of every page: what is let in, as whom, and how what goes out is fenced.

It stops each request that is too large, or that comes by a name that is not ours (DNS rebinding).
It stops those from a peer that is no proxy of ours, or from a page of another origin. A token is
asked of every visitor, unless the console listens on loopback and no proxy stands before it. A
visitor who acts needs a token everywhere: loopback is no authentication. Headers that proxies add
count from listed peers alone.

A token is compared in constant time and never written down. A cookie carries a random name of a
session and nothing else.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import math
import os
import secrets
import stat
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import anyio
from msgspec import Struct
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from keeplast.clock import Clock
from keeplast.errors import InvalidError, making
from keeplast.service.console.addresses import (
    DOCUMENT_ENDINGS,
    ENTER_PATH,
    asked_way,
    client_of,
    enter_url,
    find_address,
    forwarded_by,
    last_of,
    wants_page,
)

TOKEN_LENGTH_MIN, TOKEN_LENGTH_MAX = 16, 512
FILE_BYTES_MAX = 4096
SESSION_SECONDS = 12 * 3600
SESSIONS_MAX = 1000
"""The one that was used longest ago goes first."""


class VisitorRole(IntEnum):
    """What a visitor may do; each may do what those below may."""

    STRANGER = 0
    VIEWER = 1
    ACTOR = 2


@dataclass(frozen=True, slots=True, repr=False)
class Tokens:
    """The viewer's and the actor's token; None where there is no such."""

    viewer: str | None
    actor: str | None

    def role_of(self, text: str) -> VisitorRole:
        """Return whose token ``text`` is."""
        given = text.encode("utf-8", "replace")
        found = VisitorRole.STRANGER
        for role, token in ((VisitorRole.VIEWER, self.viewer), (VisitorRole.ACTOR, self.actor)):
            if token is not None and hmac.compare_digest(given, token.encode()):
                found = role
        return found


def random_tokens(*, has_actor: bool) -> Tokens:
    """Return tokens that cannot be guessed; the actor's is the viewer's too where there is one."""
    token = secrets.token_urlsafe(32)
    return Tokens(None, token) if has_actor else Tokens(token, None)


def read_tokens(path: Path, *, needs_actor: bool) -> Tokens:
    """Return the tokens of a file: lines ``viewer TOKEN`` and ``actor TOKEN``.

    InvalidError when it is no such file, or others than its owner may read it.
    """
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            data = file.read(FILE_BYTES_MAX + 1)
    except IsADirectoryError as error:
        raise InvalidError(
            f"a directory; name a file. --console-token-file={path}", code="K702"
        ) from error
    except FileNotFoundError as error:
        raise InvalidError(
            "no such file; write lines 'viewer TOKEN' and 'actor TOKEN' into it. "
            f"--console-token-file={path} directory: {making(path.parent)}",
            code="K110",
        ) from error
    if mode & 0o077:
        raise InvalidError(
            f"others than its owner may open it; chmod 600 it. --console-token-file={path} "
            f"mode={mode:04o}",
            code="K702",
        )
    found: dict[str, str] = {}
    try:
        lines = data.decode("ascii").splitlines()
    except UnicodeDecodeError as error:
        raise InvalidError(
            f"tokens are ASCII text. --console-token-file={path}", code="K702"
        ) from error
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not words or line.startswith("#"):
            continue
        is_token = len(words) == 2 and words[0] in ("viewer", "actor") and words[0] not in found
        if not is_token or not TOKEN_LENGTH_MIN <= len(words[1]) <= TOKEN_LENGTH_MAX:
            raise InvalidError(
                "not a line of tokens; write 'viewer TOKEN' or 'actor TOKEN' once each, with at "
                f"least {TOKEN_LENGTH_MIN} characters. --console-token-file={path} line={number}",
                code="K702",
            )
        found[words[0]] = words[1]
    if len(data) > FILE_BYTES_MAX or not found or len(set(found.values())) < len(found):
        raise InvalidError(
            "the file has no tokens, the same one twice, or is too large; write 'viewer TOKEN' and "
            f"'actor TOKEN'. --console-token-file={path}",
            code="K702",
        )
    if needs_actor and "actor" not in found:
        raise InvalidError(
            "--allow-actions needs an actor's token; add a line 'actor TOKEN'. "
            f"--console-token-file={path}",
            code="K702",
        )
    return Tokens(found.get("viewer"), found.get("actor"))


def bearer_of(headers: Mapping[str, str]) -> str | None:
    """Return the token in the header ``authorization``, None where there is none.

    No page of another origin can make a browser send it. Another scheme is no token: what a person
    typed for a proxy (``Basic``) is sent by the browser itself, whichever page asks.
    """
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.casefold() == "bearer" else None


class _Session(Struct):
    role: VisitorRole
    until: float


class Sessions:
    """Who has shown a token, by what their cookie says. In memory only: a restart asks again."""

    def __init__(self, tokens: Tokens, clock: Clock) -> None:
        """Take the tokens, and the clock that sessions end by."""
        self._tokens = tokens
        self._clock = clock
        self._secret = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._sessions: OrderedDict[str, _Session] = OrderedDict()

    def begin(self, token: str, old: str | None = None) -> str | None:
        """Return the name of a session for a right token, None for a wrong one.

        A new one ends the visitor's ``old`` one, unless that allows more: it goes on then.
        """
        role = self._tokens.role_of(token)
        if role is VisitorRole.STRANGER:
            return None
        if old is not None and self.role(old, {}) > role:
            return old
        name = secrets.token_urlsafe(32)
        with self._lock:
            self._sessions.pop(old or "", None)
            self._sessions[name] = _Session(role, self._clock.seconds() + SESSION_SECONDS)
            while len(self._sessions) > SESSIONS_MAX:
                self._sessions.popitem(last=False)
        return name

    def end(self, name: str) -> None:
        """Forget a session."""
        with self._lock:
            self._sessions.pop(name, None)

    def role(self, name: str | None, headers: Mapping[str, str]) -> VisitorRole:
        """Return what the session, or the token in the header ``authorization``, allows."""
        token = bearer_of(headers)
        if token is not None:
            return self._tokens.role_of(token)
        with self._lock:
            session = None if name is None else self._sessions.get(name)
            if session is None or name is None:
                return VisitorRole.STRANGER
            if session.until <= self._clock.seconds():
                del self._sessions[name]
                return VisitorRole.STRANGER
            self._sessions.move_to_end(name)
            return session.role

    def form_token(self, name: str | None) -> str:
        """Return what a form of this session must carry, so that no other page can send it."""
        return hmac.new(self._secret, (name or "").encode(), hashlib.sha256).hexdigest()

    def is_form_token(self, name: str | None, given: str) -> bool:
        """Say whether a form is one of this session's."""
        return hmac.compare_digest(self.form_token(name).encode(), given.encode("utf-8", "replace"))


PATH_BYTES_MAX = 1024
QUERY_BYTES_MAX = 2048
HEADER_BYTES_MAX = 15 << 10
"""Names and values together; the server's own limit is for a head that comes in parts."""
FORM_BYTES_MAX = 4096
KEY_FORM_BYTES_MAX = 64 << 10
"""A key as a form carries it may be three times as long as it is."""
REQUEST_SECONDS = 60.0
"""For so long an answer may take to begin, and each part of it to be taken by the browser."""
GUESS_SECONDS = 60.0
GUESSES_MAX, GUESSES_SUM_MAX = 10, 100
"""So many wrong tokens of an address, and of all, are answered as such in :data:`GUESS_SECONDS`."""
ADDRESSES_MAX = 1000
"""Of more addresses with wrong tokens the oldest is forgotten."""
ANSWERS_MAX = 200
RESERVED_MAX = 16
"""Of all answers under way those that only :data:`MEASURED_PATHS` may have."""
HSTS_SECONDS = 24 * 3600
"""Browsers hold every port of the host to it: not longer than a mistake is bearable."""
STATIC_PATH = "/static/"
KEYS_PATHS = ("/keys", "/keys.json")
MEASURED_PATHS = ("/metrics", "/healthz")
STREAM_PATH = "/events"
PROXY_HEADERS = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto")
HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'self'; script-src 'self'; "
    "img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    # Not no-referrer: browsers would then send forms with the origin "null".
    "referrer-policy": "same-origin",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Entrance(Struct, frozen=True):
    """Where the console is, and for whom it opens.

    ``host`` and ``port`` are those listened on. ``names`` are further names that browsers use, this
    host's own first. ``proxies`` are the addresses of peers that stand before it; where there are
    any, no other peer is let in. ``is_secure`` says that it speaks TLS itself. ``place`` is how
    commands name what is shown, without a secret.
    """

    host: str
    port: int
    names: tuple[str, ...] = ()
    proxies: tuple[str, ...] = ()
    is_secure: bool = False
    metrics_open: bool = False
    allows_actions: bool = False
    place: str = ""

    @property
    def is_closed(self) -> bool:
        """Say whether a token is needed to look."""
        return not is_loopback(self.host) or bool(self.proxies)

    @property
    def own_name(self) -> str:
        """Return the name of this host, empty where none was given."""
        return self.names[0] if self.names else ""

    def cookie(self, *, is_secure: bool) -> str:
        """Return the cookie's name; cookies know no ports.

        Over TLS the browser itself holds the name to this host, all of its paths and TLS
        (RFC 6265bis, ``__Host-``).
        """
        return f"{'__Host-' if is_secure else ''}keeplast-{self.port}"

    def knows(self, host: str) -> bool:
        """Say whether a ``Host`` header names this console: a name of ours, or an address.

        An address cannot be rebound; a name could be another host's.
        """
        parts = _split_host(host)
        if parts is None:
            return False
        name, port = parts
        if port not in (None, self.port) and not self.proxies:
            return False
        ours = {each.casefold() for each in self.names} | {"localhost", self.host.casefold()}
        return name.casefold() in ours or find_address(name) is not None


def _split_host(host: str) -> tuple[str, int | None] | None:
    try:
        parts = urlsplit(f"//{host}")
        if parts.path or parts.query or parts.fragment or parts.username is not None:
            return None
        return (parts.hostname, parts.port) if parts.hostname else None
    except ValueError:
        return None


def form_bytes_max(path: str) -> int:
    """Return how long a form that is sent to ``path`` may be."""
    return KEY_FORM_BYTES_MAX if path in KEYS_PATHS else FORM_BYTES_MAX


def is_loopback(host: str) -> bool:
    """Say whether only this host can reach an address; a name counts when it is ``localhost``."""
    found = find_address(host)
    return host == "localhost" if found is None else found.is_loopback


@dataclass(slots=True)
class Visitor:
    """Who asks: put into the request's state."""

    role: VisitorRole
    session: str | None
    address: str
    """Where the browser is; of a request through a listed proxy as that proxy says."""
    is_secure: bool
    has_token: bool
    """The request carries a token that is right, which no form does."""
    origin: str
    """How the browser calls this console: scheme, name and port."""
    form_token: Callable[[], str] = field(repr=False)

    @property
    def has_ended(self) -> bool:
        """Say whether the request names a session that is over."""
        return self.session is not None and self.role is VisitorRole.STRANGER


class Brake:
    """Counts wrong tokens, by address and in sum.

    The rule that a reader must not break: no request waits here, and a right token is never
    refused. A brake that stops right tokens would be the attacker's tool against the owner. What
    keeps guesses from success is the length of a token; the brake keeps them from costing anything.
    """

    def __init__(self, clock: Clock) -> None:
        """Begin without any."""
        self._clock = clock
        self._wrong: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def refusal(self, address: str) -> Response | None:
        """Count a wrong token, and return the answer to one too many; None for the others."""
        is_past = [
            self._count(_neighbourhood(address), GUESSES_MAX),
            self._count("", GUESSES_SUM_MAX),
        ]
        if not any(is_past):
            return None
        return _text(
            "too many wrong tokens", 429, connection="close",
            **{"retry-after": f"{GUESS_SECONDS:.0f}"},
        )  # fmt: skip

    def _count(self, key: str, most: int) -> bool:
        """Count one more, and say whether it is past ``most``."""
        now = self._clock.seconds()
        since, count = self._wrong.pop(key, (now, 0))
        if now - since >= GUESS_SECONDS:
            since, count = now, 0
        self._wrong[key] = (since, count + 1)
        if len(self._wrong) > ADDRESSES_MAX:
            self._wrong.popitem(last=False)
        return count >= most


def _neighbourhood(address: str) -> str:
    """Return what one attacker has: an address, of IPv6 the network of 64 bits."""
    found = find_address(address)
    if isinstance(found, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((found, 64), strict=False))
    return address


class Connections(Protocol):
    """Which connections have an answer under way: those without one make room for others."""

    def begin(self, peer: tuple[str, int]) -> None:
        """A whole request came from ``peer``."""

    def end(self, peer: tuple[str, int]) -> None:
        """Its answer is over."""


class Gate:
    """ASGI middleware; see the module."""

    def __init__(
        self, app: ASGIApp, entrance: Entrance, sessions: Sessions, brake: Brake,
        connections: Connections | None, page: Callable[[str, int], str],
    ) -> None:  # fmt: skip
        """Take the application, where connections are counted, and the page of a refusal."""
        self._app = app
        self._page = page
        self._entrance = entrance
        self._sessions = sessions
        self._brake = brake
        self._connections = connections
        self._answers = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or answer it here."""
        if scope["type"] != "http":
            return
        peer = scope.get("client") or ("", 0)
        self._answers += 1
        if self._connections is not None:
            self._connections.begin(peer)
        try:
            await self._answer(scope, receive, send)
        finally:
            self._answers -= 1
            if self._connections is not None:
                self._connections.end(peer)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        # What happens between the parts of a stream lasts as long as the stream.
        pause_seconds = math.inf if scope["path"] == STREAM_PATH else REQUEST_SECONDS
        with anyio.CancelScope(deadline=anyio.current_time() + REQUEST_SECONDS) as limit:

            async def fenced(message: Message) -> None:
                if message["type"] == "http.response.start":
                    headers = MutableHeaders(scope=message)
                    headers.update(HEADERS)
                    visitor = scope.get("state", {}).get("visitor")
                    if visitor is not None and visitor.is_secure:
                        headers["strict-transport-security"] = f"max-age={HSTS_SECONDS}"
                    headers.setdefault("cache-control", "no-store")
                # Each part is taken in time, or the browser is left.
                limit.deadline = anyio.current_time() + REQUEST_SECONDS
                await send(message)
                limit.deadline = anyio.current_time() + pause_seconds

            refusal = self._refusal(scope)
            if refusal is None:
                await self._app(scope, receive, fenced)
                return
            if refusal.status_code in (403, 421) and wants_page(scope):
                words = bytes(refusal.body).decode()
                refusal = HTMLResponse(self._page(words, refusal.status_code), refusal.status_code)
            await refusal(scope, receive, fenced)

    def _refusal(self, scope: Scope) -> Response | None:
        """Return the answer to a request that is not let in; None, and the visitor, for others."""
        headers, entrance = Headers(scope=scope), self._entrance
        most = ANSWERS_MAX - (0 if scope["path"] in MEASURED_PATHS else RESERVED_MAX)
        if self._answers > most:
            return _text("too many requests at once", 503, connection="close")
        size = len(scope.get("raw_path") or scope["path"].encode("utf-8", "replace"))
        if size > PATH_BYTES_MAX or len(scope["query_string"]) > QUERY_BYTES_MAX:
            return _text("the address is too long", 414)
        if sum(len(name) + len(value) for name, value in scope["headers"]) > HEADER_BYTES_MAX:
            return _text("the headers are too long", 431)
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return _text("only GET, HEAD and POST", 405, allow="GET, HEAD, POST")
        peer = (scope.get("client") or ("", 0))[0]
        if entrance.proxies and peer not in entrance.proxies:
            return _text("come through the proxy", 403)
        host, is_secure = headers.get("host", ""), entrance.is_secure
        said = forwarded_by(headers)
        if entrance.proxies:
            host = last_of(headers, "x-forwarded-host") or said.get("host", host)
            is_secure = (
                last_of(headers, "x-forwarded-proto") or said.get("proto", "")
            ).casefold() == "https"
        if len(headers.getlist("host")) != 1 or not entrance.knows(host):
            return _text(
                "this console is not known by that name; use its address, or name it with "
                "--console-name",
                421,
            )
        # A proxy of ours speaks TLS, whether it says so or not.
        is_fenced, bearer = is_secure or bool(entrance.proxies), bearer_of(headers)
        session = self._session(headers, is_secure=is_fenced)
        role = self._sessions.role(session, headers)
        address = client_of(headers, said, peer) if entrance.proxies else peer
        origin = f"{'https' if is_secure else 'http'}://{host}"
        scope.setdefault("state", {})["visitor"] = Visitor(
            role, session, address, is_fenced,
            bearer is not None and role is not VisitorRole.STRANGER, origin,
            lambda: self._sessions.form_token(session),
        )  # fmt: skip
        if bearer is not None and role is VisitorRole.STRANGER and not _is_for_all(scope["path"]):
            # Also where no token is needed: no route is a place to try them.
            return self._brake.refusal(address) or _token_needed()
        refusal = self._unposted(scope, headers, origin)
        return self._unwelcome(scope, headers, role) if refusal is None else refusal

    def _session(self, headers: Headers, *, is_secure: bool) -> str | None:
        cookies: SimpleCookie = SimpleCookie()
        try:
            cookies.load(headers.get("cookie", ""))
        except CookieError:
            return None
        found = cookies.get(self._entrance.cookie(is_secure=is_secure))
        return None if found is None else found.value

    def _unposted(self, scope: Scope, headers: Headers, origin: str) -> Response | None:
        """Return the answer to a POST that no page of ours can have sent."""
        if scope["method"] != "POST":
            return None
        length = headers.get("content-length", "")
        if not (length.isascii() and length.isdigit()):
            return _text("a form has a length", 411)
        if int(length[:12]) > form_bytes_max(scope["path"]) or len(length) > 12:
            return _text("the form is too large", 413)
        kind = headers.get("content-type", "").partition(";")[0].strip().casefold()
        if kind != "application/x-www-form-urlencoded":
            return _text("not a form", 415)
        given = headers.get("origin")
        if given is None:
            is_ours = headers.get("sec-fetch-site") == "same-origin" or bool(bearer_of(headers))
        else:
            is_ours = given.casefold() == origin.casefold()
        return (
            None
            if is_ours
            else _text("not sent from a page of this console: wrong or no Origin", 403)
        )

    def _unwelcome(self, scope: Scope, headers: Headers, role: VisitorRole) -> Response | None:
        """Return the answer to a request that must show a token first."""
        path, entrance = scope["path"], self._entrance
        # Through a proxy that was not declared strangers come by the loopback.
        is_closed = entrance.is_closed or any(each in headers for each in PROXY_HEADERS)
        if role is not VisitorRole.STRANGER or _is_for_all(path):
            return None
        if path in MEASURED_PATHS and (entrance.metrics_open or not is_closed):
            return None
        if not is_closed and scope["method"] != "POST":
            return None
        # A topic has dots, too; what is no page ends as its document does.
        is_page = scope["method"] == "GET" and not path.endswith(DOCUMENT_ENDINGS)
        is_page = is_page and path != STREAM_PATH
        # So is a form whose session has ended meanwhile: the way goes back to its page.
        is_page = is_page or (scope["method"] == "POST" and wants_page(scope))
        if is_page and path not in MEASURED_PATHS:
            return RedirectResponse(enter_url(asked_way(scope)), 303)
        return _token_needed()


def _is_for_all(path: str) -> bool:
    """Say whether a path answers alike with and without a token."""
    return path == ENTER_PATH or path.startswith(STATIC_PATH)


def _token_needed() -> Response:
    return _text("a token is needed; open /enter", 401, **{"www-authenticate": "Bearer"})


def _text(words: str, status: int, **headers: str) -> Response:
    return PlainTextResponse(f"{words}\n", status, headers)
