"""What several logs answer comes in their order, with every fault but a stop."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec import Struct

from keeplast.errors import CorruptError, StoppedError
from keeplast.model.partition import TopicPartition
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN, Workspace
from keeplast.service.search_tasks import SearchRunner, ask_each
from tests.support.travelling import Travelling

RUNNERS = pytest.mark.parametrize("runner", [None, Travelling()], ids=["here", "tasks"])


class Log(Struct, frozen=True):
    """A log that says its word."""

    partition: TopicPartition
    word: str


def ask(
    log: Log,
    workspace: Workspace,
    planned: Callable[[int], None],
    progressed: Callable[[int], None],
) -> str:
    planned(1)
    progressed(2)
    match log.word:
        case "damaged":
            raise CorruptError("crc mismatch", path="t-0")
        case "denied":
            raise PermissionError(13, "Permission denied")
        case "stopped":
            raise StoppedError("the browser has closed the connection")
        case "wrong":
            raise ValueError("a mistake of ours")
    return log.word


def logs(*words: str) -> list[Log]:
    return [Log(TopicPartition("t", number), word) for number, word in enumerate(words)]


def answers(runner: SearchRunner | None, *asked: Log) -> list[tuple[int, object]]:
    found = ask_each(asked, ask, MEMORY_BYTES_MIN, lambda _: None, lambda _: None, runner)
    return [
        (partition.partition, type(answer) if isinstance(answer, Exception) else answer)
        for partition, answer in found
    ]


@RUNNERS
def test_answers_come_in_the_order_of_the_logs_and_a_fault_is_one(
    runner: SearchRunner | None,
) -> None:
    expected = [(0, "a"), (1, CorruptError), (2, PermissionError), (3, "b")]
    assert expected == answers(runner, *logs("a", "damaged", "denied", "b"))


@RUNNERS
def test_two_logs_of_one_partition_both_answer(runner: SearchRunner | None) -> None:
    (first,), (second,) = logs("a"), logs("b")
    assert [(0, "a"), (0, "b")] == answers(runner, first, second)


@RUNNERS
@pytest.mark.parametrize(("word", "error"), [("stopped", StoppedError), ("wrong", ValueError)])
def test_a_stop_and_a_mistake_of_ours_end_it(
    runner: SearchRunner | None, word: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        answers(runner, *logs("a", word))


@RUNNERS
def test_nothing_is_asked_where_there_is_no_log(runner: SearchRunner | None) -> None:
    assert [] == answers(runner)


@pytest.mark.parametrize(("runner", "planned"), [(None, [1, 1]), (Travelling(), [])])
def test_tasks_report_the_bytes_that_they_have_read_and_not_those_to_come(
    runner: SearchRunner | None, planned: list[int]
) -> None:
    heard: list[int] = []
    read: list[int] = []
    list(ask_each(logs("a", "b"), ask, MEMORY_BYTES_MIN, heard.append, read.append, runner))
    assert (planned, [2, 2]) == (heard, read)
