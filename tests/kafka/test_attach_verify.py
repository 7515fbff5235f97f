"""``verify`` of a live cluster: it holds after rounds and collections, and reports faults.

The faults are put into the storage behind the broker's back: an object that is gone, a byte that is
another, a log that was replaced by a shorter one of whole batches.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from keeplast.attach.proof.verification import AttachedVerifier, AttachedVerifySettings
from keeplast.cli.main import app
from keeplast.cluster.metadata_cache import is_compactors, name_of
from keeplast.cluster.metadata_log import fold_metadata
from keeplast.format.identifier import encode_id
from keeplast.inspect.verified_log import VerificationReport
from keeplast.model.document import Verdict
from tests.kafka.broker import PARTITIONS, VERSIONS, Broker
from tests.kafka.test_attach import attach, create
from tests.kafka.test_attach_rounds import (
    STATES,
    TOPIC,
    TRANSACTIONS,
    WISH,
    fill_states,
    fill_transactions,
    wait_until_remote,
)
from tests.support.flipped import flip
from tests.support.key_pair import write_operator_files
from tests.support.live_call import live_place
from tests.support.live_rounds import MEMORY, LiveCompactor

pytestmark = pytest.mark.kafka


BROKERS = VERSIONS[-1:]


@pytest.fixture(scope="module")
def broker(broker: Broker) -> Broker:
    for topic in (STATES, TRANSACTIONS):
        create(broker, topic, 1)
    fill_states(broker, seed=1, count=3000)
    fill_transactions(broker, seed=1, rounds=90)
    return broker


def compactor_of(broker: Broker) -> LiveCompactor:
    return LiveCompactor(broker.address, broker.root / "meta.db", broker.root / "remote")


def verify(broker: Broker, topic: str) -> VerificationReport:
    """Judge partition 0 of a topic."""
    compactor = compactor_of(broker)
    verifier = AttachedVerifier(compactor.client, compactor.log, compactor.layout)
    (found,) = compactor.client.read_facts([topic]).topics
    settings = AttachedVerifySettings(topic=TOPIC, memory_bytes=MEMORY)
    return verifier.verify(found, 0, settings)


def test_it_holds_after_rounds_and_when_the_sources_are_gone(broker: Broker) -> None:
    compactor = compactor_of(broker)
    for topic in (STATES, TRANSACTIONS):
        wait_until_remote(broker, compactor, topic)
        report = verify(broker, topic)
        assert Verdict.HOLDS is report.verdict, report
        assert not compactor.clean(topic, replace(WISH, margin_bytes=40_000)).skipped
        report = verify(broker, topic)
        assert Verdict.HOLDS is report.verdict, report
        assert "were compared" in report.notes[-1]
        if topic == STATES:
            assert explained_as_consumed(broker, topic)
        assert compactor.collect(topic).segments
        if topic == STATES:
            assert not explained_as_consumed(broker, topic)
            certified(broker, topic)
        report = verify(broker, topic)
        assert Verdict.HOLDS is report.verdict, report
        assert "no replaced segment is left" in report.notes[-1]


def explained_as_consumed(broker: Broker, topic: str) -> list[int]:
    """Hold the answer about a key against what a consumer is given; return what is in copies."""
    places = ("--decisions", f"sqlite:///{broker.root / 'meta.db'}",
              "--storage", f"local:{broker.root / 'remote'}", "--topic", topic)  # fmt: skip
    found = attach(broker, "explain", "k7", *places)
    (part,) = found["partitions"]
    client = compactor_of(broker).client
    (facts,) = client.read_facts([topic]).topics
    (held, *_) = client.read_ranges(facts)
    given = [
        each.offset
        for each in client.read_records(topic, 0, held, is_committed=False)
        if each.key == b"k7" and each.offset < part["log_end"]
    ]
    offsets = [each["offset"] for each in part["records"]]
    # Of what a broker still has locally it serves more than lies in the remote tier.
    assert set(offsets) <= set(given)
    assert part["winners"]["offset"] == offsets[-1] == given[-1]
    copies = [each["offset"] for each in part["replaced_copies"]]
    operator = write_operator_files(broker.root / "apart", [b"k7", b"nobody"])
    decided = part["records"][-1]["is_tombstone"]
    erased = attach(
        broker, "erase", "keys", "--keys", str(operator.keys), "--hash-key", str(operator.hash_key),
        "--dry-run", *places, expected=0 if decided else 1,
    )  # fmt: skip
    (place,) = erased["keys"][0]["places"]
    assert (offsets, decided, bool(copies)) == (
        place["offsets"], place["decided"], bool(place["files_beside"])
    )  # fmt: skip
    assert [] == erased["keys"][1]["places"] == erased["errors"]
    return copies


def certified(broker: Broker, topic: str) -> None:
    """Sign that a key is nowhere, and hold what is there against it."""
    operator = write_operator_files(broker.root / "apart", [b"nobody"])
    out, store = broker.root / "gone.json", f"sqlite:///{broker.root / 'meta.db'}"
    tier = ("--decisions", store, "--storage", f"local:{broker.root / 'remote'}")
    hashed = ("--hash-key", str(operator.hash_key))
    asked = ("--keys", str(operator.keys), *hashed, *tier, "--topic", topic)
    found = attach(broker, "erase", "keys", *asked)["keys"]
    assert [False] == [each["is_there"] for each in found]
    attach(
        broker, "erase", "certify", *hashed, "--sign-key", str(operator.sign_key), "--out",
        str(out), *tier,
    )  # fmt: skip
    done = CliRunner().invoke(
        app,
        ["erase", "check", str(out), live_place(broker.address), "--public-key",
         str(operator.public_key), *hashed, *tier, "--json"],
    )  # fmt: skip
    assert 0 == done.exit_code, done.output
    assert ["same"] == [each["standing"] for each in json.loads(done.stdout)["data"]]


def compacted_log(broker: Broker) -> Path:
    """Return the largest log of the states that a round has written and brokers serve."""
    client = compactor_of(broker).client
    facts = client.read_facts([STATES])
    assert facts.metadata_topic is not None
    folded = fold_metadata(client, facts.metadata_topic, range(PARTITIONS))
    served = folded.cache.partitions[name_of(facts.topics[0], 0)].served()
    written = [each.segment for each in served if is_compactors(each.segment)]
    largest = max(written, key=lambda each: each.size_bytes)
    root = broker.root / "remote" / "kafka-tiered-storage"
    name = f"{largest.start_offset:020d}-{encode_id(largest.id.segment_id)}.log"
    (found,) = root.glob(f"{STATES}-0-*/{name}")
    return found


def remove(path: Path) -> None:
    path.unlink()


def shorten(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: 12 + int.from_bytes(data[8:12], "big")])


@pytest.mark.parametrize("spoil", [remove, flip, shorten])
def test_a_fault_of_an_object_is_reported(broker: Broker, spoil: Callable[[Path], None]) -> None:
    """Behind the test that compacts them."""
    path = compacted_log(broker)
    kept = broker.root / "kept.log"
    shutil.copy(path, kept)
    try:
        spoil(path)
        report = verify(broker, STATES)
        assert Verdict.BROKEN is report.check("objects").verdict, report
        if spoil is remove:
            places = (
                "--topic", STATES, "--decisions", f"sqlite:///{broker.root / 'meta.db'}",
                "--storage", f"local:{broker.root / 'remote'}",
            )  # fmt: skip
            (found,) = attach(broker, "verify", *places, expected=1)["partitions"]
            assert "broken" == found["verdict"]
    finally:
        shutil.move(kept, path)
    assert Verdict.HOLDS is verify(broker, STATES).verdict
