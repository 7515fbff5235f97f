"""The rules that decide what remains, one truth table a rule."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from keeplast.columns import retained
from keeplast.columns.batches import DELETE, DELETE_EMPTY, RETAIN_EMPTY
from keeplast.columns.retained import (
    ABORTED_DATA,
    ANY_EXPIRES,
    EXPIRED_MARKER,
    EXPIRED_TOMBSTONE,
    KEEP,
    KEYLESS,
    SUPERSEDED,
    UNCONTESTED_EXPIRES,
    UNVERSIONED_EXPIRES,
)
from keeplast.columns.rows import HAS_KEY, HAS_VALUE, PLAIN
from keeplast.columns.version_ranks import HAS_VERSION
from keeplast.columns.winners import LOSES, UNKNOWN, WINS
from keeplast.model.partition import INT64_MAX, delete_horizon
from tests.support.called_part import called_part

NOW = 1000
NONE = -1
DISCARDS: Callable[..., bool] = called_part(retained.discards_records)
KEPT_FROM: Callable[..., int] = called_part(retained.kept_from)
ON_BATCH: Callable[..., int] = called_part(retained.batch_verdict)
ON_RECORD: Callable[..., int] = called_part(retained.record_verdict)
HORIZON: Callable[..., int] = called_part(retained.new_horizon)
PLAIN_RECORD = HAS_KEY | HAS_VALUE
TOMBSTONE = HAS_KEY


@pytest.mark.parametrize(
    ("is_control", "is_unneeded", "is_aborted", "horizon", "expected"),
    [
        # A data batch goes with its transaction, whatever horizon its tombstones have.
        (False, False, False, NONE, False),
        (False, False, True, NONE, True),
        (False, False, True, NOW + 1, True),
        (False, False, False, NOW - 1, False),
        # A marker goes when nothing of its transaction is left and its time has come.
        (True, False, False, NONE, False),
        (True, False, False, NOW - 1, False),
        (True, True, False, NONE, False),
        (True, True, False, NOW + 1, False),
        (True, True, False, NOW, True),
        (True, True, False, NOW - 1, True),
        (True, True, False, 0, True),
    ],
)
def test_whole_batch_is_discarded(
    is_control: bool, is_unneeded: bool, is_aborted: bool, horizon: int, expected: bool
) -> None:
    kept = KEPT_FROM(2, horizon, NOW, NOW, INT64_MAX, INT64_MAX, 0)
    assert expected == DISCARDS(is_control, is_unneeded, is_aborted, 10, kept)


WAIT = 100


@pytest.mark.parametrize(
    ("horizon", "expected"),
    [
        (NONE, 0),
        (NOW + 1, 0),
        # The horizon has passed: what all readers have read may go, and no more.
        (NOW, 10),
        (NOW - WAIT + 1, 10),
        # They were waited for long enough.
        (NOW - WAIT, INT64_MAX),
        (NOW - WAIT - 1, INT64_MAX),
    ],
)
def test_tombstones_that_readers_have_not_read_stay_until_the_wait_is_over(
    horizon: int, expected: int
) -> None:
    kept = KEPT_FROM(2, horizon, NOW, NOW - WAIT, 10, INT64_MAX, 0)
    assert expected == kept
    for offset in (9, 10, 11):
        goes = offset < expected
        assert goes == DISCARDS(True, True, False, offset, kept)
        found = ON_RECORD(
            False, False, offset, MAP_LATEST, TOMBSTONE, WINS, kept, False, ANY_EXPIRES, 0
        )
        assert (EXPIRED_TOMBSTONE if goes else KEEP) == found


@pytest.mark.parametrize(
    ("horizon", "expected"), [(NOW + 1, 0), (NOW, 10), (NOW - WAIT + 1, 10), (NOW - WAIT, 20)]
)
def test_tombstones_of_keys_that_may_come_back_stay_also_after_the_longest_wait(
    horizon: int, expected: int
) -> None:
    assert expected == KEPT_FROM(2, horizon, NOW, NOW - WAIT, 10, 20, 0)


def test_a_waiting_group_lets_no_marker_go_whose_transaction_has_data() -> None:
    assert not DISCARDS(True, False, False, 10, INT64_MAX)


@pytest.mark.parametrize("kept_from", [0, 7, INT64_MAX])
def test_old_formats_wait_by_the_time_of_their_segment(kept_from: int) -> None:
    for magic in (0, 1):
        assert kept_from == KEPT_FROM(magic, NONE, NOW, NOW - WAIT, 10, 20, kept_from)


@pytest.mark.parametrize(
    ("discards", "is_last_of_producer", "ends_at_bound", "expected"),
    [
        (False, False, False, DELETE_EMPTY),
        (True, False, False, DELETE),
        (False, True, False, RETAIN_EMPTY),
        (True, True, False, RETAIN_EMPTY),
        (False, False, True, RETAIN_EMPTY),
        (True, False, True, RETAIN_EMPTY),
        (False, True, True, RETAIN_EMPTY),
        (True, True, True, RETAIN_EMPTY),
    ],
)
def test_verdict_on_a_batch(
    discards: bool, is_last_of_producer: bool, ends_at_bound: bool, expected: int
) -> None:
    assert expected == ON_BATCH(discards, is_last_of_producer, ends_at_bound)


MAP_LATEST = 50


@pytest.mark.parametrize(
    ("offset", "flags", "standing", "expected"),
    [
        # At or below the end of the map.
        (10, PLAIN_RECORD, WINS, KEEP),
        (10, PLAIN_RECORD, UNKNOWN, KEEP),
        (10, PLAIN_RECORD, LOSES, SUPERSEDED),
        (10, PLAIN_RECORD | PLAIN, LOSES, SUPERSEDED),
        (10, HAS_VALUE, UNKNOWN, KEYLESS),
        (10, 0, UNKNOWN, KEYLESS),
        (MAP_LATEST, PLAIN_RECORD, WINS, KEEP),
        (MAP_LATEST, HAS_VALUE, UNKNOWN, KEYLESS),
        # Above it nothing is known, so everything stays.
        (MAP_LATEST + 1, HAS_VALUE, UNKNOWN, KEEP),
        (MAP_LATEST + 1, PLAIN_RECORD, LOSES, KEEP),
    ],
)
def test_record_with_a_value(offset: int, flags: int, standing: int, expected: int) -> None:
    for magic in (0, 1, 2):
        found = _record(offset=offset, flags=flags, standing=standing, magic=magic)
        assert expected == found


def test_record_without_a_key_stays_where_such_records_are_kept() -> None:
    found = _record(offset=10, flags=HAS_VALUE, standing=UNKNOWN, magic=2, keeps_keyless=True)
    assert KEEP == found


@pytest.mark.parametrize(
    ("offset", "standing", "horizon", "expected"),
    [
        (10, WINS, NONE, KEEP),
        (10, WINS, NOW + 1, KEEP),
        (10, WINS, NOW, EXPIRED_TOMBSTONE),
        (10, WINS, NOW - 1, EXPIRED_TOMBSTONE),
        (10, UNKNOWN, NOW - 1, EXPIRED_TOMBSTONE),
        (10, LOSES, NONE, SUPERSEDED),
        (10, LOSES, NOW + 1, SUPERSEDED),
        (MAP_LATEST + 1, UNKNOWN, NOW - 1, KEEP),
    ],
)
def test_tombstone(offset: int, standing: int, horizon: int, expected: int) -> None:
    found = _record(offset=offset, flags=TOMBSTONE, standing=standing, horizon=horizon)
    assert expected == found


@pytest.mark.parametrize(
    ("expiry", "expires_below", "flags", "standing", "expected"),
    [
        (UNCONTESTED_EXPIRES, 11, TOMBSTONE, UNKNOWN, EXPIRED_TOMBSTONE),
        (UNCONTESTED_EXPIRES, 11, TOMBSTONE | HAS_VERSION, UNKNOWN, EXPIRED_TOMBSTONE),
        # Dirty itself, or the map filled.
        (UNCONTESTED_EXPIRES, 10, TOMBSTONE, UNKNOWN, KEEP),
        (UNCONTESTED_EXPIRES, 0, TOMBSTONE, UNKNOWN, KEEP),
        # A dirty record has its key, and lost.
        (UNCONTESTED_EXPIRES, 11, TOMBSTONE, WINS, KEEP),
        # A loser needs no horizon.
        (UNCONTESTED_EXPIRES, 0, TOMBSTONE, LOSES, SUPERSEDED),
        (UNVERSIONED_EXPIRES, 11, TOMBSTONE, UNKNOWN, EXPIRED_TOMBSTONE),
        (UNVERSIONED_EXPIRES, 11, TOMBSTONE | HAS_VERSION, UNKNOWN, KEEP),
        (UNVERSIONED_EXPIRES, 11, TOMBSTONE | HAS_VERSION, LOSES, SUPERSEDED),
    ],
)
def test_tombstone_where_versions_rank(
    expiry: int, expires_below: int, flags: int, standing: int, expected: int
) -> None:
    for magic in (1, 2):
        found = _record(
            flags=flags, standing=standing, horizon=NOW, magic=magic,
            expiry=expiry, expires_below=expires_below,
        )  # fmt: skip
        assert expected == found


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize(("keeps_old", "expected"), [(True, KEEP), (False, EXPIRED_TOMBSTONE)])
def test_old_format_tombstone_follows_its_segments_time(
    magic: int, keeps_old: bool, expected: int
) -> None:
    found = _record(flags=TOMBSTONE, magic=magic, keeps_old=keeps_old, horizon=NONE)
    assert expected == found


@pytest.mark.parametrize("offset", [10, MAP_LATEST + 1])
@pytest.mark.parametrize(
    ("discards", "is_control", "expected"),
    [
        (True, False, ABORTED_DATA),
        (True, True, EXPIRED_MARKER),
        (False, True, KEEP),
    ],
)
def test_records_of_discarded_and_control_batches(
    offset: int, discards: bool, is_control: bool, expected: int
) -> None:
    for flags in (PLAIN_RECORD, TOMBSTONE, HAS_VALUE):
        found = _record(
            offset=offset, flags=flags, standing=LOSES, discards=discards, is_control=is_control
        )
        assert expected == found


def _record(
    *,
    offset: int = 10,
    flags: int = PLAIN_RECORD,
    standing: int = UNKNOWN,
    magic: int = 2,
    horizon: int = NONE,
    keeps_old: bool = False,
    discards: bool = False,
    is_control: bool = False,
    expiry: int = ANY_EXPIRES,
    expires_below: int = 0,
    keeps_keyless: bool = False,
) -> int:
    kept_from = 0 if keeps_old else INT64_MAX
    kept = KEPT_FROM(magic, horizon, NOW, NOW, INT64_MAX, INT64_MAX, kept_from)
    return ON_RECORD(
        discards, is_control, offset, MAP_LATEST, flags, standing, kept, keeps_keyless, expiry,
        expires_below,
    )  # fmt: skip


LATER = NOW + 500


@pytest.mark.parametrize(
    ("has_horizon", "kept", "kept_tombstones", "is_empty_transaction", "expected"),
    [
        (False, 1, 1, False, LATER),
        (False, 3, 1, False, LATER),
        (False, 1, 0, True, LATER),
        (False, 1, 0, False, NONE),
        (False, 0, 0, False, NONE),
        (False, 0, 0, True, NONE),
        # Set once: neither a later round nor another retention moves it.
        (True, 1, 1, False, NONE),
        (True, 1, 0, True, NONE),
    ],
)
def test_horizon_is_set_once_with_the_first_retained_tombstone_or_empty_transaction(
    has_horizon: bool,
    kept: int,
    kept_tombstones: int,
    is_empty_transaction: bool,
    expected: int,
) -> None:
    for magic in (0, 1, 2):
        found = HORIZON(magic, has_horizon, kept, kept_tombstones, is_empty_transaction, LATER)
        assert expected == found


def test_horizon_beyond_64_bits_means_never() -> None:
    never = delete_horizon(NOW, INT64_MAX)
    assert never < 0
    assert NONE == HORIZON(2, False, 1, 1, False, never)


def test_retention_of_zero_gives_the_horizon_now() -> None:
    now_plus = delete_horizon(NOW, 0)
    assert NOW == HORIZON(2, False, 1, 1, False, now_plus)
