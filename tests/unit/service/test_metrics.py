"""What a scrape gets, and that the server comes and goes."""

from __future__ import annotations

import socket

import pytest
from msgspec.structs import replace

from keeplast.errors import InvalidError
from keeplast.service.gauges import GAUGES, GaugeObserver
from keeplast.service.metrics import (
    COUNTERS,
    PARTITION_GAUGES,
    PARTITIONS,
    REMOVED_RECORDS,
    TIER_COUNTERS,
    TIER_GAUGES,
    CleanerCollector,
    MetricsServer,
)
from keeplast.service.snapshot import TierFacts, TierTotals
from keeplast.service.status import State
from tests.support.manual_clock import ManualClock
from tests.support.scrape import scrape
from tests.unit.service.test_gauges import NOW_MS, facts, round_of, snapshot

LOOPBACK = "127.0.0.1"


def server(observer: GaugeObserver, port: int = 0) -> MetricsServer:
    collector = CleanerCollector(observer, ManualClock(NOW_MS + 5), "/var/kafka")
    return MetricsServer(collector, host=LOOPBACK, port=port)


def test_a_scrape_gives_every_gauge_under_its_name() -> None:
    observer = GaugeObserver()
    aside = facts(1, State.SET_ASIDE, size_bytes=160)
    done = round_of(bytes_read=200, bytes_written=50)
    observer.published(snapshot(facts(0, last_round=done, delay_ms=7000), aside))
    with server(observer) as running:
        found = scrape(running.address)
    directory = (("logDirectory", "/var/kafka"),)
    partition = (("partition", "0"), ("topic", "t"))
    expected = {
        ("kafka_log_LogCleaner_cleaner_recopy_percent", ()): 25,
        ("kafka_log_LogCleaner_max_compaction_delay_secs", ()): 7,
        ("kafka_log_LogCleaner_DeadThreadCount", ()): 0,
        ("kafka_log_LogCleanerManager_uncleanable_partitions_count", directory): 1,
        ("kafka_log_LogCleanerManager_uncleanable_bytes", directory): 40,
        ("kafka_log_LogCleanerManager_max_dirty_percent", ()): 25,
        ("kafka_log_LogCleanerManager_time_since_last_run_ms", ()): 5,
        ("keeplast_rounds_done_total", ()): 1,
        ("keeplast_removed_records_total", (("reason", "superseded"),)): 3,
        ("keeplast_partitions", (("state", "set aside"),)): 1,
        ("keeplast_partition_dirty_ratio", partition): 0.25,
        ("keeplast_partition_compaction_delay_seconds", partition): 7,
    }
    assert expected == {key: found.get(key) for key in expected}
    names = {name for name, _ in found}
    assert {gauge.metric for gauge in GAUGES} <= names
    ours = {PARTITIONS, f"{REMOVED_RECORDS}_total", *(each.name for each in PARTITION_GAUGES)}
    assert ours | {f"{each.name}_total" for each in COUNTERS} <= names
    assert not any(name.startswith("keeplast_tier") for name in names)


def test_a_store_has_gauges_of_its_own() -> None:
    observer = GaugeObserver()
    known = replace(facts(0), tier=TierFacts("a", 4, 500, 2, 70, 15))
    observer.published(replace(snapshot(known), tier=TierTotals(copied_bytes=9)))
    with server(observer) as running:
        found = scrape(running.address)
    partition = (("partition", "0"), ("topic", "t"))
    expected = {
        ("keeplast_tier_copied_bytes_total", ()): 9,
        ("keeplast_tier_collected_bytes_total", ()): 0,
        ("keeplast_tier_remote_bytes", partition): 500,
        ("keeplast_tier_orphans", partition): 2,
        ("keeplast_tier_orphan_bytes", partition): 70,
        ("keeplast_tier_epoch", partition): 4,
        ("keeplast_tier_unserved_offsets", partition): 15,
    }
    assert expected == {key: found.get(key) for key in expected}
    names = {name for name, _ in found}
    assert {each.name for each in TIER_GAUGES} <= names
    assert {f"{each.name}_total" for each in TIER_COUNTERS} <= names


def test_ct01_metrics_are_gone_when_it_is_closed_and_ct02_back_when_it_starts_again() -> None:
    running = server(GaugeObserver())
    seen = []
    for _ in range(2):
        with running:
            address = running.address
            seen.append({name for name, _ in scrape(address)})
        with pytest.raises(OSError, match="refused"):
            scrape(address)
    assert seen[0] == seen[1]
    assert {gauge.metric for gauge in GAUGES} <= seen[1]


def test_a_port_that_is_taken_is_reported() -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidError) as caught, server(GaugeObserver(), port):
            raise AssertionError
    assert f"port={port}" in str(caught.value)
