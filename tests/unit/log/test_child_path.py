"""What is made without parsing is the path that parsing makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from keeplast.log.paths import child_path


@pytest.mark.parametrize("directory", [".", "/", "data", "/data/t-0", "../t-0", "s3:/bucket/t-0"])
@pytest.mark.parametrize("name", ["00000000000000000000.log", "a b", "é", "..x", "~"])
def test_a_child_is_the_same_path_as_a_parsed_one(directory: str, name: str) -> None:
    made, parsed = child_path(Path(directory), name), Path(directory) / name
    assert (parsed, str(parsed), parsed.parts) == (made, str(made), made.parts)
    assert (parsed.name, parsed.parent, hash(parsed)) == (made.name, made.parent, hash(made))
