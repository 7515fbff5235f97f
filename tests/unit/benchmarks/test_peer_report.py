"""Tables and bars follow from the results alone, and a miss is written as a miss."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

from msgspec.structs import replace

from benchmarks.figure import LABEL_WIDTH, MARGIN, VALUE_WIDTH, WIDTH, Bar, Panel, draw
from benchmarks.peer_report import MIB, Taken, bars, best_counts, goal_table, tables, to_keep

SVG = "{http://www.w3.org/2000/svg}"
ONE = Taken(
    directory="100 B, 140 a batch", contestant="Kafka, one thread", log_bytes=100 * MIB,
    records=1000, keys=10, seconds=1.0, startup_seconds=0.5, bytes_read=200 * MIB,
    bytes_written=MIB, records_left=10, rounds=1, peak_memory_bytes=3 * MIB, cpu_seconds=1.0,
)  # fmt: skip
DOCUMENT: dict[str, Any] = {
    "scale": 0.5,
    "kafka": {"version": "4.3.0"},
    "machine": {
        "cpus": 2, "processor": "a processor", "memory_bytes": 1 << 34, "system": "Linux",
        "load_before": 0.25, "date": "2026-11-22",
    },
}  # fmt: skip


def in_turns(*each: Taken, turns: int = 5) -> list[Taken]:
    return [replace(one, turn=turn) for turn in range(turns) for one in each]


def test_a_goal_is_reached_or_missed_by_both_clocks() -> None:
    ours = replace(ONE, contestant="keeplast, one core", seconds=1 / 6, cpu_seconds=1 / 8)
    reached = goal_table(in_turns(ONE, ours), DOCUMENT)
    missed = goal_table(in_turns(ONE, replace(ours, seconds=1 / 5)), DOCUMENT)
    busy = goal_table(in_turns(ONE, replace(ours, cpu_seconds=1 / 5)), DOCUMENT)
    assert "| 6x | 6.00x (8.00x) | 0 % (0 %) | reached |" in reached
    assert "| 6x | 5.00x (8.00x) | 0 % (0 %) | **missed** |" in missed
    assert "| 6x | 6.00x (5.00x) | 0 % (0 %) | **missed** |" in busy


def test_pairs_that_differ_or_are_few_reach_and_miss_nothing() -> None:
    ours = replace(ONE, contestant="keeplast, one core", seconds=1 / 6, cpu_seconds=1 / 8)
    few = goal_table(in_turns(ONE, ours, turns=4), DOCUMENT)
    assert "| 6.00x (8.00x) | 0 % (0 %) | not judged: fewer than 5 pairs |" in few
    held_up = [
        replace(one, seconds=one.seconds * 3)
        if one.turn == 2 and one.contestant == ours.contestant
        else one
        for one in in_turns(ONE, ours)
    ]
    busy = goal_table(held_up, DOCUMENT)
    assert (
        "| 6.00x (8.00x) | **200 %** (0 %) | not judged: the pairs differ by more than a third |"
    ) in busy


def test_a_pair_is_what_was_measured_in_one_turn() -> None:
    ours = replace(ONE, contestant="keeplast, one core", seconds=1 / 6, cpu_seconds=1 / 6)
    counts = in_turns(ONE, ours)
    lost = [one for one in counts if (one.turn, one.contestant) != (1, ours.contestant)]
    assert "not judged: fewer than 5 pairs" in goal_table(lost, DOCUMENT)


def test_a_row_shows_the_best_count_and_the_most_memory() -> None:
    slow = replace(ONE, turn=1, seconds=3.0, cpu_seconds=2.0, peak_memory_bytes=9 * MIB)
    (best,) = best_counts([slow, ONE])
    assert (1.0, 1.0, 9 * MIB) == (best.seconds, best.cpu_seconds, best.peak_memory_bytes)
    (failed,) = best_counts([ONE, replace(ONE, turn=1, failure="failed")])
    assert "failed" == failed.failure


def test_a_run_goes_on_with_whole_turns_only() -> None:
    sides = [ONE, replace(ONE, contestant="keeplast, one core", seconds=1 / 6, cpu_seconds=1 / 6)]
    other = replace(ONE, contestant="Kafka, two threads")
    names = [one.contestant for one in (*sides, other)]
    cut = [*in_turns(*sides, other, turns=2), replace(ONE, turn=2), replace(other, turn=2)]
    assert [*cut[:6], cut[7]] == to_keep(cut, names)
    failed = replace(sides[1], turn=2, failure="failed")
    assert [*cut[:6], cut[7]] == to_keep([*cut, failed], names)


def test_a_directory_whose_pairs_differ_begins_again() -> None:
    ours = replace(ONE, contestant="keeplast, one core", seconds=1 / 6, cpu_seconds=1 / 6)
    other = [replace(one, directory="100 KB") for one in in_turns(ONE, ours)]
    held_up = [
        replace(one, seconds=9.0) if one.turn == 4 and one.contestant == ONE.contestant else one
        for one in in_turns(ONE, ours)
    ]
    assert other == to_keep([*held_up, *other], [ONE.contestant, ours.contestant])


def test_two_cores_are_compared_by_the_clock() -> None:
    one = replace(ONE, contestant="keeplast, one core", seconds=1.8, cpu_seconds=1.8)
    two = replace(ONE, contestant="keeplast, two cores", seconds=1.0, cpu_seconds=1.9)
    assert "| 1.7x | 1.80x (0.95x) | 0 % (0 %) | reached |" in goal_table(
        in_turns(one, two), DOCUMENT
    )


def test_a_goal_says_that_the_log_is_smaller_than_it_asks_for() -> None:
    spark = replace(ONE, contestant="keeplast on Spark, shape partition", seconds=1.0)
    local = replace(ONE, contestant="keeplast, two cores", seconds=0.5)
    assert "**missed** (of 100 MiB; the goal begins at 1 GiB)" in goal_table(
        in_turns(spark, local), DOCUMENT
    )


def test_a_goal_whose_contestants_did_not_run_is_not_mentioned() -> None:
    assert "goal" not in tables([ONE], DOCUMENT)
    failed = replace(ONE, contestant="keeplast, one core", seconds=0.0, failure="failed")
    assert "goal" not in tables([ONE, failed], DOCUMENT)
    assert "| keeplast, one core | failed |" in tables([ONE, failed], DOCUMENT)


def test_many_keys_are_a_matter_of_rounds_and_of_memory() -> None:
    some = replace(ONE, directory="20 M distinct keys", rounds=4)
    ours = replace(some, contestant="keeplast, one core", rounds=1)
    bucket = replace(
        some, contestant="keeplast on Spark, shape bucket", task_memory_bytes=700 * MIB
    )
    rows = goal_table([some, ours, bucket], DOCUMENT)
    assert "rounds (Kafka at 128 MiB: 4) | 1 | 1 | | reached |" in rows
    assert "shape bucket | under 1024 MiB | 700 MiB | | reached |" in rows


def test_every_column_of_a_row() -> None:
    row = "| Kafka, one thread | 100 | 1,000 | 1.00 | 1.00 | 0.5 s | 3 MiB | 200 MiB | 1 MiB | 1 |"
    assert row in tables([ONE], DOCUMENT)
    assert "Sizes are 0.5 times the full ones." in tables([ONE], DOCUMENT)


def test_bars_are_as_long_as_their_values() -> None:
    longest = float(WIDTH - LABEL_WIDTH - VALUE_WIDTH - MARGIN)
    panel = Panel("a < b & c", (Bar("x", 4.0, "4", True), Bar("y", 1.0, "1", False)))
    root = ElementTree.fromstring(draw([panel, Panel("nothing", ())]))
    widths = [float(bar.attrib["width"]) for bar in root.iter(f"{SVG}rect")]
    assert [longest, longest / 4] == widths
    assert "a < b & c" in [text.text for text in root.iter(f"{SVG}text")]
    assert 2 == len({bar.attrib["fill"] for bar in root.iter(f"{SVG}rect")})


def test_the_same_results_give_the_same_picture() -> None:
    assert bars([ONE]) == bars([ONE])
    assert 1 == bars([ONE, replace(ONE, contestant="keeplast, one core")]).count("100 B, 140")


def test_values_of_nothing_have_no_length() -> None:
    root = ElementTree.fromstring(draw([Panel("t", (Bar("x", 0.0, "0", True),))]))
    assert ["0.0"] == [bar.attrib["width"] for bar in root.iter(f"{SVG}rect")]
