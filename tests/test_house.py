"""What the house promises who looks for a thing: one name for one class, no room too large."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src" / "keeplast"
SHARE_MAX = 0.15
LINES_MAX = 600


def test_class_names_are_unique_in_the_package() -> None:
    homes = defaultdict(list)
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(path.relative_to(SOURCE).as_posix())
    assert 400 < len(homes)
    assert {} == {name: where for name, where in homes.items() if len(where) > 1}


def test_no_folder_has_more_than_its_share_of_the_source() -> None:
    lines = Counter[str]()
    for path in SOURCE.rglob("*.py"):
        count = len(path.read_text("utf-8").splitlines())
        assert count <= LINES_MAX, path
        lines[path.parent.relative_to(SOURCE).as_posix()] += count
    total = sum(lines.values())
    assert {} == {room: n for room, n in lines.items() if n > SHARE_MAX * total}
