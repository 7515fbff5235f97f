"""The options that the commands of ``keeplast attach`` share, and the connection they open.

Imports nothing heavy: the client is loaded when a command's body runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keeplast.cli.frame.packages import check_packages
from keeplast.cli.frame.parameters import (
    ROUND,
    RUN,
    SCOPE,
    SETTINGS,
    Flags,
    partition_number,
)
from keeplast.cli.frame.readers import read_client_settings
from keeplast.cli.frame.spans import SPAN_WORDS, span_ms
from keeplast.config.choice import SettingSources
from keeplast.errors import InvalidError
from keeplast.model.keyless import Keyless

if TYPE_CHECKING:
    from keeplast.attach.upkeep.collection import WhyWait
    from keeplast.cluster.client import ClusterClient
    from keeplast.cluster.facts import ClusterFacts, TopicFacts
    from keeplast.cluster.layouts.layout import RemoteLayout
    from keeplast.cluster.metadata_log import FoldedMetadata
    from keeplast.config.settings import Settings
    from keeplast.tier.metadata.decisions import DecisionLog


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAddress:
    """Which cluster a command looks at."""

    bootstrap_server: Annotated[
        str,
        typer.Option(
            "--bootstrap-server",
            metavar="HOST:PORT",
            show_default=False,
            help="Brokers of the cluster, separated by commas.",
        ),
    ]
    command_config: Annotated[
        Path | None,
        typer.Option(
            "--command-config",
            metavar="FILE",
            help="client.properties as Kafka's own tools take it, for SSL and SASL.",
        ),
    ] = None

    accept_untested: Annotated[
        bool,
        typer.Option(
            "--accept-untested",
            help="Go on where a broker has a release that keeplast was not tested with. What it "
            "makes of __remote_log_metadata is not known: records may be lost for good.",
        ),
    ] = False  # fmt: skip

    def connect(self) -> ClusterClient:
        """Return a connection; InvalidError when the file cannot be used, or no client is there."""
        from keeplast.cluster.client import ClusterClient

        return ClusterClient(
            self.bootstrap_server, read_client_settings(self.command_config),
            accepts_untested=self.accept_untested,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions(ClusterAddress):
    """Which topics of a cluster a command is about."""

    topics: Annotated[
        tuple[str, ...],
        typer.Option(
            "--topic",
            metavar="T",
            help="Only this topic; repeatable. Default: every tiered topic.",
            rich_help_panel=SCOPE,
        ),
    ] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOptions(SettingSources):
    """Where it is said what topics are meant to be, since their own policy stays ``delete``."""

    config_file: Annotated[
        Path | None,
        typer.Option(
            "--config-file",
            metavar="FILE",
            help='TOML with [topic."name"] tables: cleanup.policy is what keeplast is to do. '
            "Default: compact.",
            rich_help_panel=SETTINGS,
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionOptions:
    """Where the decision log of a cluster is."""

    store: Annotated[
        str,
        typer.Option(
            "--store", metavar="URL", show_default=False,
            help="The decision log: sqlite:///FILE, or postgresql://USER@HOST/DATABASE with the "
            "password in PGPASSWORD or ~/.pgpass. One for all that compact a cluster.",
        ),
    ]  # fmt: skip

    @contextlib.contextmanager
    def open_log(self, *, only_looks: bool = False) -> Iterator[DecisionLog]:
        """Open the decision log; InvalidError says which package is missing.

        Who ``only_looks`` takes no lock and changes nothing, not even what is kept of folds.
        """
        check_packages()
        from keeplast.clock import SystemClock
        from keeplast.tier.metadata.database import open_database
        from keeplast.tier.metadata.decisions import DecisionLog

        log = DecisionLog(open_database(self.store, only_looks=only_looks), SystemClock())
        try:
            yield log
        finally:
            log.close()


Storage = Annotated[
    str,
    typer.Option(
        "--storage", metavar="PLUGIN:PLACE", show_default=False,
        help="Where the brokers' plugin keeps segments: local:PATH for Kafka's "
        "LocalTieredStorage, aiven:URL (s3://, gs://, az://, file://) for Aiven's.",
    ),
]  # fmt: skip
StorageOptions = Annotated[
    tuple[str, ...],
    typer.Option(
        "--storage-option", metavar="KEY=VALUE",
        help="A setting of the plugin, or an option of its store; repeatable. Give secrets as "
        "KEY=@FILE or KEY=env:NAME.",
    ),
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TierOptions(DecisionOptions):
    """Where the decision log and the segments of a cluster are."""

    storage: Storage
    storage_options: StorageOptions = ()

    def open_layout(self) -> RemoteLayout:
        """Return the layout; InvalidError for what is not known."""
        return layout_at(self.storage, self.storage_options)

    @property
    def is_object_store(self) -> bool:
        """Return whether what is deleted is gone at once for who reads it."""
        return not self.storage.startswith("local:")


def layout_at(storage: str, options: tuple[str, ...]) -> RemoteLayout:
    """Return the layout of a remote tier; InvalidError for what is not known."""
    from keeplast.cluster.layouts.open import open_layout

    return open_layout(storage, dict(_storage_option(each) for each in options))


@contextlib.contextmanager
def decision_log_there(
    store: str | None, *, only_looks: bool = False
) -> Iterator[DecisionLog | None]:
    """Open a decision log that is there, where one is named; InvalidError when it is not."""
    from keeplast.model.redaction import shown_url

    if store is None:
        yield None
        return
    check_packages()
    from keeplast.tier.metadata.database import is_missing

    if is_missing(store):
        raise InvalidError(f"there is no such decision log. --store={shown_url(store)}")
    with DecisionOptions(store=store).open_log(only_looks=only_looks) as log:
        yield log


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedOptions(PolicyOptions):
    """What keeplast is to do with each topic, and how."""

    flags: Flags = ()

    def settings_of(self, topics: Sequence[TopicFacts]) -> Settings:
        """Return the settings; of what nobody says, sizes and retention are the brokers'."""
        from keeplast.config.attached import wanted_settings
        from keeplast.config.sources import read_layers
        from keeplast.log.files import LocalFiles

        return wanted_settings(read_layers(LocalFiles(), self), topics)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactOptions:
    """What ``attach status --exact`` needs besides: it reads what a round would."""

    exact: Annotated[
        bool,
        typer.Option(
            "--exact",
            help="Read all that a round would, on the threads of this host, and count what it "
            "would save. Needs --storage.",
        ),
    ] = False  # fmt: skip
    storage: Annotated[
        str | None,
        typer.Option(
            "--storage", metavar="PLUGIN:PLACE", show_default=False,
            help="Where the brokers' plugin keeps segments, as for `clean`: it says when "
            "max.compaction.lag.ms ends, and --exact reads them.",
        ),
    ] = None  # fmt: skip
    storage_options: StorageOptions = ()
    store: Annotated[
        str | None,
        typer.Option(
            "--store", metavar="URL", show_default=False,
            help="The decision log: it says what is clean already, which --exact does not read, "
            "and as of which offsets earlier states can be told. Default: none.",
        ),
    ] = None  # fmt: skip
    wanted: WantedOptions

    def check(self) -> None:
        """InvalidError for what needs --storage without it."""
        if self.exact and self.storage is None:
            raise InvalidError("--exact reads segments: say where they are. --storage=none")
        if self.storage_options and self.storage is None:
            raise InvalidError(
                "--storage-option is one of --storage: give that, too. --storage=none"
            )

    def open_layout(self) -> RemoteLayout:
        """Return the layout; InvalidError for what is not known."""
        return layout_at(self.storage or "", self.storage_options)


Partitions = Annotated[
    tuple[int, ...],
    typer.Option(
        "--partition", metavar="N", parser=partition_number, rich_help_panel=SCOPE,
        help="Only partitions of this number; repeatable.",
    ),
]  # fmt: skip
KeylessChoice = Annotated[
    Keyless,
    typer.Option(
        "--keyless", rich_help_panel=ROUND,
        help="What becomes of records without a key, which belong to no key: fail, drop or "
        "retain.",
    ),
]  # fmt: skip


TakeOver = Annotated[
    bool,
    typer.Option(
        "--take-over", rich_help_panel=RUN,
        help="Take a partition from another process, which can decide nothing from then on.",
    ),
]  # fmt: skip
KeepSources = Annotated[
    int | None,
    typer.Option(
        "--keep-sources", metavar="TIME", parser=span_ms,
        help="Keep what is replaced for so long at least, whoever collects it later and with which "
        f"grace: milliseconds, or {SPAN_WORDS}. It costs its bytes for as long. Never shorter "
        "than the grace.",
    ),
]  # fmt: skip


BrokerMetricsUrls = Annotated[
    tuple[str, ...],
    typer.Option(
        "--broker-metrics", metavar="URLS",
        help="Where each broker's JMX exporter answers (http://HOST:PORT/metrics), with commas "
        "between: nothing is deleted, however old, while one is behind in "
        "__remote_log_metadata or does not tell. Without it brokers are taken to have read of a "
        "swap when its grace is over.",
    ),
]  # fmt: skip


def why_wait_of(urls: tuple[str, ...]) -> WhyWait | None:
    """Return who is asked before a deletion, None for nobody; InvalidError for what is no URL."""
    from keeplast.cluster.broker_metrics import BrokerMetrics, metrics_urls

    return BrokerMetrics(metrics_urls(urls)).why_wait if urls else None


class OrphansWish(StrEnum):
    """What becomes of objects that no broker serves."""

    LIST = "list"
    COLLECT = "collect"
    COLLECT_SERVED = "collect-served"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedCall:
    """Which attached partitions a command is about, and what stands behind them."""

    cluster: ClusterOptions
    tier: TierOptions
    wanted: WantedOptions
    take_over: TakeOver = False


def _storage_option(text: str) -> tuple[str, str]:
    """Return what ``KEY=VALUE`` says; the value may name a secret and is in no error."""
    key, separator, value = text.partition("=")
    if not separator or not key:
        shown = key if not separator else "=..."
        raise InvalidError(f"give KEY=VALUE. --storage-option={shown}")
    return key, value


def fold(
    client: ClusterClient, facts: ClusterFacts, metadata_topic: TopicFacts,
    log: DecisionLog | None = None,
) -> FoldedMetadata:  # fmt: skip
    """Return what brokers know of the topics of ``facts``; progress is shown on a terminal.

    What ``log`` keeps of the metadata topic is not read again.
    """
    from keeplast.attach.held.kept_folds import fold_known
    from keeplast.cli.show.attach import folding

    with folding() as progressed:
        return fold_known(client, facts, metadata_topic, log, progressed)
