"""One key of an attached topic: what filters say it is not in is not read, none of it is hidden."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from keeplast.attach.answers.explain import RemoteLog, explain_attached
from keeplast.attach.held.outputs import filter_name
from keeplast.attach.rounds.round import RoundWish, clean_to
from keeplast.cleaner.plan import SegmentContents
from keeplast.format.remote_log_metadata import RemoteLogSegment
from keeplast.inspect.explain import AskedKey
from keeplast.inspect.remains import SearchedKey
from keeplast.model.partition import TopicPartition
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN, Workspace
from keeplast.tier.objects.filters import FilterKey, SegmentBytes, encode_filter
from keeplast.tier.state.attached import AttachedName
from tests.support.attached_world import CLUSTER_ID, PARTITION
from tests.support.existing import existing
from tests.support.keyed_history import parts_of
from tests.support.turns import Turn
from tests.unit.attach.test_attached_filters import Filtered, harm, write_log

NOTHING = SegmentContents(0, 0, 0, None, 0, 0, (), False)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Filtered]:
    """A partition that was cleaned twice, the second time with filters."""
    made = Filtered(tmp_path / "with", write_log(tmp_path / "logs", seed=1, transacts=True), 0.01)
    made.begin()
    assert made.filters()
    yield made
    made.world.close()


class Asked:
    """What is said of keys, and how many bytes that took."""

    def __init__(self, made: Filtered) -> None:
        self._made = made
        self.planned = 0
        self.read = 0

    def explain(
        self, key: bytes | None, filter_key: FilterKey | None, offset: int | None = None
    ) -> SearchedKey:
        world = self._made.world
        cache, log = world.cluster.cache(), world.world.log()
        held = existing(log.find(AttachedName(CLUSTER_ID, PARTITION)))
        remote = RemoteLog(
            partition=TopicPartition(PARTITION.topic, PARTITION.partition),
            ends=world.cluster.log, cache=cache, cleaned_to=clean_to(log, held, cache, 0),
            decisions=log.decisions(held),
        )  # fmt: skip
        return explain_attached(
            world.tier.layout, remote, RoundWish(topic=self._made.topic, margin_bytes=0),
            world.world.clock, AskedKey(key, offset), Workspace(MEMORY_BYTES_MIN), self._progressed,
            grace_ms=1000, filter_key=filter_key, planned=self._planned,
        )  # fmt: skip

    def _planned(self, size_bytes: int) -> None:
        self.planned += size_bytes

    def _progressed(self, size_bytes: int) -> None:
        self.read += size_bytes


def own_key(made: Filtered) -> FilterKey:
    found = existing(made.world.world.log().find_filter_key())
    return found


def test_no_key_is_hidden_and_segments_without_it_are_not_read(made: Filtered, turn: Turn) -> None:
    key, left_out = own_key(made), 0
    keys = sorted({each.key for each in made.records() if each.key is not None})
    for each in (key for at, key in enumerate(keys[::7]) if turn.takes(at, 5)):
        with_filters, without = Asked(made), Asked(made)
        found, plain = with_filters.explain(each, key), without.explain(each, None)
        assert found.found.records
        assert parts_of(plain) == parts_of(found)
        assert (0, 0) == plain.left_out
        assert without.planned - found.left_out[1] == with_filters.planned
        left_out += found.left_out[0]
    assert left_out > 0


def test_filtered_segments_are_not_read_for_a_key_that_was_never_written(made: Filtered) -> None:
    with_filters, without, left_out = Asked(made), Asked(made), 0
    names = [b"nobody-%d" % number for number in range(10)]
    for each in names:
        found, plain = with_filters.explain(each, own_key(made)), without.explain(each, None)
        assert parts_of(plain) == parts_of(found)
        left_out += found.left_out[0]
    # Now and then one takes a key for one of its own.
    assert len(names) * len(made.filters()) // 2 < left_out
    assert with_filters.read < without.read


def test_an_offset_asks_for_the_key_that_it_has(made: Filtered) -> None:
    first = made.records()[0]
    found = Asked(made).explain(None, own_key(made), offset=first.offset)
    assert first.key == found.found.key
    assert first.offset in [each.record.offset for each in found.found.records]


def test_a_filter_that_is_damaged_of_another_segment_or_gone_means_reading(made: Filtered) -> None:
    root = made.world.tier.root / ".keeplast"
    harm(sorted(root / name for name in made.filters()))
    assert (0, 0) == Asked(made).explain(b"nobody", own_key(made)).left_out


@pytest.mark.parametrize(
    ("of", "is_believed"),
    [("this", True), ("other id", False), ("other size", False), ("other key", False)],
)
def test_a_filter_is_believed_of_the_very_bytes_that_the_cluster_names_alone(
    made: Filtered, of: str, is_believed: bool
) -> None:
    """The filter that is put there says that nothing is in the segment."""
    record = made.records()[0]
    assert record.key is not None
    (segment,) = (
        each
        for each in made.world.tier.served()
        if each.start_offset <= record.offset <= each.end_offset
    )
    key = own_key(made)
    put_lying(made, segment, key, of)
    found = Asked(made).explain(record.key, key).found
    assert is_believed == (record.offset not in [each.record.offset for each in found.records])


def put_lying(made: Filtered, segment: RemoteLogSegment, key: FilterKey, of: str) -> None:
    name, layout = filter_name(segment.id), made.world.tier.layout
    content = encode_filter(
        SegmentBytes(
            ("ab" * 16) if of == "other id" else segment.id.segment_id.hex(),
            segment.size_bytes + (of == "other size"), None,
        ),
        FilterKey(1, 2) if of == "other key" else key, NOTHING, np.zeros(0, np.uint64), 0.01,
    )  # fmt: skip
    layout.delete_own(name)
    assert layout.put_new(name, content)


def test_no_filter_key_is_made_by_looking(tmp_path: Path) -> None:
    """Explain writes nothing: where no round has made filters there is no key."""
    made = Filtered(tmp_path / "with", write_log(tmp_path / "logs", seed=1), 0.0)
    made.clean()
    assert [None, None] == [made.world.world.log().find_filter_key() for _ in range(2)]
    made.world.close()
