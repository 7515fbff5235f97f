"""Which offsets of a segment are not read, though they lie there."""

from __future__ import annotations

from keeplast.attach.rules.sources import effective_log
from tests.unit.cluster.test_late_copies import ELECTED, Story, in_pieces


def test_offsets_before_and_after_the_read_ones_are_unread() -> None:
    story = Story()
    outputs, copied = in_pieces(story, start=30)
    late = story.copy(55, 64, (1, 55))
    (newest,) = [each for each in story.cache.segments if each.start_offset == 70]
    effective = effective_log(story.cache, ELECTED, 0)
    segments = [*outputs, copied, late, newest]
    assert [
        (outputs[0], 30, 39), (outputs[2], 50, 59), (copied, 40, 49), (copied, 55, 69)
    ] == list(effective.unread(segments, 0))  # fmt: skip


def test_the_segment_that_the_log_start_lies_within_is_read_from_its_beginning() -> None:
    story = Story()
    first, second = story.copy(0, 9), story.copy(10, 19)
    effective = effective_log(story.cache, ELECTED[:1], 13)
    assert [(first, 0, 9)] == list(effective.unread([first, second], 13))
