"""A round on objects leaves what a round on the same directory leaves."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from keeplast.engine.local_runner import LocalRunner
from keeplast.engine.report import RoundReport
from keeplast.engine.runner import Runner
from keeplast.engine.tier_round import Committed, TierRequest, clean_remote
from keeplast.engine.workspace import MEMORY_BYTES_MIN
from keeplast.format.filename import LOG, segment_file
from keeplast.log.files import FileSystem, LocalFiles
from keeplast.model.topic_config import CleanerConfig, TopicConfig
from keeplast.tier.database import open_database
from keeplast.tier.importing import (
    export_partition,
    import_segments,
    read_lineage,
    read_topic_id,
)
from keeplast.tier.metadata import MetadataStore, PartitionState
from keeplast.tier.objects import ObjectStore, segment_of_key
from keeplast.tier.segment import RemoteSegment
from keeplast.tier.stores import open_objects
from tests.support.counting_objects import CountingObjects
from tests.support.crash_logs import CRASH_LOGS
from tests.support.manual_clock import ManualClock
from tests.support.partition_maker import DAY_MS, NOW_MS, PARTITION, clean, clean_request
from tests.support.reader import read_partition


class Tiered:
    """A store with one imported partition."""

    def __init__(self, root: Path, directory: Path, url: str) -> None:
        self.clock = ManualClock(NOW_MS)
        self.objects: ObjectStore = open_objects(url)
        self.store = MetadataStore(open_database(f"sqlite:///{root / 'meta.db'}"), self.clock)
        files = LocalFiles()
        self.store.create(PARTITION, read_topic_id(files, directory), log_start=0, settings={})
        state = self.store.take_over(
            PARTITION, epoch=7, owner="a", lineage=read_lineage(files, directory), log_end=0
        )
        import_segments(
            self.store, self.objects, files, directory, state,
            index_interval_bytes=4096, progressed=lambda count: None,
        )  # fmt: skip

    @property
    def state(self) -> PartitionState:
        return self.store.load(PARTITION)

    def clean(
        self,
        topic: TopicConfig,
        *,
        local: Path | None = None,
        committed: Committed | None = None,
    ) -> RoundReport:
        request = TierRequest(
            topic, CleanerConfig(), grace_ms=0, memory_bytes=MEMORY_BYTES_MIN, force=True
        )

        def runner_for(files: FileSystem) -> Runner:
            return LocalRunner(1, files=files, clock=self.clock)

        return clean_remote(
            self.store,
            self.objects,
            self.state,
            request,
            runner_for,
            self.clock,
            lambda count: None,
            local=local,
            committed=committed,
        )

    def export(self, directory: Path) -> Path:
        export_partition(self.objects, LocalFiles(), self.state, directory, lambda count: None)
        return directory


def records(directory: Path) -> list[object]:
    return [
        (r.offset, r.timestamp, r.key, r.value, r.headers)
        for batch in read_partition(directory).batches
        if not batch.is_control
        for r in batch.records()
    ]


@pytest.fixture(params=["memory://", "file"])
def objects_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory://" else f"file://{tmp_path / 'objects'}"


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
    told: list[tuple[tuple[RemoteSegment, ...], tuple[RemoteSegment, ...]]] = []
    tiered.clean(log.topic, committed=lambda sources, outputs: told.append((sources, outputs)))
    live = dict(before.segments)
    for sources, outputs in told:
        assert sources[0].base_offset == outputs[0].base_offset
        assert sources[-1].last_offset == outputs[-1].last_offset
        for source in sources:
            del live[source.segment_id]
        live |= {output.segment_id: output for output in outputs}
    assert told
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
