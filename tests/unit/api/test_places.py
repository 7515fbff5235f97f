"""Places from Python: what there is of a key, and what keeps rounds from passing a point."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

import keeplast
from keeplast.api import attached_logs
from keeplast.api.place import AskedPlace
from keeplast.api.round_terms import AskedRounds, WorkTerms
from keeplast.clock import SystemClock
from keeplast.config.layers import PartitionChoice
from keeplast.errors import InvalidError, RefusedError, StoppedError
from keeplast.model.erasure_request import KeyHasher
from keeplast.run.events import StopSwitch
from keeplast.service.erasure.directory_erasing import AskedErasure
from keeplast.service.erasure.erasure_answer import ErasureAnswer, ErasureKeys
from tests.support.attached_world import PARTITION
from tests.support.commanded_world import asked_world
from tests.support.placed_logs import ANNA, BEN, take_in
from tests.support.travelling import Travelling
from tests.support.verified_world import VerifiedWorld

WEEK_MS = 7 * 86_400_000


@pytest.fixture
def store(data: Path, tmp_path: Path) -> str:
    return take_in(data, tmp_path)


@pytest.fixture(params=["path", "directory", "store"])
def place(request: pytest.FixtureRequest, data: Path) -> AskedPlace | Path:
    if request.param == "path":
        return data
    if request.param == "directory":
        return keeplast.DirectoryLogs(data)
    return keeplast.StoredLogs(request.getfixturevalue("store"))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VerifiedWorld]:
    """A partition of a live topic that was compacted once."""
    with asked_world(tmp_path_factory.mktemp("world"), attached_logs) as made:
        made.world.clock.advance(SystemClock().now_ms() - made.world.clock.now_ms())
        yield made


def attached(world: VerifiedWorld, *, store: bool = True) -> keeplast.AttachedLogs:
    url = f"sqlite:///{world.world.root / 'decisions.db'}"
    return keeplast.AttachedLogs("127.0.0.1:1", storage="local:/x", store=url if store else None)


def found_in(answer: keeplast.KeyAnswer) -> dict[str, list[int]]:
    return {
        str(each.found.partition): [one.record.record.offset for one in each.found.records]
        for each in answer.parts
    }


def test_a_key_is_explained_in_every_partition_of_a_place(place: AskedPlace | Path) -> None:
    answer = keeplast.explain_place(place, key=ANNA, topics=["t"])
    assert {"t-0": [0, 2], "t-1": []} == found_in(answer)
    assert ((), ()) == (answer.faults, answer.left_out)
    assert answer.document(values=False)["key"]


def test_an_offset_is_one_partitions(place: AskedPlace | Path) -> None:
    answer = keeplast.explain_place(place, offset=1, partitions=[0])
    assert {"t-0": [1]} == found_in(answer)
    assert BEN == answer.parts[0].found.key
    with pytest.raises(InvalidError, match="an offset is one partition's"):
        keeplast.explain_place(place, offset=1)


def test_progress_is_heard_and_ends_the_search(place: AskedPlace | Path) -> None:
    heard: list[int] = []
    planned: list[int] = []
    keeplast.explain_place(place, key=ANNA, planned=planned.append, progressed=heard.append)
    assert 0 < sum(heard) <= sum(planned)

    with pytest.raises(StoppedError, match="enough"):
        keeplast.explain_place(place, key=ANNA, progressed=Mock(side_effect=StoppedError("enough")))


def test_tasks_find_what_this_process_does(place: AskedPlace | Path) -> None:
    runner = Travelling()
    answer = keeplast.explain_place(place, key=ANNA, runner=runner)
    assert 2 == runner.items
    here = keeplast.explain_place(place, key=ANNA)
    assert found_in(here) == found_in(answer)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({}, "give a key or the offset"),
        ({"key": "anna"}, "the keys of records are bytes"),
        ({"key": ANNA, "topics": "t"}, "give names of topics as a collection"),
        ({"key": ANNA, "topics": ["other"]}, "no such"),
    ],
)
def test_an_unanswerable_question_is_the_callers_mistake(
    place: AskedPlace | Path, asked: dict[str, object], words: str
) -> None:
    with pytest.raises(InvalidError, match=words):
        keeplast.explain_place(place, **asked)  # type: ignore[arg-type]


def test_settings_of_a_directory_are_those_that_are_given(data: Path) -> None:
    (data / "keeplast.toml").unlink()
    with pytest.raises(InvalidError, match="not_a_setting"):
        keeplast.explain_place(
            keeplast.DirectoryLogs(data, config={"not_a_setting": "1"}), key=ANNA
        )
    place = keeplast.DirectoryLogs(data, config={"cleanup.policy": "compact"})
    assert {"t-0": [1], "t-1": []} == found_in(keeplast.explain_place(place, key=BEN))
    unknown = keeplast.explain_place(data, key=BEN)
    assert ({}, 2) == (found_in(unknown), len(unknown.faults))


def test_a_hold_is_added_seen_and_released(place: AskedPlace | Path) -> None:
    (held,) = keeplast.add_hold(
        place, "audit", topics=["t"], partitions=[0], offset=2, max_age_ms=WEEK_MS
    )
    assert ("audit", "t-0", 2) == (held.name, str(held.partition), held.offset)
    assert WEEK_MS == held.until_ms - held.since_ms
    assert held.is_in_force(held.since_ms)
    assert (held,) == keeplast.holds(place)
    with pytest.raises(RefusedError, match="there is a hold of this name"):
        keeplast.add_hold(place, "audit", topics=["t"], max_age_ms=WEEK_MS)
    assert (held,) == keeplast.release_hold(place, "audit")
    assert () == keeplast.holds(place)
    with pytest.raises(InvalidError, match="audit"):
        keeplast.release_hold(place, "audit")


def test_a_hold_as_of_now_is_of_every_partition(place: AskedPlace | Path) -> None:
    added = keeplast.add_hold(place, "now", topics=["t"], max_age_ms=WEEK_MS)
    assert {"t-0": 4, "t-1": 2} == {str(each.partition): each.offset for each in added}


@pytest.mark.parametrize(
    ("point", "words"),
    [
        ({"offset": 1, "time_ms": 1}, "one point at a time"),
        ({"offset": 1}, "an offset is of one partition"),
        ({"offset": 99, "partitions": [0]}, "no state as of this offset"),
        ({"topics": "t"}, "as a collection"),
        ({"topics": []}, "name the topics"),
        ({"topics": ["other"]}, "no such topic"),
        ({"max_age_ms": 0}, "age"),
    ],
)
def test_a_hold_that_cannot_be_is_the_callers_mistake(
    place: AskedPlace | Path, point: dict[str, object], words: str
) -> None:
    given: dict[str, object] = {"topics": ["t"], "max_age_ms": WEEK_MS, **point}
    with pytest.raises(InvalidError, match=words):
        keeplast.add_hold(place, "audit", **given)  # type: ignore[arg-type]
    assert () == keeplast.holds(place)


def test_a_store_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    missing = tmp_path / "meta.db"
    place = keeplast.StoredLogs(f"sqlite:///{missing}")
    for ask in (keeplast.holds, keeplast.erasure_requests):
        with pytest.raises(InvalidError, match="there is no such store"):
            ask(place)
    assert not missing.exists()


def test_a_live_topics_key_is_explained_with_and_without_a_decision_log(
    world: VerifiedWorld,
) -> None:
    name = f"{PARTITION.topic}-{PARTITION.partition}"
    for store in (True, False):
        answer = keeplast.explain_place(
            attached(world, store=store), key=b"k3", topics=[PARTITION.topic]
        )
        assert [name] == list(found_in(answer))
        assert answer.parts[0].has_any
        assert answer.parts[0].unseen
    with pytest.raises(InvalidError, match="explained as of now"):
        keeplast.explain_place(attached(world), key=b"k3", now_ms=1)
    with pytest.raises(InvalidError, match="no such partition of a tiered topic"):
        keeplast.explain_place(attached(world), key=b"k3", partitions=[99])


def test_a_live_topic_is_held_and_released(world: VerifiedWorld) -> None:
    place = attached(world)
    (held,) = keeplast.add_hold(place, "audit", topics=[PARTITION.topic], max_age_ms=WEEK_MS)
    assert (held,) == keeplast.holds(place) == keeplast.release_hold(place, "audit")
    assert () == keeplast.holds(place)


def test_a_call_that_needs_a_decision_log_says_so(world: VerifiedWorld) -> None:
    place = attached(world, store=False)
    for ask in (keeplast.holds, keeplast.erasure_requests):
        with pytest.raises(InvalidError, match="name the decision log"):
            ask(place)


def test_secrets_stand_in_no_text(world: VerifiedWorld) -> None:
    place = keeplast.AttachedLogs(
        "127.0.0.1:1", storage="aiven:s3://b", storage_options={"aws_secret_access_key": "hidden"},
        store="postgresql://me:hidden@h/d", client={"sasl.password": "hidden"},
    )  # fmt: skip
    assert "hidden" not in repr(place)
    assert "hidden" not in repr(keeplast.StoredLogs("postgresql://me:hidden@h/d"))


def test_what_a_live_cluster_needs_or_cannot_do_is_said_before_it_is_asked(
    world: VerifiedWorld,
) -> None:
    scope, work = PartitionChoice(), WorkTerms()
    with pytest.raises(RefusedError, match="leave --expired out"):
        attached(world).clean(scope, AskedRounds(expired=True), work)
    with pytest.raises(InvalidError, match="storage=PLUGIN:PLACE"):
        replace(attached(world), storage="").clean(scope, AskedRounds(), work)


def test_an_erasure_that_is_ended_before_its_first_round_has_done_none(
    world: VerifiedWorld,
) -> None:
    switch = StopSwitch()
    switch.stop()
    nothing = ErasureAnswer(0, (), (), {}, (), 0, (), ())
    asked = AskedErasure(ErasureKeys(KeyHasher(b"k" * 32), {}), (PARTITION.topic,))
    done = attached(world).clean_traces(asked, nothing, AskedRounds(), WorkTerms(switch=switch))
    assert () == done.partitions
