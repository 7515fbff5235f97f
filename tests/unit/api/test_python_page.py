"""The page on Python: its example runs as it stands, and no public name is missing from it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import keeplast

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "reference" / "python.md").read_text("utf-8")
TEXT, EXAMPLE = PAGE.split("```python\n")


def test_the_example_prints_what_a_reader_expects(tmp_path: Path) -> None:
    (tmp_path / "src").symlink_to(ROOT / "src")
    done = subprocess.run(
        [sys.executable, "-c", EXAMPLE.partition("```")[0]], cwd=tmp_path, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert 0 == done.returncode, done.stderr
    lines = done.stdout.splitlines()
    assert "{'orders': {'0': 300}} {'orders': {'0': 339}}" in lines
    assert "['audit']" in lines
    assert "[(1, False, True), (2, True, False)]" in lines
    assert "True ['same']" in lines
    assert "{'orders': {'0': 339}}" == lines[-1]
    numbers = re.findall(r"\((\d+), '\w+'\)", lines[0])
    assert [f"[{', '.join(numbers)}]", str(len(numbers))] == [lines[1], lines[-2]]


@pytest.mark.parametrize("name", keeplast.__all__)
def test_every_public_name_is_on_the_page(name: str) -> None:
    assert re.search(rf"(?<![\w.]){name}(?!\w)", TEXT)


@pytest.mark.parametrize("name", keeplast.__all__)
def test_every_public_name_can_be_had(name: str) -> None:
    assert getattr(keeplast, name) is not None
    assert name in dir(keeplast)
