"""``keeplast erase`` over a live cluster: what it says, keeps, does and signs."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from keeplast.cli.main import app
from keeplast.cluster.layouts.local_storage import SEGMENTS
from keeplast.format.identifier import encode_id
from keeplast.format.message_set import read_batches
from keeplast.format.remote_log_metadata import RemoteLogSegmentState
from tests.support import called
from tests.support.attached_world import CLUSTER_ID, PARTITION, TOPIC_ID, moved
from tests.support.flipped import flip
from tests.support.key_pair import OperatorFiles, write_operator_files
from tests.support.verified_world import VerifiedWorld
from tests.unit.attach.test_attached_rounds import MERGING

SMALL = ("--config", "segment.bytes=2000")
"""What stays raw at the end is two segments."""
ALL = [b"k%d" % number for number in range(30)]


@pytest.fixture
def operator(tmp_path: Path) -> OperatorFiles:
    return write_operator_files(tmp_path / "apart", ALL)


class Call:
    """What a command answered."""

    def __init__(self, world: VerifiedWorld, command: str, *more: object, topics: bool) -> None:
        found = CliRunner().invoke(
            app,
            [
                "erase", command, *place_of(world),
                *(("--topic", PARTITION.topic) if topics else ()), *map(str, more), "--json",
            ],
        )  # fmt: skip
        self.code, self.err = found.exit_code, " ".join(found.stderr.split())
        self.text = found.stdout + found.stderr
        self.document: dict[str, Any] = json.loads(found.stdout) if found.stdout else {}


def place_of(world: VerifiedWorld) -> tuple[str, ...]:
    """Return the arguments that name the world."""
    log = f"sqlite:///{world.world.root / 'decisions.db'}"
    return ("kafka://127.0.0.1:1", "--storage", "local:/x", "--decisions", log)


def erase(world: VerifiedWorld, operator: OperatorFiles, *more: object) -> Call:
    keys = ("--keys", operator.keys, "--hash-key", operator.hash_key)
    return Call(world, "keys", *keys, *more, topics=True)


def certify(world: VerifiedWorld, operator: OperatorFiles, out: Path, *more: object) -> Call:
    signed = ("--hash-key", operator.hash_key, "--sign-key", operator.sign_key, "--out", out)
    return Call(world, "certify", *signed, *more, topics=False)


def keeplast(*arguments: object) -> Any:
    found = called.run(*map(str, arguments), "--json", code=0)
    return json.loads(found.stdout)


def present(world: VerifiedWorld) -> set[int]:
    """Return the lines of the keys that any object has."""
    found: set[int] = set()
    for path in (world.tier.root / SEGMENTS).rglob("*.log"):
        for batch in read_batches(path.read_bytes()):
            records = () if batch.is_control else batch.records()
            found |= {ALL.index(each.key) + 1 for each in records if each.key in ALL}
    return found


def lines(call: Call) -> set[int]:
    return {each["line"] for each in call.document["keys"] if each["is_there"]}


def test_each_key_is_shown_with_its_served_and_hidden_records(
    world: VerifiedWorld, operator: OperatorFiles
) -> None:
    before = sorted(world.tier.root.rglob("*")), list(world.cluster.values)
    run = erase(world, operator)
    assert 1 == run.code, run.err
    assert present(world) == lines(run) == set(range(1, 31))
    places = [place for each in run.document["keys"] for place in each["places"]]
    decided = [place for place in places if place["decided"]]
    assert decided
    assert all(place["gone_by_ms"] is None for place in places)
    deleted = [place for place in decided if place["tombstones"]]
    assert deleted
    assert all("its tombstone goes with the first round" in place["why"] for place in deleted)
    undecided = [place for place in places if not place["decided"]]
    assert all("unless one is among what only brokers have" in e["why"] for e in undecided)
    names = {f"segment {encode_id(each.id.segment_id)}" for each in world.replaced()}
    assert names == {name for place in places for name in place["files_beside"]}
    assert any("which only brokers have" in e["why"] for e in run.document["not_searched"])
    assert not any(key.decode() + '"' in run.text for key in ALL)
    assert before == (sorted(world.tier.root.rglob("*")), world.cluster.values)
    (request,) = keeplast("erase", "requests", *place_of(world))["requests"]
    assert (run.document["request"], [PARTITION.topic], 30) == (
        request["id"], request["topics"], len(request["keys"])
    )  # fmt: skip
    again = Call(
        world, "keys", "--reapply", "--hash-key", operator.hash_key, topics=False
    )  # fmt: skip
    assert {each["hash"] for each in run.document["keys"]} == {
        each["hash"] for each in again.document["keys"] if each["is_there"]
    }
    keeplast("erase", "requests", *place_of(world), "--forget", request["id"])
    assert [] == keeplast("erase", "requests", *place_of(world))["requests"]


def test_now_cleans_and_collects_what_its_grace_lets_go(
    world: VerifiedWorld, operator: OperatorFiles
) -> None:
    waits = erase(world, operator, "--now", "--grace-ms", "10h", *SMALL)
    assert world.replaced()
    hidden = [e for key in waits.document["keys"] for e in key["places"] if not e["records"]]
    assert all(place["may_go_from_ms"] is not None for place in hidden)
    done = erase(world, operator, "--now", "--grace-ms", "0", *SMALL)
    assert (1, []) == (done.code, world.replaced()), done.err
    assert present(world) == lines(done)
    assert not any(e["files_beside"] for key in done.document["keys"] for e in key["places"])
    assert [["orders"], []] == [
        [e["topic"] for e in done.document["rounds"]],
        done.document["errors"],
    ]


def prove(
    world: VerifiedWorld, operator: OperatorFiles, out: Path, *more: object, expected: int = 0
) -> tuple[str, str]:
    """Return how the partition stands to a certificate, and why."""
    found = CliRunner().invoke(
        app,
        [
            "erase", "check", str(out), "--public-key", str(operator.public_key),
            *place_of(world), *map(str, more), "--json",
        ],
    )  # fmt: skip
    assert expected == found.exit_code, found.output
    (each,) = json.loads(found.stdout)["data"]
    return each["standing"], each["why"]


def test_what_a_remote_tier_has_now_is_held_against_a_certificate(
    world: VerifiedWorld, operator: OperatorFiles, tmp_path: Path
) -> None:
    out, hashed = tmp_path / "gone.json", ("--hash-key", operator.hash_key)
    operator.keys.write_bytes(b"nobody\n")
    erase(world, operator)
    assert 0 == certify(world, operator, out).code
    assert "same" == prove(world, operator, out)[0]
    shutil.copy(world.world.root / "decisions.db", tmp_path / "older.db")
    world.collect()
    world.clean(replace(MERGING, segment_bytes=30_000), margin=0)
    assert ("changed", "later") == (
        prove(world, operator, out, expected=1)[0], prove(world, operator, out, *hashed)[0]
    )  # fmt: skip
    # Of a cluster that is another one, and of metadata that is older.
    world.cluster.topic_id = b"t" * 16
    assert "other" == prove(world, operator, out, expected=1)[0]
    world.cluster.topic_id = TOPIC_ID
    second = tmp_path / "second.json"
    assert 0 == certify(world, operator, second).code
    announced = list(world.cluster.values)
    del world.cluster.values[-1]
    standing, why = prove(world, operator, second, *hashed, expected=1)
    assert ("older", True) == (standing, "the metadata topic ends at" in why)
    world.cluster.values[:] = announced
    world.close()
    (tmp_path / "older.db").replace(world.world.root / "decisions.db")
    for name in ("decisions.db-wal", "decisions.db-shm"):
        (world.world.root / name).unlink(missing_ok=True)
    standing, why = prove(world, operator, second, *hashed, expected=1)
    assert ("older", True) == (standing, "epoch" in why), why


def test_receipts_of_a_certificate_are_held_against_the_heads_of_the_decision_log(
    world: VerifiedWorld, operator: OperatorFiles, tmp_path: Path
) -> None:
    path, out = tmp_path / "receipts.jsonl", tmp_path / "gone.json"
    operator.keys.write_bytes(b"nobody\n")
    erase(world, operator)
    assert 0 == certify(world, operator, out, "--receipt", path).code
    shown = ("erase", "check", out, "--public-key", operator.public_key)
    statement = keeplast(*shown)["statement"]
    assert (True, []) == (statement["receipts"]["is_tail_proven"], statement["not_stated"])
    assert "same" == prove(world, operator, out, "--receipt", path)[0]
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    for each in lines:
        del each["chain"]
    path.write_bytes(b"".join(json.dumps(each).encode() + b"\n" for each in lines))
    second = tmp_path / "second.json"
    refused = certify(world, operator, second, "--receipt", path)
    assert (4, True, False) == (
        refused.code, "no line of the file is chained" in refused.err, second.exists()
    ), refused.err  # fmt: skip
    standing, why = prove(world, operator, out, "--receipt", path, expected=1)
    assert ("older", True) == (standing, "the receipts do not reach line" in why), why
    # Without them it says so.
    assert 0 == certify(world, operator, second).code
    shown = ("erase", "check", second, "--public-key", operator.public_key)
    assert ["the chain of receipts is not part of this statement: none was given"] == (
        keeplast(*shown)["statement"]["not_stated"]
    )


def test_a_certificate_is_refused_while_a_trace_is_there_and_says_what_it_is_about(
    world: VerifiedWorld, operator: OperatorFiles, tmp_path: Path
) -> None:
    out = tmp_path / "gone.json"
    newest = world.tier.served()[-1]
    last = {
        each.key
        for batch in read_batches(world.tier.log_of(newest))
        if not batch.is_control
        for each in batch.records()
    }
    key = next(each for each in ALL if each not in last)
    operator.keys.write_bytes(key + b"\n")
    assert erase(world, operator).code in (0, 1)
    refused = certify(world, operator, out)
    assert (4, True, False) == (refused.code, "no certificate" in refused.err, out.exists())
    world.world.expire(*world.tier.served()[:-1])
    # Its objects wait for their collection, and are a trace as long as they are there.
    refused = certify(world, operator, out)
    assert (4, True) == (refused.code, "segment " in refused.err), refused.err
    erase(world, operator, "--now", "--grace-ms", "0", *SMALL)
    issued = certify(world, operator, out)
    assert 0 == issued.code, issued.err
    statement = keeplast("erase", "check", out, "--public-key", operator.public_key)["statement"]
    assert (CLUSTER_ID, "attached topics") == (
        statement["place"]["cluster_id"], statement["place"]["kind"]
    )  # fmt: skip
    (part,) = statement["partitions"]
    epoch = world.world.log().partitions(CLUSTER_ID)[0].epoch
    assert (encode_id(TOPIC_ID), epoch, len(world.cluster.values), newest.end_offset + 1) == (
        part["topic_id"], part["metadata_version"], part["metadata_offset"], part["searched_to"]
    )  # fmt: skip
    said = " ".join(statement["not_searched"])
    assert "exports, those of keeplast" in said
    assert "brokers' local logs" in said
    assert f"offsets {newest.end_offset + 1} to " in said


def test_an_unsearchable_place_is_not_named_as_searched(
    world: VerifiedWorld, operator: OperatorFiles, tmp_path: Path
) -> None:
    out = tmp_path / "gone.json"
    operator.keys.write_bytes(b"nobody\n")
    run = erase(world, operator)
    assert (0, set()) == (run.code, lines(run)), run.err
    served = world.tier.served()[0]
    stem = world.file_of(served)
    name = stem.with_name(stem.name.replace(encode_id(served.id.segment_id), encode_id(b"s" * 16)))
    shutil.copy(stem, name)
    refused = certify(world, operator, out)
    assert (4, True) == (refused.code, "it was not searched" in refused.err), refused.err
    assert 4 == erase(world, operator).code
    name.unlink()
    begun = replace(
        served, id=dataclasses.replace(served.id, segment_id=b"c" * 16), broker_id=1,
        state=RemoteLogSegmentState.COPY_SEGMENT_STARTED,
    )  # fmt: skip
    world.cluster.announce(begun)
    assert 0 == certify(world, operator, out).code
    shutil.copy(stem, stem.with_name(stem.name.replace(
        encode_id(served.id.segment_id), encode_id(begun.id.segment_id))))  # fmt: skip
    refused = certify(world, operator, tmp_path / "other.json")
    assert (4, True) == (refused.code, "was begun and has not ended" in refused.err), refused.err
    world.cluster.announce(moved(begun, RemoteLogSegmentState.DELETE_SEGMENT_STARTED))
    # It has the served segment's records now, and was searched.
    assert 0 == certify(world, operator, tmp_path / "other.json").code
    flip(stem, 70)
    damaged = certify(world, operator, tmp_path / "third.json")
    assert (4, True) == (damaged.code, "no certificate" in damaged.err), damaged.err


@pytest.mark.parametrize("where", ["lost+found/#7", "{segments}/x", "{folder}/copy", ".keeplast/#"])
def test_a_key_in_an_object_of_unknown_name_keeps_a_certificate_back(
    world: VerifiedWorld, operator: OperatorFiles, tmp_path: Path, where: str
) -> None:
    out, root = tmp_path / "gone.json", world.tier.root
    operator.keys.write_bytes(b"nobody\n")
    assert 0 == erase(world, operator).code
    folder = world.file_of(world.tier.served()[0]).parent.relative_to(root)
    path = root / where.format(segments=SEGMENTS, folder=folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"this is nobody's")
    name = str(path.relative_to(root))
    assert 0 == certify(world, operator, out).code
    (unknown,) = json.loads(out.read_bytes())["statement"]["unknown_paths"]
    assert (name, 16) == (unknown["path"], unknown["bytes"])
    out.unlink()
    refused = certify(world, operator, out, "--keys", operator.keys)
    assert (4, True) == (refused.code, f"{name} (16 bytes): it has line 1, " in refused.err)
    path.write_bytes(b"this is another's")
    assert 0 == certify(world, operator, out, "--keys", operator.keys).code
    assert [] == json.loads(out.read_bytes())["statement"]["unknown_paths"]


def test_a_named_topic_that_is_not_compacted_keeps_a_certificate_back(
    world: VerifiedWorld, operator: OperatorFiles, tmp_path: Path
) -> None:
    said = tmp_path / "settings.toml"
    said.write_text(f'[topic."{PARTITION.topic}"]\n"cleanup.policy" = "delete"\n')
    requests = tmp_path / "requests"
    run = erase(world, operator, "--config-file", said, "--requests", requests)
    assert (4, [PARTITION.topic]) == (run.code, [e["topic"] for e in run.document["not_searched"]])
    assert requests.exists()
    assert [] == keeplast("erase", "requests", *place_of(world))["requests"]
    refused = certify(
        world, operator, tmp_path / "gone.json", "--config-file", said, "--requests", requests
    )
    assert (4, True) == (refused.code, "though its topic was asked for" in refused.err)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--now", "--dry-run"), "leave one out"),
        (("--all-topics",), "give --topic, or --all-topics"),
        (("--reapply",), "--reapply takes the topics"),
        (("--grace-ms", "-1"), "grace"),
    ],
)
def test_an_unanswerable_question_is_exit_code_2(
    world: VerifiedWorld, operator: OperatorFiles, more: tuple[str, ...], words: str
) -> None:
    run = erase(world, operator, *more)
    assert (2, True) == (run.code, words in run.err), run.err


def test_a_certificate_takes_its_topics_from_the_request(
    world: VerifiedWorld, operator: OperatorFiles, tmp_path: Path
) -> None:
    named = certify(world, operator, tmp_path / "gone.json", "--topic", PARTITION.topic)
    assert (2, True) == (named.code, "No such option" in named.err), named.err
    none = certify(world, operator, tmp_path / "gone.json")
    assert (2, True) == (none.code, "no erasure request to go by" in none.err), none.err
