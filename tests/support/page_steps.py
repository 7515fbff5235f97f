"""What a page lets its reader type, and a place in which a test types it.

A step is a line of a ``console`` block that begins with ``$``, or any line of an ``sh`` block;
what follows a ``$`` line is what the page says is printed. Steps are run by ``bash`` as they stand,
so a page cannot show what would not work. Only ``keeplast`` is stood in for: it is the code of this
tree, on threads, because a page's reader may wait for Spark and a test should not, and its process
is forked from one that has loaded it (``tests/support/forked_keeplast.py``).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from tests.support.forked_keeplast import ASK, begin
from tests.support.forked_keeplast import ROOT as ROOT

BLOCK = re.compile(r"^```(console|sh)\n(.*?)^```", re.DOTALL | re.MULTILINE)
COLUMNS = "100"
SECONDS_MAX = 600.0
KEEPLAST = """\
#!/usr/bin/env bash
case "$1" in plan|clean) set -- "$@" --runner local;; esac
exec "{python}" -IS -c '{ask}' "{socket}" '{script}' keeplast "$@"
"""


class Step(Struct, frozen=True):
    """One command as the page has it, and the lines that it is said to print."""

    command: str
    shown: tuple[str, ...] = ()


class Done(Struct, frozen=True):
    """How a command ended."""

    code: int
    out: str
    err: str


def read_steps(text: str) -> list[Step]:
    """Return the steps of a page, or of a part of one, in its order."""
    steps: list[Step] = []
    for kind, body in BLOCK.findall(text):
        if kind == "sh":
            lines = [line.partition(" #")[0].rstrip() for line in body.splitlines()]
            steps += [Step(line) for line in lines if line]
            continue
        for step in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
            command, *shown = step.splitlines()
            steps.append(Step(command, tuple(shown)))
    return steps


def read_section(page: Path, mark: str) -> str:
    """Return what a page has between ``<!-- MARK... -->`` and ``<!-- end -->``."""
    found = re.search(
        rf"<!-- {re.escape(mark)}.*?-->\n(.*?)<!-- end -->", page.read_text("utf-8"), re.DOTALL
    )
    assert found is not None, f"{page.name} has no {mark!r}"
    return found[1]


def keeplast_program(script: str = "from keeplast.cli.main import main; main()") -> str:
    """Return what pages start as ``keeplast``, which runs ``script``."""
    return KEEPLAST.format(python=sys.executable, ask=ASK, socket=begin(), script=script)


class PageShell:
    """Runs steps in a directory, with programs of the test's own first on the PATH."""

    def __init__(self, root: Path, *, programs: Mapping[str, str] | None = None) -> None:
        """``root`` is where commands run; ``programs`` are scripts by name."""
        self.root = root
        self.variables: dict[str, str] = {}
        self._bin = root / "bin-of-the-test"
        self._bin.mkdir(parents=True)
        scripts = {"keeplast": keeplast_program(), **(programs or {})}
        for name, script in scripts.items():
            path = self._bin / name
            path.write_text(script)
            path.chmod(0o755)

    def run(self, command: str) -> Done:
        """Run one line to its end; it may be several commands."""
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("KEEPLAST_")
        } | {
            "PATH": f"{self._bin}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "src"),
            "COLUMNS": COLUMNS,
            "NO_COLOR": "1",
            "PYTHONUTF8": "1",
            **self.variables,
        }  # fmt: skip
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command],
            cwd=self.root, env=environment, capture_output=True, text=True, check=False,
            timeout=SECONDS_MAX,
        )  # fmt: skip
        # Pages are written as seen from the place where their commands run.
        return Done(done.returncode, done.stdout.replace(f"{self.root}/", ""), done.stderr)

    def follow(self, steps: Sequence[Step]) -> None:
        """Run all of them; each must succeed and print what the page shows, if it shows any."""
        for step in steps:
            done = self.run(step.command)
            assert 0 == done.code, f"{step.command}\n{done.out}{done.err}"
            if step.shown:
                printed = [line.rstrip() for line in done.out.splitlines()]
                assert list(step.shown) == printed, step.command
