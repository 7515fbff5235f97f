"""What a console costs is asked of a real one, over a few logs."""

from __future__ import annotations

from pathlib import Path

from benchmarks.console import SMALL, page_times, resident_mib, running, table, watched
from benchmarks.start import write_partitions


def test_a_console_is_asked_for_pages_and_watched(tmp_path: Path) -> None:
    logs = write_partitions(tmp_path / "logs", 3, SMALL)
    words = ("console", str(logs), "--listen", "127.0.0.1:0")
    with running(words, tmp_path / "cache") as console:
        found = page_times(console, ("/", "/log/bench/2"), turns=2)
        assert ["/", "/log/bench/2"] == list(found)
        assert all(3 == len(each) and each[0] <= each[1] for each in found.values())
        assert 0 <= watched(console, browsers=2, seconds=0.01)
        assert 0 < console.look_seconds
        assert 0 < resident_mib(console)


def test_figures_are_shown_in_a_table() -> None:
    assert table([("memory", "1 MiB")]).endswith("| memory | 1 MiB |")
