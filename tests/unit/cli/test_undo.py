"""``keeplast undo``: what it shows, does and refuses."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

import keeplast
from keeplast.log.lock import locked
from tests.support.called import run
from tests.support.small_log import write_log

SETTINGS = '[topic."t"]\ncleanup.policy = "compact"\nundo.retention.ms = 3600000\n'


@pytest.fixture
def data(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    root.mkdir()
    (root / "keeplast.toml").write_text(SETTINGS)
    pairs = [(b"a", b"%d" % number) for number in range(3)]
    write_log(root, "t-0", {0: pairs, 3: pairs, 6: pairs})
    write_log(root, "t-1", {0: pairs, 3: pairs})
    return root


def clean(data: Path) -> None:
    """Clean what is closed; an active segment that is old stays where it is."""
    run("clean", data, "--topic", "t", "--despite", "dirty-ratio", "--selection", "kafka", code=0)


def logs(data: Path, number: int = 0) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (data / f"t-{number}").glob("0*")}


def test_a_round_is_listed_tried_and_undone(data: Path) -> None:
    before = logs(data)
    clean(data)
    after = logs(data)
    assert before != after
    listed = run("undo", data, "--list", "--json")
    rounds = json.loads(listed.stdout)["rounds"]
    assert [("t", 0, True, None), ("t", 1, True, None)] == [
        tuple(each[name] for name in ("topic", "partition", "is_in_place", "refusal"))
        for each in rounds
    ]
    assert "can be undone" in run("undo", data, "--list").output
    assert "kept for keeplast undo, until" in run("status", data, "--partition", 0).output
    tried = run("undo", data, "--partition", 0, "--dry-run")
    assert (0, True) == (tried.exit_code, "would be undone" in tried.output), tried.output
    assert after == logs(data)
    undone = run("undo", data, "--partition", 0, "--json", code=0)
    (done,) = json.loads(undone.stdout)["rounds"]
    assert (2, 6, None) == (done["segments"], done["end"], done["checkpoint"])
    assert before == logs(data)
    shown = run("inspect", data / "keeplast-receipts")
    assert "undone, 2 segments back" in " ".join(shown.output.split())
    again = run("undo", data, "--partition", 0)
    words = "nothing was undone, no round has kept anything: rounds keep what they replace where"
    assert (4, True) == (again.exit_code, words in " ".join(again.stderr.split()))
    tried = run("undo", data, "--partition", 0, "--dry-run", code=4)
    both = run("undo", data, "--json")  # of the other partition one is there
    assert (0, 1) == (both.exit_code, len(json.loads(both.stdout)["rounds"]))


def test_a_round_whose_only_list_is_damaged_is_named_and_not_taken_for_none(data: Path) -> None:
    clean(data)
    after = logs(data)
    (damaged,) = (data / "t-0").glob("keeplast-undo.*.json.kept")
    damaged.write_bytes(damaged.read_bytes()[:-9])
    listed = run("undo", data, "--list", "--json", code=0)
    document = json.loads(listed.stdout)
    assert [str(damaged)] == document["damaged"]
    assert [1] == [each["partition"] for each in document["rounds"]]
    words = "the list of a round's kept files is damaged"
    assert words in " ".join(run("undo", data, "--list").stderr.split())
    for more in ((), ("--dry-run",)):
        done = run("undo", data, "--partition", 0, *more)
        assert (4, True) == (done.exit_code, words in " ".join(done.stderr.split())), done.output
    assert after == logs(data)
    assert damaged.exists()
    assert 0 == run("undo", data, "--drop", "--partition", 0).exit_code
    assert not list((data / "t-0").glob("keeplast-undo.*"))


def test_a_refusal_of_one_partition_keeps_no_other_from_it(data: Path) -> None:
    before = logs(data, 1)
    clean(data)
    path = data / "t-0" / f"{0:020d}.log"
    path.write_bytes(path.read_bytes()[:-1])
    done = run("undo", data, "--json", code=4)
    document = json.loads(done.stdout)
    assert [("t", 0, "RefusedError")] == [
        (each["topic"], each["partition"], each["class"]) for each in document["failed"]
    ]
    assert before == logs(data, 1)


def test_it_is_refused_while_the_directory_is_in_use_and_in_a_store(data: Path) -> None:
    clean(data)
    with locked(data):
        assert 4 == run("undo", data).exit_code
        assert 4 == run("undo", data, "--drop").exit_code
        assert 0 == run("undo", data, "--list").exit_code
    refused = run("undo", "s3://bucket/data", "--list")
    assert (4, True) == (refused.exit_code, "undo is for data directories" in refused.output)
    assert 2 == run("undo", data, "--list", "--topic", "other").exit_code


def test_kept_rounds_are_dropped_on_request(data: Path) -> None:
    clean(data)
    dropped = run("undo", data, "--drop", "--json")
    assert {"t-0": 1, "t-1": 1} == json.loads(dropped.stdout)["rounds"]
    listed = run("undo", data, "--list")
    words = "no round has kept anything: rounds keep what they replace where undo.retention.ms is"
    assert (0, True) == (listed.exit_code, words in " ".join(listed.output.split()))


def test_a_time_above_the_greatest_lag_is_refused(data: Path) -> None:
    (data / "keeplast.toml").write_text(SETTINGS + "max.compaction.lag.ms = 3599999\n")
    done = run("plan", data, "--topic", "t", code=2)
    assert "undo.retention.ms above max.compaction.lag.ms" in done.output


def asks(data: Path, tmp_path: Path, *more: object) -> tuple[object, ...]:
    """Return the call that asks to erase key ``a``; its hash key is next to the keys."""
    keys, secret = tmp_path / "keys", tmp_path / "hash.key"
    keys.write_bytes(b"a\n")
    secret.write_bytes(b"5" * 32)
    secret.chmod(0o600)
    return ("erase", "keys", data, "--keys", keys, "--hash-key", secret, *more)


def test_a_request_that_is_kept_elsewhere_is_heeded(data: Path, tmp_path: Path) -> None:
    clean(data)
    elsewhere = ("--requests", tmp_path / "apart")
    asked = asks(data, tmp_path, "--topic", "t", *elsewhere)
    request = json.loads(run(*asked, "--json").stdout)["request"]
    named = json.loads((data / "keeplast-erasures").read_bytes())
    assert ([], [{"id": request, "topics": ["t"]}]) == (named["requests"], named["elsewhere"])
    refused = run("undo", data)
    assert (4, True) == (refused.exit_code, request in refused.output), refused.output
    assert (
        "name the file with --requests"
        in run("erase", "requests", data, "--forget", "0" * 16).output
    )
    (data / "keeplast-erasures").unlink()
    # A directory that came back has no such list; who looks again names them again.
    assert 0 == run("undo", data, "--partition", 1).exit_code
    run("erase", "keys", data, "--hash-key", tmp_path / "hash.key", "--reapply", *elsewhere)
    assert 4 == run("undo", data).exit_code
    assert 0 == run("erase", "requests", data, "--forget", request, *elsewhere).exit_code
    assert {} == {
        name: each
        for path in (data / "keeplast-erasures", tmp_path / "apart")
        for name, each in json.loads(path.read_bytes()).items()
        if each and name != "version"
    }
    assert 0 == run("undo", data).exit_code


def test_a_list_of_undo_takes_a_name_out_whose_file_is_lost(data: Path, tmp_path: Path) -> None:
    lost = tmp_path / "apart"
    asked = asks(data, tmp_path, "--all-topics", "--requests", lost)
    request = json.loads(run(*asked, "--json").stdout)["request"]
    lost.unlink()
    assert request in run("erase", "requests", data).output
    assert 0 == run("erase", "requests", data, "--forget", request).exit_code
    assert [] == json.loads(run("erase", "requests", data, "--json").stdout)["elsewhere"]


def test_what_is_to_be_erased_does_not_come_back(data: Path, tmp_path: Path) -> None:
    """An undo is refused while there is a request, and erase --now takes what was kept."""
    clean(data)
    asked = run(*asks(data, tmp_path, "--topic", "t", "--json"), code=1)
    places = json.loads(asked.stdout)["keys"][0]["places"]
    assert all(any("keeplast-undo." in n for n in each["files_beside"]) for each in places)
    refused = run("undo", data, "--partition", 0)
    assert (4, True) == (refused.exit_code, "are to be erased" in refused.output)
    listed = json.loads(run("undo", data, "--list", "--json").stdout)["rounds"]
    request = json.loads(asked.stdout)["request"]
    assert listed
    assert all(f"to be erased: request {request}" in each["refusal"] for each in listed)
    run(*asks(data, tmp_path, "--topic", "t", "--now"))
    assert not list(data.glob("*/keeplast-undo.*"))


def rounds_of(data: Path, number: int) -> list[str]:
    """Return the rounds of a partition that are kept, the newest first."""
    listed = run("undo", data, "--list", "--partition", number, "--json")
    return [each["round"] for each in json.loads(listed.stdout)["rounds"]]


def append_segment(data: Path, number: int, base: int) -> None:
    made = write_log(data.parent / f"more-{base}", f"t-{number}", {base: [(b"a", b"later")] * 3})
    for path in made.glob("0*"):
        path.rename(data / made.name / path.name)


@pytest.fixture
def twice(data: Path) -> Path:
    """Return a directory whose two partitions have two rounds each to undo."""
    clean(data)
    append_segment(data, 0, 9)
    append_segment(data, 1, 6)
    clean(data)
    assert [2, 2] == [len(rounds_of(data, number)) for number in (0, 1)]
    return data


def named(*rounds: str) -> list[str]:
    return [word for name in rounds for word in ("--round", name)]


def test_rounds_that_are_named_are_undone_once_however_often_that_is_asked_for(
    twice: Path,
) -> None:
    """A call that was cut off behind the first partition takes no round before its newest."""
    older, newest = [[rounds_of(twice, each)[at] for each in (0, 1)] for at in (1, 0)]
    done = run("undo", twice, "--partition", 0, *named(newest[0]), "--json")
    assert (0, newest[:1]) == (
        done.exit_code,
        [e["round"] for e in json.loads(done.stdout)["rounds"]],
    )
    for expected in (newest[1:], []):
        done = run("undo", twice, *named(*newest), "--json", code=0)
        assert expected == [each["round"] for each in json.loads(done.stdout)["rounds"]]
    assert f"round {newest[0]} was undone before" in " ".join(done.output.split())
    assert older == [rounds_of(twice, each)[0] for each in (0, 1)]


def test_rounds_of_a_file_are_undone_the_newest_first(data: Path, twice: Path) -> None:
    before = {number: logs(data, number) for number in (0, 1)}
    names = data.parent / "names"
    names.write_text("\n".join(rounds_of(twice, 0)[::-1]))
    done = run("undo", twice, *named(f"@{names}"), code=0)
    assert "t-1: no round of these is kept" in done.output
    assert [] == rounds_of(twice, 0)
    assert before[1] == logs(data, 1)


def test_a_round_before_one_that_is_not_named_is_refused_and_nothing_is_done(twice: Path) -> None:
    before = logs(twice)
    later, earlier = rounds_of(twice, 0)
    done = run("undo", twice, "--partition", 0, *named(earlier), code=4)
    assert "a later round has to be undone first; name it too" in " ".join(done.output.split())
    assert (before, [later, earlier]) == (logs(twice), rounds_of(twice, 0))


def test_an_unknown_round_is_a_mistake(twice: Path) -> None:
    names = twice.parent / "names"
    names.write_text("\n")
    for given in ("0" * 32, f"@{names}", f"@{names}.not"):
        assert 2 == run("undo", twice, *named(given)).exit_code
    assert [2, 2] == [len(rounds_of(twice, number)) for number in (0, 1)]


def test_a_program_lists_tries_and_undoes_rounds(data: Path) -> None:
    before = logs(data)
    clean(data)
    (first, second) = keeplast.kept_rounds(data, topics=["t"])
    assert [(0, True), (1, True)] == [(e.partition, e.is_in_place) for e in (first, second)]
    tried = keeplast.undo(data, partitions=[0], writes=False)
    assert ((first,), before != logs(data)) == (tried.rounds, True)
    receipt = data.parent / "receipt"
    done = keeplast.undo(data, rounds=[first.round, "x"], receipt=receipt)
    assert ((first,), (), ("x",)) == (done.rounds, done.failed, done.missing)
    assert before == logs(data)
    assert first.round in receipt.read_text()
    with locked(data), pytest.raises(keeplast.RefusedError):
        keeplast.undo(data)
    with pytest.raises(keeplast.InvalidError):
        keeplast.kept_rounds(data, topics=["other"])
    with pytest.raises(keeplast.RefusedError, match="undo is for data directories"):
        keeplast.undo("s3://bucket/data")


def test_explain_names_what_is_kept_for_undo_and_until_when(data: Path) -> None:
    clean(data)
    (kept,) = keeplast.kept_rounds(data, partitions=[0])
    done = run("explain", data, "a", "--topic", "t", "--partition", 0, "--json")
    (partition,) = json.loads(done.stdout)["partitions"]
    assert [kept.round] * 6 == [each["round"] for each in partition["kept_for_undo"]]
    assert [*range(6)] == [each["offset"] for each in partition["kept_for_undo"]]
    assert {kept.until_ms} == {each["until_ms"] for each in partition["kept_for_undo"]}
    shown = " ".join(run("explain", data, "a", "--topic", "t", "--partition", 0).output.split())
    assert "6 more kept for undo" in shown
    assert f"offsets 0, 1, 2, 3, 4 and 1 more also in what round {kept.round} has kept" in shown


def test_a_key_that_only_undo_has_kept_is_no_key_without_a_trace(data: Path) -> None:
    keys = [(b"gone", b"0"), (b"gone", None), (b"a", b"1")]
    write_log(data, "t-2", {0: keys, 3: keys[2:]})
    with (data / "keeplast.toml").open("a") as settings:
        settings.write("delete.retention.ms = 0\n")
    clean(data)
    clean(data)
    run("clean", data, "--topic", "t", "--partition", 2, "--expired", "--selection", "kafka")
    done = run("explain", data, "gone", "--topic", "t", "--partition", 2, "--json")
    (partition,) = json.loads(done.stdout)["partitions"]
    assert [] == partition["records"]
    assert {0, 1} == {each["offset"] for each in partition["kept_for_undo"]}
    last = max(each["until_ms"] for each in partition["kept_for_undo"])
    assert "kept_for_undo" == partition["last_trace"]["kind"]
    assert last < partition["last_trace"]["by_ms"]


def test_what_was_kept_and_is_damaged_is_not_searched_and_ends_no_answer(data: Path) -> None:
    clean(data)
    path = next(each for each in (data / "t-0").glob("keeplast-undo.*.log.kept"))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.unlink()
    path.write_bytes(content)
    done = run("explain", data, "a", "--topic", "t", "--partition", 0, "--json", code=0)
    (partition,) = json.loads(done.stdout)["partitions"]
    assert "kept for undo" in partition["not_searched"][0]
    assert partition["records"]


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_a_terminal_shows_how_far_the_comparison_is(
    data: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    clean(data)
    monkeypatch.setenv("TERM", "xterm-256color")
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100, highlight=False)
    monkeypatch.setattr("keeplast.cli.show.progress.stderr_console", lambda: console)
    run("undo", data, *more, code=0)
    assert "comparing" in screen.getvalue()


def test_elsewhere_nothing_but_the_result_is_said(data: Path) -> None:
    clean(data)
    done = run("undo", data)
    assert (0, "") == (done.exit_code, done.stderr)
