"""How an error is said."""

from __future__ import annotations

import errno
import os

import pytest

from keeplast.errors import CorruptError, error_text


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
