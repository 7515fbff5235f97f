"""What goes on being written to the demo's logs, so that there are rounds to watch."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.console.conftest import NOW_MS, printed
from tools import demo_console
from tools.demo_console import LOGS, RECORDS, WRITTEN, write_next, write_on

pytestmark = pytest.mark.console
ORDERS = next(log for log in LOGS if log.name == "orders-0")


@pytest.fixture
def root(demo: Path, tmp_path: Path) -> Path:
    """Logs of the demo of one's own."""
    return Path(shutil.copytree(demo, tmp_path / "logs"))


def orders(root: Path) -> dict[str, int]:
    """Return what status says of a log."""
    (found,) = printed("status", root, "--topic", "orders", "--partition", 0, "--now-ms", NOW_MS)[
        "partitions"
    ]
    return {name: found[name] for name in ("log_end", "cleanable_bytes", "uncleanable_bytes")}


def test_a_segment_comes_after_the_active_one_and_nothing_else_changes(root: Path) -> None:
    before = orders(root)
    stats = {each: each.stat() for each in root.rglob("*") if each.is_file()}
    write_next(root, root.with_name("next"), ORDERS, NOW_MS)
    after = orders(root)
    assert before["log_end"] + RECORDS == after["log_end"]
    assert before["cleanable_bytes"] + before["uncleanable_bytes"] == after["cleanable_bytes"]
    for path, was in stats.items():
        is_now = path.stat()
        assert (was.st_size, was.st_mtime_ns, was.st_ino) == (
            is_now.st_size, is_now.st_mtime_ns, is_now.st_ino,
        )  # fmt: skip
    new = {each.suffix for each in (root / "orders-0").iterdir() if each not in stats}
    assert {".log", ".index", ".timeindex"} == new


def test_writing_ends_with_the_loop_and_by_itself(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    monkeypatch.setattr(
        demo_console, "write_next", lambda root, scratch, log, now_ms: written.append(log.name)
    )
    answers: Iterator[bool] = iter([False, False, False, True])
    write_on(root, lambda seconds: next(answers))
    assert list(WRITTEN[:3]) == written
    written.clear()
    write_on(root, lambda seconds: False)
    assert demo_console.SEGMENTS_WRITTEN_MAX == len(written)
