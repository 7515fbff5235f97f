"""How an error is said."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path, PurePath

import pytest

from keeplast.errors import (
    CorruptError,
    Despite,
    InvalidError,
    UnavailableError,
    error_text,
    error_words,
    installing,
    making,
    parameter_words,
)
from tests.support.waiting import SECONDS_MAX


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            PermissionError(13, "Permission denied", "/a/b"),
            "permission denied; run as a user who has the right to it, or give this one the right. "
            "path=/a/b [K531]",
        ),
        (
            OSError(28, "No space left on device", b"/a/b"),
            "no space left on device; make room on that disk, then run again. path=/a/b [K538]",
        ),
        (
            OSError(5, "Input/output error"),
            "input/output error; "
            "the disk or its cable fails; look at the system's log, and keep a copy [K542]",
        ),
        (CorruptError("crc mismatch", path="x", position=7), "crc mismatch. path=x position=7"),
        (KeyError(), "KeyError [K902]"),
        (CorruptError("crc mismatch", code="K215"), "crc mismatch [K215]"),
        (UnavailableError("it fails: no answer [K401]", code="K323"), "it fails: no answer [K401]"),
    ],
)
def test_every_error_has_our_form(error: Exception, said: str) -> None:
    assert said == error_text(error)


@pytest.mark.parametrize("code", sorted(errno.errorcode))
def test_every_error_of_the_operating_system_says_what_helps(code: int) -> None:
    said = error_words(OSError(code, os.strerror(code), "/a/b"))
    problem, _, remedy = said.removesuffix(". path=/a/b").partition("; ")
    assert (os.strerror(code).lower(), True) == (problem, len(remedy) > len("run"))


def test_what_is_to_be_made_or_installed_is_said_as_it_works() -> None:
    assert "make it (mkdir -p '/a b/c')" == making(PurePath("/a b/c"))
    assert installing("s3") == (
        "run pip install 'keeplast[s3]' (from a wheel: 'FILE.whl[s3]'; "
        "docs/how-to/install.md#from-a-wheel)"
    )


def test_how_an_extra_is_installed_is_worded_in_one_place() -> None:
    source = Path(__file__).parents[2] / "src" / "keeplast"
    named = [path.name for path in source.rglob("*.py") if "keeplast[" in path.read_text("utf-8")]
    assert ["errors.py"] == named


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "an offset is one partition's; give --topic and --partition too. --offset=3",
            "an offset is one partition's; give topics= and partitions= too. offset=3",
        ),
        ("leave --now-ms out. --now-ms=5", "leave now_ms= out. now_ms=5"),
        (
            "say it with --config compaction.strategy=header, or give --receipt FILE",
            'say it with config={"compaction.strategy": "header"}, or give receipt=FILE',
        ),
        (
            "make it: keeplast copy DATA_DIR STORE --new --objects URL. --to=/a--b topic=x--y",
            "make it: keeplast copy DATA_DIR STORE --new --objects URL. to=/a--b topic=x--y",
        ),
        (
            "set it there, with kafka-configs.sh --alter, or leave --incremental out",
            "set it there, with kafka-configs.sh --alter, or leave incremental=True out",
        ),
        ("use --runner local, or another store", "use runner=None, or another store"),
        ("nothing of it", "nothing of it"),
    ],
)
def test_a_program_is_shown_parameters_and_commands_stay_as_they_are_typed(
    text: str, words: str
) -> None:
    assert words == parameter_words(text)
    assert words == parameter_words(words)


@pytest.mark.parametrize("limit", sorted(set(Despite) - {Despite.KEYLESS_RECORDS}))
def test_a_limit_that_can_be_passed_names_its_parameter(limit: Despite) -> None:
    assert "--" not in parameter_words(f"no; {limit.remedy}. path=x")


PROGRAM = """
import pathlib
import keeplast
try:
    sample = pathlib.Path(keeplast.__file__).parent / "samples" / "broker-4.3.0"
    keeplast.export(sample, "state", topics=["orders"], keep=3)
except keeplast.InvalidError as error:
    print(error)
"""


def test_what_a_call_of_a_program_raises_names_its_parameters() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True, text=True, check=True, timeout=SECONDS_MAX,
    )  # fmt: skip
    assert "incremental=True" in done.stdout, done.stderr
    assert "--" not in done.stdout


def test_the_command_line_names_options_whatever_was_imported_before() -> None:
    assert "--topic" in str(InvalidError("give --topic"))
