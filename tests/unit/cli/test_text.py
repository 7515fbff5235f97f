"""Sizes, escapes and pictures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keeplast.cli.show.picture import WIDTH, PicturedSegment, draw_log
from keeplast.errors import InvalidError
from keeplast.model.partition import LogRegion
from keeplast.model.text import format_bytes, parse_size, printable, shown_bytes


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("4096", 4096),
        ("256m", 256 << 20),
        ("4g", 4 << 30),
        ("4G", 4 << 30),
        ("1 KiB", 1024),
        ("2tb", 2 << 40),
        ("7b", 7),
    ],
)
def test_a_size_is_bytes_or_has_a_unit(text: str, count: int) -> None:
    assert count == parse_size(text, "--memory")


@pytest.mark.parametrize("text", ["", "-1", "1.5g", "12q", "m", "1mm", "９", "1e3"])
def test_anything_else_is_no_size(text: str) -> None:
    with pytest.raises(InvalidError):
        parse_size(text, "--memory")


def test_bytes_in_words() -> None:
    assert "0 B" == format_bytes(0)
    assert "9,999 B" == format_bytes(9999)
    assert "10.0 KiB" == format_bytes(10 << 10)
    assert "1.46 MiB" == format_bytes(1_534_000)
    assert "256 MiB" == format_bytes(256 << 20)


def test_visible_text_stays_as_it_is() -> None:
    assert "Grüße 東京 ✓" == printable("Grüße 東京 ✓")
    assert "a\\x0ab\\x1b\\x9b\\u2028\\udc80" == printable("a\nb\x1b\x9b\u2028\udc80")


@given(st.text())
def test_printable_text_stays_on_its_line_and_commands_nothing(text: str) -> None:
    shown = printable(text)
    assert "".join(shown.splitlines()) == shown
    assert all(c.isprintable() or c == "\u3000" or c.isspace() for c in shown)
    assert not any(ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0 for c in shown)


@given(st.one_of(st.none(), st.binary()))
def test_shown_bytes_are_short_and_visible(data: bytes | None) -> None:
    shown = shown_bytes(data, 20)
    assert len(shown) <= 20
    assert shown == printable(shown)


def test_null_is_not_the_empty_text() -> None:
    assert "null" == shown_bytes(None)
    assert '""' == shown_bytes(b"")
    assert '"null"' == shown_bytes(b"null")
    assert "0xff" == shown_bytes(b"\xff")


def segments(*sizes: int) -> list[PicturedSegment]:
    return [PicturedSegment(10 * i, 10 * i + 10, size) for i, size in enumerate(sizes)]


def test_a_picture_shows_clean_dirty_and_active_to_scale() -> None:
    picture = draw_log(segments(100, 100, 200, 100), log_start=0, first_dirty=20, width=43)
    bar, start, dirty, end, *legend = picture.splitlines()
    assert "████████│████████│▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓│░░░░░░░░" == bar
    assert "^ log start 0" == start
    assert " " * 18 + "^ first dirty offset 20" == dirty
    assert " " * 42 + "^ log end 40" == end
    assert ["█ clean (tail)       2 segments       200 B"] == legend[:1]
    assert ["░ active             1 segment        100 B"] == legend[2:]


@pytest.mark.parametrize("screen", [40, 72, 80, 84])
def test_a_picture_stays_within_the_screen(screen: int) -> None:
    picture = draw_log(segments(100, 100, 100), first_dirty=20, screen=screen)
    bar, start, dirty, end, *_ = picture.splitlines()
    assert min(screen, WIDTH) == len(bar)
    assert screen >= max(map(len, (bar, start, dirty, end)))
    assert "^ log start 0" == start
    last = len(bar) - 1
    assert (end.index("^"), end.strip(" ^")) == (last, "log end 30")


def test_without_a_checkpoint_all_that_is_closed_is_dirty() -> None:
    picture = draw_log(segments(100, 100))
    assert "█" not in picture.splitlines()[0]
    assert "first dirty" not in picture


def test_records_below_the_log_start_are_marked() -> None:
    assert draw_log(segments(100, 100), log_start=5, width=21).startswith("·····▓▓▓▓▓│")


def test_a_section_that_is_held_back_is_neither_clean_nor_dirty() -> None:
    regions = [LogRegion.CLEAN, LogRegion.DIRTY, LogRegion.UNCLEANABLE, LogRegion.ACTIVE]
    picture = draw_log(segments(1, 1, 1, 1), first_dirty=10, regions=regions, width=11)
    assert "██│▓▓│▒▒│░░" == picture.splitlines()[0]
    assert "▒ held back          1 segment          1 B" in picture.splitlines()


@given(
    st.lists(st.integers(0, 1 << 40), min_size=1, max_size=300),
    st.integers(0, 3500),
    st.one_of(st.none(), st.integers(0, 3500)),
)
def test_a_picture_has_its_width_and_one_bar(
    sizes: list[int], log_start: int, first_dirty: int | None
) -> None:
    bar, *rest = draw_log(
        segments(*sizes), log_start=log_start, first_dirty=first_dirty
    ).splitlines()
    assert WIDTH == len(bar)
    assert all("^" in line and line.index("^") < WIDTH for line in rest if "^" in line)
    assert rest[-1].startswith("░ active")
