"""The pages on live clusters show what is printed over the brokers of one, which this starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.followed_pages import LIVE_PAGES, LONGEST, follow_all, live, stores

pytestmark = pytest.mark.kafka


def test_the_pages_show_what_is_printed(tmp_path: Path) -> None:
    with live(tmp_path) as followed:
        assert [] == follow_all(followed, LIVE_PAGES)


def test_the_longest_page_on_stores_shows_what_is_printed(tmp_path: Path) -> None:
    with stores(tmp_path) as followed:
        assert [] == follow_all(followed, [LONGEST])
