"""Which rounds of a receipt wrote what lies in a log that somebody owns."""

from __future__ import annotations

from keeplast.inspect.receipt_proof import Print, rounds_behind, rounds_within
from keeplast.model.partition import TopicPartition
from keeplast.survey.receipt_book import RoundReceipt, SegmentEntry


def entry(base: int, size: int, crc: int | None) -> SegmentEntry:
    return SegmentEntry(base, size, None, 1, crc)


def round_of(
    name: str, outputs: list[SegmentEntry], inputs: tuple[SegmentEntry, ...] = ()
) -> RoundReceipt:
    return RoundReceipt(
        TopicPartition("t", 0), 0, 0, 0, 0, 10, 10, inputs, tuple(outputs), None, 1, {},
        attempt=name,
    )  # fmt: skip


FIRST = round_of("first", [entry(0, 100, 1), entry(5, 70, 2)])
SECOND = round_of("second", [entry(0, 90, 3), entry(5, 70, 2)], (entry(5, 70, 2),))
REPEATED = round_of("repeated", [entry(0, 90, 4)])
ALL = (FIRST, SECOND, REPEATED)


def names(log: dict[int, Print], *, by_size: bool = False) -> list[str]:
    return [each.name for each in rounds_within(ALL, log, by_size=by_size)]


def test_a_round_is_in_a_log_as_long_as_one_of_its_outputs_is() -> None:
    assert ["first"] == names({0: Print(100, 1), 5: Print(70, 2)})
    # What the second one left alone is the first one's.
    assert ["first", "second"] == names({0: Print(90, 3), 5: Print(70, 2)})
    assert ["second"] == names({0: Print(90, 3)})
    assert [] == names({})


def test_as_many_bytes_at_the_same_place_are_no_proof() -> None:
    assert [] == names({0: Print(90, 5)})
    assert [] == names({5: Print(90, 3)})


def test_in_a_broken_log_the_newest_that_wrote_as_many_bytes_counts() -> None:
    assert ["repeated"] == names({0: Print(90, -1)}, by_size=True)
    assert ["second"] == names({0: Print(90, 3)}, by_size=True)
    assert [] == names({0: Print(91, -1)}, by_size=True)


def test_an_output_without_a_checksum_is_of_no_round() -> None:
    unknown = round_of("unknown", [entry(0, 100, None)])
    assert () == rounds_within([unknown], {0: Print(100, 1)}, by_size=True)


def test_a_log_has_come_of_what_its_rounds_have_read_too() -> None:
    first = round_of("first", [entry(0, 100, 1)])
    failed = round_of("failed", [entry(0, 95, 7)], (entry(0, 100, 1),))
    second = round_of("second", [entry(0, 90, 2)], (entry(0, 100, 1), entry(5, 70, None)))
    apart = round_of("apart", [entry(5, 70, 3)])
    third = round_of("third", [entry(0, 80, 4)], (entry(0, 90, 2),))
    found = rounds_behind([first, failed, apart, second, third], {0: Print(80, 4)})
    assert ["first", "second", "third"] == [each.name for each in found]
    found = rounds_behind([first, failed, apart, second, third], {5: Print(70, 3)})
    assert ["apart"] == [each.name for each in found]
