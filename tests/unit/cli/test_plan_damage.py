"""``plan`` on a log that no round could read: an exit code of 0 means that it was looked at."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.flipped import flip
from tests.support.small_log import write_log
from tests.unit.cli.conftest import Run

COMPACT = ("--topic", "t", "--config", "cleanup.policy=compact", "--runner", "local")


@pytest.mark.parametrize("more", [(), ("--exact",)], ids=["sample", "exact"])
def test_a_damaged_segment_is_exit_code_3_and_named_and_the_other_log_is_planned(
    tmp_path: Path, keeplast: Callable[..., Run], more: tuple[str, ...]
) -> None:
    for name in ("t-0", "t-1"):
        write_log(tmp_path, name, {0: [(b"a", b"1")], 1: [(b"a", b"2")], 2: [(b"b", b"3")]})
    path = tmp_path / "t-0" / f"{1:020d}.log"
    flip(path)
    run = keeplast("plan", tmp_path, *COMPACT, *more, code=3)
    assert f"error: t-0: crc mismatch. path={path} position=0" in run.err
    assert "1 to be cleaned; 1 failed: the errors follow on stderr" in run.out
