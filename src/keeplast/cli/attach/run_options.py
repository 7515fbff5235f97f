"""The options of ``keeplast attach run``, and the limits that they stand for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keeplast.cli.attach.options import (
    BrokerMetricsUrls,
    ClusterOptions,
    KeepSources,
    KeylessChoice,
    Partitions,
    TierOptions,
    WantedOptions,
)
from keeplast.cli.frame.console import ConsoleOptions
from keeplast.cli.frame.options import MetricsOptions, RunnerOptions, WorkOptions
from keeplast.cli.frame.parameters import ROUND, RUN, SCOPE
from keeplast.cli.frame.spans import SPAN_WORDS, span_ms
from keeplast.errors import InvalidError
from keeplast.model.keyless import Keyless
from keeplast.model.size import parse_size

if TYPE_CHECKING:
    from keeplast.attach.rounds.allowance import DaySum
    from keeplast.cluster.layouts.paced import PaceLimits

CAPS = "Caps"
RATE_MIN = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopClusterOptions(ClusterOptions):
    """Which cluster the loop is about; what it works on was attached, or is named."""

    topics: Annotated[
        tuple[str, ...],
        typer.Option(
            "--topic", metavar="T", rich_help_panel=SCOPE,
            help="Attach all partitions of this topic, and work on nothing else; repeatable. "
            "Default: what the decision log has as attached.",
        ),
    ] = ()  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CapOptions:
    """What the loop may ask of the remote tier a second, and write to the metadata topic a day."""

    requests_per_second: Annotated[
        int,
        typer.Option(
            "--requests-per-second", metavar="N", min=1, rich_help_panel=CAPS,
            help="Requests to the remote tier, counted as the most that there can be. Each Spark "
            "slot has its share.",
        ),
    ] = 200  # fmt: skip
    bytes_per_second: Annotated[
        str,
        typer.Option(
            "--bytes-per-second", metavar="SIZE", rich_help_panel=CAPS,
            help="Bytes read from the remote tier and written to it, together; 1m at least.",
        ),
    ] = "128m"  # fmt: skip
    back_off_ms: Annotated[
        int | None,
        typer.Option(
            "--back-off-ms", metavar="MS", parser=span_ms, rich_help_panel=CAPS,
            help="How long every request waits when a store answers 503, SlowDown or 429; twice "
            f"that the next time, a minute at most. Milliseconds, or {SPAN_WORDS}. Default: 1s.",
        ),
    ] = None  # fmt: skip
    swaps_per_day: Annotated[
        int | None,
        typer.Option(
            "--swaps-per-day", metavar="N", min=1, rich_help_panel=CAPS,
            help="Swaps of all hosts in any 24 hours, as the decision log has them. Default: 500.",
        ),
    ] = None  # fmt: skip
    records_per_day: Annotated[
        int | None,
        typer.Option(
            "--records-per-day", metavar="N", min=1, rich_help_panel=CAPS,
            help="Records of __remote_log_metadata in any 24 hours, likewise, with those by which "
            "sources are collected. They stay for good. Default: 20000.",
        ),
    ] = None  # fmt: skip

    def pace(self) -> PaceLimits:
        """Return the limits of this process; InvalidError for a rate that cannot be used."""
        from keeplast.cluster.layouts.paced import PAUSE_MS_MAX, PaceLimits

        pause_ms = 1000 if self.back_off_ms is None else self.back_off_ms
        if not 0 < pause_ms <= PAUSE_MS_MAX:
            raise InvalidError(
                f"give 1 to {PAUSE_MS_MAX} ms; longer pauses are made between rounds. "
                f"--back-off-ms={pause_ms}"
            )
        return PaceLimits(
            requests_per_second=self.requests_per_second,
            bytes_per_second=parse_size(
                self.bytes_per_second, "--bytes-per-second", least=RATE_MIN
            ),
            pause_ms=pause_ms,
        )  # fmt: skip

    def day(self) -> DaySum:
        """Return what may be spent in 24 hours."""
        from keeplast.attach.rounds.allowance import DaySum
        from keeplast.service.attached_settings import RECORDS_A_DAY, SWAPS_A_DAY

        return DaySum(
            SWAPS_A_DAY if self.swaps_per_day is None else self.swaps_per_day,
            RECORDS_A_DAY if self.records_per_day is None else self.records_per_day,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedRunOptions:
    """What ``attach run`` takes."""

    cluster: LoopClusterOptions
    tier: TierOptions
    wanted: WantedOptions
    partitions: Partitions = ()
    once: Annotated[
        bool,
        typer.Option(
            "--once", rich_help_panel=ROUND,
            help="End when no partition is due any more, and nothing can be collected.",
        ),
    ] = False  # fmt: skip
    interval_ms: Annotated[
        int | None,
        typer.Option(
            "--interval", metavar="MS", parser=span_ms, rich_help_panel=ROUND,
            help="How long to wait between two looks, and first after a failure: milliseconds, or "
            f"{SPAN_WORDS}; a second at least. Default: a minute.",
        ),
    ] = None  # fmt: skip
    keyless: KeylessChoice = Keyless.FAIL
    grace_ms: Annotated[
        int | None,
        typer.Option(
            "--grace-ms", metavar="MS", parser=span_ms, rich_help_panel=ROUND,
            help="How long replaced segments stay for readers that began before, and for you to "
            f"look: milliseconds, or {SPAN_WORDS}. Default: an hour; a minute at least on an "
            "object store.",
        ),
    ] = None  # fmt: skip
    keep_sources: KeepSources = None
    broker_metrics: BrokerMetricsUrls = ()
    caps: CapOptions
    workers: RunnerOptions
    work: WorkOptions
    receipt: Annotated[
        Path | None,
        typer.Option(
            "--receipt", metavar="FILE", rich_help_panel=ROUND,
            help="Append a line for each wave of a round, and each collection.",
        ),
    ] = None  # fmt: skip
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over", rich_help_panel=RUN,
            help="Take each partition once from another process, which can decide nothing from "
            "then on.",
        ),
    ] = False  # fmt: skip
    metrics: MetricsOptions
    console: ConsoleOptions
