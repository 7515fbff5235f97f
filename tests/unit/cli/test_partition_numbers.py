"""``--partition``: a number, or several as Kafka's own tools take them: ``0-3,7``."""

from __future__ import annotations

from pathlib import Path

import pytest

from keeplast.cli.frame.options import partition_numbers
from tests.unit.cli.conftest import Command, FakeCoordinator


@pytest.mark.parametrize("given", ["0-", "3-1", "0,,1", "-1", "all", "9999999999", "0-10000"])
@pytest.mark.parametrize("command", ["clean", "plan", "status", "explain", "hold add"])
def test_a_bad_number_is_refused_with_the_right_form(
    keeplast: Command, data_dir: Path, command: str, given: str
) -> None:
    run = keeplast(*command.split(), data_dir, f"--partition={given}")
    words = " ".join(run.err.replace("│", " ").split())
    assert 2 == run.code
    assert "0-3,7" in words or "there may be 10,000 partitions" in words
    assert f"value={given!r}" in words


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("7", (7,)), ("0-3,7", (0, 1, 2, 3, 7)), (" 2 - 2 , 1", (1, 2)), ("1,0-2", (0, 1, 2)),
        ("0-9999", tuple(range(10_000))),
    ],
)  # fmt: skip
def test_a_range_is_all_of_its_numbers_each_once(text: str, numbers: tuple[int, ...]) -> None:
    assert numbers == partition_numbers(text)


@pytest.mark.parametrize("text", ["0-1", "0,1", "x"])
def test_an_option_about_one_partition_takes_no_range(
    keeplast: Command, data_dir: Path, text: str
) -> None:
    where = ("--topic", "t", "--partition", text, "--before-offset", "1")
    assert 2 == keeplast("delete-records", data_dir, *where).code


def test_a_range_chooses_its_partitions_once_although_it_is_said_twice(
    keeplast: Command, coordinator: FakeCoordinator, data_dir: Path
) -> None:
    policy = ("--config", "cleanup.policy=compact")
    for more in ((), ("--partition", "0")):
        keeplast("plan", data_dir, "--topic", "t", "--partition", "0-0", *more, *policy, code=0)
        assert [0] == [each.partition.partition for each in coordinator.requests[-1].partitions]


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
