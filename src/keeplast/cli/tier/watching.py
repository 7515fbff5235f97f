"""What a console is shown of a store: its metadata, read again and again; of its objects the times
of segments of logs that have changed, and more only when a key is looked for, or somebody asks for
batch headers.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from keeplast.cli.tier.options import StoreCall, local_places, spoken_cleaner
from keeplast.clock import Clock
from keeplast.config.choice import USUAL_SOURCES, SettingSources
from keeplast.config.sources import read_spoken_settings
from keeplast.errors import CompactionError, InvalidError
from keeplast.inspect.explain import AskedKey
from keeplast.inspect.header_scan import LogHeaders
from keeplast.log.files import LocalFiles
from keeplast.model.partition import TopicPartition
from keeplast.model.reader_wait import GroupReader
from keeplast.service.console.searches import MEMORY_BYTES, HeaderScanner, KeyFinder
from keeplast.service.console.view import Looked, Watcher
from keeplast.service.explained import KeyAnswer
from keeplast.service.receipt_shelf import ReceiptShelf
from keeplast.service.store_outlook import StoreOutlooks
from keeplast.service.tier_pace import tier_pace
from keeplast.store.status import TierStatus
from keeplast.store.tiered_store import TieredStore


def store_watcher(
    call: StoreCall,
    broker_config: Path | None,
    clock: Clock,
    receipt: Path | None = None,
    brokers: GroupReader | None = None,
    *,
    local: Path | None = None,
    sources: SettingSources = USUAL_SOURCES,
) -> Watcher:
    """Return what looks at the chosen partitions of a store; each look opens it and closes it.

    ``receipt`` is the file that a loop appends its receipts to, ``brokers`` who tell of groups.
    ``local`` is the data directory of a host, whose logs are shown beside, InvalidError for none;
    ``sources`` say what bounds rounds.
    """
    files, outlooks = LocalFiles(), StoreOutlooks()
    local_places(local)

    def look() -> Looked:
        places = local_places(local)
        with call.opened(broker_config=broker_config, brokers=brokers, only_looks=True) as opened:
            found = [each for each in opened.partitions() if call.scope.includes(each)]
            given_up = [each for each in opened.forgotten() if call.scope.includes(each)]
            tiers = tuple(_status(opened, each, places(each)) for each in found)
            settings = read_spoken_settings(files, sources)
            pace = tier_pace(settings.cleaner_config(), [each.remote_bytes for each in tiers])
            days = tuple(e for e in opened.round_days() if call.scope.includes(e.partition))
            return Looked(
                tiers=tiers, given_up=tuple(given_up), round_days=days,
                outlooks=outlooks.find(opened, found, pace, places),
                settings=settings, now_ms=clock.now_ms(),
            )  # fmt: skip

    return Watcher(call.shown, look, clock, files, ReceiptShelf(files, receipt))


def _status(opened: TieredStore, partition: TopicPartition, place: Path | None) -> TierStatus:
    """Return a status; a local log that cannot be read, as while its broker rolls, is left out."""
    try:
        return opened.status(partition, place)
    except (CompactionError, OSError):
        if place is None:
            raise
        return opened.status(partition)


def store_finder(
    call: StoreCall, broker_config: Path | None, brokers: GroupReader | None = None
) -> KeyFinder:
    """Return what finds keys in the chosen partitions of a store; each search opens it."""
    from keeplast.service.store_answer import answer_from_store

    def find(
        topic: str,
        partition: int | None,
        asked: AskedKey,
        now_ms: int,
        *,
        planned: Callable[[int], None],
        progressed: Callable[[int], None],
    ) -> KeyAnswer:
        cleaner = spoken_cleaner(broker_config)
        with call.opened(broker_config=broker_config, brokers=brokers, only_looks=True) as opened:
            chosen = [
                each
                for each in opened.partitions()
                if each.topic == topic
                and partition in (None, each.partition)
                and call.scope.includes(each)
            ]
            return answer_from_store(
                opened, chosen, cleaner, now_ms, asked, memory_bytes=MEMORY_BYTES,
                planned=planned, progressed=progressed,
            )  # fmt: skip

    return find


def store_scanner(call: StoreCall) -> HeaderScanner:
    """Return what reads the batch headers of the chosen partitions; each time opens the store."""
    from keeplast.store.headers import scan_stored_headers

    def scan(
        partition: TopicPartition, now_ms: int, *, progressed: Callable[[int], None]
    ) -> LogHeaders:
        with call.opened(only_looks=True) as opened:
            if partition not in opened.partitions() or not call.scope.includes(partition):
                raise InvalidError(f"the partition is gone; look again. partition={partition}")
            parts = opened.parts()
            state = parts.metadata.load(partition)
            return scan_stored_headers(parts.objects, state, now_ms, progressed)

    return scan
