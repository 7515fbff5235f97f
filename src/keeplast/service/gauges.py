"""Gauges of a running cleaner under Kafka's names, from the snapshots that the daemon publishes.

Names and meaning are those of ``kafka.log:type=LogCleaner`` and ``LogCleanerManager`` (cleaning.md
section 1.11), so that dashboards and alerts keep working. Two differ on purpose (architecture 2.2
g): ``max-buffer-utilization-percent`` is computed and not cut to 0 or 100, and
``max-compaction-delay-secs`` follows KIP-354. The latter is over all compacted partitions, again at
each look, without an upper limit. One that fails counts with what was last known of it: an alert
that falls silent because rounds fail would be worse than none. What Kafka says of its threads is
said here of the rounds of the last turn. Computes from values alone;
:mod:`keeplast.service.metrics` serves them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct, field

from keeplast.cleaner.dirty_section import LogFigures
from keeplast.model.partition import TopicPartition
from keeplast.rewrite.stats import Stats
from keeplast.service.live import Control
from keeplast.service.snapshot import PartitionFacts, Snapshot
from keeplast.service.status import State
from keeplast.survey.report import RoundReport

CLEANER = "LogCleaner"
MANAGER = "LogCleanerManager"


class Totals(Struct, frozen=True):
    """Sums over all rounds since the start; reasons are by field name of ``Reasons``."""

    rounds_done: int = 0
    rounds_failed: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    seconds: float = 0.0
    removed_records: dict[str, int] = field(default_factory=dict)


class Observed(Struct, frozen=True):
    """What gauges are made from: the last snapshot, the rounds of the last turn, and sums."""

    snapshot: Snapshot | None = None
    last_turn: tuple[RoundReport, ...] = ()
    totals: Totals = field(default_factory=Totals)

    @property
    def partitions(self) -> tuple[PartitionFacts, ...]:
        """Return the partitions of the last snapshot, none before the first."""
        return () if self.snapshot is None else self.snapshot.partitions

    def in_state(self, state: State) -> list[PartitionFacts]:
        """Return the partitions in one state."""
        return [each for each in self.partitions if each.state is state]

    def stats(self) -> list[Stats]:
        """Return the counters of the last turn's rounds; a round that failed has none."""
        return [each.stats for each in self.last_turn if each.stats is not None]


class GaugeObserver:
    """Takes snapshots; another thread may read :attr:`observed`, which is replaced as a whole."""

    def __init__(self, control: Control | None = None) -> None:
        """Start with nothing observed; ``control`` says what keeps the loop from all its work."""
        self.observed = Observed()
        self._control = control
        self._counted: dict[TopicPartition, RoundReport] = {}

    @property
    def is_blocked(self) -> bool:
        """Say whether nothing can be worked on now; asked each time, as no snapshot comes then."""
        return self._control is not None and self._control.trouble is not None

    def published(self, snapshot: Snapshot) -> None:
        """Take a snapshot. A round is counted once, however often it is published."""
        fresh: list[RoundReport] = []
        for facts in snapshot.partitions:
            report = facts.last_round
            if report is not None and self._counted.get(facts.partition) is not report:
                self._counted[facts.partition] = report
                fresh.append(report)
        here = {facts.partition for facts in snapshot.partitions}
        self._counted = {tp: report for tp, report in self._counted.items() if tp in here}
        before = self.observed
        self.observed = Observed(
            snapshot, tuple(fresh) if fresh else before.last_turn, _add(before.totals, fresh)
        )


def _add(totals: Totals, rounds: list[RoundReport]) -> Totals:
    stats = [each.stats for each in rounds if each.stats is not None and each.failure is None]
    removed = dict(totals.removed_records)
    for each in rounds:
        if each.reasons is not None and each.failure is None:
            for name in REMOVAL_REASONS:
                removed[name] = removed.get(name, 0) + getattr(each.reasons, f"{name}_records")
    return Totals(
        totals.rounds_done + len(stats),
        totals.rounds_failed + sum(each.failure is not None for each in rounds),
        totals.bytes_read + sum(each.map_bytes_read + each.bytes_read for each in stats),
        totals.bytes_written + sum(each.bytes_written for each in stats),
        totals.seconds + sum(each.total_seconds for each in stats),
        removed,
    )


REMOVAL_REASONS = ("superseded", "tombstone", "aborted", "keyless", "marker")


class Gauge(Struct, frozen=True):
    """One gauge: Kafka's MBean type and name, and how its value comes from what was observed.

    ``value`` takes the clock too. ``by_directory`` gauges have the tag ``logDirectory``.
    """

    type: str
    name: str
    about: str
    value: Callable[[Observed, int], float]
    by_directory: bool = False

    @property
    def mbean(self) -> str:
        """Return Kafka's name of it."""
        tag = ",logDirectory=*" if self.by_directory else ""
        return f"kafka.log:type={self.type},name={self.name}{tag}"

    @property
    def metric(self) -> str:
        """Return the name under which Prometheus sees it."""
        return f"kafka_log_{self.type}_{self.name.replace('-', '_')}"


def _buffer_utilization_percent(observed: Observed, _now_ms: int) -> float:
    shares = [each.buffer_utilization for each in observed.stats()]
    return 100 * max((share for share in shares if share is not None), default=0.0)


def _recopy_percent(observed: Observed, _now_ms: int) -> float:
    stats = observed.stats()
    written = sum(each.bytes_written for each in stats)
    return 100 * written // max(sum(each.bytes_read for each in stats), 1)


def _figures(partitions: Sequence[PartitionFacts]) -> list[LogFigures]:
    """Return what is known of those that could be looked at once."""
    return [each.figures for each in partitions if each.figures is not None]


def _compaction_delay_seconds(observed: Observed, _now_ms: int) -> float:
    delays = [each.compaction_delay_ms for each in _figures(observed.partitions)]
    return max(delays, default=0) // 1000


def _uncleanable_bytes(observed: Observed, _now_ms: int) -> float:
    marked = _figures(observed.in_state(State.SET_ASIDE))
    return sum(each.cleanable.cleanable_bytes for each in marked)


def _dirty_percent(observed: Observed, _now_ms: int) -> float:
    candidates = (
        State.ELIGIBLE,
        State.NOT_DUE,
        State.RETRYING,
    )
    found = _figures([each for each in observed.partitions if each.state in candidates])
    ratios = [each.cleanable.ratio for each in found]
    return int(100 * max(ratios, default=0.0))


def _since_last_run_ms(observed: Observed, now_ms: int) -> float:
    return 0 if observed.snapshot is None else now_ms - observed.snapshot.looked_ms


GAUGES = (
    Gauge(
        CLEANER, "max-buffer-utilization-percent",
        "Greatest share of a key map's slots that was in use at the end of a round of the last "
        "turn; 0 while no map has a bound. Not cut to whole hundreds, as Kafka's is.",
        _buffer_utilization_percent,
    ),
    Gauge(
        CLEANER, "cleaner-recopy-percent",
        "Bytes written by 100 bytes read, over the rounds of the last turn.",
        _recopy_percent,
    ),
    Gauge(
        CLEANER, "max-clean-time-secs",
        "Whole seconds that the longest round of the last turn took.",
        lambda observed, _: int(max((each.total_seconds for each in observed.stats()), default=0)),
    ),
    Gauge(
        CLEANER, "max-compaction-delay-secs",
        "For how many whole seconds the log that is most overdue has been, by KIP-354, at the last "
        "look. Over partitions that are eligible, not due, retrying or set aside: one that fails "
        "counts with what was last known of it and grows more overdue. Not over those that are "
        "refused or owned elsewhere, or that could never be looked at.",
        _compaction_delay_seconds,
    ),
    Gauge(
        CLEANER, "DeadThreadCount",
        "Always 0: a worker that dies fails its round, which is tried again, and the daemon does "
        "not go on without one.",
        lambda observed, _: 0,
    ),
    Gauge(
        MANAGER, "uncleanable-partitions-count",
        "Partitions that are set aside. Those that are retrying are not among them.",
        lambda observed, _: len(observed.in_state(State.SET_ASIDE)), by_directory=True,
    ),
    Gauge(
        MANAGER, "uncleanable-bytes",
        "Bytes of those partitions that could be cleaned if they were whole, as last surveyed; 0 "
        "for one that could never be.",
        _uncleanable_bytes, by_directory=True,
    ),
    Gauge(
        MANAGER, "max-dirty-percent",
        "Greatest dirty ratio of a partition that is eligible, not due or retrying, in whole "
        "percent. uncleanable-bytes counts those that are set aside, as in Kafka.",
        _dirty_percent,
    ),
    Gauge(
        MANAGER, "time-since-last-run-ms",
        "Milliseconds since the daemon last looked at the partitions.",
        _since_last_run_ms,
    ),
)  # fmt: skip
