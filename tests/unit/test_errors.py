"""How an error is said."""

from __future__ import annotations

import errno
import os
from pathlib import Path, PurePath

import pytest

from keeplast.errors import CorruptError, error_text, installing, making


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            PermissionError(13, "Permission denied", "/a/b"),
            "permission denied; run as a user who has the right to it, or give this one the right. "
            "path=/a/b",
        ),
        (
            OSError(28, "No space left on device", b"/a/b"),
            "no space left on device; make room on that disk, then run again. path=/a/b",
        ),
        (
            OSError(5, "Input/output error"),
            "input/output error; "
            "the disk or its cable fails; look at the system's log, and keep a copy",
        ),
        (CorruptError("crc mismatch", path="x", position=7), "crc mismatch. path=x position=7"),
        (KeyError(), "KeyError"),
    ],
)
def test_every_error_has_our_form(error: Exception, said: str) -> None:
    assert said == error_text(error)


@pytest.mark.parametrize("code", sorted(errno.errorcode))
def test_every_error_of_the_operating_system_says_what_helps(code: int) -> None:
    said = error_text(OSError(code, os.strerror(code), "/a/b"))
    problem, _, remedy = said.removesuffix(". path=/a/b").partition("; ")
    assert (os.strerror(code).lower(), True) == (problem, len(remedy) > len("run"))


def test_what_is_to_be_made_or_installed_is_said_as_it_works() -> None:
    assert "make it (mkdir -p '/a b/c')" == making(PurePath("/a b/c"))
    said = installing("s3")
    assert "pip install '.[s3]' in a clone" in said
    assert "docs/how-to/rolling-clean.md#on-the-broker-host" in said


def test_nothing_names_a_package_that_no_index_has() -> None:
    """How an extra is installed is worded in one place."""
    source = Path(__file__).parents[2] / "src" / "keeplast"
    named = [path.name for path in source.rglob("*.py") if "'keeplast[" in path.read_text("utf-8")]
    assert [] == named
