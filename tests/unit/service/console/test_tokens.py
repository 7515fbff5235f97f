"""Tokens: whose they are, and which files are taken for some."""

from __future__ import annotations

from pathlib import Path

import pytest

from keeplast.errors import InvalidError
from keeplast.service.console.gate import (
    SESSIONS_MAX,
    Sessions,
    Tokens,
    VisitorRole,
    random_tokens,
    read_tokens,
)
from tests.support.console_site import ACTOR, TOKENS, VIEWER
from tests.support.manual_clock import ManualClock


def test_whose_a_token_is() -> None:
    given = [VIEWER, ACTOR, "", "x", VIEWER + " ", "\udcff"]
    expected = [VisitorRole.VIEWER, VisitorRole.ACTOR, *[VisitorRole.STRANGER] * 4]
    assert expected == [TOKENS.role_of(each) for each in given]


def test_random_ones_differ_and_are_not_shown() -> None:
    one, two = random_tokens(has_actor=True), random_tokens(has_actor=True)
    assert one.actor is not None
    assert one.actor != two.actor
    assert 40 < len(one.actor)
    assert one.actor not in repr(one)


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    return path


def test_a_file_has_both(tmp_path: Path) -> None:
    path = write(tmp_path / "tokens", f"# ours\nviewer {VIEWER}\n\nactor {ACTOR}\n")
    assert Tokens(VIEWER, ACTOR) == read_tokens(path, needs_actor=True)


@pytest.mark.parametrize(
    ("text", "mode", "named"),
    [
        (f"viewer {VIEWER}\n", 0o644, "chmod 600"),
        ("", 0o600, "no tokens"),
        ("viewer short\n", 0o600, "line=1"),
        (f"guest {VIEWER}\n", 0o600, "line=1"),
        (f"viewer {VIEWER} x\n", 0o600, "line=1"),
        (f"viewer {VIEWER}\nviewer {ACTOR}\n", 0o600, "line=2"),
        (f"viewer {VIEWER}\nactor {VIEWER}\n", 0o600, "twice"),
        (f"viewer {VIEWER}\n", 0o600, "actor"),
        ("viewer tökentökentöken\n", 0o600, "ASCII"),
        ("#" * 5000, 0o600, "too large"),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, text: str, mode: int, named: str) -> None:
    path = write(tmp_path / "tokens", text, mode)
    with pytest.raises(InvalidError) as caught:
        read_tokens(path, needs_actor=True)
    assert named in str(caught.value)
    assert str(path) in str(caught.value)
    assert VIEWER not in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="no such file"):
        read_tokens(tmp_path / "none", needs_actor=False)
    with pytest.raises(InvalidError, match="directory"):
        read_tokens(tmp_path, needs_actor=False)


def test_sessions_are_bounded() -> None:
    sessions = Sessions(TOKENS, ManualClock(0))
    first = sessions.begin(VIEWER)
    for _ in range(SESSIONS_MAX):
        sessions.begin(VIEWER)
    assert VisitorRole.STRANGER is sessions.role(first, {})
    last = sessions.begin(ACTOR)
    assert VisitorRole.ACTOR is sessions.role(last, {})
    assert sessions.begin("wrong") is None
    assert sessions.form_token(first) != sessions.form_token(last)
