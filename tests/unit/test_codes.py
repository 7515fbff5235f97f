"""Every message has a code, every code an entry, and an entry is found by who meets the message."""

from __future__ import annotations

import ast
import pickle
import shutil
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import pytest

from keeplast.errors import CompactionError, CorruptError, RefusedError, code_of, error_text
from keeplast.service.catalogue import read_entries
from tests.support.called import run
from tools.make_troubleshooting import CODE, CODED, SOURCE, find_codes, find_sites, trees

SAMPLE = SOURCE / "samples" / "broker-4.3.0"
CARRIED = {"error.code", "self._parts | changes", "code_in(mark.reason)"}
"""What stands for the code of an error that is worded again: at its border, or with its place."""


def test_every_error_of_the_source_names_a_code_of_the_catalogue() -> None:
    known = read_entries()
    sites = list(find_sites(SOURCE))
    wrong = [
        f"{each.path.relative_to(SOURCE)}:{each.line} {each.code}"
        for each in sites
        if each.code not in known and each.code not in CARRIED
    ]
    assert (True, []) == (len(sites) > 900, wrong)


def test_every_class_of_errors_is_among_those_that_must_name_a_code() -> None:
    found = {
        node.name
        for _, tree in trees(SOURCE)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and {getattr(base, "id", getattr(base, "attr", "")) for base in node.bases}
        & (CODED | {"CompactionError", "BadParameter"})
    }
    # The one that is left gives its code itself.
    assert {"BrokenRowError"} == found - CODED


def test_every_entry_is_of_a_message_and_says_all_of_it() -> None:
    entries = read_entries()
    assert set(entries) == find_codes(SOURCE)
    assert len(entries) == len({each["title"] for each in entries.values()})
    for code, entry in entries.items():
        assert code == "".join(CODE.findall(code))
        assert ["title", "cause", "safe", "do"] == list(entry), code
        assert all(len(text) > len("Nothing") - 1 for text in entry.values()), code


@pytest.mark.parametrize(
    "error",
    [
        RefusedError("no", code="K214"),
        CorruptError("crc mismatch", position=7, code="K214"),
        CorruptError("crc mismatch", code="K214").located("/a"),
    ],
)
def test_a_code_goes_with_its_error_into_another_process(error: CompactionError) -> None:
    found = pickle.loads(pickle.dumps(error))
    assert ("K214", str(error)) == (found.code, str(found))
    assert error_text(error) == f"{error} [K214]"
    assert "K214: keeplast help K214" in "".join(traceback.format_exception(found))


def test_an_error_without_a_code_has_that_of_its_cause() -> None:
    outer = RefusedError("outer")
    outer.__cause__ = CorruptError("inner", code="K215")
    assert ("K215", "outer [K215]") == (code_of(outer), error_text(outer))
    outer.code = "K201"
    assert "K201" == code_of(outer)
    assert ("K533", "K902") == (code_of(FileNotFoundError(2, "no")), code_of(KeyError()))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a directory of two data directories, ``whole`` and ``damaged``."""
    for name in ("whole", "damaged"):
        shutil.copytree(SAMPLE / "orders-0", tmp_path / name / "orders-0")
    first = min((tmp_path / "damaged" / "orders-0").glob("*.log"))
    data = first.read_bytes()
    first.write_bytes(data[:20] + bytes([data[20] ^ 1]) + data[21:])
    return tmp_path


COMPACT = ("--topic", "orders", "--config", "cleanup.policy=compact")


@pytest.mark.parametrize(
    ("exit_code", "code", "words"),
    [
        (2, "K116", ("status", "{}/nowhere")),
        (3, "K215", ("clean", "{}/damaged", *COMPACT)),
        (4, "K229", ("clean", "{}/whole", *COMPACT, "--to", "{}/whole")),
        (5, "K534", ("export", "{}/whole", *COMPACT, "--to", "/dev/full/below")),
    ],
)
def test_a_failure_ends_with_its_code_and_has_it_in_its_document(
    root: Path, exit_code: int, code: str, words: tuple[str, ...]
) -> None:
    arguments = [each.format(root) for each in words]
    said = run(*arguments, code=exit_code)
    assert said.stderr.rstrip().endswith(f" [{code}]")
    assert f'"code": "{code}"' in run(*arguments, "--json", code=exit_code).stdout


def test_why_a_log_is_not_cleaned_has_a_code_in_the_document(root: Path) -> None:
    policy = ("--topic", "orders", "--config", "cleanup.policy=delete")
    assert '"code": "K808"' in run("plan", root / "whole", *policy, "--json", code=0).stdout
    assert '"code": "K808"' in run("status", root / "whole", *policy, "--json", code=0).stdout


def test_a_mistake_of_usage_ends_with_its_code() -> None:
    for arguments, code in ((["status", "--no-such"], "K100"), (["hold", "add", "x", "y"], "K1")):
        flat = " ".join(run(*arguments, code=2).stderr.replace("│", " ").split())
        assert f"[{code}" in flat


def test_a_code_that_there_is_not_names_the_nearest() -> None:
    said = " ".join(run("help", "K299", code=2).stderr.split())
    assert "the nearest is K301" in said


def test_help_of_a_verb_is_its_own_help_and_of_nothing_the_first_screen() -> None:
    assert run("plan", "--help", code=0).stdout == run("help", "plan", code=0).stdout
    assert run("hold", "add", "-h", code=0).stdout == run("help", "hold", "add", code=0).stdout
    assert run("--help", code=0).stdout == run("help", code=0).stdout


def loads(arguments: Sequence[str]) -> tuple[int, str, set[str]]:
    """Return exit code, stdout and loaded modules of a command in a process of its own."""
    script = (
        "import sys, runpy, socket\nsocket.socket.connect = None\n"
        "sys.argv = ['keeplast', *sys.argv[1:]]\n"
        "try:\n    runpy.run_module('keeplast', run_name='__main__')\n"
        "except SystemExit as end:\n"
        "    print(end.code, *sorted(sys.modules), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False
    )
    code, *modules = done.stderr.splitlines()[-1].split()
    return int(code) if code != "None" else 0, done.stdout, set(modules)


@pytest.mark.parametrize("text", ["K214", "k214"])
def test_help_prints_an_entry_without_a_network_and_heavy_packages(text: str) -> None:
    code, said, modules = loads(["help", text])
    entry = read_entries()["K214"]
    assert 0 == code
    flat = " ".join(said.split())
    assert all(part in flat for part in ("K214", *entry.values()))
    assert set() == modules & {"numpy", "numba", "pyspark", "obstore", "sqlalchemy"}
