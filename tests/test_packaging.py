"""What is shipped, what it needs, and what importing it costs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib import metadata
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
FOR_USERS = EXTRAS.keys() - {"dev", "docs", "release"}
ASKED = {*PROJECT["project"]["dependencies"], *chain(*(EXTRAS[each] for each in FOR_USERS))}
"""What a user's environment gets."""

IMPORTED_AS = {"pycryptodome": "crypto"}
"""Projects whose package has another name."""

COMES_WITH = {"numba": "llvmlite", "pyspark": "py4j"}
"""Imported too, in the version that its user brings along; asking for one would only disagree."""


def run_python(*arguments: str) -> str:
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def canonical(name: str) -> str:
    """Return a name as an index compares it: spellings differ in case, dots and dashes."""
    return re.sub(r"[-_.]+", "-", name).lower()


def requirement_names(requirements: Iterable[str]) -> set[str]:
    names = {canonical(re.split(r"[<>=!~\[; ]", requirement)[0]) for requirement in requirements}
    return names - {"keeplast"}  # An extra of extras.


def test_version_stands_in_one_place() -> None:
    """The installed metadata has what the package had when the environment was made."""
    import keeplast

    dynamic = PROJECT["tool"]["setuptools"]["dynamic"]["version"]
    assert (["version"], {"attr": "keeplast.__version__"}) == (
        PROJECT["project"]["dynamic"],
        dynamic,
    )
    assert keeplast.__version__ == metadata.version("keeplast")


def test_every_dependency_of_a_user_has_an_argued_line() -> None:
    page = (ROOT / "docs" / "contributing" / "dependencies.md").read_text("utf-8")
    reasons = dict(re.findall(r"^\| `(.+?)` \| .+ \| (.+) \|$", page, re.MULTILINE))
    assert {*ASKED, *PROJECT["build-system"]["requires"]} == reasons.keys()
    unbounded = {each for each in reasons if re.fullmatch(r"[^<>=]+>=[\d.]+", each)}
    assert unbounded == {each for each, reason in reasons.items() if reason.startswith("none: ")}


def test_extras_on_the_install_page_are_those_there_are() -> None:
    page = (ROOT / "docs" / "how-to" / "install.md").read_text("utf-8")
    assert set(re.findall(r"^\| `(\w+)` \| .* \| .* \|$", page, re.MULTILINE)) == FOR_USERS


def test_the_text_for_an_index_needs_no_repository() -> None:
    """Links and images of a repository lead nowhere there."""
    text = (ROOT / PROJECT["project"]["readme"]["file"]).read_text("utf-8")
    assert [] == re.findall(r"\]\([^)]*\)|!\[|<img|```mermaid", text)


def test_every_dependency_is_pinned_for_the_checks() -> None:
    lines = (ROOT / "requirements.lock").read_text("utf-8").splitlines()
    pinned = {canonical(line.split("==")[0]) for line in lines if not line.startswith("#")}
    wanted = requirement_names([*ASKED, *chain(*EXTRAS.values())])
    assert set() == wanted - pinned
    assert all("==" in line for line in lines if not line.startswith("#"))


def test_every_import_of_another_project_is_declared() -> None:
    declared = requirement_names(ASKED)
    declared |= {COMES_WITH[name] for name in COMES_WITH.keys() & declared}
    declared |= {IMPORTED_AS[name] for name in IMPORTED_AS.keys() & declared}
    imported: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported.add(node.module.split(".")[0])
    foreign = imported - set(sys.stdlib_module_names) - {"keeplast"}
    assert set() == {canonical(name) for name in foreign} - declared


def test_local_runner_imports_no_spark() -> None:
    code = "import keeplast.run.coordinator, keeplast.run.local_runner, sys; print(*sys.modules)"
    assert "pyspark" not in run_python("-c", code).split()


def test_module_starts_as_the_command_does() -> None:
    assert "demo" in run_python("-m", "keeplast", "--help")


def test_every_file_below_the_package_is_shipped() -> None:
    import keeplast

    package = Path(keeplast.__file__).parent
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["keeplast"]
    shipped = {path for pattern in patterns for path in package.glob(pattern) if path.is_file()}
    there = {path for path in package.rglob("*") if path.is_file()}
    assert {path for path in there if path.suffix not in (".py", ".pyc")} == shipped
    samples = [path.stat().st_size for path in there if package / "samples" in path.parents]
    assert (20 < len(samples), sum(samples) < 100_000) == (True, True)


@pytest.mark.parametrize("name", ["LICENSE", "README.md", "CHANGELOG.md", "CONTRIBUTING.md"])
def test_root_has_what_a_visitor_looks_for(name: str) -> None:
    assert (ROOT / name).read_text("utf-8").strip()


def test_license_is_the_declared_one() -> None:
    assert PROJECT["project"]["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text("utf-8")[:200]
