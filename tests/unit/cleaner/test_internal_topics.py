"""What brokers' own topics are pinned to, against every setting."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.cleaner.settings import (
    COMPACTED_TOPICS,
    INTERNAL_TOPICS,
    TRIMMED_TOPICS,
    pinned,
)
from keeplast.errors import RefusedError
from keeplast.format import consumer_offsets, transaction_state
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import Strategy, TopicConfig
from keeplast.survey.request import PartitionRequest

COMPACT = TopicConfig(frozenset({"compact"}))
BY_TIME = replace(COMPACT, strategy=Strategy.TIMESTAMP)


def request(topic: str, config: TopicConfig) -> PartitionRequest:
    return PartitionRequest(TopicPartition(topic, 0), Path("x"), config)


def test_the_topics_whose_records_are_decoded_are_pinned() -> None:
    assert {consumer_offsets.TOPIC, transaction_state.TOPIC} == set(COMPACTED_TOPICS)


@pytest.mark.parametrize("topic", sorted(INTERNAL_TOPICS))
def test_a_brokers_own_topic_ranks_by_offset(topic: str) -> None:
    assert COMPACT == pinned(topic, BY_TIME)
    with pytest.raises(RefusedError, match=topic):
        request(topic, BY_TIME)


@pytest.mark.parametrize("topic", ["connect-offsets", "app-store-changelog", "orders"])
def test_a_topic_of_users_is_its_owners(topic: str) -> None:
    assert BY_TIME == pinned(topic, BY_TIME)
    assert BY_TIME == request(topic, BY_TIME).topic


@pytest.mark.parametrize("topic", TRIMMED_TOPICS)
def test_what_brokers_trim_is_never_compacted(topic: str) -> None:
    with pytest.raises(RefusedError, match="never compact"):
        request(topic, COMPACT)
    assert TopicConfig() == request(topic, TopicConfig()).topic
