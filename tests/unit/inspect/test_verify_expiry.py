"""``verify`` of a log whose front has expired: what may be gone, and what may not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.inspect.verification import Verifier, VerifySettings
from keeplast.inspect.verified_log import VerificationReport
from keeplast.log.files import LocalFiles
from keeplast.model.topic_config import TopicConfig
from keeplast.survey.receipt_book import read_receipts
from tests.support.cleaned_pair import broken
from tests.support.expiring_log import BOTH, expiry_request, set_log_start
from tests.support.partition_maker import (
    COMPACT,
    NOW_MS,
    bases_of,
    coordinator,
    one,
    write_partition,
    write_snapshot,
)

OLD_MS = NOW_MS - 1000
AGED = replace(BOTH, retention_ms=999, segment_bytes=14)


def write_before(root: Path) -> Path:
    """Two segments that expire, two that stay, one active; keys in all of them."""
    directory = write_partition(
        root,
        {
            0: one(0, b"gone", timestamp=OLD_MS) + one(1, b"a", timestamp=OLD_MS),
            10: one(10, b"a", timestamp=OLD_MS) + one(11, b"only here", timestamp=OLD_MS),
            20: one(20, b"a", timestamp=OLD_MS) + one(21, b"b", timestamp=NOW_MS),
            30: one(30, b"a", timestamp=NOW_MS) + one(31, b"c", timestamp=NOW_MS),
            40: one(40, b"d", timestamp=NOW_MS),
        },
    )
    for base in (10, 20, 30, 40):
        write_snapshot(directory, base)
    return directory


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path, Path]:
    """A log before, and after a round and an expiry; the receipt of both."""
    before = write_before(tmp_path / "before")
    after = tmp_path / "after" / before.name
    shutil.copytree(before, after)
    receipt = tmp_path / "receipt"
    request = expiry_request(after, AGED)
    (done,) = coordinator().clean(replace(request, receipt=receipt)).partitions
    assert done.rounds[-1].failure is None
    assert [20, 30, 40] == bases_of(after)
    return before, after, receipt


def verify(
    before: Path, after: Path, topic: TopicConfig, receipt: Path | None = None
) -> VerificationReport:
    settings = VerifySettings(topic=topic, now_ms=NOW_MS)
    receipts = () if receipt is None else read_receipts(receipt, LocalFiles())
    return Verifier(LocalFiles(), settings).verify_pair(before, after, receipts)


NOTE = (
    "the log begins at offset 20 now: what lay below has expired or was deleted, and is not "
    "compared"
)


def test_a_policy_with_delete_explains_a_missing_front(pair: tuple[Path, Path, Path]) -> None:
    before, after, _ = pair
    report = verify(before, after, AGED)
    assert ([], True) == (broken(report), NOTE in report.notes)


def test_a_receipt_explains_it(pair: tuple[Path, Path, Path]) -> None:
    before, after, receipt = pair
    report = verify(before, after, COMPACT, receipt)
    assert ([], True) == (broken(report), NOTE in report.notes)


def test_a_log_start_explains_it(pair: tuple[Path, Path, Path]) -> None:
    before, after, _ = pair
    set_log_start(before, 25)
    assert [] == broken(verify(before, after, COMPACT))


def test_nothing_explains_it(pair: tuple[Path, Path, Path]) -> None:
    before, after, _ = pair
    assert "winners" in broken(verify(before, after, COMPACT))


def test_the_part_after_the_front_is_still_compared(pair: tuple[Path, Path, Path]) -> None:
    before, after, receipt = pair
    path = after / f"{30:020d}.log"
    path.write_bytes(one(30, b"a", timestamp=NOW_MS))
    assert "winners" in broken(verify(before, after, AGED))
    report = Verifier(LocalFiles(), VerifySettings(topic=AGED)).verify_in_place(
        after, read_receipts(receipt, LocalFiles())
    )
    assert "receipt" in broken(report)


def test_in_place_the_receipt_explains_what_is_gone(pair: tuple[Path, Path, Path]) -> None:
    _, after, receipt = pair
    receipts = read_receipts(receipt, LocalFiles())
    report = Verifier(LocalFiles(), VerifySettings(topic=COMPACT)).verify_in_place(after, receipts)
    assert [] == broken(report)
