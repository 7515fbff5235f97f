"""What brokers say of consumer groups, and that what they do not say counts as not read."""

from __future__ import annotations

import pytest

from keeplast.cluster.group_offsets import FRESH_MS, SILENT_MS, UNREPORTED_MS, BrokerGroups
from keeplast.cluster.live_cluster import TopicEnds
from keeplast.errors import RefusedError, UnavailableError
from keeplast.model.hold import Absence, WaitedGroup
from keeplast.model.partition import TopicPartition
from tests.support.group_cluster import GroupCluster

ORDERS = TopicPartition("orders", 0)
ID, OTHER_ID = b"i" * 16, b"o" * 16
END = 100
NOW_MS = 10**12
GONE = UnavailableError("no broker answers")


@pytest.fixture
def cluster() -> GroupCluster:
    return GroupCluster({"orders": TopicEnds(ID, {0: END, 1: END})}, {"g": {ORDERS: 7}})


def one(asked: BrokerGroups, *, topic_id: bytes | None = ID, now_ms: int = NOW_MS) -> WaitedGroup:
    (found,) = asked.waited(ORDERS, ["g"], topic_id, now_ms)
    return found


@pytest.mark.parametrize("topic_id", [ID, None])
def test_the_committed_offset_is_found(cluster: GroupCluster, topic_id: bytes | None) -> None:
    assert WaitedGroup("g", 7, None) == one(BrokerGroups(cluster), topic_id=topic_id)


def test_each_group_is_named_once_and_in_order(cluster: GroupCluster) -> None:
    cluster.groups["h"] = {ORDERS: END}
    assert [("h", END), ("g", 7)] == [
        (each.group, each.offset)
        for each in BrokerGroups(cluster).waited(ORDERS, ["h", "g", "h"], ID, NOW_MS)
    ]


@pytest.mark.parametrize(
    ("committed", "absence"),
    [
        pytest.param(
            {TopicPartition("orders", 1): 7, TopicPartition("other", 0): 7},
            Absence.NOT_COMMITTED,
            id="elsewhere only",
        ),
        pytest.param({ORDERS: END + 1}, Absence.BEYOND_END, id="beyond the end, of another log"),
    ],
)
def test_what_is_committed_elsewhere_does_not_count(
    cluster: GroupCluster, committed: dict[TopicPartition, int], absence: Absence
) -> None:
    cluster.groups["g"] = committed
    assert absence is one(BrokerGroups(cluster)).absence


def test_another_or_a_missing_topic_has_no_offset(cluster: GroupCluster) -> None:
    found = one(BrokerGroups(cluster), topic_id=OTHER_ID)
    assert (None, Absence.NOT_REPORTED) == (found.offset, found.absence)
    assert "another topic of this name" in found.problem
    cluster.topics["orders"] = None
    found = one(BrokerGroups(cluster))
    assert (None, Absence.NOT_REPORTED) == (found.offset, found.absence)
    assert "no such topic" in found.problem


def test_a_group_that_may_not_be_looked_at_hides_no_other(cluster: GroupCluster) -> None:
    cluster.groups["h"] = RefusedError("it needs Describe on the consumer group")
    asked = BrokerGroups(cluster)
    found = {each.group: each for each in asked.waited(ORDERS, ["h", "g"], ID, NOW_MS)}
    assert 7 == found["g"].offset
    assert (None, Absence.NOT_REPORTED) == (found["h"].offset, found["h"].absence)
    assert ("it needs Describe on the consumer group",) == asked.problems()


def test_an_answer_counts_for_a_while_and_is_asked_for_again_then(cluster: GroupCluster) -> None:
    asked = BrokerGroups(cluster)
    for now_ms in (NOW_MS, NOW_MS + FRESH_MS - 1):
        assert 7 == one(asked, now_ms=now_ms).offset
    cluster.groups["g"] = {ORDERS: 9}
    assert 7 == one(asked, now_ms=NOW_MS + FRESH_MS - 1).offset
    assert 9 == one(asked, now_ms=NOW_MS + FRESH_MS).offset
    assert ["orders", "g"] * 2 == cluster.asked
    # A clock that goes back says nothing of how old an answer is.
    cluster.groups["g"] = {ORDERS: 3}
    assert 3 == one(asked, now_ms=NOW_MS - UNREPORTED_MS).offset


def test_a_cluster_that_does_not_answer_is_asked_twice_a_minute_whatever_waits() -> None:
    names = [f"t{number}" for number in range(50)]
    cluster = GroupCluster(dict.fromkeys(names, GONE))
    asked = BrokerGroups(cluster)

    def look(now_ms: int) -> None:
        for name in names:
            (found,) = asked.waited(TopicPartition(name, 0), ["g"], ID, now_ms)
            assert (None, Absence.NOT_REPORTED) == (found.offset, found.absence)
            assert "no broker answers" in found.problem

    look(NOW_MS)
    assert names[:2] == cluster.asked
    look(NOW_MS + SILENT_MS - 1)
    assert 2 == len(cluster.asked)
    look(NOW_MS + SILENT_MS)
    assert names[:4] == cluster.asked


def test_topics_without_an_answer_keep_no_other_from_its_turn(cluster: GroupCluster) -> None:
    """Two that have no leader: they are asked for again behind the rest."""
    cluster.topics |= {"a": GONE, "b": GONE}
    asked = BrokerGroups(cluster)

    def look(now_ms: int) -> list[int | None]:
        topics = ("a", "b", "orders")
        found = [asked.waited(TopicPartition(each, 0), ["g"], ID, now_ms) for each in topics]
        return [each.offset for (each,) in found]

    assert [None, None, None] == look(NOW_MS)
    assert [None, None, 7] == look(NOW_MS + SILENT_MS)


def test_a_broker_that_answers_again_is_heard(cluster: GroupCluster) -> None:
    ends = cluster.topics["orders"]
    cluster.topics["orders"] = GONE
    asked = BrokerGroups(cluster)
    assert one(asked).offset is None
    assert ("no broker answers",) == asked.problems()
    cluster.topics["orders"] = ends
    assert one(asked, now_ms=NOW_MS + UNREPORTED_MS - 1).offset is None
    assert 7 == one(asked, now_ms=NOW_MS + UNREPORTED_MS).offset
    assert () == asked.problems()
