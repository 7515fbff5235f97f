"""A round on objects leaves what a round on the same directory leaves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from keeplast.format.filename import LOG, segment_file
from keeplast.inspect.explain import AskedKey
from keeplast.inspect.fates import Outlook
from keeplast.log.append import LogAppender, NewRecord
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN, Workspace
from keeplast.store.explain import explain_stored
from keeplast.tier.objects.object_store import segment_of_key
from keeplast.tier.state.segment import RemoteSegment
from tests.support.broker_directory import FILES, BrokerDirectory
from tests.support.counting_objects import CountingObjects
from tests.support.crash_logs import CRASH_LOGS
from tests.support.partition_maker import COMPACT, DAY_MS, NOW_MS, PARTITION, clean, clean_request
from tests.support.reader import read_partition
from tests.support.tiered_log import Tiered, records


@pytest.fixture(params=["memory://", "file"])
def objects_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory://" else f"file://{tmp_path / 'objects'}"


@pytest.mark.rotates(4)
@pytest.mark.parametrize("name", ["merged", "one by one", "vanishing tails", "emptied", "split"])
def test_import_clean_and_export_leave_what_the_local_cleaner_leaves(
    tmp_path: Path, objects_url: str, name: str
) -> None:
    log = CRASH_LOGS[name]
    directory = log.write(tmp_path / "data")
    tiered = Tiered(tmp_path, directory, objects_url)
    exported = tiered.export(tmp_path / "before" / directory.name)
    assert records(directory) == records(exported)
    # The tier has no active segment: all of it is closed, so the same is asked of the local one.
    report = clean(replace(clean_request(directory, topic=log.topic), roll_active=True))
    tier_report = tiered.clean(log.topic)
    assert report.end_offset == tier_report.end_offset == tiered.state.first_dirty()
    after = tiered.export(tmp_path / "after" / directory.name)
    assert records(directory) == records(after)
    assert read_partition(directory).final_values() == read_partition(after).final_values()
    tiered.clock.advance(DAY_MS + 1)
    again = tiered.clean(log.topic)
    assert again.skipped


def test_every_commit_says_what_it_replaced(tmp_path: Path) -> None:
    log = CRASH_LOGS["merged"]
    tiered = Tiered(tmp_path, log.write(tmp_path / "data"), "memory://")
    before = tiered.state
    commits: list[tuple[tuple[RemoteSegment, ...], tuple[RemoteSegment, ...]]] = []
    tiered.clean(log.topic, committed=lambda sources, outputs: commits.append((sources, outputs)))
    live = dict(before.segments)
    # How far the log is clean is said of what a round made when all of it is live.
    carried = dict(tiered.state.publications[-1].offsets)
    for sources, outputs in commits:
        assert sources[0].base_offset == outputs[0].base_offset
        assert sources[-1].last_offset == outputs[-1].last_offset
        for source in sources:
            del live[source.segment_id]
        live |= {each.segment_id: replace(each, cleaner_offsets=carried) for each in outputs}
    assert commits
    assert live == dict(tiered.state.segments)


def test_unchanged_local_copies_are_read_in_place_of_objects(tmp_path: Path) -> None:
    log = CRASH_LOGS["merged"]
    directory = log.write(tmp_path / "data")
    tiered = Tiered(tmp_path, directory, "memory://")
    counting = CountingObjects(tiered.objects)
    tiered.objects = counting
    sizes = {path.name: path.stat().st_size for path in directory.glob("*.log")}
    # A segment whose last records are gone got a batch at its end when it was copied.
    same = {
        s.segment_id
        for s in tiered.state.segments.values()
        if sizes[segment_file(s.base_offset, LOG)] == s.size_bytes
    }
    tiered.clean(log.topic, local=directory)
    read = {segment_of_key(key) for key in counting.read if key.endswith(LOG)}
    assert same
    assert not same & read


def test_a_local_copy_with_other_bytes_is_not_read(tmp_path: Path) -> None:
    log = CRASH_LOGS["merged"]
    directory = log.write(tmp_path / "data")
    tiered = Tiered(tmp_path, directory, "memory://")
    path = min(directory.glob("*.log"))
    times = path.stat()
    path.write_bytes(bytes(times.st_size))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    report = tiered.clean(log.topic, local=directory)
    assert report.end_offset == tiered.state.first_dirty()


def test_what_is_clean_holds_no_round_back_however_young_it_is(tmp_path: Path) -> None:
    """A lag that was set later is about what is dirty, as in a directory and in Kafka."""
    broker = BrokerDirectory(tmp_path, replace(COMPACT, segment_bytes=1 << 20))

    def write(timestamp_ms: int) -> None:
        log = LogAppender(broker.path, FILES, topic=broker.topic, clock=broker.clock)
        log.append([NewRecord(b"k", b"v", timestamp_ms)])
        log.roll()
        log.close()

    write(NOW_MS)
    write(NOW_MS)
    broker.import_all()
    assert not broker.tiered.clean(PARTITION, grace_ms=0, force=True).skipped
    broker.topic = replace(broker.topic, min_compaction_lag_ms=60_000)
    broker.clock.advance(30_000)
    for _ in range(2):
        write(NOW_MS - 3_600_000)
    broker.copy()
    answer = explain_stored(
        broker.tiered.look(PARTITION), broker.objects, AskedKey(b"k"), broker.clock.now_ms(),
        Workspace(MEMORY_BYTES_MIN), filter_key=None, planned=lambda _: None,
        progressed=lambda _: None,
    ).found  # fmt: skip
    assert (2, 4) == (answer.first_dirty, answer.bound)
    assert {Outlook.GOES_NEXT, Outlook.WINS} == {each.fate.outlook for each in answer.records}
    assert not broker.tiered.clean(PARTITION, grace_ms=0, force=True).skipped
