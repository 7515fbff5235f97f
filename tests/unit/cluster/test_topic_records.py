"""A consumer that brokers keep something from says so, and asks no group."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, ClassVar, NoReturn
from unittest.mock import Mock

import pytest

from keeplast.cluster import topic_records
from keeplast.cluster.live_cluster import OffsetRange
from keeplast.cluster.topic_records import REFUSALS_MAX, ConsumedRecord, read_records
from keeplast.errors import CorruptError, RefusedError, UnavailableError

Answers = list[list[Any]]


def record(offset: int, headers: Any = None) -> Any:
    return SimpleNamespace(
        error=lambda: None, offset=lambda: offset, timestamp=lambda: (1, 1000 + offset),
        key=lambda: b"k", value=lambda: None,
        headers=headers if callable(headers) else lambda: headers,
    )  # fmt: skip


def failure(name: str) -> Any:
    return SimpleNamespace(error=lambda: SimpleNamespace(name=lambda: name))


class Client:
    """Hands out prepared answers; then nothing for ever."""

    answers: ClassVar[Answers] = []
    settings: ClassVar[dict[str, Any]] = {}
    open = 0

    def __init__(self, settings: dict[str, Any], **_: Any) -> None:
        Client.settings = settings
        Client.open += 1

    def assign(self, partitions: list[Any]) -> None:
        assert [5] == [each.offset for each in partitions]

    def consume(self, count: int, timeout: float) -> list[Any]:
        return Client.answers.pop(0) if Client.answers else []

    def close(self) -> None:
        Client.open -= 1


@pytest.fixture(autouse=True)
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Client]]:
    monkeypatch.setattr("confluent_kafka.Consumer", Client)
    monkeypatch.setattr(topic_records, "WAITS_MAX", 3)
    Client.answers, Client.open = [], 0
    yield Client
    assert 0 == Client.open


def forbidden(what: str, error: Any) -> NoReturn:
    raise RefusedError(f"not allowed. asked={what} error={error.name()}")


def read(*answers: list[Any], is_committed: bool = True, end: int = 10) -> list[ConsumedRecord]:
    Client.answers = list(answers)
    return list(
        read_records(
            {"group.id": "g"}, logging.getLogger("quiet"), forbidden, "t", 0, OffsetRange(5, end),
            is_committed=is_committed,
        )
    )  # fmt: skip


def test_records_up_to_the_end_are_given_and_nothing_is_committed() -> None:
    found = read([record(6, [("h", None)]), record(8)], [record(12)])
    assert [(6, (("h", None),)), (8, ())] == [(each.offset, each.headers) for each in found]
    assert [1006, 1008] == [each.timestamp for each in found]
    assert "read_committed" == Client.settings["isolation.level"]
    assert Client.settings["enable.auto.commit"] is False
    assert "error" == Client.settings["auto.offset.reset"]


def test_the_end_of_the_log_is_the_end() -> None:
    assert [6] == [e.offset for e in read([record(6), failure("_PARTITION_EOF")])]
    read([failure("_PARTITION_EOF")], is_committed=False)
    assert "read_uncommitted" == Client.settings["isolation.level"]


def test_names_of_headers_that_are_no_text_are_not_shown() -> None:
    (found,) = read(
        [record(6, Mock(side_effect=UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid")))],
        [failure("_PARTITION_EOF")],
    )
    assert found.headers is None


@pytest.mark.parametrize("answers", [REFUSALS_MAX + 1, 100])
def test_an_offset_that_brokers_go_on_refusing_is_an_error(answers: int) -> None:
    with pytest.raises(CorruptError, match="offset 7 on") as caught:
        read([record(6)], *[[failure("UNKNOWN")]] * answers)
    assert "UNKNOWN" == caught.value.found


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        pytest.param("_AUTO_OFFSET_RESET", CorruptError, "_AUTO_OFFSET_RESET", id="a hole"),
        pytest.param("TOPIC_AUTHORIZATION_FAILED", RefusedError, "t-0", id="not permitted"),
    ],
)
def test_what_ends_reading_at_once(name: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        read([failure(name)])


def test_a_broker_that_comes_back_is_waited_for() -> None:
    passing = [[failure("NOT_LEADER_FOR_PARTITION")], [failure("UNKNOWN")], []]
    assert [6, 9] == [e.offset for e in read(*passing, [record(6)], [record(9)])]


def test_silence_is_reported_as_a_stop_or_as_lost_brokers() -> None:
    with pytest.raises(CorruptError, match="nothing for a minute"):
        read([record(6)])
    with pytest.raises(UnavailableError, match="_TRANSPORT"):
        read([record(6)], [failure("_TRANSPORT")])
