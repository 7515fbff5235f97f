"""Nothing that is read from data can be executed: no module of ours could do it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

SOURCES = sorted((Path(__file__).parents[2] / "src" / "keeplast").rglob("*.py"))
MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "yaml", "dbm", "runpy"}
CALLS = {"eval", "exec", "compile", "__import__"}
WORD = re.compile(rf"(?<![.\w])({'|'.join(MODULES | CALLS)}|allow_pickle)\b|[^\x00-\x7f]")
"""Without one of these there is nothing to find; letters beyond ASCII may stand for others."""


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(SOURCES[0].parent)))
def test_no_module_can_unpickle_or_evaluate(path: Path) -> None:
    text = path.read_text("utf-8")
    for node in ast.walk(ast.parse(text if WORD.search(text) else "")):
        if isinstance(node, ast.Import):
            assert not {alias.name.partition(".")[0] for alias in node.names} & MODULES
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").partition(".")[0] not in MODULES
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in CALLS
        elif isinstance(node, ast.keyword):
            assert "allow_pickle" != node.arg
