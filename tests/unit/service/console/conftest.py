"""A data directory, its view and a console that shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from keeplast.service.console import gate
from keeplast.service.live import Control
from tests.support.console_site import NOW_MS, FixedSource, Site, directory_view
from tests.support.manual_clock import ManualClock
from tests.support.small_log import write_log

SETTINGS = """
[cluster]
"max.compaction.lag.ms" = 604800000
[topic.orders]
"cleanup.policy" = "compact"
[topic.broken]
"cleanup.policy" = "compact"
"""


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a wrong token wait for nothing: strangers try hundreds of them here."""
    monkeypatch.setattr(gate, "GUESS_SECONDS", 0.0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three topics: one overdue, one of which only the active segment is there, one damaged."""
    segments = {0: [(b"a", b"1"), (b"b", b"2")], 2: [(b"a", b"3")], 3: [(b"c", b"4")]}
    write_log(tmp_path, "orders-0", segments)
    write_log(tmp_path, "orders-1", {0: [(b"a", b"1")]})
    write_log(tmp_path, "broken-0", segments)
    damaged = tmp_path / "broken-0" / f"{3:020d}.log"
    damaged.write_bytes(b"\xff" * 100)
    (tmp_path / "keeplast.toml").write_text(SETTINGS, encoding="utf-8")
    return tmp_path


@pytest.fixture
def source(root: Path) -> FixedSource:
    """What a console of a loop is fed with."""
    return FixedSource(directory_view(root), control=Control(ManualClock(NOW_MS)))


@pytest.fixture
def site(source: FixedSource) -> Site:
    """A console on loopback."""
    return Site(source)
