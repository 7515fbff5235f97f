"""Lints pages, public docstrings, helps and messages for plain English; Vale holds the rules.

    python tools/check_prose.py              each finding on a line; ends with 1 where one is over
    python tools/check_prose.py PATH...      the same of these files and folders alone
    python tools/check_prose.py --count      how many findings each area has

The rules lie in ``tools/prose/styles/keeplast``: turns that are not plain, sentences of more than
28 words, table cells of more than 160 characters, and for how-to pages a Flesch-Kincaid grade of at
most 9. An area of ``tools/budgets.toml`` may have as many findings as stand there, and that number
only goes down; an area that is not there has none.

The rule that a reader must not break: a text of the code stands in what is linted on its own line,
so that a finding names the line to change. ``tools/prose/bad.md`` breaks each rule; a run in which
a rule does not find it there fails.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

ROOT = Path(__file__).resolve().parent.parent
VALE = ROOT / "build" / "bin" / "vale"
SECONDS_MAX = 300
PAGES = ("*.md", "docs/**/*.md", "examples/**/*.md", "benchmarks/*.md", "deploy/**/*.md")
BAD = ROOT / "tools" / "prose" / "bad.md"
RULES = {"Turns", "Sentences", "Cells", "Grade"}
USERS = ("docs/tutorials/", "docs/how-to/", "docs/reference/", "docs/explanation/")
# A literal, a reference of reStructuredText: names, not words.
NAMES = re.compile(r":[a-z]+:`[^`]*`|``[^`]*``|`[^`]*`")
NAME = "`x`"
HELPS = ("help", "epilog", "short_help")


class Finding(Struct, frozen=True):
    """One place that a rule does not allow."""

    path: str
    line: int
    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.message}"


def area_of(path: str) -> str:
    """Return the area of a file by its path from the root: a line of the budgets."""
    if path.startswith("src/"):
        return "src"
    if path.startswith(USERS) or path in ("README.md", "docs/index.md"):
        return "users"
    return "contributors"


def texts_of(source: str) -> Iterator[tuple[int, str]]:
    """Yield the public docstrings, messages and helps of a module, each with its first line.

    A message is a string in the arguments of a raised error, and a help that of an argument with
    such a name; the values within are left out.
    """
    tree = ast.parse(source)
    yield from _docstrings(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            yield from _strings(node.exc.args)
        elif isinstance(node, ast.keyword) and node.arg in HELPS:
            yield from _strings([node.value])


def _docstrings(node: ast.AST) -> Iterator[tuple[int, str]]:
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    if not isinstance(node, kinds):
        return
    name = getattr(node, "name", "")
    if name.startswith("_") and not name.endswith("__"):
        return
    first = node.body[0] if node.body else None
    if isinstance(first, ast.Expr) and ast.get_docstring(node) is not None:
        yield first.lineno, ast.get_docstring(node) or ""
    if isinstance(node, ast.Module | ast.ClassDef):
        for each in node.body:
            yield from _docstrings(each)


def _strings(nodes: Sequence[ast.expr]) -> Iterator[tuple[int, str]]:
    for node in nodes:
        text = wording(node, NAME)
        if text.replace(NAME, ""):
            yield node.lineno, text


def wording(node: ast.expr, hole: str) -> str:
    """Return a message as it is written, with ``hole`` for each value that it fills in."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(wording(each, hole) for each in node.values)
    if isinstance(node, ast.BinOp):
        return wording(node.left, hole) + wording(node.right, hole)
    return hole


def laid_out(source: str) -> str:
    """Return the texts of a module as Markdown, each on its own line of the module."""
    lines: list[str] = []
    for number, text in sorted(texts_of(source)):
        if len(lines) < number:
            lines += [""] * (number - len(lines) - 1)
        else:
            lines.append("")
        lines += NAMES.sub(NAME, text).splitlines()
    return "\n".join(lines) + "\n"


def collect(paths: Sequence[str], folder: Path) -> list[Path]:
    """Write the texts to ``folder`` by their paths from the root, and return its files."""
    wanted = [Path(each).resolve() for each in paths]
    found = []
    for path in sorted({page for pattern in PAGES for page in ROOT.glob(pattern)}):
        found.append((path, path.read_text("utf-8")))
    for path in sorted((ROOT / "src").rglob("*.py")):
        found.append((path, laid_out(path.read_text("utf-8"))))
    written = []
    for path, text in found:
        if wanted and not any(path == each or each in path.parents for each in wanted):
            continue
        target = folder / path.relative_to(ROOT)
        target = target if target.suffix == ".md" else target.with_name(f"{target.name}.md")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, "utf-8")
        written.append(target)
    # Where how-to pages lie, so that the grade holds.
    target = folder / "bad" / "docs" / "how-to" / BAD.name
    target.parent.mkdir(parents=True)
    shutil.copyfile(BAD, target)
    return [*written, target]


def lint(files: Sequence[Path], folder: Path) -> list[Finding]:
    """Return what Vale finds in these files, in their order."""
    done = subprocess.run(
        [str(VALE), "--no-exit", "--output=JSON", f"--config={ROOT / 'tools/prose/vale.ini'}",
         *map(str, files)],
        capture_output=True, text=True, check=False, timeout=SECONDS_MAX,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"vale ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return sorted(
        (
            Finding(
                re.sub(r"\.py\.md$", ".py", str(Path(name).relative_to(folder))),
                alert["Line"],
                alert["Check"].removeprefix("keeplast."),
                alert["Message"],
            )
            for name, alerts in json.loads(done.stdout).items()
            for alert in alerts
        ),
        key=lambda each: (each.path, each.line),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Lint, show and compare with the budgets."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*")
    parser.add_argument("--count", action="store_true", help="only show the findings of each area")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        everything = lint(collect(given.paths, Path(folder)), Path(folder))
    proven = {each.rule for each in everything if each.path.startswith("bad/")}
    if proven != RULES:
        raise SystemExit(f"a rule finds nothing in {BAD.name}. rules={sorted(RULES - proven)}")
    found = [each for each in everything if not each.path.startswith("bad/")]
    counts = Counter(area_of(each.path) for each in found)
    allowed = tomllib.loads((ROOT / "tools/budgets.toml").read_text("utf-8")).get("prose", {})
    over = {area for area, count in counts.items() if count > allowed.get(area, 0)}
    if not given.count:
        shown = found if given.paths else [each for each in found if area_of(each.path) in over]
        print("\n".join(map(str, shown)))
    print("\n".join(f"{area}: {counts[area]}, allowed {allowed.get(area, 0)}"
                    for area in sorted({*counts, *allowed})))  # fmt: skip
    slack = {area for area, most in allowed.items() if not given.paths and counts[area] < most}
    for area in sorted(slack):
        print(f"error: {area} has {counts[area]} findings and may have {allowed[area]}: write the "
              "smaller number in tools/budgets.toml", file=sys.stderr)  # fmt: skip
    return 1 if over or slack else 0


if __name__ == "__main__":
    sys.exit(main())
