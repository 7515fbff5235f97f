"""``repair --truncate-to`` and ``detach`` of a store: nothing goes without a yes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import keeplast as package
from tests.support import called
from tests.unit.cli.conftest import Command

SAMPLE = Path(package.__file__).parent / "samples" / "broker-4.3.0"


@pytest.fixture
def store(tmp_path: Path, keeplast: Command) -> str:
    shutil.copytree(SAMPLE, tmp_path / "data")
    return called.copied(tmp_path / "data", tmp_path, "--topic", "orders")


def test_a_truncation_says_what_is_lost_and_does_it_with_the_option(
    tmp_path: Path, keeplast: Command, store: str
) -> None:
    receipt = tmp_path / "receipt"
    cut = ("repair", store, "--truncate-to", 330, "--receipt", receipt)
    said = keeplast(*cut, code=4)
    assert "orders-0: would be cut off and lost: offsets 329..339, 10 records" in said.out
    assert "from 329 on and not from 330, which lies inside a batch" in " ".join(said.out.split())
    assert "add --yes" in said.out
    before = keeplast("status", store, "--json").document["partitions"][0]
    assert (339, False) == (before["remote_end"], receipt.exists())
    done = keeplast(*cut, "--yes", "--json")
    (found,) = done.document["partitions"]
    assert (0, True, 329, 339, 10) == (
        done.code, found["done"], found["start"], found["end"], found["records"],
    )  # fmt: skip
    assert 330 == found["asked"]
    assert 0 == keeplast(*cut).code  # Nothing is left to cut.
    assert "orders-0: holds" in keeplast("verify", store).out
    shown = keeplast("inspect", receipt).out
    assert "329..339" in shown
    assert "taken out of the store: truncate" in shown
    again = keeplast("copy", tmp_path / "data", store, "--new", "--topic", "orders")
    assert "offsets 0..339" in again.out


def test_a_directory_with_the_same_log_needs_no_yes(
    tmp_path: Path, keeplast: Command, store: str
) -> None:
    run = keeplast("repair", store, "--truncate-to", tmp_path / "data")
    assert (0, "orders-0: nothing to cut, the log ends at 339") == (run.code, run.out.strip())


@pytest.mark.parametrize(
    "options",
    [
        ("--truncate-to", -1), ("--truncate-to", "x"), ("--truncate-to", SAMPLE.parent),
        ("--truncate-to", 1, "--accept-metadata"), ("--topic", "orders", "--accept-metadata"),
    ],
)  # fmt: skip
def test_a_truncation_needs_an_offset_or_a_directory_of_the_log(
    keeplast: Command, store: str, options: tuple[object, ...]
) -> None:
    assert 2 == keeplast("repair", store, *options, "--yes").code


def test_a_partition_is_given_up_by_name_collected_and_imported_again(
    tmp_path: Path, keeplast: Command, store: str
) -> None:
    forget = ("detach", store, "--grace-ms", 0)
    assert 2 == keeplast(*forget, "--yes").code
    said = keeplast(*forget, "--topic", "orders", code=4)
    assert "orders-0: would be given up and lost: offsets 0..339" in said.out
    done = keeplast(*forget, "--topic", "orders", "--yes")
    assert (0, True) == (done.code, "no reader sees it any more" in done.out)
    status = keeplast("status", store).out
    assert ": 0 partitions" in status
    assert "orders-0: given up; keeplast collect" in status
    again = keeplast(*forget, "--topic", "orders", "--yes")
    assert (2, True) == (again.code, "given up already" in again.err)
    copied = keeplast("copy", tmp_path / "data", store)
    assert (2, True) == (copied.code, "copy --new takes new ones in" in copied.err)
    collected = keeplast("collect", store, "--json")
    assert [4] == [each["collected_segments"] for each in collected.document["partitions"]]
    assert [] == list((tmp_path / "objects").glob("orders-0/*/*/*"))
    run = keeplast("copy", tmp_path / "data", store, "--new", "--topic", "orders")
    assert "orders-0: 4 segments copied, 4 in the store" in run.out
    assert "orders-0: holds" in keeplast("verify", store).out
