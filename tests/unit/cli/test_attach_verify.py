"""``verify`` of a live cluster, and ``plan --exact``: tables, documents, exit codes; no cluster."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from keeplast.cli.main import app
from keeplast.log.files import LocalFiles
from keeplast.run.receipt import append_receipt
from keeplast.service.receipt_shelf import ReceiptShelf
from tests.support.attached_world import PARTITION
from tests.support.verified_world import VerifiedWorld
from tests.unit.attach.test_attached_rounds import MERGING
from tests.unit.cli.conftest import stripped

NAME = f"{PARTITION.topic}-{PARTITION.partition}"


def verify(world: VerifiedWorld, *more: str, expected: int = 0) -> str:
    found = CliRunner().invoke(
        app,
        [
            "verify", "kafka://127.0.0.1:1", "--topic", PARTITION.topic,
            "--decisions", f"sqlite:///{world.world.root / 'decisions.db'}",
            "--storage", "local:/x", *more,
        ],
    )  # fmt: skip
    assert expected == found.exit_code, found.output
    return found.stdout


def plan(world: VerifiedWorld, *more: str) -> str:
    found = CliRunner().invoke(
        app,
        [
            "plan", "kafka://127.0.0.1:1", "--topic", PARTITION.topic, "--storage", "local:/x",
            "--decisions", f"sqlite:///{world.world.root / 'decisions.db'}", *more,
        ],
    )  # fmt: skip
    assert 0 == found.exit_code, found.output
    return found.stdout


def document(text: str) -> dict[str, Any]:
    (found,) = json.loads(text)["partitions"]
    return dict(found)


def test_a_table_says_each_verdict(world: VerifiedWorld) -> None:
    text = verify(world)
    assert f"{NAME}: holds" in text
    for name in ("served", "objects", "records", "transactions", "swaps", "keys", "removed"):
        assert any(line.startswith(name) and "holds" in line for line in text.splitlines()), name


def test_a_broken_partition_is_exit_code_1_and_in_the_document(world: VerifiedWorld) -> None:
    world.file_of(world.compacted()[0]).unlink()
    found = document(verify(world, "--json", expected=1))
    assert (NAME, "broken") == (found["partition"], found["verdict"])
    (check,) = (each for each in found["checks"] if each["name"] == "objects")
    assert 1 == check["count"] == len(check["findings"])


def test_an_unjudged_partition_is_exit_code_1_with_strict(world: VerifiedWorld) -> None:
    world.file_of(world.replaced()[0]).unlink()
    verify(world)
    assert "cannot be judged" in verify(world, "--strict", expected=1)


def test_a_cluster_that_fails_meanwhile_is_an_error_of_its_partition(
    world: VerifiedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        type(world.tier.layout),
        "open",
        Mock(side_effect=OSError(5, "Input/output error", "/mnt/tier")),
    )
    found = document(verify(world, "--json", expected=5))
    assert NAME == found["partition"]
    assert "input/output error" in found["error"].lower()


def test_a_partition_that_there_is_not_is_a_mistake(world: VerifiedWorld) -> None:
    assert "no such partition" in verify(world, "--partition", "7", "--json", expected=2)


def test_an_exact_plan_says_what_would_go(world: VerifiedWorld) -> None:
    more = ("--despite", "dirty-ratio", "--config", "segment.bytes=1024", "--json")
    planned, counted = document(plan(world, *more)), document(plan(world, *more, "--exact"))
    (guess,), (exact,) = planned["rounds"], counted["rounds"]
    assert guess["stats"] is None
    assert exact["stats"]["bytes_read"] >= exact["stats"]["bytes_written"] > 0
    assert "bytes" in plan(world, *more[:-1], "--exact")


def test_a_verdict_is_noted_next_to_the_round_that_wrote_the_served_objects(
    world: VerifiedWorld, tmp_path: Path
) -> None:
    receipt = tmp_path / "receipts.jsonl"
    before = receipt.read_bytes()
    more = ("--receipt", str(receipt), "--note", "--json")
    found = json.loads(verify(world, *more))
    assert 1 == found["noted"]
    assert "receipt" in [each["name"] for each in found["partitions"][0]["checks"]]
    line = json.loads(receipt.read_bytes()[len(before) :])["verdict"]
    attempt = json.loads(before.splitlines()[-1])["attempt"]
    assert ("holds", [attempt]) == (line["verdict"], line["rounds"])
    assert "verify of a cluster" == line["by"]
    shelf = ReceiptShelf(LocalFiles(), receipt)
    shelf.refresh()
    words = f"(verify of a cluster, epoch {line['epoch']}, clean to {line['clean_to']})"
    assert all(each.verdict.endswith(words) for each in shelf.lines()), shelf.lines()
    world.file_of(world.compacted()[0]).unlink()
    assert 1 == json.loads(verify(world, *more, expected=1))["noted"]
    line = json.loads(receipt.read_bytes().splitlines()[-1])["verdict"]
    assert ("broken", [attempt]) == (line["verdict"], line["rounds"])
    assert "objects" in line["broken"]


def test_an_edited_receipt_is_a_check_that_is_broken(world: VerifiedWorld, tmp_path: Path) -> None:
    receipt = tmp_path / "receipts.jsonl"
    assert "its chain is whole" in verify(world, "--receipt", str(receipt))
    verify(world, "--receipt", str(receipt), "--note")
    receipt.write_bytes(receipt.read_bytes().replace(b'"wave":1', b'"wave":1 ', 1))
    found = document(verify(world, "--receipt", str(receipt), "--json", expected=1))
    broken = [each["name"] for each in found["checks"] if each["verdict"] == "broken"]
    assert ["receipt"] == broken


def test_a_receipt_is_held_against_the_heads_of_the_decision_log(
    world: VerifiedWorld, tmp_path: Path
) -> None:
    path = tmp_path / "receipts.jsonl"
    first = path.read_bytes().splitlines(keepends=True)
    assert "proven up to the head that was kept" in verify(world, "--receipt", str(path))
    receipt = partial(append_receipt, LocalFiles(), path)
    world.clean(replace(MERGING, segment_bytes=30_000), margin=0, receipt=receipt)
    whole = path.read_bytes().splitlines(keepends=True)
    assert len(whole) > len(first)
    assert "proven up to the head that was kept" in verify(world, "--receipt", str(path))
    for lines, problem in (
        (first, "lines were cut off"),
        ([stripped(each) for each in whole], "no line of the file is chained"),
        ([whole[-1], *whole[:-1]], "or in another order"),
        ([*whole[:-1], whole[-1].replace(b'"wave":1', b'"wave":2', 1)], "kept as head"),
    ):
        path.write_bytes(b"".join(lines))
        found = document(verify(world, "--receipt", str(path), "--json", expected=1))
        (check,) = (each for each in found["checks"] if each["verdict"] == "broken")
        assert ("receipt", True) == (
            check["name"], any(problem in each["problem"] for each in check["findings"])
        ), check  # fmt: skip
    path.write_bytes(b"")
    found = document(verify(world, "--receipt", str(path), "--json", expected=1))
    (check,) = (each for each in found["checks"] if each["verdict"] == "broken")
    assert "it was emptied" in check["findings"][0]["problem"]
    # Nothing was judged by it, so nothing is noted in it.
    verify(world, "--receipt", str(path), "--note", expected=2)
    assert b"" == path.read_bytes()


def test_a_receipt_of_another_decision_log_is_reported(
    world: VerifiedWorld, tmp_path: Path
) -> None:
    path = tmp_path / "receipts.jsonl"
    lines = [stripped(each) for each in path.read_bytes().splitlines(keepends=True)]
    path.unlink()
    for line in lines:
        append_receipt(LocalFiles(), path, line)
    found = verify(world, "--receipt", str(path), expected=1)
    assert "its chain is none of those whose heads were kept" in " ".join(found.split())


def test_a_note_needs_a_receipt(world: VerifiedWorld, tmp_path: Path) -> None:
    verify(world, "--note", expected=2)
    verify(world, "--note", "--receipt", str(tmp_path / "nothing"), expected=2)
    assert not (tmp_path / "nothing").exists()
