"""Who may look and who may act: tokens, and the sessions that cookies stand for.

A token is compared in constant time and never written down; a cookie carries a random name of a
session and nothing else. Loopback is no authentication: whoever acts needs a token everywhere.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from keeplast.clock import Clock
from keeplast.errors import InvalidError, making

TOKEN_LENGTH_MIN, TOKEN_LENGTH_MAX = 16, 512
FILE_BYTES_MAX = 4096
SESSION_SECONDS = 12 * 3600
SESSIONS_MAX = 1000
"""The one that was used longest ago goes first."""


class VisitorRole(IntEnum):
    """What somebody may do; each may do what those below may."""

    NOBODY = 0
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
        found = VisitorRole.NOBODY
        for role, token in ((VisitorRole.VIEWER, self.viewer), (VisitorRole.ACTOR, self.actor)):
            if token is not None and hmac.compare_digest(given, token.encode()):
                found = role
        return found


def random_tokens(*, has_actor: bool) -> Tokens:
    """Return tokens that nobody can guess; the actor's is the viewer's too where there is one."""
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
        raise InvalidError(f"a directory; name a file. --console-token-file={path}") from error
    except FileNotFoundError as error:
        raise InvalidError(
            "no such file; write lines 'viewer TOKEN' and 'actor TOKEN' into it. "
            f"--console-token-file={path} directory: {making(path.parent)}"
        ) from error
    if mode & 0o077:
        raise InvalidError(
            f"others than its owner may open it; chmod 600 it. --console-token-file={path} "
            f"mode={mode:04o}"
        )
    found: dict[str, str] = {}
    try:
        lines = data.decode("ascii").splitlines()
    except UnicodeDecodeError as error:
        raise InvalidError(f"tokens are ASCII text. --console-token-file={path}") from error
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not words or line.startswith("#"):
            continue
        is_token = len(words) == 2 and words[0] in ("viewer", "actor") and words[0] not in found
        if not is_token or not TOKEN_LENGTH_MIN <= len(words[1]) <= TOKEN_LENGTH_MAX:
            raise InvalidError(
                "not a line of tokens; write 'viewer TOKEN' or 'actor TOKEN' once each, with at "
                f"least {TOKEN_LENGTH_MIN} characters. --console-token-file={path} line={number}"
            )
        found[words[0]] = words[1]
    if len(data) > FILE_BYTES_MAX or not found or len(set(found.values())) < len(found):
        raise InvalidError(
            "the file has no tokens, the same one twice, or is too large; write 'viewer TOKEN' and "
            f"'actor TOKEN'. --console-token-file={path}"
        )
    if needs_actor and "actor" not in found:
        raise InvalidError(
            "--allow-actions needs an actor's token; add a line 'actor TOKEN'. "
            f"--console-token-file={path}"
        )
    return Tokens(found.get("viewer"), found.get("actor"))


def bearer_of(headers: Mapping[str, str]) -> str | None:
    """Return the token in the header ``authorization``, None where there is none.

    No page of another origin can make a browser send it. Another scheme is no token: what somebody
    typed for a proxy (``Basic``) is sent by the browser itself, whichever page asks.
    """
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.casefold() == "bearer" else None


@dataclass(slots=True)
class _Session:
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

    def begin(self, token: str) -> str | None:
        """Return the name of a new session, None when the token is nobody's."""
        role = self._tokens.role_of(token)
        if role is VisitorRole.NOBODY:
            return None
        name = secrets.token_urlsafe(32)
        with self._lock:
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
                return VisitorRole.NOBODY
            if session.until <= self._clock.seconds():
                del self._sessions[name]
                return VisitorRole.NOBODY
            self._sessions.move_to_end(name)
            return session.role

    def form_token(self, name: str | None) -> str:
        """Return what a form of this session must carry, so that no other page can send it."""
        return hmac.new(self._secret, (name or "").encode(), hashlib.sha256).hexdigest()

    def is_form_token(self, name: str | None, given: str) -> bool:
        """Say whether a form is one of this session's."""
        return hmac.compare_digest(self.form_token(name).encode(), given.encode("utf-8", "replace"))
