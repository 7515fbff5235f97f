"""What is said of a --storage that cannot be used shows no password."""

from __future__ import annotations

from pathlib import Path

import pytest

from keeplast.cluster.layouts.open import open_layout
from keeplast.errors import InvalidError, UnavailableError

SECRET = "s3cret"


@pytest.mark.parametrize(
    "storage",
    [
        f"local:http://u:{SECRET}@h/", f"local:http:/u:{SECRET}@h/", f"local:u:{SECRET}@h/dir",
        f"local:s3://u:{SECRET}@bucket?x={SECRET}", f"aiven:http://u:{SECRET}@h/",
        f"aiven:http:/u:{SECRET}@h/", f"aiven:s3://u:{SECRET}@bucket", f"other:u:{SECRET}@h",
        f"http://u:{SECRET}@h/",
    ],
)  # fmt: skip
def test_no_password_is_in_an_error(
    storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((InvalidError, UnavailableError)) as caught:
        open_layout(storage)
    assert SECRET not in str(caught.value)


def test_a_directory_is_named_as_it_is(tmp_path: Path) -> None:
    place = tmp_path / "a@b"
    with pytest.raises(UnavailableError, match="a@b"):
        open_layout(f"local:{place}")
