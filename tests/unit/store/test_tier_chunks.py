"""Rounds on the tier in chunks: what each publishes, and what an error or a crash in one leaves."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from keeplast.errors import ConflictError, CorruptError, UnavailableError
from keeplast.format.filename import LOG
from keeplast.log.files import LocalFiles
from keeplast.model.partition import RELATIVE_OFFSET_MAX
from keeplast.model.topic_config import CleanerConfig, TopicConfig
from keeplast.tier.metadata.metadata_store import MetadataStore
from keeplast.tier.objects.object_store import ObjectWriter, object_key
from keeplast.tier.state.partition_state import PartitionState
from keeplast.tier.state.segment import RemoteSegment
from tests.support.counting_objects import CountingObjects
from tests.support.heard_calls import hear
from tests.support.log_builder import LogBuilder
from tests.support.observed_files import Crash
from tests.support.partition_maker import DAY_MS, NOW_MS, PARTITION, one, write_partition
from tests.support.tiered_log import Tiered, records
from tests.support.versioned_log import BY_TIMESTAMP

TOPIC = TopicConfig(cleanup_policy=frozenset({"compact"}), segment_bytes=600)
SEGMENTS = 5
Sources = tuple[RemoteSegment, ...]


def five_segments(root: Path) -> Tiered:
    """Return five dirty segments in which every key comes again."""
    log = LogBuilder(root / str(PARTITION), TOPIC)
    log.now_ms = NOW_MS
    for segment in range(SEGMENTS):
        for key in range(segment, segment + 6):
            log.record(key, 10**30 + segment)
        log.roll()
    return Tiered(root, log.directory)


def left(tiered: Tiered, place: Path) -> list[object]:
    return records(tiered.export(place / str(PARTITION)))


def undisturbed(root: Path) -> list[object]:
    root.mkdir()
    tiered = five_segments(root)
    tiered.clean(TOPIC)
    return left(tiered, root / "out")


@pytest.fixture
def tiered(tmp_path: Path) -> Tiered:
    return five_segments(tmp_path)


@pytest.mark.parametrize(
    ("chunk_bytes", "chunks"), [(-1, SEGMENTS), (1, SEGMENTS), (1200, 3), (1 << 30, 1)]
)
def test_each_chunk_is_published_by_itself(
    tiered: Tiered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int, chunks: int
) -> None:
    published: list[int] = []
    hear(
        monkeypatch,
        MetadataStore,
        "publish",
        lambda *_, cleaned_to, **__: published.append(cleaned_to),
    )
    ends = [route.last_offset + 1 for route in tiered.state.routes]
    report = tiered.clean(replace(TOPIC, tier_chunk_bytes=chunk_bytes))
    assert chunks == report.chunks == len(published)
    assert set(published) <= set(ends)
    assert published == sorted(published)
    assert report.end_offset == ends[-1] == tiered.state.first_dirty()
    assert undisturbed(tmp_path / "other") == left(tiered, tmp_path / "out")


def test_a_topic_that_is_no_longer_compacted_ends_the_round(tiered: Tiered, tmp_path: Path) -> None:
    """Its remaining chunks stay as they are; what was live before the change stays live."""
    whole = left(tiered, tmp_path / "whole")
    settings = {"cleanup.policy": "delete"}

    def committed(sources: Sources, outputs: Sources) -> None:
        if not tiered.state.settings:
            tiered.store.configure(PARTITION, epoch=tiered.state.leader_epoch, settings=settings)
            after.append(tiered.state)

    after: list[PartitionState] = []
    with pytest.raises(ConflictError, match="settings"):
        tiered.clean(TOPIC, committed=committed)
    (changed,) = after
    assert changed == tiered.state
    assert changed.first_dirty() < changed.remote_end
    assert settings == tiered.state.settings
    assert len(left(tiered, tmp_path / "out")) > len(whole) // 2


class Failing(CountingObjects):
    """Fails the ``nth`` read or write of a log, once."""

    def __init__(self, inner: CountingObjects, what: str, nth: int, error: Exception) -> None:
        super().__init__(inner)
        self._what = what
        self._left = nth
        self._error = error

    def _meet(self, what: str, key: str) -> None:
        if what == self._what and key.endswith(LOG):
            self._left -= 1
            if self._left == 0:
                raise self._error

    def read_range(self, key: str, start: int, end: int) -> memoryview:
        self._meet("read", key)
        return super().read_range(key, start, end)

    def open_write(self, key: str) -> ObjectWriter:
        self._meet("write", key)
        return super().open_write(key)


@pytest.mark.rotates(5)
@pytest.mark.parametrize(
    ("what", "nth"),
    # The first reads are of the first chunk's survey and first pass, then comes its second pass.
    [("read", nth) for nth in (1, 6, 7, 8, 12, 15, 20, 30)] + [("write", n) for n in (1, 2, 4)],
)
@pytest.mark.parametrize(
    "error",
    [UnavailableError("the object store failed"), OSError(errno.ENOSPC, "No space left")],
    ids=["store", "disk"],
)
def test_st_10_store_or_disk_that_fails_ends_the_chunk_and_changes_nothing(
    tiered: Tiered, tmp_path: Path, what: str, nth: int, error: Exception
) -> None:
    objects = tiered.objects
    tiered.objects = Failing(CountingObjects(objects), what, nth, error)
    commits: list[PartitionState] = [tiered.state]

    def committed(sources: Sources, outputs: Sources) -> None:
        commits.append(tiered.state)

    with pytest.raises(type(error)):
        tiered.clean(TOPIC, committed=committed)
    # What is live is what the last commit said, and what was published belongs to whole chunks.
    assert commits[-1].routes == tiered.state.routes
    assert commits[-1].first_dirty() <= tiered.state.first_dirty() < tiered.state.remote_end
    tiered.clean(TOPIC)
    assert tiered.state.remote_end == tiered.state.first_dirty()
    assert undisturbed(tmp_path / "other") == left(tiered, tmp_path / "out")


@pytest.mark.parametrize("groups", [1, 2, 3, 4])
def test_st_11_crash_between_two_groups_of_a_chunk_loses_no_progress(
    tmp_path: Path, groups: int
) -> None:
    topic = replace(TOPIC, tier_chunk_bytes=1 << 30)
    tiered = five_segments(tmp_path)
    seen: list[Sources] = []

    def crash(sources: Sources, outputs: Sources) -> None:
        seen.append(outputs)
        if len(seen) == groups:
            raise Crash("after a group")

    before = tiered.state.first_dirty()
    with pytest.raises(Crash):
        tiered.clean(topic, committed=crash)
    assert before == tiered.state.first_dirty()
    made = {output.segment_id for outputs in seen for output in outputs}
    assert made <= set(tiered.state.segments)
    tiered.clean(topic)
    assert tiered.state.remote_end == tiered.state.first_dirty()
    assert undisturbed(tmp_path / "other") == left(tiered, tmp_path / "out")


def test_i_20_round_on_the_tier_writes_no_local_file(
    tiered: Tiered, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("open_write", "write_durable", "append_durable", "rename"):
        monkeypatch.setattr(
            LocalFiles, name, Mock(side_effect=AssertionError("a local file is written"))
        )
    tiered.clean(TOPIC)
    assert tiered.state.remote_end == tiered.state.first_dirty()


def test_object_that_is_not_what_was_stored_is_no_source(tiered: Tiered) -> None:
    state = tiered.state
    first = state.segments[state.routes[0].segment_id]
    key = object_key(PARTITION, state.topic_id, first.segment_id, 0, LOG)
    data = bytearray(tiered.objects.read_range(key, 0, first.size_bytes))
    # Another leader epoch in the first batch's header: no CRC of a batch covers it.
    data[15] ^= 1
    writer = tiered.objects.open_write(key)
    writer.write(data)
    writer.close()
    with pytest.raises(CorruptError, match="not what was stored"):
        tiered.clean(TOPIC)
    assert state.routes == tiered.state.routes


def test_chunk_that_ends_below_the_bound_expires_no_tombstone_where_versions_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = replace(BY_TIMESTAMP, segment_bytes=14, delete_retention_ms=DAY_MS)
    log = LogBuilder(tmp_path / str(PARTITION), topic)
    log.now_ms = NOW_MS
    log.tombstone(1)
    log.roll()
    tiered = Tiered(tmp_path, log.directory)
    tiered.clean(topic)
    for key in (2, 3):
        log.record(key, 0)
        log.roll()
    tiered.take_in(log.directory)
    tiered.clock.advance(2 * DAY_MS)

    def tombstones() -> int:
        place = tmp_path / "out" / str(tiered.state.version) / str(PARTITION)
        return sum(each[3] is None for each in records(tiered.export(place)))  # type: ignore[index]

    counts: list[int] = []
    publish = MetadataStore.publish

    def noting(*args: object, **names: object) -> None:
        publish(*args, **names)  # type: ignore[arg-type]
        counts.append(tombstones())

    monkeypatch.setattr(MetadataStore, "publish", noting)
    tiered.clean(topic)
    assert [1, 0] == counts


@pytest.mark.parametrize(("retention_ms", "left_over"), [(0, 0), (1, 1)])
def test_a_chunk_takes_a_tombstone_that_an_earlier_one_stamped_when_its_time_has_come(
    tmp_path: Path, retention_ms: int, left_over: int
) -> None:
    topic = replace(TOPIC, delete_retention_ms=retention_ms, tier_chunk_bytes=1)
    log = LogBuilder(tmp_path / str(PARTITION), topic)
    log.now_ms = NOW_MS
    log.tombstone(1)
    log.roll()
    log.record(2, 0)
    log.roll()
    tiered = Tiered(tmp_path, log.directory)
    assert 2 == tiered.clean(topic).chunks
    tombstones = [each for each in left(tiered, tmp_path / "out") if each[3] is None]  # type: ignore[index]
    assert left_over == len(tombstones)


@pytest.mark.parametrize("slots", [3, 5, 100])
def test_chunk_ends_where_a_bounded_map_fills(tiered: Tiered, tmp_path: Path, slots: int) -> None:
    report = tiered.clean(TOPIC, cleaner=CleanerConfig(key_map_bytes=24 * slots, load_factor=1.0))
    assert report.chunks is not None
    assert report.chunks >= (SEGMENTS if slots >= 6 else SEGMENTS + 1)
    assert tiered.state.remote_end == tiered.state.first_dirty()
    assert undisturbed(tmp_path / "other") == left(tiered, tmp_path / "out")


def test_small_neighbours_are_merged_although_no_key_of_them_is_dirty(tmp_path: Path) -> None:
    topic = replace(TOPIC, segment_bytes=1000)
    log = LogBuilder(tmp_path / str(PARTITION), topic)
    log.now_ms = NOW_MS
    tiered: Tiered | None = None
    for number in range(12):
        log.record(number, 1)
        log.roll()
        if tiered is None:
            tiered = Tiered(tmp_path, log.directory)
        else:
            tiered.take_in(log.directory)
        tiered.clean(topic)
    assert tiered is not None
    # A record and its batch take about seventy bytes.
    assert 1 == len(tiered.state.routes)
    assert list(range(12)) == [each[0] for each in left(tiered, tmp_path / "out")]  # type: ignore[index]


def far_apart() -> dict[int, bytes]:
    bases = (0, 1, RELATIVE_OFFSET_MAX, RELATIVE_OFFSET_MAX + 1)
    return {base: one(base, b"%d" % base) for base in bases}


def merged_counts(topic: TopicConfig, root: Path) -> list[list[int]]:
    tiered = Tiered(root, write_partition(root, far_apart()))
    replaced: list[list[int]] = []
    tiered.clean(
        topic, committed=lambda sources, outputs: replaced.append([s.base_offset for s in sources])
    )
    for segment in tiered.state.segments.values():
        assert segment.size_bytes <= topic.segment_bytes
    return replaced


@pytest.mark.parametrize(
    ("change", "groups"),
    [
        (lambda topic: topic, [3, 1]),
        (lambda topic: replace(topic, segment_bytes=150), [1, 1, 1, 1]),
    ],
    ids=["by offsets", "by bytes"],
)
def test_st_21_groups_stay_below_what_one_segment_holds(
    tmp_path: Path, change: Callable[[TopicConfig], TopicConfig], groups: list[int]
) -> None:
    topic = change(replace(TOPIC, segment_bytes=1 << 20, tier_chunk_bytes=1 << 30))
    counts = merged_counts(topic, tmp_path)
    merged = [count for count in groups if count > 1]
    assert merged == [len(each) for each in counts if len(each) > 1]
