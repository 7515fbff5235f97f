"""Man pages: one of each command, with all that its help says, and roff that a formatter takes."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from keeplast.config.layers import OTHER_VARIABLES
from tests.support.waiting import SECONDS_MAX
from tools.reference.commands import all_commands, voice_anywhere
from tools.reference.man_pages import ENVIRONMENT, escaped, pages

ROOT = Path(__file__).resolve().parents[3]
REQUESTS = {".TH", ".SH", ".SS", ".TP", ".PP", ".B", ".BR", ".EX", ".EE", ".nh", ".ad", '.\\"'}


def plain(page: str) -> str:
    """Return what a page says, without roff."""
    return page.replace("\\-", "-").replace("\\&", "").replace("\\e", "\\")


def test_every_command_has_a_page_with_all_its_options() -> None:
    found = pages()
    assert {"keeplast.1", *(f"keeplast-{each.page}.1" for each in all_commands())} == set(found)
    for command in all_commands():
        text = plain(found[f"keeplast-{command.page}.1"])
        for each in (*command.arguments, *command.shown, *command.rest, *voice_anywhere()):
            assert f".B {each.spelling}\n" in text
            assert each.about.replace("`", "") in text
        assert command.examples
        for example in command.examples:
            assert f".EX\n{example}\n.EE" in text


def test_the_first_page_names_every_command() -> None:
    text = plain(pages()["keeplast.1"])
    for each in all_commands():
        assert f".BR keeplast-{each.page} (1)\n{each.about.replace('`', '')}\n" in text


@pytest.mark.parametrize("name", sorted(pages()))
def test_no_line_asks_roff_for_what_was_meant_as_text(name: str) -> None:
    for line in pages()[name].splitlines():
        assert not line.startswith(("'", ".")) or line.split(" ")[0] in REQUESTS
        assert line.startswith('.\\"') or re.search(r"(?<!\\)-", line) is None


def test_what_roff_would_take_for_a_request_is_escaped() -> None:
    assert "\\&.x\n\\&'y\\-z \\ea" == escaped(".x\n'y-z \\a")


def test_every_variable_of_its_own_is_named() -> None:
    assert set() == OTHER_VARIABLES - {name for name, _ in ENVIRONMENT}


@pytest.mark.skipif(shutil.which("groff") is None, reason="needs groff")
@pytest.mark.parametrize("name", ["keeplast.1", "keeplast-clean.1", "keeplast-hold-add.1"])
def test_a_formatter_takes_a_page_without_a_word(name: str) -> None:
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", "-P-cbou"],
        input=pages()[name], capture_output=True, text=True, check=True, timeout=SECONDS_MAX,
    )  # fmt: skip
    assert ("", True) == (done.stderr, "EXIT STATUS" in done.stdout)


def test_the_tool_writes_them_into_a_directory(tmp_path: Path) -> None:
    tool = [sys.executable, str(ROOT / "tools" / "make_man.py")]
    subprocess.run([*tool, str(tmp_path / "man1")], check=True, capture_output=True)
    found = {path.name: path.read_text("utf-8") for path in (tmp_path / "man1").iterdir()}
    assert pages() == found
    assert 2 == subprocess.run(tool, capture_output=True, check=False).returncode
