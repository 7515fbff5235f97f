"""How an error is said."""

from __future__ import annotations

import pytest

from keeplast.errors import CorruptError, error_text


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PermissionError(13, "Permission denied", "/a/b"), "permission denied. path=/a/b"),
        (OSError(28, "No space left on device", b"/a/b"), "no space left on device. path=/a/b"),
        (OSError(5, "Input/output error"), "input/output error"),
        (CorruptError("crc mismatch", path="x", position=7), "crc mismatch. path=x position=7"),
        (KeyError(), "KeyError"),
    ],
)
def test_every_error_has_our_form(error: Exception, said: str) -> None:
    assert said == error_text(error)
