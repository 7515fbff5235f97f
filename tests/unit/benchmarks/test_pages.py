"""Every published table follows from the stored results, and stands in the pages as it is."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from benchmarks.pages import made, stale
from benchmarks.run import CHART, RESULTS

ROOT = Path(__file__).resolve().parents[3]
FILL = ROOT / "tools" / "fill_readme.py"


def test_published_tables_follow_from_the_results() -> None:
    assert [] == stale(made())


def test_a_changed_figure_is_noticed(tmp_path: Path) -> None:
    table = tmp_path / "table.md"
    table.write_text("| 6.0x, missed |\n")
    assert [table] == stale({table: "| 6.0x, reached |\n"})
    assert [tmp_path / "none.md"] == stale({tmp_path / "none.md": ""})


def test_pages_show_the_tables_as_they_are() -> None:
    done = subprocess.run(
        [sys.executable, str(FILL), "--files", "--check"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_the_table_is_a_page_and_its_chart_is_in_the_readme() -> None:
    page = (ROOT / "benchmarks" / "README.md").read_text("utf-8")
    shown = re.search(
        r"<!-- file: benchmarks/results/latest\.md -->\n(.*?)\n<!-- end -->", page, re.DOTALL
    )
    assert shown is not None
    assert (RESULTS / "latest.md").read_text("utf-8").rstrip() == shown[1]
    assert f"({CHART.relative_to(ROOT)})" in (ROOT / "README.md").read_text("utf-8")
