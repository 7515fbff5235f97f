"""A fold that was kept is the fold, or it is not read at all."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from keeplast.cluster.live_cluster import (
    METADATA_TOPIC,
    MetadataEnd,
    MetadataValue,
    OffsetRange,
    TopicFacts,
)
from keeplast.cluster.metadata_cache import ClusterCache
from keeplast.cluster.metadata_log import (
    FoldCheckpoint,
    FoldPoint,
    decode_checkpoint,
    digest_of,
    encode_checkpoint,
    fold_metadata,
)
from keeplast.errors import CorruptError
from keeplast.format.remote_log_metadata import (
    EpochStart,
    RemoteLogEvent,
    RemoteLogSegment,
    RemoteLogSegmentId,
    RemoteLogSegmentState,
    RemoteLogSegmentUpdate,
    TopicIdPartition,
    decode,
    encode,
)
from tests.support.existing import existing

STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
METADATA = TopicFacts(METADATA_TOPIC, bytes(16), 50, 3, {})
PARTITIONS = [
    TopicIdPartition("orders", bytes(range(16)), 0),
    TopicIdPartition("orders", bytes(range(16)), 1),
    TopicIdPartition("zahlungen-ü", bytes(reversed(range(16))), 7),
]


def history(seed: int, count: int = 400) -> list[bytes]:
    """Return records as brokers and compactors mix them, lawful or dropped."""
    dice = random.Random(seed)
    announced: list[RemoteLogSegment] = []
    values: list[bytes] = []
    for number in range(count):
        event: RemoteLogEvent
        if not announced or dice.random() < 0.5:
            start = dice.randrange(0, 2000, 10)
            end = start + dice.randrange(1, 60)
            first = dice.randrange(3)
            epochs = (EpochStart(first, start), EpochStart(first + 1, start + 1))
            odd = dice.random() < 0.1
            event = RemoteLogSegment(
                id=RemoteLogSegmentId(
                    dice.choice(PARTITIONS), number.to_bytes(16, "big"),
                    ((3, b"x"),) if odd else (),
                ),
                start_offset=start, end_offset=end, broker_id=dice.choice((1, 2, -1001)),
                max_timestamp_ms=-1, event_timestamp_ms=1_700_000_000_000 + number,
                epochs=epochs[: dice.randint(1, 2)], size_bytes=dice.randrange(1 << 31),
                custom_metadata=dice.choice((None, b"", b"\0custom")),
                state=STARTED, tags=dice.choice(((), ((0, b"\1"),), ((0, b"\1"), (9, b"")))),
            )  # fmt: skip
            announced.append(event)
        else:
            of = dice.choice(announced)
            event = RemoteLogSegmentUpdate(
                id=of.id,
                broker_id=dice.choice((1, -1002)),
                event_timestamp_ms=number,
                custom_metadata=dice.choice((None, b"later")),
                state=RemoteLogSegmentState(dice.choice((1, 1, 1, 2, 3))),
            )
        values.append(encode(event))
    return values


def folded(values: list[bytes], cache: ClusterCache | None = None) -> ClusterCache:
    made = ClusterCache() if cache is None else cache
    for each in values:
        made.apply(decode(each))
    return made


def point(values: list[bytes], **changes: object) -> FoldPoint:
    made = FoldPoint(
        cluster_id="c", topic_id=bytes(16), partition_count=50, partition=7, offset=len(values),
        leader_epoch=4, record_epoch=3, digest=digest_of(values[-1]),
    )  # fmt: skip
    return replace(made, **changes)


def states(cache: ClusterCache) -> object:
    """Return all that is known, tagged fields inside of fields too, which are never compared."""
    return {
        name: (
            [encode(segment) for segment in each.state().segments],
            [(at, top, starts, names) for at, top, starts, names in each.state().epochs],
        )
        for name, each in cache.partitions.items()
    }


def kept(values: list[bytes]) -> bytes:
    data = existing(encode_checkpoint(FoldCheckpoint(point(values), folded(values), len(values))))
    return data


@pytest.mark.parametrize("seed", range(12))
def test_a_kept_fold_goes_on_as_if_it_had_never_been_put_away(seed: int) -> None:
    values = history(seed)
    for cut in (1, 150, 399):
        found = decode_checkpoint(kept(values[:cut]))
        assert point(values[:cut]) == found.point
        assert cut == found.record_count
        assert states(folded(values[:cut])) == states(found.cache)
        assert found.segment_count == sum(
            len(each.segments) for each in found.cache.partitions.values()
        )
        before = states(found.cache)
        assert states(folded(values)) == states(folded(values[cut:], found.cache.copy()))
        assert before == states(found.cache)


def test_a_fold_with_one_bit_changed_is_not_read_or_says_the_same() -> None:
    values = history(1, 60)
    data = kept(values)
    dice = random.Random(7)
    refused = 0
    for place in [*range(64), *dice.sample(range(64, len(data)), 200)]:
        damaged = bytearray(data)
        damaged[place] ^= 1 << dice.randrange(8)
        try:
            found = decode_checkpoint(bytes(damaged))
        except CorruptError:
            refused += 1
            continue
        # A frame has bits that mean nothing.
        assert states(folded(values)) == states(found.cache)
        assert point(values) == found.point
    assert refused > 250


@pytest.mark.parametrize("data", [b"", b"x", b"klfold\0\1", b"\0" * 4096])
def test_a_bad_fold_is_not_read(data: bytes) -> None:
    with pytest.raises(CorruptError, match="cannot be read"):
        decode_checkpoint(data)


def test_a_fold_that_is_cut_or_longer_is_not_read() -> None:
    data = kept(history(2, 60))
    for wrong in (data[:-1], data[: len(data) // 2], data + b"\0"):
        with pytest.raises(CorruptError):
            decode_checkpoint(wrong)


def test_a_fold_of_other_rules_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    data = kept(history(3, 20))
    monkeypatch.setattr("keeplast.cluster.metadata_log.RULES", 2)
    with pytest.raises(CorruptError, match="these rules"):
        decode_checkpoint(data)


def test_a_point_is_known_again_by_the_record_before_it_and_its_leader_epoch() -> None:
    values = history(4, 10)
    known = point(values)
    last = MetadataValue(9, values[-1], 3)
    assert known.is_at(last)
    assert known.is_at(replace(last, leader_epoch=-1))
    for wrong in (
        replace(last, offset=8), replace(last, value=values[0]), replace(last, value=None),
        replace(last, leader_epoch=4), 9, None,
    ):  # fmt: skip
        assert not known.is_at(wrong)
    end = MetadataEnd(10, 4)
    assert known.may_lead_to("c", METADATA, end)
    assert not known.may_lead_to("other", METADATA, end)
    assert not known.may_lead_to("c", METADATA, MetadataEnd(9, 4))
    assert not known.may_lead_to("c", METADATA, MetadataEnd(10, 3))
    assert not known.may_lead_to("c", replace(METADATA, topic_id=bytes(15) + b"1"), end)
    assert not known.may_lead_to("c", replace(METADATA, partition_count=51), end)


class Reader:
    """A metadata topic of which one partition, 7, has records; counts what is read."""

    def __init__(self, values: list[bytes], start: int = 0) -> None:
        self.values = values
        self.start = start
        self.read = 0

    def read_ranges(self, topic: TopicFacts) -> list[OffsetRange]:
        empty = [OffsetRange(0, 0)] * topic.partition_count
        empty[7] = OffsetRange(self.start, len(self.values))
        return empty

    def read_metadata(self, partition: int, held: OffsetRange) -> object:
        for offset in range(held.start, held.end):
            self.read += 1
            yield MetadataValue(offset, self.values[offset], 3)


def test_a_second_look_reads_what_is_new_and_one_record() -> None:
    values = history(5)
    base = FoldCheckpoint(point(values[:390]), folded(values[:390]), 390)
    for changed, read in ((values, 11), ([*values[:389], values[0], *values[390:]], 401)):
        reader = Reader(changed)
        found = fold_metadata(reader, METADATA, [7], kept=lambda _: base)  # type: ignore[arg-type]
        assert read == reader.read
        assert states(folded(changed)) == states(found.cache)
        assert 400 == found.record_count
    shorter = Reader(values[:300])
    found = fold_metadata(shorter, METADATA, [7], kept=lambda _: base)  # type: ignore[arg-type]
    assert (300, states(folded(values[:300]))) == (shorter.read, states(found.cache))
