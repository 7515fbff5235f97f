"""``keeplast tier truncate`` and ``forget``: what they say, and that nothing goes without a yes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import keeplast as package
from tests.unit.cli.conftest import Run

Command = Callable[..., Run]

SAMPLE = Path(package.__file__).parent / "samples" / "broker-4.3.0"


@pytest.fixture
def store(tmp_path: Path, keeplast: Command) -> str:
    url = f"sqlite:///{tmp_path / 'meta.db'}"
    keeplast("tier", "init", "--store", url, "--objects", f"file://{tmp_path / 'objects'}")
    shutil.copytree(SAMPLE, tmp_path / "data")
    run = keeplast("tier", "import", tmp_path / "data", "--store", url, "--topic", "orders")
    assert 0 == run.code
    return url


def test_a_truncation_says_what_is_lost_and_does_it_when_told_to(
    tmp_path: Path, keeplast: Command, store: str
) -> None:
    receipt = tmp_path / "receipt"
    cut = ("tier", "truncate", "--store", store, "--to-offset", 330, "--receipt", receipt)
    said = keeplast(*cut)
    assert 4 == said.code
    assert "orders-0: would be cut off and lost: offsets 329..339, 10 records" in said.out
    assert "from 329 on and not from 330, which lies inside a batch" in " ".join(said.out.split())
    assert "add --yes" in said.out
    before = keeplast("tier", "status", "--store", store, "--json").document["partitions"][0]
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
    again = keeplast("tier", "import", tmp_path / "data", "--store", store, "--topic", "orders")
    assert "offsets 0..339" in again.out


def test_a_directory_with_the_same_log_needs_no_yes(
    tmp_path: Path, keeplast: Command, store: str
) -> None:
    run = keeplast("tier", "truncate", "--store", store, "--data-dir", tmp_path / "data")
    assert (0, "orders-0: nothing to cut, the log ends at 339") == (run.code, run.out.strip())


@pytest.mark.parametrize(
    "options", [(), ("--to-offset", 1, "--data-dir", "x"), ("--data-dir", SAMPLE.parent)]
)
def test_a_truncation_needs_one_place_to_cut_at(
    keeplast: Command, store: str, options: tuple[object, ...]
) -> None:
    assert 2 == keeplast("tier", "truncate", "--store", store, *options, "--yes").code


def test_a_partition_is_given_up_by_name_collected_and_imported_anew(
    tmp_path: Path, keeplast: Command, store: str
) -> None:
    forget = ("tier", "forget", "--store", store, "--grace-ms", 0)
    assert 2 == keeplast(*forget, "--yes").code
    said = keeplast(*forget, "--topic", "orders")
    assert 4 == said.code
    assert "orders-0: would be given up and lost: offsets 0..339" in said.out
    done = keeplast(*forget, "--topic", "orders", "--yes")
    assert (0, True) == (done.code, "read by nobody any more" in done.out)
    status = keeplast("tier", "status", "--store", store).out
    assert "no partitions" in status
    assert "orders-0: given up; keeplast tier collect" in status
    again = keeplast(*forget, "--topic", "orders", "--yes")
    assert (2, True) == (again.code, "given up already" in again.err)
    copied = keeplast("tier", "copy", tmp_path / "data", "--store", store)
    assert 0 == copied.code
    collected = keeplast("tier", "collect", "--store", store, "--json")
    assert [4] == [each["segments"] for each in collected.document["partitions"]]
    assert [] == list((tmp_path / "objects").glob("orders-0/*/*/*"))
    run = keeplast("tier", "import", tmp_path / "data", "--store", store, "--topic", "orders")
    assert "orders-0: 4 segments copied, 4 in the store" in run.out
    assert "orders-0: holds" in keeplast("verify", store).out


def test_a_log_start_that_no_directory_tells_is_given_by_hand(
    keeplast: Command, store: str
) -> None:
    expire = ("tier", "expire", "--store", store, "--grace-ms", 0)
    one = (*expire, "--topic", "orders", "--partition", 0, "--log-start")
    assert 2 == keeplast(*expire, "--log-start", 100).code
    (found,) = keeplast(*one, 100, "--json").document["partitions"]
    assert (100, 1) == (found["log_start"], found["segments"])
    assert 2 == keeplast(*one, 340).code
    assert 0 == keeplast(*one, 50).code
    status = keeplast("tier", "status", "--store", store, "--json").document["partitions"][0]
    assert 100 == status["log_start"]
    assert "orders-0: holds" in keeplast("verify", store).out
