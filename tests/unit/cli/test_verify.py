"""``verify``, and ``inspect`` of receipts: arguments to judgements, output and exit codes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from keeplast.clock import time_text
from keeplast.inspect.verification import Verifier
from tests.support.cleaned_pair import LATE_MS, SECOND_MS, make_pair
from tests.support.damaged_log import DamagedLog
from tests.support.heard_calls import hear
from tests.unit.cli.conftest import Command, Run

NO_ROUND_IN_PLACE = (
    "no round: there is no receipt of this partition to judge by; clean writes one with --receipt "
    "FILE alone"
)
TOPIC = ("--topic", "log", "--config", "cleanup.policy=compact")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """``before``, ``after`` (data directories) and ``receipt``, cleaned at LATE_MS."""
    pair = make_pair(tmp_path / "made")
    for name in ("before", "after"):
        shutil.copytree(pair.before, tmp_path / name / "log-0")
    return tmp_path


@pytest.fixture
def cleaned(place: Path, keeplast: Command) -> Path:
    keeplast(
        "clean", place / "after", *TOPIC, "--runner", "local", "--now-ms", LATE_MS,
        "--despite", "dirty-ratio", "--despite", "log-bounds", "--first-dirty-offset", 13,
        "--receipt", place / "receipt", code=0,
    )  # fmt: skip
    return place


def test_pair_holds_and_says_each_claim(cleaned: Path, keeplast: Command) -> None:
    run = keeplast("verify", cleaned / "before", cleaned / "after", "--now-ms", LATE_MS, code=0)
    assert "log-0: holds" in run.out
    for name in ("records", "winners", "untouched", "horizons", "producers", "indexes"):
        assert name in run.out
    assert "broken" not in run.out


def test_partition_directories_are_taken_too(cleaned: Path, keeplast: Command) -> None:
    run = keeplast(
        "verify", cleaned / "before" / "log-0", cleaned / "after" / "log-0",
        "--receipt", cleaned / "receipt", "--json", code=0,
    )  # fmt: skip
    (partition,) = run.document["partitions"]
    assert ("log-0", "holds") == (partition["partition"], partition["verdict"])
    assert "receipt" in [check["name"] for check in partition["checks"]]


def test_damage_is_exit_code_1_with_offset_and_key(cleaned: Path, keeplast: Command) -> None:
    log = DamagedLog(cleaned / "after" / "log-0")
    log.drop(21)
    log.save()
    run = keeplast("verify", cleaned / "before", cleaned / "after", "--now-ms", LATE_MS, code=1)
    assert "log-0: broken" in run.out
    assert "offset 21: the final record is missing" in run.out
    assert 'key="a"' in run.out


def test_an_unjudged_check_is_0_and_strictly_1(cleaned: Path, keeplast: Command) -> None:
    places = (cleaned / "before", cleaned / "after")
    run = keeplast("verify", *places, code=0)
    assert "log-0: cannot be judged" in run.out
    assert "--now-ms" in run.out
    assert 1 == keeplast("verify", *places, "--strict").code


def test_run_in_place_is_judged_by_its_receipt(cleaned: Path, keeplast: Command) -> None:
    arguments = ("verify", cleaned / "after", "--receipt", cleaned / "receipt")
    run = keeplast(*arguments)
    assert (0, True) == (run.code, "there is no log before cleaning" in run.out)
    log = DamagedLog(cleaned / "after" / "log-0")
    log.change(21, value=b"a9")
    log.save()
    assert 1 == keeplast(*arguments).code


def test_partition_without_a_round_is_compared_without_a_receipt(
    cleaned: Path, keeplast: Command
) -> None:
    # log-1 had nothing to clean, and comes after log-0, whose verdict must not be lost.
    for name in ("before", "after"):
        shutil.copytree(cleaned / "before" / "log-0", cleaned / name / "log-1")
    receipt = ("--receipt", cleaned / "receipt", "--json")
    run = keeplast("verify", cleaned / "before", cleaned / "after", *receipt, code=0)
    first, second = run.document["partitions"]
    assert ("log-0", "log-1") == (first["partition"], second["partition"])
    assert ["holds", "holds"] == [first["verdict"], second["verdict"]]
    assert "no round: compared without a receipt" == second["notes"][0]
    assert "no round: compared without a receipt" not in first["notes"]
    assert "receipt" not in [check["name"] for check in second["checks"]]


def test_partition_without_a_round_and_a_before_cannot_be_judged(
    cleaned: Path, keeplast: Command
) -> None:
    shutil.copytree(cleaned / "before" / "log-0", cleaned / "after" / "log-1")
    run = keeplast("verify", cleaned / "after", "--receipt", cleaned / "receipt", "--json", code=0)
    second = run.document["partitions"][1]
    assert ("log-1", "cannot be judged") == (second["partition"], second["verdict"])
    assert [NO_ROUND_IN_PLACE] == second["notes"]


def test_receipt_of_an_earlier_clean_says_that_no_round_lies_between(
    cleaned: Path, keeplast: Command
) -> None:
    shutil.copytree(cleaned / "after", cleaned / "copy")
    arguments = ("verify", cleaned / "copy", cleaned / "after", "--receipt", cleaned / "receipt")
    run = keeplast(*arguments, "--now-ms", LATE_MS, "--json")
    (partition,) = run.document["partitions"]
    assert (0, "holds") == (run.code, partition["verdict"]), partition
    assert "no round: compared without a receipt" == partition["notes"][0]
    assert "receipt" not in [check["name"] for check in partition["checks"]]
    # A checkpoint that has moved since shows a round that the file knows nothing of.
    for name, offset in (("copy", 13), ("after", 24)):
        (cleaned / name / "cleaner-offset-checkpoint").write_text(f"0\n1\nlog 0 {offset}\n")
    run = keeplast(*arguments)
    assert (1, True) == (run.code, "before: the segment" in run.out)


def test_earlier_receipt_does_not_hide_what_happened_since(
    cleaned: Path, keeplast: Command
) -> None:
    shutil.copytree(cleaned / "after", cleaned / "copy")
    log = DamagedLog(cleaned / "after" / "log-0")
    log.drop(21)
    log.save()
    run = keeplast("verify", cleaned / "copy", cleaned / "after", "--receipt", cleaned / "receipt")
    assert (1, True) == (run.code, "offset 21: the final record is missing" in run.out)


def test_receipt_file_that_is_missing_is_an_error_and_nothing_is_judged(
    cleaned: Path, keeplast: Command
) -> None:
    for places in ((cleaned / "before", cleaned / "after"), (cleaned / "after",)):
        for more in ((), ("--note",)):
            run = keeplast("verify", *places, "--receipt", cleaned / "none", *more)
            assert (2, "") == (run.code, run.out)
            assert (
                "there is no such receipt file; name the one that clean --receipt wrote" in run.err
            )
    assert not (cleaned / "none").exists()


def test_a_clean_that_had_nothing_to_clean_leaves_an_empty_receipt(
    place: Path, keeplast: Command
) -> None:
    receipt = place / "receipt"
    run = keeplast(
        "clean", place / "after", "--topic", "log", "--config", "cleanup.policy=compact",
        "--config", "min.cleanable.dirty.ratio=1", "--runner", "local", "--receipt", receipt,
        "--selection", "kafka",
    )  # fmt: skip
    assert (0, True, b"") == (run.code, "1 skipped" in run.out, receipt.read_bytes())
    keeplast("verify", place / "before", place / "after", "--receipt", receipt, code=0)


def test_receipt_file_without_a_line_is_said_and_no_failure(place: Path, keeplast: Command) -> None:
    (place / "receipt").touch()
    receipt = ("--receipt", place / "receipt", "--json")
    run = keeplast("verify", place / "before", place / "after", *receipt, code=0)
    (partition,) = run.document["partitions"]
    assert "holds" == partition["verdict"]
    unwritten = (
        "the receipt file is empty: clean leaves it so when nothing was cleaned. "
        f"receipt={place / 'receipt'}"
    )
    assert [unwritten, "no round: compared without a receipt"] == partition["notes"][:2]
    run = keeplast("verify", place / "after", *receipt)
    (partition,) = run.document["partitions"]
    assert (0, "cannot be judged") == (run.code, partition["verdict"])
    assert [unwritten, NO_ROUND_IN_PLACE] == partition["notes"]


def test_receipt_of_another_directory_is_refused(cleaned: Path, keeplast: Command) -> None:
    for name in ("before", "after"):
        (cleaned / name / "log-0").rename(cleaned / name / "log-7")
    run = keeplast(
        "verify",
        cleaned / "before",
        cleaned / "after",
        "--receipt",
        cleaned / "receipt",
        code=2,
    )
    assert "in_receipt=log-0 partition=log-7" in run.err


def test_replicas(cleaned: Path, keeplast: Command) -> None:
    run = keeplast("verify", cleaned / "before", cleaned / "after", "--replicas")
    assert (0, True) == (run.code, "log-0: holds" in run.out)
    log = DamagedLog(cleaned / "after" / "log-0")
    log.change(21, value=b"a9")
    log.save()
    run = keeplast("verify", cleaned / "before", cleaned / "after", "--replicas")
    assert (1, True) == (run.code, "value changed" in run.out)


@pytest.mark.parametrize(
    "arguments",
    [
        ("before",),
        ("--replicas", "before"),
        ("--replicas", "before", "after", "--receipt", "receipt"),
        ("before", "after", "--receipt", "nowhere/receipt"),
        ("before", "after", "--receipt", "before"),
        ("before", "after", "--receipt", "before/log-0/00000000000000000000.log"),
        ("before", "nowhere"),
        ("before", "after", "--topic", "other"),
        ("before", "after", "--config", "no.such.key=1"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(
    arguments: tuple[str, ...], cleaned: Path, keeplast: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(cleaned)
    run = keeplast("verify", *arguments)
    assert run.code in (2, 4, 5), run.out
    assert "" == run.out
    assert run.err.startswith("error: ")


def test_a_third_directory_is_a_mistake(cleaned: Path, keeplast: Command) -> None:
    run = keeplast("verify", cleaned / "before", cleaned / "after", cleaned / "before")
    assert (2, "") == (run.code, run.out)


def test_partition_in_one_place_only_is_refused(cleaned: Path, keeplast: Command) -> None:
    shutil.copytree(cleaned / "before" / "log-0", cleaned / "before" / "log-1")
    run = keeplast("verify", cleaned / "before", cleaned / "after", code=2)
    assert "log-1" in run.err


def test_receipt_is_shown(cleaned: Path, keeplast: Command) -> None:
    run = keeplast("inspect", cleaned / "receipt", code=0)
    assert "log-0" in run.out
    assert "superseded" in run.out
    assert "13..24" in run.out
    document = keeplast("inspect", cleaned / "receipt", "--json").document
    (receipt,) = document["receipts"]
    assert (LATE_MS, 2) == (receipt["now_ms"], receipt["version"])
    assert SECOND_MS < receipt["now_ms"]


def test_a_directory_is_no_receipt_and_the_file_in_it_is_named(
    cleaned: Path, keeplast: Command
) -> None:
    (cleaned / "after" / "keeplast-receipts").touch()
    run = keeplast("inspect", cleaned / "after", code=2)
    assert "or its receipts, keeplast-receipts" in " ".join(run.err.split())


def test_receipt_that_is_none_is_refused(place: Path, keeplast: Command) -> None:
    for text in ('{"no": "receipt"}\n', "no receipt\n", ""):
        (place / "other").write_text(text)
        run = keeplast("inspect", place / "other")
        assert (2, "", True) == (run.code, run.out, "receipt" in run.err), run.err


def test_receipts_are_known_by_their_content_and_kafkas_files_by_their_names(
    cleaned: Path, keeplast: Command
) -> None:
    link = cleaned / "link"
    link.symlink_to(cleaned / "receipt")
    assert "receipts" == keeplast("inspect", link, "--json").document["kind"]
    (cleaned / "cleaner-offset-checkpoint").write_text("{}")
    assert 3 == keeplast("inspect", cleaned / "cleaner-offset-checkpoint").code


def test_a_limit_shows_the_first_receipts_and_checks_the_whole_chain(
    cleaned: Path, keeplast: Command
) -> None:
    noted(cleaned, keeplast)
    run = keeplast("inspect", cleaned / "receipt", "--limit", 1, "--json")
    assert (1, True) == (len(run.document["receipts"]), run.document["truncated"])
    whole = keeplast("inspect", cleaned / "receipt", "--json").document
    assert (2, False) == (len(whole["receipts"]), whole["truncated"])
    assert whole["chain"] == run.document["chain"]


def test_a_receipt_that_was_edited_breaks_the_check_where_its_head_was_kept(
    cleaned: Path, keeplast: Command
) -> None:
    receipt = cleaned / "receipt"
    head = keeplast("inspect", receipt, "--json").document["chain"]["head"]
    arguments = ("verify", cleaned / "after", "--receipt", receipt)
    assert "tail not proven" in keeplast(*arguments).out
    proven = keeplast(*arguments, "--receipt-head", head)
    assert (0, True) == (proven.code, "proven up to the head that was kept" in proven.out)
    lines = receipt.read_bytes()
    receipt.write_bytes(lines.replace(b'"unsafe":true', b'"unsafe":false'))
    # The last line binds nothing but what lies before it.
    assert 0 == keeplast(*arguments).code
    edited = keeplast(*arguments, "--receipt-head", head)
    assert (1, True) == (edited.code, "not the one that was kept as head" in edited.out)
    receipt.write_bytes(b"")
    emptied = keeplast(*arguments, "--receipt-head", head)
    assert (1, True) == (emptied.code, "lines were cut off" in emptied.out), emptied.out
    refused = keeplast("verify", cleaned / "before", cleaned / "after", "--receipt-head", head)
    assert (2, True) == (refused.code, "give --receipt FILE too" in refused.err)


def test_a_broken_chain_is_a_failure_where_no_round_of_it_is_judged(
    cleaned: Path, keeplast: Command
) -> None:
    assert 0 == noted(cleaned, keeplast).code
    path = cleaned / "receipt"
    path.write_bytes(path.read_bytes().replace(b'"wave":1', b'"wave":1 ', 1))
    shutil.copytree(cleaned / "after", cleaned / "copy")
    places = (cleaned / "copy", cleaned / "after")
    run = keeplast("verify", *places, "--receipt", path, "--now-ms", LATE_MS)
    assert (1, True) == (run.code, "receipt: its chain is broken" in run.out), run.out


def test_a_log_that_cannot_be_judged_keeps_no_other_from_it(
    cleaned: Path, keeplast: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("before", "after"):
        shutil.copytree(cleaned / "before" / "log-0", cleaned / name / "log-1")

    def fails(self: Verifier, before: Path, after: Path, *_: object) -> None:
        if after.name == "log-0":
            raise OSError(5, "Input/output error", str(after))

    hear(monkeypatch, Verifier, "verify_pair", fails)
    run = keeplast("verify", cleaned / "before", cleaned / "after", "--json")
    first, second = run.document["partitions"]
    assert (5, "log-0", "log-1") == (run.code, first["partition"], second["partition"])
    assert "input/output error" in first["error"].lower()
    assert "verdict" in second
    assert "log-0: " in run.err


def noted(place: Path, keeplast: Command, *more: str) -> Run:
    """Judge ``before`` and ``after`` by the receipt, and have the verdict noted there."""
    places = (place / "before", place / "after")
    return keeplast("verify", *places, "--receipt", place / "receipt", "--note", *more)


def test_a_verdict_is_noted_in_the_receipts_chain_next_to_its_round(
    cleaned: Path, keeplast: Command
) -> None:
    before = (cleaned / "receipt").read_bytes()
    run = noted(cleaned, keeplast, "--json")
    assert (0, 1) == (run.code, run.document["noted"]), run.err
    after = (cleaned / "receipt").read_bytes()
    assert after.startswith(before)
    (line,) = after[len(before) :].splitlines()
    first, verdict = json.loads(before.splitlines()[0]), json.loads(line)
    assert {
        "verdict": "holds", "rounds": [first["attempt"]], "broken": [], "unjudged": [],
    } == verdict["verdict"]  # fmt: skip
    assert ("log", 0) == (verdict["topic"], verdict["partition"])
    shown = keeplast("inspect", cleaned / "receipt")
    assert (0, True) == (shown.code, "its chain is whole" in shown.out)
    words = " ".join(shown.out.split())
    assert f"holds {time_text(verdict['now_ms'])[:10]}" in words
    # It stands next to its round, as no line of its own.
    assert 1 == words.count("log-0")
    # What was noted changes nothing for who judges, or cleans, by the same file.
    assert 0 == noted(cleaned, keeplast).code
    assert 3 == len((cleaned / "receipt").read_bytes().splitlines())


def test_nothing_is_noted_unless_that_is_asked_for(cleaned: Path, keeplast: Command) -> None:
    before = (cleaned / "receipt").read_bytes()
    places = (cleaned / "before", cleaned / "after")
    run = keeplast("verify", *places, "--receipt", cleaned / "receipt", "--json")
    assert (0, before) == (run.code, (cleaned / "receipt").read_bytes())
    assert "noted" not in run.document
    assert "verdict" not in keeplast("inspect", cleaned / "receipt").out


def test_a_fault_is_noted_and_no_log_is_touched(cleaned: Path, keeplast: Command) -> None:
    log = DamagedLog(cleaned / "after" / "log-0")
    log.drop(21)
    log.save()
    kept = {path: path.read_bytes() for path in cleaned.rglob("*-0/*") if path.is_file()}
    run = noted(cleaned, keeplast, "--json")
    assert 1 == run.code
    (partition,) = run.document["partitions"]
    broken = [each["name"] for each in partition["checks"] if each["verdict"] == "broken"]
    line = json.loads((cleaned / "receipt").read_bytes().splitlines()[-1])
    assert ("broken", broken) == (line["verdict"]["verdict"], line["verdict"]["broken"])
    assert "winners" in broken
    shown = keeplast("inspect", cleaned / "receipt", "--json")
    assert line == shown.document["receipts"][-1]
    assert "broken:" in keeplast("inspect", cleaned / "receipt").out
    assert kept == {path: path.read_bytes() for path in kept}


def test_an_edited_receipt_is_noted_as_broken_and_stays_so(
    cleaned: Path, keeplast: Command
) -> None:
    assert 0 == noted(cleaned, keeplast).code
    path = cleaned / "receipt"
    path.write_bytes(path.read_bytes().replace(b'"wave":1', b'"wave":1 ', 1))
    assert 1 == noted(cleaned, keeplast).code
    line = json.loads(path.read_bytes().splitlines()[-1])
    assert ["receipt"] == line["verdict"]["broken"]
    shown = keeplast("inspect", path)
    assert (1, True) == (shown.code, "its chain is broken" in shown.out)
    assert "error: its chain is broken: line 2 follows another line" in " ".join(shown.err.split())
    assert 1 == keeplast("inspect", path, "--json").code


def test_where_no_round_was_judged_nothing_is_noted(cleaned: Path, keeplast: Command) -> None:
    shutil.copytree(cleaned / "after", cleaned / "copy")
    before = (cleaned / "receipt").read_bytes()
    run = keeplast(
        "verify", cleaned / "copy", cleaned / "after", "--receipt", cleaned / "receipt", "--note",
        "--now-ms", LATE_MS, "--json",
    )  # fmt: skip
    assert (0, 0) == (run.code, run.document["noted"])
    assert "no round was judged, so nothing is noted. partition=log-0" in run.err
    assert before == (cleaned / "receipt").read_bytes()
    (cleaned / "none").touch()
    empty = keeplast(
        "verify", cleaned / "before", cleaned / "after", "--receipt", cleaned / "none", "--note"
    )
    assert (0, b"") == (empty.code, (cleaned / "none").read_bytes()), empty.err


def test_an_impossible_note_is_refused_before_anything_is_judged(
    cleaned: Path, keeplast: Command
) -> None:
    places = (cleaned / "before", cleaned / "after")
    alone = keeplast("verify", *places, "--note")
    assert (2, True) == (alone.code, "--note writes into a receipt" in alone.err)
    inside, link = cleaned / "after" / "log-0" / "receipt", cleaned / "link"
    shutil.copy(cleaned / "receipt", inside)
    link.symlink_to(cleaned / "receipt")
    for path in (inside, link):
        before = path.read_bytes()
        run = keeplast("verify", *places, "--receipt", path, "--note")
        assert (4, "") == (run.code, run.out), run.err
        assert "leave --note out to judge only" in run.err
        assert before == path.read_bytes()
