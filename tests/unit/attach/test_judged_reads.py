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


def test_a_deleted_key_that_came_back_fails() -> None:
    with pytest.raises(AssertionError, match=re.escape("{b'gone': (3, 1)}")):
        judge(1, 2, deletions_may_go=True)


def test_a_missing_value_fails_even_where_deletions_may_go() -> None:
    with pytest.raises(AssertionError, match=re.escape("{b'kept': (2, None)}")):
        judge(3, deletions_may_go=True)


def test_an_aborted_record_fails() -> None:
    with pytest.raises(AssertionError, match="an aborted record is read"):
        judge(2, 3, 4, deletions_may_go=True)
