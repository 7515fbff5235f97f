"""``--partition``: the number of one partition, said again for each further one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.cli.conftest import FakeCoordinator, Run

Command = Callable[..., Run]


@pytest.mark.parametrize("given", ["0-3", "0,1", "-1", "all", "9999999999"])
@pytest.mark.parametrize("command", ["clean", "plan", "status", "explain", "hold add"])
def test_what_is_no_number_is_refused_with_the_form_that_is(
    keeplast: Command, data_dir: Path, command: str, given: str
) -> None:
    run = keeplast(*command.split(), data_dir, f"--partition={given}")
    words = " ".join(run.err.replace("│", " ").split())
    assert 2 == run.code
    assert "--partition 0 --partition 1" in words
    assert f"value={given!r}" in words


def test_numbers_are_taken_one_by_one(
    keeplast: Command, coordinator: FakeCoordinator, data_dir: Path
) -> None:
    keeplast(
        "plan",
        data_dir,
        "--partition",
        "0",
        "--topic",
        "t",
        "--config",
        "cleanup.policy=compact",
        code=0,
    )
    assert [0] == [each.partition.partition for each in coordinator.requests[-1].partitions]
