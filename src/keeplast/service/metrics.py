"""Serves a daemon's gauges and counters to Prometheus, over HTTP, by default on the loopback.

A scrape reads what the daemon last published and computes from it in the server's thread. It never
waits for a round and a round never waits for it. Kafka's gauges come first
(:mod:`keeplast.service.gauges`); counters and the metrics of each partition have names of ours. The
tables here are what ``docs/reference/metrics.md`` is written from.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Generic, Self, TypeVar
from wsgiref.simple_server import WSGIServer

from msgspec import Struct
from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from keeplast.clock import Clock
from keeplast.errors import InvalidError
from keeplast.service.gauges import GAUGES, REMOVAL_REASONS, GaugeObserver, Totals
from keeplast.service.snapshot import (
    LOOP_STATES,
    AttachedTotals,
    PartitionFacts,
    TierTotals,
)

Of = TypeVar("Of")
Value = TypeVar("Value")


class Measure(Struct, Generic[Of, Value], frozen=True):
    """A metric, and what its value is made of; a value of None is left out.

    The exposed name of a counter ends in ``_total``. ``is_counter`` says it where both kinds are in
    one list, that of a live cluster's remote tier. Its others are of the last 24 hours and count
    all hosts.
    """

    name: str
    about: str
    value: Callable[[Of], Value]
    is_counter: bool = False


COUNTERS: tuple[Measure[Totals, float], ...] = (
    Measure("keeplast_rounds_done", "Rounds that ended well.", lambda t: t.rounds_done),
    Measure("keeplast_rounds_failed", "Rounds that failed.", lambda t: t.rounds_failed),
    Measure("keeplast_read_bytes", "Bytes that both passes read.", lambda t: t.bytes_read),
    Measure("keeplast_written_bytes", "Bytes that rounds wrote.", lambda t: t.bytes_written),
    Measure("keeplast_round_seconds", "Seconds that rounds took.", lambda t: t.seconds),
)

REMOVED_RECORDS = "keeplast_removed_records"
REMOVED_ABOUT = f"Records that went, by reason: {', '.join(REMOVAL_REASONS)}."

PARTITION_GAUGES: tuple[Measure[PartitionFacts, float | None], ...] = (
    Measure(
        "keeplast_partition_clean_bytes",
        "Bytes below the first dirty offset, by segment.",
        lambda p: None if p.figures is None else p.figures.cleanable.clean_bytes,
    ),
    Measure(
        "keeplast_partition_cleanable_bytes",
        "Bytes of the dirty segments that a round may clean.",
        lambda p: None if p.figures is None else p.figures.cleanable.cleanable_bytes,
    ),
    Measure(
        "keeplast_partition_uncleanable_bytes",
        "Bytes at and above the bound, the active segment included.",
        lambda p: None if p.figures is None else p.figures.uncleanable_bytes,
    ),
    Measure(
        "keeplast_partition_dirty_ratio",
        "Cleanable by clean and cleanable bytes.",
        lambda p: None if p.figures is None else p.figures.cleanable.ratio,
    ),
    Measure(
        "keeplast_partition_compaction_delay_seconds",
        "For how long the log is overdue, 0 when it is not; also while it fails.",
        lambda p: None if p.figures is None else p.figures.compaction_delay_ms / 1000,
    ),
    Measure(
        "keeplast_partition_last_round_timestamp_seconds",
        "When the last round ended, seconds since 1970.",
        lambda p: None if p.last_round_ms is None else p.last_round_ms / 1000,
    ),
)


TIER_COUNTERS: tuple[Measure[TierTotals, float], ...] = (
    Measure("keeplast_tier_copied_bytes", "Bytes copied to it.", lambda t: t.copied_bytes),
    Measure(
        "keeplast_tier_replaced_ranges",
        "Partitions that were copied again as a whole because a copy could have missed a delete.",
        lambda t: t.replaced_ranges,
    ),
    Measure(
        "keeplast_tier_refused_copies",
        "Copies that were refused, as those that could have missed a delete.",
        lambda t: t.refused_copies,
    ),
    Measure(
        "keeplast_tier_expired_bytes",
        "Bytes that retention or the log start let go; they are read no more.",
        lambda t: t.expired_bytes,
    ),
    Measure(
        "keeplast_tier_collected_bytes",
        "Bytes of objects that were removed from the object store.",
        lambda t: t.collected_bytes,
    ),
)

TIER_GAUGES: tuple[Measure[PartitionFacts, float | None], ...] = (
    Measure(
        "keeplast_tier_remote_bytes",
        "Bytes of the segments that are read, each once.",
        lambda p: None if p.tier is None else p.tier.remote_bytes,
    ),
    Measure(
        "keeplast_tier_orphans",
        "Replaced segments that wait to be removed.",
        lambda p: None if p.tier is None else p.tier.orphans,
    ),
    Measure(
        "keeplast_tier_orphan_bytes",
        "Bytes of those segments.",
        lambda p: None if p.tier is None else p.tier.orphan_bytes,
    ),
    Measure(
        "keeplast_tier_epoch",
        "The epoch of the partition's owner.",
        lambda p: None if p.tier is None else p.tier.epoch,
    ),
    Measure(
        "keeplast_tier_unserved_offsets",
        "Offsets between log start and the last copied one that brokers do not serve: readers are "
        "reset there. Of attached partitions alone.",
        lambda p: None if p.tier is None else p.tier.unserved_offsets,
    ),
)


ATTACHED_METRICS: tuple[Measure[AttachedTotals, float], ...] = (
    Measure(
        "keeplast_attached_day_swaps", "Swaps decided in the last 24 hours.", lambda t: t.swaps
    ),
    Measure(
        "keeplast_attached_day_swaps_limit",
        "How many there may be.",
        lambda t: t.swaps_max,
    ),
    Measure(
        "keeplast_attached_day_records",
        "Records of __remote_log_metadata that these leave there, collection included.",
        lambda t: t.metadata_records,
    ),
    Measure(
        "keeplast_attached_day_records_limit",
        "How many there may be.",
        lambda t: t.metadata_records_max,
    ),
    Measure(
        "keeplast_attached_requests",
        "Requests to the remote tier by this process, as the most that there can be.",
        lambda t: t.requests,
        is_counter=True,
    ),
    Measure(
        "keeplast_attached_moved_bytes",
        "Bytes read from the remote tier and written to it by this process.",
        lambda t: t.moved_bytes,
        is_counter=True,
    ),
    Measure(
        "keeplast_attached_slow_downs",
        "Answers 503, SlowDown or 429 that outlasted the retries of the client.",
        lambda t: t.slow_downs,
        is_counter=True,
    ),
    Measure(
        "keeplast_attached_waited_seconds",
        "Seconds that threads waited for the caps on requests and bytes.",
        lambda t: t.waited_seconds,
        is_counter=True,
    ),
)

BLOCKED = "keeplast_blocked"
BLOCKED_ABOUT = (
    "1 while nothing at all can be worked on, as where no receipt can be written or a store does "
    "not answer, and that is tried again; otherwise 0."
)

PARTITIONS = "keeplast_partitions"
PARTITIONS_ABOUT = f"Partitions by state: {', '.join(LOOP_STATES)}."


class CleanerCollector(Collector):
    """Turns what was observed into metrics, at each scrape."""

    def __init__(self, observer: GaugeObserver, clock: Clock, directory: str) -> None:
        """Take where snapshots arrive; ``directory`` is the value of the tag ``logDirectory``."""
        self._observer = observer
        self._clock = clock
        self._directory = directory

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics of one moment."""
        observed, now_ms = self._observer.observed, self._clock.now_ms()
        for gauge in GAUGES:
            labels = ["logDirectory"] if gauge.by_directory else []
            family = GaugeMetricFamily(gauge.metric, f"{gauge.mbean} {gauge.about}", labels=labels)
            family.add_metric(
                [self._directory] if gauge.by_directory else [], gauge.value(observed, now_ms)
            )
            yield family
        for counter in COUNTERS:
            yield CounterMetricFamily(
                counter.name, counter.about, value=counter.value(observed.totals)
            )
        removed = CounterMetricFamily(REMOVED_RECORDS, REMOVED_ABOUT, labels=["reason"])
        for reason in REMOVAL_REASONS:
            removed.add_metric([reason], observed.totals.removed_records.get(reason, 0))
        yield removed
        states = GaugeMetricFamily(PARTITIONS, PARTITIONS_ABOUT, labels=["state"])
        for state in LOOP_STATES:
            states.add_metric([state.value], len(observed.in_state(state)))
        yield states
        yield GaugeMetricFamily(BLOCKED, BLOCKED_ABOUT, value=int(self._observer.is_blocked))
        totals = None if observed.snapshot is None else observed.snapshot.tier
        if totals is not None:
            for tier in TIER_COUNTERS:
                yield CounterMetricFamily(tier.name, tier.about, value=tier.value(totals))
        if isinstance(totals, AttachedTotals):
            for metric in ATTACHED_METRICS:
                kind = CounterMetricFamily if metric.is_counter else GaugeMetricFamily
                yield kind(metric.name, metric.about, value=metric.value(totals))
        for each in PARTITION_GAUGES if totals is None else (*PARTITION_GAUGES, *TIER_GAUGES):
            family = GaugeMetricFamily(each.name, each.about, labels=["topic", "partition"])
            for facts in observed.partitions:
                value = each.value(facts)
                if value is not None:
                    partition = facts.partition
                    family.add_metric([partition.topic, str(partition.partition)], value)
            yield family


def exposition(collector: CleanerCollector) -> bytes:
    """Return all metrics of one moment in Prometheus's text format."""
    registry = CollectorRegistry()
    registry.register(collector)
    return generate_latest(registry)


class MetricsServer:
    """An HTTP server for scrapes, from ``__enter__`` to ``__exit__``, in a thread of its own."""

    def __init__(self, collector: CleanerCollector, *, host: str, port: int) -> None:
        """Take where to listen; port 0 lets the system choose."""
        self._host = host
        self._wanted = port
        self._collector = collector
        self._registry = CollectorRegistry()
        self._running: tuple[WSGIServer, threading.Thread] | None = None

    @property
    def address(self) -> str:
        """Return the URL of the metrics while it runs."""
        port = self._wanted if self._running is None else self._running[0].server_port
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{port}/metrics"

    def __enter__(self) -> Self:
        """Listen; InvalidError when the address cannot be had."""
        self._registry.register(self._collector)
        try:
            self._running = start_http_server(self._wanted, self._host, self._registry)
        except (OSError, OverflowError) as error:
            raise InvalidError(
                f"cannot listen there; choose another --metrics-port or --metrics-host. "
                f"host={self._host} port={self._wanted} problem={error}",
                code="K701",
            ) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop listening and take the metrics away."""
        if self._running is not None:
            server, thread = self._running
            server.shutdown()
            server.server_close()
            thread.join()
            self._running = None
        self._registry.unregister(self._collector)
