"""The pages are true where it can be checked: links, commands, options, paths, scenarios."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import keeplast
from keeplast.cli.frame.lazy import TYPES, import_home
from keeplast.cli.main import HOMES, app
from keeplast.config.place_properties import WITH
from keeplast.errors import INSTALLING
from tools.house import MADE as MADE_BY_A_TOOL
from tools.house import count_words
from tools.reference.tables import CELL_CHARS_MAX

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
)
MADE = [page for page in PAGES if MADE_BY_A_TOOL in page.read_text("utf-8")]
TEXT_SUFFIXES = {".py", ".md", ".toml", ".yaml", ".java", ".xml", ".lock", ".json", ".properties"}
FOLDERS = ("src", "tests", "docs", "deploy", "examples", "tools", "benchmarks", ".ci")
README_LINES_MAX = 120
HOW_TO_WORDS_MAX = 900
HOW_TO = sorted((ROOT / "docs" / "how-to").glob("*.md"))
EXPLAINED = (
    "eligible, turn, set aside, shape, bucket, slot, kernel, chunk, grace, collect, owner, holder, "
    "fenced, lineage, erased by, acts, dating, marks, bound, group, wave, horizon, marker, "
    "key map, ratio, end, overdue, state"
)
"""What stands in outputs and pages and is not Kafka's everyday word."""
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
COMMAND = re.compile(
    r"\bkeeplast ((?:inspect|explain|plan|clean|demo|verify|export|status|run|delete-records|pack"
    r"|config|configure|copy|collect|repair|pause|detach|erase [a-z]+|hold [a-z]+|undo"
    r"|place [a-z]+|tier [a-z]+|attach [a-z]+|console)\b(?:(?!\bkeeplast )[^\n`|&])*)"
)
SINGLE_COMMANDS = [n for n, home in HOMES.items() if not isinstance(import_home(home), typer.Typer)]
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
# Directories of a machine, written so that this file does not contain them itself.
MACHINE_PATH = re.compile(r"(?<![\w./-])/(?:" + "home|root|work|Users" + r")/[\w.]")


def ids(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def heading_anchors(path: Path) -> set[str]:
    text = path.read_text("utf-8")
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    named = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return named | set(re.findall(r'<a id="([\w-]+)"></a>', text))


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(page.read_text("utf-8")):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        assert not anchor or anchor in heading_anchors(target), link


def test_the_page_that_errors_name_is_there() -> None:
    name, _, anchor = INSTALLING.partition("#")
    assert anchor in heading_anchors(ROOT / name)


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_named_files_of_the_repository_exist(page: Path) -> None:
    for name in re.findall(
        r"`((?:src|tests|docs|examples|tools|benchmarks)/[\w./-]+)`", page.read_text("utf-8")
    ):
        assert (ROOT / name).exists(), name


def test_every_module_that_the_architecture_names_is_there() -> None:
    page = (ROOT / "docs" / "contributing" / "architecture.md").read_text("utf-8")
    named = re.findall(r"`((?!src/)[a-z]+/[a-z_/]*\.py)`", page)
    assert 20 <= len(named)
    assert [] == [name for name in named if not (ROOT / "src" / "keeplast" / name).is_file()]


def test_index_reaches_every_page() -> None:
    reached = {ROOT / "README.md", ROOT / "docs" / "index.md"}
    waiting = list(reached)
    while waiting:
        page = waiting.pop()
        for link in LINK.findall(page.read_text("utf-8")):
            target = (page.parent / link.partition("#")[0]).resolve()
            is_new = target.suffix == ".md" and target.exists() and target not in reached
            if is_new:
                reached.add(target)
                waiting.append(target)
            elif target.is_dir():
                reached |= set(target.glob("*.md"))
    assert set() == set(PAGES) - reached


def test_the_site_lists_every_page_once_and_none_for_contributors() -> None:
    """MkDocs holds it too, but it is not there when tests run."""
    nav = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]
    listed = re.findall(r"^ +- (?:[^:#\n]+: )?(\S+\.md)$", nav, re.MULTILINE)
    docs = ROOT / "docs"
    pages = [path.relative_to(docs).as_posix() for path in docs.rglob("*.md")]
    assert sorted(listed) == sorted(p for p in pages if not p.startswith("contributing/"))


@pytest.mark.parametrize("name", SINGLE_COMMANDS)
def test_every_command_is_documented(name: str) -> None:
    text = (ROOT / "README.md").read_text("utf-8") + (ROOT / "docs/index.md").read_text("utf-8")
    assert f"keeplast {name}" in text


@cache
def known_options(*names: str) -> frozenset[str]:
    helped = CliRunner().invoke(app, [*names, "--help-all"], env={"COLUMNS": "200"})
    known = set(OPTION.findall(helped.output))
    return frozenset(known | set(TYPES) if WITH in known else known)


def test_the_python_page_documents_every_public_name_once() -> None:
    page = (ROOT / "docs" / "reference" / "python.md").read_text("utf-8")
    names = re.findall(r"^<!-- api: keeplast\.(\w+) -->$", page, re.MULTILINE)
    assert sorted(names) == sorted(set(keeplast.__all__) - {"__version__"})
    listed = page.partition("\n## Every public name")[2]
    assert [] == [name for name in names if f"`{name}`" not in listed]


@pytest.mark.parametrize("page", MADE, ids=ids(MADE))
def test_cells_of_pages_that_are_made_are_short(page: Path) -> None:
    rows = re.findall(r"^\| (.+) \|$", page.read_text("utf-8"), re.MULTILINE)
    cells = [cell for row in rows for cell in re.split(r"(?<!\\) ?\| ?", row)]
    assert [] == [cell for cell in cells if len(cell) > CELL_CHARS_MAX]


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_options_in_commands_exist(page: Path) -> None:
    group: Any = typer.main.get_command(app)
    for command in COMMAND.findall(page.read_text("utf-8")):
        found, names = group, []
        for word in command.split():
            if word not in getattr(found, "commands", {}):
                break
            found = found.commands[word]
            names.append(word)
        assert set() == set(OPTION.findall(command)) - known_options(*names), command


@pytest.mark.parametrize(
    "target",
    [
        "demo",
        "demo-tier",
        "test",
        "check",
        "test-kafka",
        "bench",
        "docs",
        "docs-serve",
        "release-check",
    ],
)
def test_make_lists_its_targets(target: str) -> None:
    done = subprocess.run(
        ["make", "--no-print-directory", "help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.search(rf"^  {target} +\S", done.stdout, re.MULTILINE)


def test_scenario_table_names_the_tests_there_are() -> None:
    tool = ROOT / "tools" / "fill_scenarios.py"
    done = subprocess.run([sys.executable, str(tool), "--check"], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_named_tests_exist(page: Path) -> None:
    for path, name in re.findall(r"`([\w/]+\.py)::(\w+)`", page.read_text("utf-8")):
        source = (ROOT / "tests" / path).read_text("utf-8")
        assert re.search(rf"^ *def {name}\(", source, re.MULTILINE), f"{path}::{name}"


def wanted_commands() -> list[str]:
    """Return the commands of the table of tasks, each way of one that has several, whole ones."""
    page = (ROOT / "docs" / "index.md").read_text("utf-8")
    table = page.partition("## I want to")[2].partition("\n## ")[0]
    ways = []
    for command in re.findall(r"`keeplast ([^`…]+)`", table.replace("\\|", "|")):
        several = re.search(r"\S+\|\S+", command)
        words = [] if several is None else several[0].split("|")
        ways += [command.replace(several[0], each) for each in words] if several else [command]
    assert 25 <= len(ways)
    return ways


@pytest.mark.parametrize("command", wanted_commands())
def test_a_command_that_a_reader_wants_is_whole(command: str) -> None:
    """Nothing that it must have is missing where capital letters stand for what is his."""
    found: Any = typer.main.get_command(app)
    words = command.replace("'", "").split()
    while words and words[0] in getattr(found, "commands", {}):
        found = found.commands[words.pop(0)]
    numbers = {"N": "1", "MS": "1"}
    found.make_context("keeplast", [numbers.get(each, each) for each in words])


def test_every_scenario_of_the_tier_has_a_test() -> None:
    page = (ROOT / "docs" / "contributing" / "design" / "tiering-scenarios.md").read_text("utf-8")
    rows = re.findall(r"^\| ((?:ST|I)-\d+) \|.*\| *(.*?) *\|$", page, re.MULTILINE)
    ids_there = {scenario for scenario, _ in rows}
    assert {f"ST-{n}" for n in range(1, 24)} <= ids_there
    assert {f"I-{n}" for n in range(1, 25) if n not in (12, 13)} <= ids_there
    assert [] == [scenario for scenario, tests in rows if not tests]


def test_every_scenario_under_live_brokers_is_on_the_page() -> None:
    page = (ROOT / "docs" / "contributing" / "design" / "attached-scenarios.md").read_text("utf-8")
    found = set(re.findall(r"^\| ([A-Z]+-?\d+) \|", page, re.MULTILINE))
    families = {"P": 19, "C": 9, "Z": 6, "R": 4, "AT-": 38}
    assert {f"{each}{n}" for each, last in families.items() for n in range(1, last + 1)} <= found


def test_no_path_of_a_machine_is_written_down() -> None:
    texts = [
        path
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.suffix in TEXT_SUFFIXES or (path.name == "run" and path.is_file())
    ]
    # In a worktree ".git" is a file, and says where the repository lies.
    texts += [path for path in ROOT.iterdir() if path.is_file() and path.name != ".git"]
    found = [
        f"{path.relative_to(ROOT)}: {match}"
        for path in texts
        for match in MACHINE_PATH.findall(path.read_text("utf-8", "replace"))
    ]
    assert found == []


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_named_extras_exist(page: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for names in re.findall(r"(?:keeplast|'\.)\[([a-z0-9,]+)\]'", page.read_text("utf-8")):
        assert set() == set(names.split(",")) - set(project["optional-dependencies"]), names


@pytest.mark.parametrize("word", EXPLAINED.split(", "))
def test_words_of_the_screens_are_explained(word: str) -> None:
    page = (ROOT / "docs" / "reference" / "glossary.md").read_text("utf-8")
    words = re.findall(r"^\| ([^|]+) \|", page, re.MULTILINE)
    assert [] != [each for each in words if re.search(rf"[*`]{word}[*`]", each)]


@pytest.mark.parametrize("page", HOW_TO, ids=ids(HOW_TO))
def test_a_how_to_page_is_short(page: Path) -> None:
    assert count_words(page.read_text("utf-8")) <= HOW_TO_WORDS_MAX


def test_the_readme_is_a_screen_and_a_half() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= README_LINES_MAX


def test_the_tool_that_pages_make_a_versioned_topic_with_works(tmp_path: Path) -> None:
    tool = ROOT / "tools" / "make_versions.py"
    subprocess.run([sys.executable, tool, tmp_path], check=True)
    assert list((tmp_path / "prices-0").glob("*.log"))


PUBLIC_NAME = re.compile(r"(?<![\w./-])keeplast\.([A-Za-z_]\w*)")
NOT_PYTHON = {"toml", "json", "rules", "service", "timer", "io", "tar", "point", "__path__"}
"""Names of files, units and PostgreSQL's messages that begin as ours do, and every package's."""
METHOD = re.compile(r"`([A-Z]\w+)\.([a-z_]\w*)\(")
GONE_GROUPS = ("attach", "tier", "erasure")
IN_PROSE = re.compile(rf"`(?:keeplast )?({'|'.join(GONE_GROUPS)}) ([a-z]+)[^`]*`")
USERS_PAGES = [
    page
    for page in PAGES
    if page.is_relative_to(ROOT / "docs") and "contributing" not in page.parts
]


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_names_of_the_package_exist(page: Path) -> None:
    modules = {path.stem for path in (ROOT / "src" / "keeplast").iterdir()}
    names = set(PUBLIC_NAME.findall(page.read_text("utf-8")))
    assert set() == names - set(keeplast.__all__) - modules - NOT_PYTHON


def own_classes() -> dict[str, set[str]]:
    """Return the names that the bodies of our modules' classes define, by the classes' names."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "src" / "keeplast").rglob("*.py"):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, set()).update(
                    each.name for each in node.body if isinstance(each, ast.FunctionDef)
                )
    return found


def test_methods_that_pages_name_exist() -> None:
    classes, missing = own_classes(), []
    for page in PAGES:
        for name, method in METHOD.findall(page.read_text("utf-8")):
            public = getattr(keeplast, name) if name in keeplast.__all__ else None
            known = classes.get(name, {method}) | set(dir(public) if public is not None else ())
            if method not in known:
                missing.append(f"{page.relative_to(ROOT)}: {name}.{method}")
    assert [] == missing


@pytest.mark.parametrize("page", USERS_PAGES, ids=ids(USERS_PAGES))
def test_commands_in_prose_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    assert [] == [" ".join(each) for each in IN_PROSE.findall(text)]
    for group, word in re.findall(r"`(?:keeplast )?(hold|erase|place) ([a-z]+)\b[^`]*`", text):
        found: Any = typer.main.get_command(app)
        assert word in found.commands[group].commands, f"{group} {word}"
