"""Ledgers that are cut and put together again."""

from __future__ import annotations

import numpy as np

from keeplast.columns.winners import LOSES, NO_LEDGER, WINS, ReasonLedger, new_ledger


def ledger(first_offset: int, *standings: int) -> ReasonLedger:
    return ReasonLedger(first_offset, np.array(standings, np.uint8))


def test_a_part_reaches_no_further_than_its_ledger() -> None:
    whole = ledger(10, 1, 2, 0, 1)
    for first, end, expected in (
        (10, 14, (10, [1, 2, 0, 1])),
        (11, 13, (11, [2, 0])),
        (5, 12, (10, [1, 2])),
        (12, 99, (12, [0, 1])),
    ):
        part = whole.part(first, end)
        assert expected == (part.first_offset, part.standings.tolist())
    assert [0, 0, 0] == [len(whole.part(*at).standings) for at in ((0, 5), (14, 20), (12, 12))]


def test_notes_are_taken_over_where_both_reach() -> None:
    whole = new_ledger(10, 16, 4)
    assert 2 == whole.add(ledger(8, LOSES, LOSES, WINS, LOSES))
    assert 1 == whole.add(ledger(13, WINS, WINS, WINS))
    assert 0 == whole.add(ledger(14, LOSES))
    assert 0 == NO_LEDGER.add(ledger(0, LOSES))
    assert [WINS, LOSES, 0, WINS] == whole.standings.tolist()
