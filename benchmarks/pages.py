"""``python -m benchmarks.pages``: the tables of the stored results again, without measuring.

Every table in ``results/`` and the bars in ``docs/images/`` follow from the JSON files
next to them; ``--check`` says which do not. ``tools/fill_readme.py --files`` then pastes them into
the pages.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks import attached, cost_model, growth, one_partition, peers, report, shape_model
from benchmarks.peer_report import Taken, bars, goal_table
from benchmarks.run import CHART, RESULTS


def made(results: Path = RESULTS, figure: Path = peers.FIGURE) -> dict[Path, str]:
    """Return what each file that is made of the results in a folder has to say."""
    grown, peers_document = _load(results / "growth.json"), _load(results / "peers.json")
    taken = [Taken(**each) for each in peers_document["taken"]]
    slopes = cost_model.slopes_of(grown["points"])
    latest = _load(results / "latest.json")
    return {
        results / "latest.md": report.table(latest) + "\n",
        CHART: report.chart(latest),
        results / "growth.md": growth.table(growth.points_of(grown), grown["machine"]) + "\n",
        results / "cost_model.md": cost_model.table(slopes) + "\n",
        results / "shape_model.md": shape_model.table() + "\n",
        results / "peers.md": peers.page(taken, peers_document, figure),
        results / "peers_goals.md": goal_table(taken, peers_document) + "\n",
        results / "one_partition.md": one_partition.page(_load(results / "one_partition.json")),
        results / "attached.md": attached.page(_load(results / "attached.json")),
        figure: bars(taken),
    }


def stale(wanted: dict[Path, str]) -> list[Path]:
    """Return the files that say something else."""
    return [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]


def _load(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def main() -> None:
    """Write the tables, or say which would change."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    is_check = parser.parse_args().check
    wanted = made()
    changed = stale(wanted)
    for path in changed:
        print(path.name)
        if not is_check:
            path.write_text(wanted[path])
    if is_check and changed:
        raise SystemExit("these do not follow from the results: run python -m benchmarks.pages")


if __name__ == "__main__":
    main()
