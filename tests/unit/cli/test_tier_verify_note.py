"""``verify --note`` of a store: the verdict stands next to the rounds that wrote what is live."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from keeplast.api.stored_logs import StoredLogs
from keeplast.config.layers import ALL_PARTITIONS
from keeplast.service.place_loop import ViewTerms
from tests.support.small_log import write_log
from tests.unit.cli.conftest import Command, Run

Pairs = list[tuple[bytes, bytes]]
SEGMENTS: dict[int, Pairs] = {
    0: [(b"a", b"1"), (b"b", b"2")],
    2: [(b"a", b"3")],
    3: [(b"c", b"4")],
    4: [],
}
MORE: dict[int, Pairs] = {4: [(b"a", b"5")], 5: [(b"b", b"6")], 6: [(b"d", b"7")], 7: []}


@pytest.fixture
def store(tmp_path: Path, keeplast: Command) -> str:
    """A store with the topic ``t``, cleaned once; the round's receipt is ``receipt``."""
    url = f"sqlite:///{tmp_path / 'meta.db'}"
    take_in(tmp_path, keeplast, url, SEGMENTS)
    clean(tmp_path, keeplast, url)
    return url


def take_in(place: Path, keeplast: Command, url: str, segments: Mapping[int, Pairs]) -> None:
    shutil.rmtree(place / "data", ignore_errors=True)
    write_log(place / "data", "t-0", segments)
    keeplast(
        "copy", place / "data", url, "--new", "--objects", f"file://{place / 'objects'}",
        "--topic", "t", "--config", "cleanup.policy=compact", code=0,
    )  # fmt: skip


def clean(place: Path, keeplast: Command, url: str) -> None:
    run = keeplast(
        "clean", url, "--despite", "dirty-ratio", "--grace-ms", 0, "--receipt", place / "receipt",
        "--json",
    )  # fmt: skip
    assert (0, False) == (run.code, run.document["partitions"][0]["skipped"]), run.err


def noted(place: Path, keeplast: Command, url: str, *more: str) -> Run:
    return keeplast("verify", url, "--receipt", place / "receipt", "--note", *more)


def lines(place: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (place / "receipt").read_bytes().splitlines()]


def verdicts(place: Path, url: str) -> list[str]:
    """Return the verdict next to each round, as the console of a store shows it."""
    view = StoredLogs(url).view(ALL_PARTITIONS, ViewTerms(receipt=place / "receipt"))
    with view.watcher as watcher:
        found = watcher.view().receipts
    assert {"round"} == {each.kind for each in found}
    return [re.sub(r" \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+", "", each.verdict) for each in found]


def test_a_verdict_is_noted_in_the_chain_with_the_state_that_it_is_of(
    tmp_path: Path, keeplast: Command, store: str
) -> None:
    before = (tmp_path / "receipt").read_bytes()
    run = noted(tmp_path, keeplast, store, "--json")
    assert (0, 1) == (run.code, run.document["noted"]), run.err
    assert (tmp_path / "receipt").read_bytes().startswith(before)
    *rounds, line = lines(tmp_path)
    (state,) = keeplast("status", store, "--json").document["partitions"]
    assert {
        "verdict": "holds", "rounds": [rounds[-1]["attempt"]], "broken": [], "unjudged": [],
        "by": "verify of a store", "epoch": state["leader_epoch"], "clean_to": state["first_dirty"],
    } == line["verdict"]  # fmt: skip
    epoch, clean_to = state["leader_epoch"], state["first_dirty"]
    words = f"holds (verify of a store, epoch {epoch}, clean to {clean_to})"
    assert words == verdicts(tmp_path, store)[-1]
    shown = " ".join(keeplast("inspect", tmp_path / "receipt").out.split())
    assert "its chain is whole" in shown
    assert "holds 20" in shown
    # What was noted stops nothing: the next round goes on in the chain, and is judged.
    again = noted(tmp_path, keeplast, store)
    assert (0, True) == (again.code, "proven up to the head" in again.out), again.err


def damage(place: Path) -> None:
    """Change the last byte of what the newest round wrote."""
    *_, newest = (each for each in lines(place) if "outputs" in each)
    written = {each["bytes"] for each in newest["outputs"] if not each["left_alone"]}
    found = [each for each in (place / "objects").rglob("*.log") if each.stat().st_size in written]
    assert found
    for each in found:
        each.write_bytes(each.read_bytes()[:-1] + b"?")


def test_what_a_log_has_come_of_holds_with_it_and_is_not_broken_with_it(
    tmp_path: Path, keeplast: Command, store: str
) -> None:
    assert 0 == noted(tmp_path, keeplast, store).code
    first = verdicts(tmp_path, store)
    take_in(tmp_path, keeplast, store, SEGMENTS | MORE)
    clean(tmp_path, keeplast, store)
    assert [*first, *[""] * (len(verdicts(tmp_path, store)) - len(first))] == verdicts(
        tmp_path, store
    )
    assert 0 == noted(tmp_path, keeplast, store).code
    held = verdicts(tmp_path, store)
    assert len(held) > len(first)
    assert all(each.endswith("clean to 7)") for each in held), held
    damage(tmp_path)
    assert 1 == noted(tmp_path, keeplast, store).code
    *before, newest = verdicts(tmp_path, store)
    assert (held[:-1], True) == (before, newest.startswith("broken: I-"))


def test_a_fault_is_noted_next_to_the_round_that_wrote_it(
    tmp_path: Path, keeplast: Command, store: str
) -> None:
    damage(tmp_path)
    run = noted(tmp_path, keeplast, store, "--json")
    assert (1, 1) == (run.code, run.document["noted"]), run.out
    line = lines(tmp_path)[-1]["verdict"]
    checks = run.document["partitions"][0]["checks"]
    for verdict, names in (("broken", line["broken"]), ("cannot be judged", line["unjudged"])):
        assert [each["name"] for each in checks if each["verdict"] == verdict] == names
    assert ("broken", True) == (line["verdict"], "I-9" in line["broken"])
    assert verdicts(tmp_path, store)[-1].startswith("broken: I-")


def test_a_round_that_never_was_committed_is_not_judged(
    tmp_path: Path, keeplast: Command, store: str
) -> None:
    *_, line = lines(tmp_path)
    line["attempt"] = "f" * 32
    for each in line["outputs"]:
        each["crc32c"] ^= 1
    path = tmp_path / "other"
    del line["chain"]
    path.write_bytes(json.dumps(line, separators=(",", ":")).encode() + b"\n")
    before = path.read_bytes()
    run = keeplast("verify", store, "--receipt", path, "--note", "--json")
    # The store keeps the head of the chain that this file does not have.
    assert (1, 0, before) == (run.code, run.document["noted"], path.read_bytes())
    assert "no round was judged, so nothing is noted. partition=t-0" in run.err


def test_an_edited_receipt_is_noted_as_broken(
    tmp_path: Path, keeplast: Command, store: str
) -> None:
    path = tmp_path / "receipt"
    path.write_bytes(path.read_bytes().replace(b'"wave":1', b'"wave":1 ', 1))
    assert 1 == noted(tmp_path, keeplast, store).code
    assert ["receipt"] == lines(tmp_path)[-1]["verdict"]["broken"]


def test_a_note_needs_a_receipt_that_can_be_written(
    tmp_path: Path, keeplast: Command, store: str
) -> None:
    run = keeplast("verify", store, "--note")
    assert (2, True) == (run.code, "give --receipt FILE too" in run.err)
    link = tmp_path / "link"
    os.symlink(tmp_path / "receipt", link)
    run = keeplast("verify", store, "--receipt", link, "--note")
    assert (4, True) == (run.code, "leave --note out to judge only" in run.err), run.err
    # Only judged, it may be a link.
    assert 0 == keeplast("verify", store, "--receipt", link).code


def test_nothing_is_noted_unless_that_is_asked_for(
    tmp_path: Path, keeplast: Command, store: str
) -> None:
    before = (tmp_path / "receipt").read_bytes()
    run = keeplast("verify", store, "--receipt", tmp_path / "receipt", "--json")
    assert (0, before) == (run.code, (tmp_path / "receipt").read_bytes())
    assert "noted" not in run.document
    assert {""} == set(verdicts(tmp_path, store))
