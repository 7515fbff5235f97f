"""Measures how large the house is, and holds it against the budgets in ``tools/budgets.toml``.

    python tools/house.py               the table; ends with 1 where a figure is out of its budget
    python tools/house.py --ratchet     lower the budgets to the figures; none is ever raised
    python tools/house.py --no-journeys without the journeys, which take most of the time

Statements are ``ast.stmt`` without imports and strings that stand alone (docstrings). A budget may
only go down: a figure that lies more than one per cent below it is out of it too, until it is
lowered. Raising one needs a decision page. Below a limit a figure may move.

What ``make test`` takes is the sum of the weights that ``tests/weights.toml`` declares; a run
with ``--weights`` holds each file to its weight.

The rule that a reader must not break: each figure is of the files as they lie there, and by nothing
else: no figure depends on the machine, the day or what was run before.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import statistics
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BUDGETS = ROOT / "tools" / "budgets.toml"
SMALL_LINES = 60
"""A module of fewer lines that only one other imports is better a part of that one."""
SLACK_PERCENT = 1
MADE = "<!-- Written by tools/"
"""What is in a page that is made of the code; its words are not a writer's."""
REMEDIES = {
    "make_test_processor_seconds": "make the tests cheaper, or mark what repeats another test "
    "(CONTRIBUTING.md)",
    "user_words": "say it in fewer words, as a table or in a message, or move what only a "
    "contributor needs to docs/contributing",
}
"""How a figure comes below its limit."""
EXPLAINS = ("explain", "explain-store", "explain-cluster")
JOURNEYS = ("clean", *EXPLAINS)
JOURNEY_SECONDS_MAX = 600


def count_statements(tree: ast.AST) -> int:
    """Return the statements of a module, without imports and strings that stand alone."""
    return sum(
        isinstance(each, ast.stmt)
        and not isinstance(each, ast.Import | ast.ImportFrom)
        and not _is_string(each)
        for each in ast.walk(tree)
    )


def _is_string(statement: ast.stmt) -> bool:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def count_functions(tree: ast.AST) -> int:
    """Return the functions and methods of a module, those within others too."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return sum(isinstance(each, kinds) for each in ast.walk(tree))


def imported_names(tree: ast.AST) -> set[str]:
    """Return the names that a module imports, ``from a import b`` as ``a`` and as ``a.b``."""
    found: set[str] = set()
    for each in ast.walk(tree):
        if isinstance(each, ast.Import):
            found |= {alias.name for alias in each.names}
        elif isinstance(each, ast.ImportFrom) and each.module is not None and not each.level:
            found.add(each.module)
            found |= {f"{each.module}.{alias.name}" for alias in each.names}
    return found


def small_modules(package: Path, trees: Mapping[Path, ast.AST]) -> list[str]:
    """Return the modules of fewer than 60 lines that exactly one other module imports."""
    names = {
        path: ".".join(path.relative_to(package.parent).with_suffix("").parts) for path in trees
    }
    imported = {path: imported_names(tree) for path, tree in trees.items()}
    return sorted(
        names[path]
        for path in trees
        if path.name != "__init__.py"
        and len(path.read_text("utf-8").splitlines()) < SMALL_LINES
        and sum(names[path] in imported[other] for other in trees if other != path) == 1
    )


def static_figures(root: Path) -> dict[str, int]:
    """Return what the files of a checkout say by themselves."""
    package = root / "src" / "keeplast"
    sources = {path: ast.parse(path.read_text("utf-8")) for path in sorted(package.rglob("*.py"))}
    tests = [ast.parse(path.read_text("utf-8")) for path in (root / "tests").rglob("*.py")]
    lines = [len(path.read_text("utf-8").splitlines()) for path in sources]
    return {
        "src_statements": sum(map(count_statements, sources.values())),
        "tests_statements": sum(map(count_statements, tests)),
        "modules": len(sources),
        "functions": sum(map(count_functions, sources.values())),
        "largest_module_lines": max(lines),
        "median_module_lines": round(statistics.median(lines)),
        "small_modules": len(small_modules(package, sources)),
        "docs_words": sum(
            len(path.read_text("utf-8").split()) for path in (root / "docs").rglob("*.md")
        ),
        "user_words": user_words(root),
    }


def user_words(root: Path) -> int:
    """Return the words of the users' pages, without those that are made of the code.

    Words are what has a letter or a digit; code, outputs and comments of a page do not count.
    """
    docs = root / "docs"
    texts = [
        path.read_text("utf-8")
        for path in docs.rglob("*.md")
        if path.relative_to(docs).parts[0] != "contributing"
    ]
    return sum(count_words(text) for text in texts if MADE not in text)


def count_words(page: str) -> int:
    """Return the words of a page of Markdown that are neither code nor comments."""
    prose = re.sub(r"^```.*?^```|<!--.*?-->", "", page, flags=re.DOTALL | re.MULTILINE)
    return sum(any(map(str.isalnum, word)) for word in prose.split())


def weight_figures(root: Path) -> dict[str, int]:
    """Return what ``make test`` takes by the declared weights of the test files."""
    from tests.support.processor_time import read_weights, weight_of_all

    weights = read_weights((root / "tests" / "weights.toml").read_text("utf-8"))
    files = {path.relative_to(root).as_posix() for path in short_form_files(root)}
    unknown = sorted(name for name in weights if "/" in name and name not in files)
    if unknown:
        raise ValueError(f"a weight of a file that make test does not run. files={unknown}")
    return {"make_test_processor_seconds": round(weight_of_all(weights, files))}


def short_form_files(root: Path) -> list[Path]:
    """Return the test files that ``make test`` imports."""
    from tests.support.processor_time import OUTSIDE

    tests = root / "tests"
    return [
        path
        for path in sorted(tests.rglob("test_*.py"))
        if path.relative_to(tests).parts[0] not in OUTSIDE
    ]


def option_counts(group: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], int]:
    """Return for each leaf command of a click group the options that its help shows.

    Without ``--help`` itself, hidden options and arguments.
    """
    import click

    found: dict[tuple[str, ...], int] = {}
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if hasattr(command, "list_commands"):
            found |= option_counts(command, (*path, name))
        else:
            found[*path, name] = sum(
                each.param_type_name == "option"
                and each.name not in ("help", "help_all")
                and not getattr(each, "hidden", False)
                for each in command.get_params(click.Context(command))
            )
    return found


def _leaves(group: Any) -> Iterable[Any]:
    for each in group.commands.values():
        yield from _leaves(each) if hasattr(each, "commands") else (each,)


def command_figures() -> dict[str, int]:
    """Return how many commands and options an operator meets."""
    import typer

    from keeplast.cli.main import app

    found = typer.main.get_command(app)
    counts = option_counts(found)
    return {
        "leaf_commands": len(counts),
        "option_rows": sum(counts.values()),
        "most_options_of_a_command": max(counts.values()),
        "most_options_shown": max(len(each.shown_options()) for each in _leaves(found)),
    }


def journey_figures() -> dict[str, int]:
    """Return how far commands go; each journey is measured by a process of its own."""
    found = {name: _measured(name) for name in JOURNEYS}
    entered = {name: set(each["modules"]) for name, each in found.items()}
    explains = [entered[name] for name in EXPLAINS]
    return {
        **{f"{name.replace('-', '_')}_modules": len(each) for name, each in entered.items()},
        "explains_union_modules": len(set.union(*explains)),
        "explains_common_modules": len(set.intersection(*explains)),
        "clean_files_to_domain": len(found["clean"]["files_to_domain"]),
        "clean_rooms_returned_to": int(found["clean"]["rooms_returned_to"]),
    }


def _measured(name: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "measured"
        command = [sys.executable, str(ROOT / "tools" / "journeys.py"), name, "--out", str(out)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=JOURNEY_SECONDS_MAX, check=False,
            cwd=ROOT,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"the journey {name} cannot be measured:\n{done.stderr}")
        return dict(json.loads(out.read_text("utf-8")))


def read_budgets(text: str, table: str = "budgets") -> dict[str, int]:
    """Return the budgets, or the limits, by figure; ValueError for anything but whole numbers."""
    found = tomllib.loads(text).get(table, {})
    for name, value in found.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ValueError(f"a budget is a whole number. name={name} value={value!r}")
    return dict(found)


def find_problems(figures: Mapping[str, int], budgets: Mapping[str, int]) -> list[str]:
    """Return what is out of its budget, a sentence each; what has none is only shown."""
    found = []
    for name, budget in budgets.items():
        if name not in figures:
            found.append(f"there is no such figure: take its budget out. name={name}")
            continue
        figure, slack = figures[name], budget * SLACK_PERCENT // 100
        if figure > budget:
            found.append(
                f"{name} is {figure}, above its budget of {budget}: make it smaller, or raise the "
                "budget in tools/budgets.toml with a decision page that says why."
            )
        elif figure < budget - slack:
            found.append(
                f"{name} is {figure}, below its budget of {budget}: a budget only goes down, so "
                f"write {name} = {figure} (python tools/house.py --ratchet)."
            )
    return found


def find_past_limits(figures: Mapping[str, int], limits: Mapping[str, int]) -> list[str]:
    """Return the figures that are past their limit, a sentence each."""
    return [
        f"{name} is {figures[name]}, above its limit of {limit}: "
        f"{REMEDIES.get(name, 'make it smaller')}."
        for name, limit in limits.items()
        if figures[name] > limit
    ]


def ratchet(text: str, figures: Mapping[str, int]) -> str:
    """Return the budgets' file with each budget lowered to its figure; none is raised."""

    def lower(line: re.Match[str]) -> str:
        name, budget = line["name"], int(line["budget"].replace("_", ""))
        return f"{line['head']}{min(figures.get(name, budget), budget)}"

    return re.sub(
        r"^(?P<head>(?P<name>[a-z_]+)\s*=\s*)(?P<budget>[0-9_]+)", lower, text, flags=re.MULTILINE
    )


def table(figures: Mapping[str, int], budgets: Mapping[str, int]) -> Iterable[str]:
    """Yield the lines of the table."""
    yield f"{'figure':<28}{'now':>8}{'budget':>8}"
    for name, figure in figures.items():
        yield f"{name:<28}{figure:>8}{budgets.get(name, ''):>8}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, show and compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ratchet", action="store_true", help="lower the budgets to the figures")
    parser.add_argument("--no-journeys", action="store_true", help="leave the journeys out")
    given = parser.parse_args(arguments)
    text = BUDGETS.read_text("utf-8")
    figures = {**static_figures(ROOT), **command_figures(), **weight_figures(ROOT)}
    known, limits = read_budgets(text), read_budgets(text, "limits")
    if given.no_journeys:
        known = {name: value for name, value in known.items() if name in figures}
    else:
        figures |= journey_figures()
    print("\n".join(table(figures, {**known, **limits})))
    if given.ratchet:
        BUDGETS.write_text(ratchet(text, figures), "utf-8")
        known = {name: min(value, figures.get(name, value)) for name, value in known.items()}
    problems = find_problems(figures, known) + find_past_limits(figures, limits)
    for each in problems:
        print(f"error: {each}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "src"), str(ROOT)]
    sys.exit(main())
