"""The house is measured as its budgets say, and a figure that is out of its budget is reported."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from tools import house
from tools.journeys import JOURNEYS, Journey, returns

ROOT = Path(__file__).resolve().parents[3]


def test_statements_are_counted_without_imports_and_strings_that_stand_alone() -> None:
    text = '''
"""About."""
import os
from a import b
X = 1
"""About X."""

def f(y):
    """About f."""
    import json
    if y:
        return "a"
    "alone"
    return 1

class C:
    """About C."""
    z: int = 3
'''
    # X, def, if, return, return, class, z
    assert 7 == house.count_statements(ast.parse(text))
    assert 1 == house.count_functions(ast.parse(text))


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_a_small_module_that_one_other_imports_is_found(tmp_path: Path) -> None:
    package = "src/keeplast/"
    write(
        tmp_path,
        {
            f"{package}__init__.py": "",
            f"{package}a.py": "from keeplast import b\nfrom keeplast.c import x\nimport keeplast.d",
            f"{package}b.py": "",
            f"{package}c.py": "x = 1\n" * 60,
            f"{package}d.py": "def f():\n    from keeplast.e import y\n    return y\n",
            f"{package}e.py": "from keeplast.d import f\ny = f\n",
            "tests/test_x.py": "def test():\n    assert 1\n",
            "docs/a.md": "two words\n",
            "docs/b/c.md": "one\n",
            "docs/reference/d.md": f"# D\n{house.MADE}x.py -->\n",
            "docs/contributing/e.md": "three more words\n",
        },
    )
    figures = house.static_figures(tmp_path)
    trees = {p: ast.parse(p.read_text()) for p in (tmp_path / package).rglob("*.py")}
    found = house.small_modules(tmp_path / package, trees)
    assert ["keeplast.b", "keeplast.e"] == found
    assert {
        "src_statements": 63, "tests_statements": 2, "modules": 6, "functions": 1,
        "largest_module_lines": 60, "median_module_lines": 2, "small_modules": 2, "docs_words": 13,
        "user_words": 3,
    } == figures  # fmt: skip


def test_options_are_those_that_a_help_shows() -> None:
    app, group = typer.Typer(), typer.Typer()

    @app.command()
    def one(place: str, a: int = 1, b: bool = typer.Option(False, hidden=True)) -> None:
        """Take an argument, an option, and one that is hidden."""

    @group.command()
    def two(a: int = 1, c: bool = False) -> None:
        """Take two."""

    app.add_typer(group, name="more")
    counts = house.option_counts(typer.main.get_command(app))
    assert {("one",): 1, ("more", "two"): 2} == counts


BUDGETS = """# Why.
[budgets]
modules = 1000  # at most
functions = 1_000
"""


@pytest.mark.parametrize(
    ("figure", "words"),
    [
        (1001, "modules is 1001, above its budget of 1000: make it smaller, or raise"),
        (1000, None),
        (990, None),
        (989, "modules is 989, below its budget of 1000: a budget only goes down, so write"),
    ],
)
def test_a_figure_is_held_against_its_budget_from_both_sides(
    figure: int, words: str | None
) -> None:
    figures = {"modules": figure, "functions": 1000, "without_a_budget": 7}
    found = house.find_problems(figures, house.read_budgets(BUDGETS))
    assert (words is None) == (not found)
    assert all(each.startswith(words or "") for each in found)


def test_a_budget_of_nothing_is_reported() -> None:
    (found,) = house.find_problems({"functions": 1000}, house.read_budgets(BUDGETS))
    assert "there is no such figure" in found


@pytest.mark.parametrize("value", ['"7"', "1.5", "-1", "true"])
def test_a_budget_that_is_no_whole_number_is_an_error(value: str) -> None:
    with pytest.raises(ValueError, match="whole number"):
        house.read_budgets(f"[budgets]\nmodules = {value}\n")


def test_a_ratchet_lowers_and_never_raises_and_keeps_what_people_wrote() -> None:
    text = house.ratchet(BUDGETS, {"modules": 900, "functions": 1001})
    assert "# Why.\n[budgets]\nmodules = 900  # at most\nfunctions = 1000\n" == text
    assert text == house.ratchet(text, {"modules": 950})


def test_a_figure_may_be_below_its_limit_and_not_above() -> None:
    limits = house.read_budgets("[limits]\nseconds = 540\n", "limits")
    assert [] == house.find_past_limits({"seconds": 7}, limits)
    (found,) = house.find_past_limits({"seconds": 541}, limits)
    assert "seconds is 541, above its limit of 540" in found


def weighed(root: Path, weights: str) -> int:
    write(
        root,
        {
            "tests/weights.toml": weights,
            "tests/unit/test_a.py": "",
            "tests/unit/test_b.py": "",
            "tests/kafka/test_c.py": "",
        },
    )
    return house.weight_figures(root)["make_test_processor_seconds"]


def test_what_make_test_takes_is_the_weight_of_its_files_and_of_two_beginnings(
    tmp_path: Path,
) -> None:
    assert 2 * 10 + 30 + 1 == weighed(
        tmp_path, 'begin = 10\nunlisted = 1\n"tests/unit/test_a.py" = 30\n'
    )


def test_a_weight_of_a_file_that_is_not_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"does not run.*test_c"):
        weighed(tmp_path, 'begin = 10\nunlisted = 1\n"tests/kafka/test_c.py" = 30\n')


def test_every_limit_has_its_figure_and_holds() -> None:
    limits = house.read_budgets(house.BUDGETS.read_text("utf-8"), "limits")
    figures = {**house.weight_figures(ROOT), "user_words": house.user_words(ROOT)}
    assert set(figures) == set(limits)
    assert [] == house.find_past_limits(figures, limits)


def test_every_budget_has_its_figure(tmp_path: Path) -> None:
    budgets = house.read_budgets(house.BUDGETS.read_text("utf-8"))
    # Figures of any tree have the same names, and `make check` reads all of this one.
    write(tmp_path, {"src/keeplast/a.py": "", "tests/test_a.py": "", "docs/a.md": ""})
    figures = {**house.static_figures(tmp_path), **house.command_figures()}
    journeys = {name for name in budgets if name not in figures}
    expected = {f"{name.replace('-', '_')}_modules" for name in JOURNEYS}
    more = {"explains_union_modules", "clean_files_to_domain", "clean_rooms_returned_to"}
    assert expected | more == journeys
    assert house.JOURNEYS == tuple(JOURNEYS)


@pytest.mark.parametrize(
    ("rooms", "count"), [("", 0), ("a", 0), ("aab", 0), ("abba", 1), ("abab", 2), ("abcb", 1)]
)
def test_a_room_counts_each_time_that_it_is_come_back_to(rooms: str, count: int) -> None:
    assert count == returns(rooms)


def test_what_is_called_while_a_module_is_imported_is_not_entered(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "src/pkg/late.py": "from pkg.deep import made\nx = made()\ndef used(): return x\n",
            "src/pkg/deep.py": "def made(): return 1\n",
            "src/run.py": "def go():\n    import pkg.late\n    return pkg.late.used()\n",
        },
    )
    hook = Journey(f"{tmp_path / 'src' / 'pkg'}/")
    sys.path.insert(0, str(tmp_path / "src"))
    before = sys.getprofile()
    try:
        import run  # type: ignore[import-not-found]

        sys.setprofile(hook)
        try:
            found = run.go()
        finally:
            sys.setprofile(before)
    finally:
        sys.path.remove(str(tmp_path / "src"))
        for name in ("run", "pkg", "pkg.late", "pkg.deep"):
            sys.modules.pop(name, None)
    assert (1, ["late.py"]) == (found, list(hook.modules))


def test_a_clean_passes_from_the_command_to_the_swap(tmp_path: Path) -> None:
    out = tmp_path / "measured"
    tool = ROOT / "tools" / "journeys.py"
    subprocess.run([sys.executable, tool, "clean", "--out", out], check=True, capture_output=True)
    found = json.loads(out.read_text())
    assert {"cli/main.py", "run/round.py", "log/swap.py"} <= set(found["modules"])
    assert "cli/main.py" in found["files_to_domain"]
    assert "run/round.py" not in found["files_to_domain"]
    assert found["rooms_returned_to"] > 0
