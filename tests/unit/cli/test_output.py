"""What is printed for people, on a screen of any width."""

from __future__ import annotations

import io
import os
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table
from rich.text import Text

from keeplast.cli.show.output import (
    WORD_WIDTH_MAX,
    Reach,
    fit_table,
    fitting,
    print_result,
    share_width,
)
from keeplast.cli.show.picture import PicturedSegment, draw_log
from keeplast.cli.show.tables import new_table


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


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_texts_fold_so_that_pictures_times_and_numbers_do_not(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    table = new_table("partition", "=log", "=time", ">offsets", "why")
    table.add_row("orders-0", "█" * 16, "2026-11-21 09:57:52", "0..1234567", "many words " * 9)
    print_result(table)
    first = capsys.readouterr().out.splitlines()[1]
    assert {"█" * 16, "2026-11-21", "09:57:52", "0..1234567"} <= {*first.split()}


@pytest.mark.parametrize("columns", [80, 100, 120, 200])
def test_a_table_is_no_wider_than_a_screen_that_can_hold_it(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    table = new_table("partition", "=time", "value", "why")
    table.add_row("q" * 249, "2026-11-21 09:57:52", "x" * 300, "a few words " * 20)
    print_result(table)
    lines = capsys.readouterr().out.splitlines()
    assert columns >= max(len(line) for line in lines)
    assert [line.rstrip() for line in lines] == lines
    shown = "".join(lines)
    assert (249, 300) == (shown.count("q"), shown.count("x"))


def test_room_goes_to_the_narrowest_column_first() -> None:
    reaches = [Reach(5, 5), Reach(4, 40), Reach(10, 12)]
    assert [5, 4, 10] == share_width(reaches, 10)
    assert [5, 12, 12] == share_width(reaches, 29)
    assert [5, 20, 12] == share_width(reaches, 37)
    assert [5, 40, 12] == share_width(reaches, 500)


CELLS = st.text(st.sampled_from("ab -界\n"), max_size=30)
STYLED = st.builds(Text, CELLS, style=st.sampled_from(["", "bold"]))


@given(
    rows=st.lists(st.tuples(CELLS, st.from_regex(r"\A[0-9]{0,9}\Z"), STYLED, CELLS), max_size=5),
    width=st.integers(20, 120),
)
def test_a_table_is_laid_out_as_rich_does_with_the_same_widths(
    rows: list[tuple[str, str, Text, str]], width: int
) -> None:
    table = new_table("partition", ">offsets", "state", "why it is so")
    for row in rows:
        table.add_row(*row)
    fitted = fit_table(table, width)
    assert _printed(fitted) == _printed(_as_rich(table, fitted.widths, fitted.gap))


def _as_rich(table: Table, widths: tuple[int, ...], gap: int) -> Table:
    for column, width in zip(table.columns, widths, strict=True):
        column.width = width
    table.padding = (0, gap, 0, 0)
    return table


def _printed(what: object) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=1000, markup=False, highlight=False, emoji=False).print(what)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_a_word_that_is_cut_is_longer_than_any_name_of_a_broker() -> None:
    assert len("__transaction_state-49") <= WORD_WIDTH_MAX


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_a_picture_has_plain_letters_where_the_output_has_no_others(encoding: str) -> None:
    segments = [PicturedSegment(0, 4, 100), PicturedSegment(4, 8, 100), PicturedSegment(8, 9, 9)]
    drawn = draw_log(segments, first_dirty=4)
    plain = fitting(drawn, encoding)
    plain.encode(encoding)
    assert [len(line) for line in drawn.splitlines()] == [len(line) for line in plain.splitlines()]
    assert {"#", "=", ".", "|"} <= {*plain}
    assert drawn == fitting(drawn, "utf-8")


def test_letters_without_a_plain_one_are_left_to_the_stream() -> None:
    assert "# ü" == fitting("█ ü", "ascii")


def test_an_output_that_has_no_such_letters_gets_the_plain_picture(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", errors="backslashreplace")
    monkeypatch.setattr("sys.stdout", stream)
    print_result("█▓░ …")
    stream.flush()
    assert b"#=. ~\n" == raw.getvalue()


def test_no_color_leaves_no_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("sys.stdout", Terminal())
    print_result(Text("red", style="red"))
    coloured = sys.stdout
    assert isinstance(coloured, Terminal)
    assert "red\n" == coloured.getvalue()


def test_a_reader_that_leaves_early_does_not_change_how_a_command_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", encoding="utf-8") as stream:
        monkeypatch.setattr("sys.stdout", stream)
        print_result("nobody reads this")
        print_result("nor this")
        stream.flush()
