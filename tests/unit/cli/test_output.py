"""What is printed for people, on a screen of any width."""

from __future__ import annotations

import pytest

from keeplast.cli.output import print_result
from keeplast.cli.rows import new_table


@pytest.mark.parametrize("columns", [20, 60, 120])
def test_a_narrow_screen_takes_no_letter_out_of_a_table(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    table = new_table("partition", ">first dirty", ">cleanable", ">ratio", "why")
    table.add_row("orders-0", "1234567", "11.7 KiB", "1.000", "a sentence of several words")
    table.add_row("__transaction_state-0", "0", "0 B", "0.000", "more of them " * 5)
    print_result(table)
    words = capsys.readouterr().out.split()
    assert not any("…" in word for word in words)
    assert {"partition", "orders-0", "1234567", "1.000", "sentence", "several"} <= {*words}
