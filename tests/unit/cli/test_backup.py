"""The page on backups is followed, line by line: what it shows is what happens."""

from __future__ import annotations

import re
import shlex
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.placed_logs import make_store
from tests.unit.cli.conftest import Run

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "backup.md"
STEPS = re.compile(r"<!-- followed by .*? -->\n```console\n(.*?)```", re.DOTALL)
CODE = re.compile(r"\s+# exit code (\d)\Z")


def test_the_page_is_followed_line_by_line(
    tmp_path: Path, keeplast: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    (steps,) = STEPS.findall(PAGE.read_text("utf-8"))
    monkeypatch.chdir(PAGE.parents[2])
    said = ""
    for line in steps.replace("build/try", str(tmp_path)).splitlines():
        if not line.startswith("$ "):
            assert line in said, f"the page shows {line!r}, said was {said!r}"
            continue
        if line == f"$ rm -rf {tmp_path} && mkdir -p {tmp_path}":
            continue
        found = CODE.search(line)
        program, *arguments = shlex.split(line[2:], comments=True)
        said = ""
        if program == "keeplast":
            run = keeplast(*arguments)
            said = run.out + run.err
            assert (int(found[1]) if found else 0) == run.code, f"{line}: {said}"
        elif program == "sqlite3":
            with sqlite3.connect(arguments[0]) as connection:
                connection.execute(arguments[1])
            connection.close()
        elif program == "rm":
            for path in Path(arguments[0]).parent.glob(f"{Path(arguments[0]).name}*"):
                path.unlink()
        else:
            assert "cp" == program
            shutil.copy(*arguments)


def test_metadata_that_is_the_newest_needs_no_accepting(
    tmp_path: Path, keeplast: Callable[..., Run]
) -> None:
    url = make_store(tmp_path)
    for options in ((), ("--accept-metadata", "--yes")):
        run = keeplast("repair", url, *options)
        assert (0, True) == (run.code, "nothing to repair" in run.out)
    document = keeplast("repair", url, "--accept-metadata", "--json").document
    assert (False, False, []) == (
        document["is_older"], document["done"], document["partitions"],
    )  # fmt: skip
