"""Texts of the code are linted on the lines where they stand, and only what people read."""

from __future__ import annotations

import pytest

from tools import check_prose

MODULE = '''"""Opens the module.

See :class:`~a.B` and ``literal``.
"""

def _private():
    """Not read."""
    raise ValueError("not found. "
                     f"name={1}")

def public(option=help_of(help="Of the option.")):
    """Of the function."""
    return "not a message"
'''


def test_each_text_stands_on_its_own_line_and_names_are_left_out() -> None:
    assert [
        "Opens the module.", "", "See `x` and `x`.", "", "", "", "", "not found. name=`x`", "",
        "", "Of the option.", "Of the function.",
    ] == check_prose.laid_out(MODULE).splitlines()  # fmt: skip


@pytest.mark.parametrize(
    ("path", "area"),
    [
        ("src/keeplast/errors.py", "src"),
        ("docs/how-to/run.md", "users"),
        ("README.md", "users"),
        ("docs/contributing/architecture.md", "contributors"),
        ("CHANGELOG.md", "contributors"),
    ],
)
def test_a_file_belongs_to_one_area(path: str, area: str) -> None:
    assert area == check_prose.area_of(path)
