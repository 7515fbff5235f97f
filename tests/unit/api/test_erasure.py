"""Erasure from Python: keys that must go, what is kept of that, and the signed statement."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

import keeplast
from keeplast.api import attached_logs
from keeplast.api.place import AskedPlace
from keeplast.errors import CorruptError, InvalidError, RefusedError
from keeplast.log.lock import locked
from keeplast.model.erasure_request import statement_bytes
from keeplast.service.erasure import erasure_book
from keeplast.service.erasure.certificate_check import CertificateStanding
from tests.support.attached_world import PARTITION
from tests.support.commanded_world import asked_world
from tests.support.key_pair import OperatorFiles, write_operator_files
from tests.support.placed_logs import ANNA, BEN, HASH_KEY, take_in
from tests.support.small_log import batch
from tests.support.travelling import Travelling
from tests.support.verified_world import VerifiedWorld


@pytest.fixture(params=["directory", "store"])
def place(request: pytest.FixtureRequest, data: Path, tmp_path: Path) -> AskedPlace:
    if request.param == "directory":
        return keeplast.DirectoryLogs(data)
    return keeplast.StoredLogs(take_in(data, tmp_path), owner="me", grace_ms=0)


@pytest.fixture
def operator(tmp_path: Path) -> OperatorFiles:
    return write_operator_files(tmp_path / "apart")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[VerifiedWorld]:
    with asked_world(tmp_path / "world", attached_logs) as made:
        yield made


def attached(world: VerifiedWorld) -> keeplast.AttachedLogs:
    url = f"sqlite:///{world.world.root / 'decisions.db'}"
    return keeplast.AttachedLogs("127.0.0.1:1", storage="local:/x", store=url)


def there(found: keeplast.Erasure) -> dict[int | None, bool]:
    """Say of each key that is anywhere, by its place in the call, whether its delete is decided."""
    return {each.line: each.is_decided for each in found.answer.there}


def test_each_key_has_its_places_and_the_request_is_kept(place: AskedPlace) -> None:
    found = keeplast.erase(place, [ANNA, b"nobody", BEN], HASH_KEY, topics=["t"])
    assert ({1: True, 3: False}, False) == (there(found), found.is_gone)
    (request,) = found.requests
    assert ((request,), ("t",), 3) == (
        keeplast.erasure_requests(place), request.topics, len(request.keys)
    )  # fmt: skip
    again = keeplast.erase(place, [BEN, ANNA, b"nobody"], HASH_KEY, topics=["t"])
    assert (request,) == again.requests == keeplast.erasure_requests(place)
    keeplast.forget_erasure(place, request.request_id)
    assert () == keeplast.erasure_requests(place)
    with pytest.raises(InvalidError, match="no such erasure request"):
        keeplast.forget_erasure(place, request.request_id)


def test_no_key_is_in_what_is_returned(place: AskedPlace) -> None:
    found = keeplast.erase(place, [ANNA, BEN], HASH_KEY, all_topics=True)
    for text in (repr(found.requests), repr(found.answer.keys), str(found.answer.document())):
        assert ANNA.decode() not in text
        assert HASH_KEY.decode() not in text


def test_tasks_find_what_this_process_does(place: AskedPlace) -> None:
    runner = Travelling()
    found = keeplast.erase(place, [ANNA, BEN], HASH_KEY, topics=["t"], runner=runner)
    assert ({1: True, 2: False}, 2) == (there(found), runner.items)


def test_what_is_not_kept_is_no_request(place: AskedPlace) -> None:
    found = keeplast.erase(place, [ANNA], HASH_KEY, topics=["t"], keeps=False)
    assert ((), ()) == (found.requests, keeplast.erasure_requests(place))


def test_requests_in_a_file_of_their_own_are_named_in_the_place(
    place: AskedPlace, tmp_path: Path
) -> None:
    """Undo heeds the place's own list, and no other."""
    file = tmp_path / "requests"
    (request,) = keeplast.erase(place, [ANNA], HASH_KEY, topics=["t"], requests=file).requests
    assert () == keeplast.erasure_requests(place)
    assert (request,) == keeplast.erasure_requests(place, requests=file)
    with place.shelves(None) as shelves:
        assert [request.request_id] == [each.request_id for each in shelves.own.read().elsewhere]
    keeplast.forget_erasure(place, request.request_id, requests=file)
    with place.shelves(None) as shelves:
        assert () == shelves.own.read().elsewhere


def test_a_list_that_cannot_be_written_is_said_and_the_request_is_kept(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        erasure_book, "name_elsewhere", Mock(side_effect=OSError(30, "Read-only file system"))
    )
    file = tmp_path / "requests"
    found = keeplast.erase(data, [ANNA], HASH_KEY, topics=["t"], requests=file)
    assert found.requests == keeplast.erasure_requests(data, requests=file)
    (warning,) = found.warnings
    assert "undo will not heed it" in warning
    assert "error=Read-only file system" in warning


def test_a_certificate_follows_the_rounds_that_were_asked_for(
    place: AskedPlace, operator: OperatorFiles, tmp_path: Path
) -> None:
    out = tmp_path / "gone.json"
    keeplast.erase(place, [ANNA], HASH_KEY, topics=["t"])
    with pytest.raises(RefusedError, match="no certificate while a trace may be left"):
        keeplast.certify(place, out, hash_key=HASH_KEY, sign_key=operator.sign_key)
    assert not out.exists()
    done = keeplast.erase(place, [ANNA], HASH_KEY, topics=["t"], now=True)
    assert () == done.failed
    assert (True, {}) == (done.is_gone, there(done))
    issued = keeplast.certify(place, out, hash_key=HASH_KEY, sign_key=operator.sign_key)
    assert (out, done.requests) == (issued.path, (issued.request,))
    assert issued.not_stated == tuple(json.loads(out.read_bytes())["statement"]["not_stated"])
    found = keeplast.verify_certificate(
        out, operator.public_key, hash_key=HASH_KEY, keys=[ANNA, BEN], place=place
    )
    assert (True, False) == found.keys_within
    assert [CertificateStanding.SAME] * 2 == [each.standing for each in found.standings]
    assert not found.holds
    alone = keeplast.verify_certificate(out, operator.public_key)
    assert ((), (), True) == (alone.keys_within, alone.standings, alone.holds)


def test_a_key_that_came_back_is_found_by_the_hash_key_alone(
    data: Path, operator: OperatorFiles, tmp_path: Path
) -> None:
    shutil.copytree(data, tmp_path / "backup")
    keeplast.erase(data, [ANNA], HASH_KEY, topics=["t"], now=True)
    out = tmp_path / "gone.json"
    keeplast.certify(data, out, hash_key=HASH_KEY, sign_key=operator.sign_key)
    assert keeplast.reapply_erasure(data, HASH_KEY).is_gone
    kept = (data / "keeplast-erasures").read_bytes()
    shutil.rmtree(data)
    shutil.copytree(tmp_path / "backup", data)
    (data / "keeplast-erasures").write_bytes(kept)
    back = keeplast.reapply_erasure(data, HASH_KEY)
    assert {None: True} == there(back)
    assert {1: True} == there(keeplast.reapply_erasure(data, HASH_KEY, keys=[ANNA]))
    found = keeplast.verify_certificate(out, operator.public_key, hash_key=HASH_KEY, place=data)
    assert CertificateStanding.OLDER in {each.standing for each in found.standings}
    assert not found.holds
    assert keeplast.reapply_erasure(data, HASH_KEY, now=True).is_gone


def test_a_key_is_not_gone_where_a_log_could_not_be_searched(data: Path) -> None:
    keeplast.erase(data, [ANNA], HASH_KEY, topics=["t"], now=True)
    log = data / "t-0" / f"{0:020d}.log"
    log.write_bytes(log.read_bytes()[:-1] + b"\xff")
    found = keeplast.erase(data, [b"nobody"], HASH_KEY, topics=["t"])
    ((partition, error),) = found.answer.faults
    assert (keeplast.TopicPartition("t", 0), CorruptError) == (partition, type(error))
    assert ({}, False) == (there(found), found.is_gone)


def test_a_trace_next_to_a_log_counts(data: Path) -> None:
    keeplast.erase(data, [ANNA], HASH_KEY, topics=["t"], now=True)
    (data / "t-1" / "keeplast-copy.log").write_bytes(batch(0, ANNA, b"1"))
    found = keeplast.erase(data, [ANNA], HASH_KEY, topics=["t"])
    assert [("keeplast-copy.log",)] == [each.remains for each in found.answer.there[0].places]


def test_a_partition_of_another_owner_is_among_the_failed_ones(data: Path, tmp_path: Path) -> None:
    url = take_in(data, tmp_path)
    done = keeplast.erase(
        keeplast.StoredLogs(url, owner="you"), [ANNA], HASH_KEY, topics=["t"], now=True
    )
    ((partition, error),) = done.failed
    assert (keeplast.TopicPartition("t", 0), RefusedError) == (partition, type(error))
    taken = keeplast.StoredLogs(url, owner="you", takes_over=True, grace_ms=0)
    assert () == keeplast.erase(taken, [ANNA], HASH_KEY, topics=["t"], now=True).failed


def test_rounds_are_refused_while_the_directory_is_in_use(data: Path) -> None:
    with locked(data), pytest.raises(RefusedError):
        keeplast.erase(data, [ANNA], HASH_KEY, topics=["t"], now=True)
    assert 1 == len(keeplast.erasure_requests(data))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"keys": ANNA}, "as a collection of bytes"),
        ({"keys": ["anna"]}, "the keys of records are bytes"),
        ({"keys": []}, "give 1 to"),
        ({"hash_key": b"short"}, "a hash key has 32 to"),
        ({"hash_key": "x" * 64}, "a hash key is bytes"),
        ({"topics": ()}, "give --topic, or --all-topics"),
        ({"all_topics": True}, "give --topic, or --all-topics"),
        ({"topics": "t"}, "as a collection"),
        ({"topics": ["other"]}, "no such topic"),
        ({"now": True, "keeps": False}, "is kept"),
    ],
)
def test_mistakes_of_an_erasure_are_the_callers(
    place: AskedPlace, given: dict[str, object], words: str
) -> None:
    call: dict[str, object] = {"keys": [ANNA], "hash_key": HASH_KEY, "topics": ["t"], **given}
    with pytest.raises(InvalidError, match=words):
        keeplast.erase(place, **call)  # type: ignore[arg-type]
    assert () == keeplast.erasure_requests(place)


def test_mistakes_of_a_certificate_are_the_callers(
    data: Path, operator: OperatorFiles, tmp_path: Path
) -> None:
    out, signed = tmp_path / "gone.json", {"hash_key": HASH_KEY, "sign_key": operator.sign_key}
    with pytest.raises(InvalidError, match="there is no erasure request to go by"):
        keeplast.certify(data, out, **signed)  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match="outside of the data directory"):
        keeplast.certify(data, data / "gone.json", **signed)  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match="no such certificate"):
        keeplast.verify_certificate(out, operator.public_key)
    out.write_bytes(b"{}")
    with pytest.raises(InvalidError, match="there is a file"):
        keeplast.certify(data, out, **signed)  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match=rf"it is not as it was written.*path={out}"):
        keeplast.verify_certificate(out, operator.public_key)
    with pytest.raises(InvalidError, match="give hash_key too"):
        keeplast.verify_certificate(out, operator.public_key, keys=[ANNA])


def test_an_edited_certificate_is_found(
    data: Path, operator: OperatorFiles, tmp_path: Path
) -> None:
    out = tmp_path / "gone.json"
    keeplast.erase(data, [ANNA], HASH_KEY, topics=["t"], now=True)
    keeplast.certify(data, out, hash_key=HASH_KEY, sign_key=operator.sign_key)
    document = json.loads(out.read_bytes())
    document["statement"]["signed_at_ms"] += 1
    out.write_bytes(statement_bytes(document))
    with pytest.raises(InvalidError, match="the signature does not hold"):
        keeplast.verify_certificate(out, operator.public_key)


def test_a_live_topic_is_searched_cleaned_and_certified(
    world: VerifiedWorld, operator: OperatorFiles, tmp_path: Path
) -> None:
    place, out = attached(world), tmp_path / "gone.json"
    found = keeplast.erase(place, [b"k3", b"nobody"], HASH_KEY, topics=[PARTITION.topic])
    assert [1] == list(there(found))
    done = keeplast.erase(place, [b"k3"], HASH_KEY, topics=[PARTITION.topic], now=True)
    assert ((), [1]) == (done.failed, list(there(done)))
    assert (*found.requests, *done.requests) == keeplast.erasure_requests(place)
    assert [None] == list(there(keeplast.reapply_erasure(place, HASH_KEY)))
    for each in (*found.requests, *done.requests):
        keeplast.forget_erasure(place, each.request_id)
    keeplast.erase(place, [b"nobody"], HASH_KEY, topics=[PARTITION.topic])
    keeplast.certify(place, out, hash_key=HASH_KEY, sign_key=operator.sign_key)
    proven = keeplast.verify_certificate(out, operator.public_key, hash_key=HASH_KEY, place=place)
    assert [CertificateStanding.SAME] == [each.standing for each in proven.standings]
