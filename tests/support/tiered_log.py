"""A partition in object storage that is imported from a directory, piece by piece, and cleaned."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from keeplast.log.files import FileSystem, LocalFiles
from keeplast.model.topic_config import CleanerConfig, Shape, TopicConfig
from keeplast.rewrite.task import Runner
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN
from keeplast.run.local_runner import LocalRunner
from keeplast.run.round import RunnerFor
from keeplast.store.look import RemoteHorizons
from keeplast.store.store_place import Committed, StorePlace, clean_remote
from keeplast.survey.report import RoundReport
from keeplast.survey.request import CleanRequest, PartitionRequest
from keeplast.tier.copy.importing import (
    export_partition,
    import_segments,
    read_lineage,
    read_topic_id,
)
from keeplast.tier.metadata.database import open_database
from keeplast.tier.metadata.metadata_store import MetadataStore
from keeplast.tier.objects.filters import KEY_BYTES, KEY_FACT
from keeplast.tier.objects.object_store import FILTER, ObjectStore, object_key
from keeplast.tier.objects.round_files import round_path
from keeplast.tier.objects.stores import open_objects
from keeplast.tier.state.partition_state import PartitionState
from tests.support.manual_clock import ManualClock
from tests.support.partition_maker import NOW_MS, PARTITION
from tests.support.reader import read_partition

EPOCH = 7
FILTER_KEY = "5a" * KEY_BYTES
"""One time in a hundred a filter is wrong about a key: with this one always about the same."""


def clean_in_store(
    store: MetadataStore,
    objects: ObjectStore,
    state: PartitionState,
    topic: TopicConfig,
    runner_for: RunnerFor,
    clock: ManualClock,
    *,
    local: Path | None = None,
    committed: Committed | None = None,
    cleaner: CleanerConfig | None = None,
    force: bool = True,
    shape: Shape | None = None,
) -> RoundReport:
    """Do one round of a partition as its owner; what it replaces may go at once."""
    partition = PartitionRequest(
        state.partition, round_path(state.partition), topic, cleaner or CleanerConfig()
    )
    request = CleanRequest((partition,), memory_bytes=MEMORY_BYTES_MIN, force=force, shape=shape)
    place = StorePlace(
        store, objects, state, request, clock, grace_ms=0, horizons=RemoteHorizons(objects),
        local=local, committed=committed,
    )  # fmt: skip
    return clean_remote(place, runner_for, lambda count: None)


class Tiered:
    """A store with one imported partition."""

    def __init__(
        self,
        root: Path,
        directory: Path,
        url: str = "memory://",
        *,
        now_ms: int = NOW_MS,
        high_watermark: int | None = None,
    ) -> None:
        """Import all of ``directory``, or what of it lies below ``high_watermark``."""
        root.mkdir(parents=True, exist_ok=True)
        self.clock = ManualClock(now_ms)
        self.objects: ObjectStore = open_objects(url)
        self.store = MetadataStore(open_database(f"sqlite:///{root / 'meta.db'}"), self.clock)
        self.store.fact(KEY_FACT, lambda: FILTER_KEY)
        files = LocalFiles()
        self.store.create(PARTITION, read_topic_id(files, directory), log_start=0, settings={})
        lineage = read_lineage(files, directory)
        epoch = max([EPOCH, *(entry.epoch for entry in lineage)])
        self.store.take_over(PARTITION, epoch=epoch, owner="a", lineage=lineage, log_end=0)
        self.take_in(directory, high_watermark=high_watermark)

    @property
    def state(self) -> PartitionState:
        """Return what the metadata says now."""
        return self.store.load(PARTITION)

    def take_in(self, directory: Path, *, high_watermark: int | None = None) -> None:
        """Import what ``directory`` has gained."""
        import_segments(
            self.store, self.objects, LocalFiles(), directory, self.state,
            topic=TopicConfig(), clock=self.clock, progressed=lambda count: None,
            high_watermark=high_watermark,
        )  # fmt: skip

    def clean(
        self,
        topic: TopicConfig,
        *,
        local: Path | None = None,
        committed: Committed | None = None,
        cleaner: CleanerConfig | None = None,
        force: bool = True,
        shape: Shape | None = None,
        runner: Runner | None = None,
    ) -> RoundReport:
        """Do one round, whatever the dirty ratio; on one thread of its own unless by ``runner``."""

        def runner_for(files: FileSystem) -> AbstractContextManager[Runner]:
            if runner is not None:
                return nullcontext(runner)
            return LocalRunner(1, files=files, clock=self.clock)

        return clean_in_store(
            self.store, self.objects, self.state, topic, runner_for, self.clock,
            local=local, committed=committed, cleaner=cleaner, force=force, shape=shape,
        )  # fmt: skip

    def export(self, directory: Path) -> Path:
        """Write the live log as a partition directory."""
        export_partition(self.objects, LocalFiles(), self.state, directory, lambda count: None)
        return directory

    def live_objects(self) -> Mapping[tuple[int, int, str], bytes]:
        """Return the bytes of every object of every live segment, by its bounds and suffix."""
        state = self.state
        found: dict[tuple[int, int, str], bytes] = {}
        for route in state.routes:
            segment = state.segments[route.segment_id]
            for suffix, file in segment.files.items():
                key = object_key(
                    PARTITION, state.topic_id, segment.segment_id, segment.base_offset, suffix
                )
                data = self.objects.read_range(key, 0, file.size_bytes)
                found[route.base_offset, route.last_offset, suffix] = bytes(data)
        return found

    def filter_key(self, base_offset: int) -> str:
        """Return the key of the filter of the live segment at ``base_offset``."""
        state = self.state
        (route,) = (r for r in state.routes if r.base_offset == base_offset)
        return object_key(PARTITION, state.topic_id, route.segment_id, base_offset, FILTER)


def records(directory: Path) -> list[object]:
    """Return the records of a directory but those of markers, in order."""
    return [
        (r.offset, r.timestamp, r.key, r.value, r.headers)
        for batch in read_partition(directory).batches
        if not batch.is_control
        for r in batch.records()
    ]
