"""What is shipped, what it needs, and what importing it costs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
IMPORTED_AS = {"pycryptodome": "crypto"}
"""Projects whose package has another name."""

COMES_WITH = {"numba": "llvmlite", "pyspark": "py4j"}
"""Imported too, in the version that its user brings along; asking for one would only disagree."""


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


def canonical(name: str) -> str:
    """Return a name as an index compares it: spellings differ in case, dots and dashes."""
    return re.sub(r"[-_.]+", "-", name).lower()


def requirement_names(requirements: list[str]) -> set[str]:
    return {canonical(re.split(r"[<>=!~\[; ]", requirement)[0]) for requirement in requirements}


def test_version_is_the_same_everywhere() -> None:
    import keeplast

    assert PROJECT["project"]["version"] == keeplast.__version__ == metadata.version("keeplast")


def test_every_dependency_is_pinned_for_the_checks() -> None:
    lines = (ROOT / "requirements.lock").read_text("utf-8").splitlines()
    pinned = {canonical(line.split("==")[0]) for line in lines if not line.startswith("#")}
    project = PROJECT["project"]
    wanted = requirement_names(project["dependencies"])
    for extra in project["optional-dependencies"].values():
        wanted |= requirement_names(extra)
    assert set() == wanted - pinned
    assert all("==" in line for line in lines if not line.startswith("#"))


def test_every_import_of_another_project_is_declared() -> None:
    project = PROJECT["project"]
    declared = requirement_names(project["dependencies"])
    for extra in ("spark", "s3", "tier", "cluster", "console"):
        declared |= requirement_names(project["optional-dependencies"][extra])
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
    loaded = run_python(
        "import keeplast.run.coordinator, keeplast.run.local_runner, sys; print(*sys.modules)"
    ).split()
    assert "pyspark" not in loaded


def test_module_starts_as_the_command_does() -> None:
    command = [sys.executable, "-m", "keeplast", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "demo" in done.stdout


def test_types_and_samples_are_part_of_the_package() -> None:
    import keeplast

    package = Path(keeplast.__file__).parent
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["keeplast"]
    shipped = {path for pattern in patterns for path in package.glob(pattern) if path.is_file()}
    assert package / "py.typed" in shipped
    samples = {path for path in (package / "samples").rglob("*") if path.is_file()}
    assert set() == samples - shipped
    assert sum(path.stat().st_size for path in samples) < 100_000


@pytest.mark.parametrize("name", ["LICENSE", "README.md", "CHANGELOG.md", "CONTRIBUTING.md"])
def test_root_has_what_a_visitor_looks_for(name: str) -> None:
    assert (ROOT / name).read_text("utf-8").strip()


def test_license_is_the_declared_one() -> None:
    assert PROJECT["project"]["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text("utf-8")[:200]
