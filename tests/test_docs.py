"""The pages tell the truth where it can be checked: links, commands, options, paths, scenarios."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from keeplast.cli.frame.lazy import TYPES, import_home
from keeplast.cli.main import HOMES, app
from keeplast.config.place_properties import WITH
from keeplast.errors import INSTALLING

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
)
TEXT_SUFFIXES = {".py", ".md", ".toml", ".yaml", ".java", ".xml", ".lock", ".json", ".properties"}
FOLDERS = ("src", "tests", "docs", "deploy", "examples", "tools", "benchmarks", ".ci")
README_LINES_MAX = 120
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
    r"|place [a-z]+|tier [a-z]+|attach [a-z]+|console)\b[^\n`|&]*)"
)
SINGLE_COMMANDS = [n for n, home in HOMES.items() if not isinstance(import_home(home), typer.Typer)]
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
# Directories of a machine, written so that this file does not contain them itself.
MACHINE_PATH = re.compile(r"(?<![\w./-])/(?:" + "home|root|work|Users" + r")/[\w.]")


def ids(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def heading_anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", path.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


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


@pytest.mark.parametrize("name", SINGLE_COMMANDS)
def test_every_command_is_documented(name: str) -> None:
    text = (ROOT / "README.md").read_text("utf-8") + (ROOT / "docs/index.md").read_text("utf-8")
    assert f"keeplast {name}" in text


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_options_in_commands_exist(page: Path) -> None:
    for command in COMMAND.findall(page.read_text("utf-8")):
        found: Any = typer.main.get_command(app)
        names = []
        for word in command.split():
            if word not in getattr(found, "commands", {}):
                break
            found = found.commands[word]
            names.append(word)
        helped = CliRunner().invoke(app, [*names, "--help-all"], env={"COLUMNS": "200"})
        known = set(OPTION.findall(helped.output))
        if WITH in known:
            known |= set(TYPES)
        assert set() == set(OPTION.findall(command)) - known, command


@pytest.mark.parametrize(
    "target", ["demo", "demo-tier", "test", "check", "test-kafka", "bench", "bare"]
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


def test_every_scenario_under_live_brokers_is_told_of() -> None:
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


def test_the_readme_is_a_screen_and_a_half() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= README_LINES_MAX


def test_the_tool_that_pages_make_a_versioned_topic_with_works(tmp_path: Path) -> None:
    tool = ROOT / "tools" / "make_versions.py"
    subprocess.run([sys.executable, tool, tmp_path], check=True)
    assert list((tmp_path / "prices-0").glob("*.log"))
