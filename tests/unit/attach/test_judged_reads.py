"""The judge of what consumers read finds what it is there for: without it tests prove nothing."""

from __future__ import annotations

import re

import pytest

from tests.support.acknowledged import Acknowledged, Got, Sent

LEVEL = "read_committed"
SENT = {
    1: Sent(b"gone", b"first", 0), 2: Sent(b"kept", b"value", 1), 3: Sent(b"gone", None, 2),
    4: Sent(b"gone", b"aborted", 3, is_aborted=True),
}  # fmt: skip


def judge(*numbers: int, deletions_may_go: bool) -> None:
    acknowledged = Acknowledged("", "topic", sent={0: SENT}, deletions_may_go=deletions_may_go)
    found = [(number, SENT[number]) for number in numbers]
    acknowledged.check(
        0, [Got(each.offset or 0, n, each.key, each.value) for n, each in found], LEVEL
    )


def test_a_deletion_may_be_missing_where_it_may_go() -> None:
    judge(2, deletions_may_go=True)
    judge(2, 3, deletions_may_go=True)
    judge(1, 2, 3, deletions_may_go=True)


@pytest.mark.parametrize("numbers", [(2,), (1, 2)])
def test_a_missing_deletion_fails_where_it_may_not_go(numbers: tuple[int, ...]) -> None:
    with pytest.raises(AssertionError, match=r"last records of keys, sent and read: .*gone"):
        judge(*numbers, deletions_may_go=False)


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        pytest.param((1, 2), "{b'gone': (3, 1)}", id="a deleted key that came back"),
        pytest.param((3,), "{b'kept': (2, None)}", id="a missing value"),
        pytest.param((2, 3, 4), "an aborted record is read", id="an aborted record"),
    ],
)
def test_what_fails_even_where_deletions_may_go(numbers: tuple[int, ...], words: str) -> None:
    with pytest.raises(AssertionError, match=re.escape(words)):
        judge(*numbers, deletions_may_go=True)
