"""``keeplast undo`` of a store: what it shows, does and refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import called
from tests.support.small_log import write_log
from tests.unit.cli.conftest import Command


@pytest.fixture
def store(tmp_path: Path, keeplast: Command) -> str:
    """A store of two partitions that keep what rounds replace for an hour."""
    data = tmp_path / "data"
    data.mkdir()
    pairs = [(b"a", b"%d" % number) for number in range(3)]
    write_log(data, "t-0", {0: pairs, 3: pairs, 6: pairs})
    write_log(data, "t-1", {0: pairs, 3: pairs})
    return called.copied(
        data, tmp_path, "--config", "cleanup.policy=compact", "--config",
        "undo.retention.ms=3600000",
    )  # fmt: skip


def clean(keeplast: Command, store: str, *more: object) -> None:
    keeplast("clean", store, "--despite", "dirty-ratio", "--grace-ms", 0, *more, code=0)


def regions(keeplast: Command, store: str) -> list[Any]:
    return [
        (each["partition"], each["first_dirty"], each["bytes"])
        for each in keeplast("status", store, "--json").document["partitions"]
    ]


def test_a_round_is_listed_tried_and_undone(keeplast: Command, store: str, tmp_path: Path) -> None:
    before = regions(keeplast, store)
    clean(keeplast, store)
    after = regions(keeplast, store)
    assert before != after
    listed = keeplast("undo", store, "--list", "--json").document["rounds"]
    assert [("t", 0, True, None), ("t", 1, True, None)] == [
        tuple(each[name] for name in ("topic", "partition", "is_in_place", "refusal"))
        for each in listed
    ]
    shown = keeplast("undo", store, "--list").out
    assert 2 == shown.count("can be undone")
    collected = keeplast("collect", store, "--json").document["partitions"]
    assert [0, 0] == [each["collected_segments"] for each in collected]
    call = ("undo", store, "--partition", 0, "--with", "grace-ms=0")
    tried = keeplast(*call, "--dry-run")
    assert (0, True) == (tried.code, "would be undone" in tried.out)
    assert after == regions(keeplast, store)
    receipt = tmp_path / "receipts"
    undone = keeplast(*call, "--with", f"receipt={receipt}", "--round", listed[0]["round"])
    assert (0, True) == (undone.code, f"keeplast hold add {store} NAME" in undone.out)
    assert [before[0], after[1]] == regions(keeplast, store)
    inspected = keeplast("inspect", receipt)
    assert f"round {listed[0]['round']} undone" in " ".join(inspected.out.split())
    again = keeplast(*call, "--with", f"receipt={receipt}", "--round", listed[0]["round"])
    assert (0, True) == (again.code, "was undone before" in again.err)
    strange = keeplast(*call, "--round", "no-such")
    assert (2, True) == (strange.code, "keeplast undo --list" in strange.err)
    nothing = keeplast(*call, "--json")
    assert (4, [], []) == (nothing.code, nothing.document["rounds"], nothing.document["failed"])
    assert "nothing was undone, no round has kept anything" in nothing.err
    keeplast("verify", store, code=0)


def test_kept_rounds_are_dropped_on_request(keeplast: Command, store: str) -> None:
    clean(keeplast, store)
    run = keeplast("undo", store, "--drop", "--topic", "t")
    assert (0, "dropped what 2 rounds had kept") == (run.code, run.out.strip())
    assert "no round has kept anything" in keeplast("undo", store, "--list").out
    collected = keeplast("collect", store, "--json").document["partitions"]
    assert [3, 2] == [each["collected_segments"] for each in collected]


def test_another_hosts_rounds_are_undone_and_dropped_only_by_taking_over(
    keeplast: Command, store: str
) -> None:
    before = regions(keeplast, store)
    clean(keeplast, store)
    after = regions(keeplast, store)
    for more in ((), ("--drop",)):
        refused = keeplast("undo", store, "--owner", "b", "--partition", 0, *more)
        assert (4, True) == (refused.code, "take over (--take-over)" in refused.err), refused.err
    assert after == regions(keeplast, store)
    keeplast("undo", store, "--owner", "b", "--take-over", "--partition", 0, code=0)
    assert [before[0], after[1]] == regions(keeplast, store)
    dropped = keeplast("undo", store, "--owner", "b", "--take-over", "--partition", 1, "--drop")
    assert (0, "dropped what 1 round had kept") == (dropped.code, dropped.out.strip())


def test_a_time_above_the_greatest_lag_is_refused(keeplast: Command, store: str) -> None:
    run = keeplast("configure", store, "max.compaction.lag.ms=1000", "--topic", "t")
    assert (2, True) == (run.code, "undo.retention.ms above max.compaction.lag.ms" in run.err)


def test_explain_names_what_is_kept_and_until_when(keeplast: Command, store: str) -> None:
    clean(keeplast, store)
    call = ("explain", store, "a", "--topic", "t", "--partition", 0)
    part = keeplast(*call, "--json").document["partitions"][0]
    assert ([], 9) == (part["replaced_copies"], len(part["kept_for_undo"]))
    assert "has kept for undo, until" in " ".join(keeplast(*call).out.split())


def test_a_setting_that_is_shortened_counts_at_once(keeplast: Command, store: str) -> None:
    clean(keeplast, store)
    keeplast("configure", store, "undo.retention.ms=0", code=0)
    collected = keeplast("collect", store, "--json").document["partitions"]
    assert [3, 2] == [each["collected_segments"] for each in collected]


def test_what_is_to_be_erased_does_not_come_back_and_now_keeps_nothing(
    keeplast: Command, store: str, tmp_path: Path
) -> None:
    clean(keeplast, store)
    keys, hashes = tmp_path / "keys", tmp_path / "hash-key"
    keys.write_text("a\n")
    hashes.write_text("0" * 64 + "\n")
    hashes.chmod(0o600)
    asked = (store, "--topic", "t", "--keys", keys, "--hash-key", hashes)
    elsewhere = ("--requests", tmp_path / "requests")
    request = keeplast("erase", "keys", *asked, *elsewhere, "--json").document["request"]
    run = keeplast("undo", store)
    assert (4, 2) == (run.code, run.err.count("keys of the topic are to be erased"))
    assert 0 == keeplast("erase", "requests", store, "--forget", request, *elsewhere).code
    assert 0 == keeplast("undo", store, "--dry-run").code
    request = keeplast("erase", "keys", *asked, "--json").document["request"]
    run = keeplast("undo", store)
    assert (4, 2) == (run.code, run.err.count("keys of the topic are to be erased"))
    listed = keeplast("undo", store, "--list", "--json").document["rounds"]
    why = f"keys of the topic are to be erased: request {request}"
    assert [why, why] == [each["refusal"] for each in listed]
    keeplast("erase", "keys", *asked, "--now", "--grace-ms", 0, "--json")
    assert "no round has kept anything" in keeplast("undo", store, "--list").out


def test_a_live_clusters_rounds_are_refused_with_what_to_do_there(keeplast: Command) -> None:
    for more in ((), ("--list",), ("--drop",)):
        run = keeplast("undo", "kafka://127.0.0.1:1", *more)
        assert (4, True) == (run.code, "keeplast export --as-of" in run.err)


def test_calls_that_contradict_each_other_are_refused(keeplast: Command, store: str) -> None:
    for more in (("--list", "--drop"), ("--list", "--dry-run"), ("--drop", "--round", "x")):
        assert 2 == keeplast("undo", store, *more).code
