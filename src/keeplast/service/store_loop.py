"""What a store gives to a loop and to a console.

A console reads its metadata, again and again. Of its objects it reads the times of segments of logs
that have changed. It reads more only for a search of a key, or when a visitor asks for batch
headers.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from msgspec.structs import replace

from keeplast.clock import SystemClock
from keeplast.config.layers import PartitionChoice, SettingSources
from keeplast.config.sources import read_settings, read_spoken_settings
from keeplast.errors import CompactionError, InvalidError
from keeplast.host.leased_host import LEASE_MS_DEFAULT, check_lease_ms, host_directory
from keeplast.inspect.explain import AskedKey
from keeplast.inspect.stages import LogHeaders
from keeplast.log.data_directory import open_data_directory
from keeplast.log.files import FileSystem, LocalFiles
from keeplast.model.hold import GroupReader
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import CleanerConfig, HostRole, Shape
from keeplast.rewrite.task import Runner
from keeplast.run.events import Events
from keeplast.service.console.searches import MEMORY_BYTES, HeaderScanner, KeyFinder
from keeplast.service.console.view import Looked, Watcher
from keeplast.service.explained import KeyAnswer
from keeplast.service.host_work import HostSettings, HostWork
from keeplast.service.live import TierNarrator
from keeplast.service.place_loop import LoopTerms, PlaceView, ViewTerms
from keeplast.service.store_answer import answer_from_store
from keeplast.service.store_choice import ROUNDS_MAX, StoreSettings, tier_pace
from keeplast.service.store_facts import StoreOutlooks
from keeplast.service.store_work import StoreWork
from keeplast.store.look import scan_stored_headers
from keeplast.store.status import TierStatus
from keeplast.store.tiered_store import TieredStore

OpensStore = Callable[[GroupReader | None], AbstractContextManager[TieredStore]]
"""Opens a store to look at it; takes no lock and no right from another process."""


def store_view(
    name: str,
    opened: OpensStore,
    scope: PartitionChoice,
    sources: SettingSources,
    cleaner: Callable[[], CleanerConfig],
    local: Path | None,
    terms: ViewTerms,
) -> PlaceView:
    """Return what looks at the chosen partitions of a store; each look opens it and closes it.

    ``local`` is the data directory of a host, whose logs are shown next to the store's;
    InvalidError for none. ``sources`` say what bounds rounds, ``cleaner`` reads the cleaner's
    settings.
    """
    files, outlooks = LocalFiles(), StoreOutlooks()
    local_places(local)

    def look() -> Looked:
        places, now_ms = local_places(local), terms.clock.now_ms()
        with opened(terms.brokers) as store:
            found = [each for each in store.partitions() if scope.includes(each)]
            given_up = [each for each in store.forgotten() if scope.includes(each)]
            tiers = tuple(_status(store, each, places(each)) for each in found)
            settings = read_spoken_settings(files, sources)
            pace = tier_pace(settings.cleaner_config(), [each.remote_bytes for each in tiers])
            days = tuple(e for e in store.round_days() if scope.includes(e.partition))
            return Looked(
                tiers=tiers, given_up=tuple(given_up), round_days=days,
                outlooks=outlooks.find(store, found, pace, places),
                settings=settings, now_ms=now_ms,
            )  # fmt: skip

    return PlaceView(
        watcher=Watcher(
            name, look, terms.clock, files, terms.shelf(files), endures=terms.endures
        ),
        find=store_finder(opened, scope, cleaner, terms.brokers),
        scan=store_scanner(opened, scope),
    )  # fmt: skip


def store_work(
    opened: TieredStore,
    settings: StoreSettings,
    host: HostSettings | None,
    files: FileSystem,
    runner: Runner,
    narrator: TierNarrator,
    events: Events,
) -> StoreWork:
    """Return what looks after a store, as a ``host`` of its partitions if it is one."""
    # A chosen shape cuts each round for all there is; else partitions take a slot each.
    slots = min(runner.slots, ROUNDS_MAX) if settings.shape is None else 1
    asked, clock = replace(settings, slots=slots), SystemClock()
    if host is None:
        return StoreWork(opened, runner, clock, files, asked, narrator=narrator, events=events)
    return HostWork(
        opened, runner, clock, files, asked, narrator=narrator, events=events, host=host
    )


def host_retention(
    data_dir: Path | None, sources: SettingSources
) -> Callable[[], Callable[[str], int]] | None:
    """Return what reads the ``delete.retention.ms`` that the broker of a data directory has.

    None without a directory.
    """
    if data_dir is None:
        return None
    root = open_data_directory(data_dir, LocalFiles()).root

    def read() -> Callable[[str], int]:
        found = read_settings(root, LocalFiles(), sources)
        return lambda topic: found.topic_config(topic).delete_retention_ms

    return read


def local_places(local: Path | None) -> Callable[[TopicPartition], Path | None]:
    """Return where a host with this data directory has a partition, None for one that it has not.

    InvalidError when ``local`` is no data directory.
    """
    if local is None:
        return lambda partition: None
    entries = open_data_directory(local, LocalFiles()).partitions
    return {each.partition: each.path for each in entries if each.mark is None}.get


def _status(opened: TieredStore, partition: TopicPartition, place: Path | None) -> TierStatus:
    """Return a status; a local log that cannot be read, as while its broker rolls, is left out."""
    try:
        return opened.status(partition, place)
    except (CompactionError, OSError):
        if place is None:
            raise
        return opened.status(partition)


def store_finder(
    opened: OpensStore,
    scope: PartitionChoice,
    cleaner: Callable[[], CleanerConfig],
    brokers: GroupReader | None = None,
) -> KeyFinder:
    """Return what finds keys in the chosen partitions of a store; each search opens it."""

    def find(
        topic: str,
        partition: int | None,
        asked: AskedKey,
        now_ms: int,
        *,
        planned: Callable[[int], None],
        progressed: Callable[[int], None],
    ) -> KeyAnswer:
        with opened(brokers) as store:
            chosen = [
                each
                for each in store.partitions()
                if each.topic == topic
                and partition in (None, each.partition)
                and scope.includes(each)
            ]
            return answer_from_store(
                store, chosen, cleaner(), now_ms, asked, memory_bytes=MEMORY_BYTES,
                planned=planned, progressed=progressed,
            )  # fmt: skip

    return find


def store_scanner(opened: OpensStore, scope: PartitionChoice) -> HeaderScanner:
    """Return what reads the batch headers of the chosen partitions; each time opens the store."""

    def scan(
        partition: TopicPartition, now_ms: int, *, progressed: Callable[[int], None]
    ) -> LogHeaders:
        with opened(None) as store:
            if partition not in store.partitions() or not scope.includes(partition):
                raise InvalidError(
                    f"the partition is gone; look again. partition={partition}", code="K115"
                )
            parts = store.parts()
            state = parts.metadata.load(partition)
            return scan_stored_headers(parts.objects, state, now_ms, progressed)

    return scan


def host_settings(
    terms: LoopTerms, data_dir: Path | None, shape: Shape | None, files: FileSystem
) -> HostSettings | None:
    """Return how this process is a host, None where it is none; nothing is changed.

    InvalidError for options that contradict, RefusedError for a directory that is a broker's or in
    use.
    """
    if terms.host_dir is None:
        for name in terms.host_terms:
            raise InvalidError(
                f"{name} is about hosts; name their directory (--host-dir)", code="K102"
            )
        return None
    if data_dir is not None:
        raise InvalidError(
            "--data-dir copies a broker's directory, and --host-dir is this process's own; give "
            f"one of them. data_dir={data_dir} host_dir={terms.host_dir}",
            code="K101",
        )
    if shape is not None:
        raise InvalidError(
            "--shape is not for hosts: their rounds read what is on their own disk, a task a "
            f"partition; leave it out. shape={shape}",
            code="K103",
        )
    lease_ms = LEASE_MS_DEFAULT if terms.lease_ms is None else terms.lease_ms
    check_lease_ms(lease_ms)
    with host_directory(terms.host_dir, files):
        pass
    return HostSettings(terms.host_dir, terms.role or HostRole.AUTO, lease_ms)
