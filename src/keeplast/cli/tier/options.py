"""The options that the commands of ``keeplast tier`` share, declared once, and what they open.

Imports nothing heavy: the database and the object store are opened when a command's body runs.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keeplast.cli.frame.console import ConsoleOptions
from keeplast.cli.frame.options import (
    LoopOptions,
    MetricsOptions,
    RunnerOptions,
    ScopeOptions,
    SettingOptions,
    WorkOptions,
)
from keeplast.cli.frame.packages import check_packages
from keeplast.cli.frame.parameters import Receipt
from keeplast.cli.frame.places import object_option
from keeplast.cli.frame.readers import ReaderOptions
from keeplast.cli.frame.spans import SPAN_WORDS, span_ms
from keeplast.model.host_role import HostRole

if TYPE_CHECKING:
    from keeplast.config.layers import Layer
    from keeplast.model.partition import TopicPartition
    from keeplast.model.reader_wait import GroupReader
    from keeplast.model.topic_config import CleanerConfig
    from keeplast.store.tiered_store import TieredStore

OWNER = "Who does it"
ROUNDS_MAX = 32
"""How many partitions of a store are worked on at once, however many cores a cluster has."""

Objects = Annotated[
    str | None,
    typer.Option(
        "--objects", metavar="URL",
        help="Where the objects are: file://, s3://, gs:// or az://. Remembered by the store.",
    ),
]  # fmt: skip
DataDir = Annotated[
    Path,
    typer.Argument(
        metavar="DATA_DIR", show_default=False,
        help="A Kafka log.dirs directory on this host, or one partition directory in it.",
    ),
]  # fmt: skip
GarbageAgeMs = Annotated[
    int | None,
    typer.Option(
        "--garbage-age-ms", metavar="MS", parser=span_ms,
        help="How old an object must be before it goes although no row of the metadata names it: "
        f"milliseconds, or {SPAN_WORDS}. Default: a day.",
    ),
]  # fmt: skip
ExpiryReceipt = Annotated[
    Path | None,
    typer.Option(
        "--receipt", metavar="FILE",
        help="Append a line for each partition of which something went.",
    ),
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAddress:
    """Which store a command opens."""

    store: Annotated[
        str,
        typer.Option(
            "--store", metavar="URL", show_default=False,
            help="The metadata store: sqlite:///FILE, or postgresql://USER@HOST/DATABASE with the "
            "password in PGPASSWORD or ~/.pgpass.",
        ),
    ]  # fmt: skip
    object_options: Annotated[
        tuple[str, ...],
        typer.Option(
            "--object-option", metavar="KEY=VALUE",
            help="An option of the object store, such as endpoint=http://host:port; repeatable. "
            "Give "
            "secrets as KEY=@FILE or KEY=env:NAME, or leave them to AWS_ACCESS_KEY_ID and its "
            "like.",
        ),
    ] = ()  # fmt: skip

    @property
    def owner_name(self) -> str:
        """Return who owns what the command changes: the host unless somebody says otherwise."""
        return socket.gethostname()

    @property
    def shown(self) -> str:
        """Return the store's URL without a password."""
        from keeplast.model.redaction import shown_url

        return shown_url(self.store)

    @contextlib.contextmanager
    def opened(
        self,
        objects: str | None = None,
        broker_config: Path | None = None,
        brokers: GroupReader | None = None,
        *,
        only_looks: bool = False,
    ) -> Iterator[TieredStore]:
        """Open the store; InvalidError says which package or which argument is missing.

        ``brokers`` tell what consumer groups have committed. Who ``only_looks`` takes no lock and
        no right from anybody.
        """
        from functools import partial

        from keeplast.config.mapping import topic_config

        check_packages()
        from keeplast.api.open_store import open_store
        from keeplast.tier.metadata.database import exposed_mode

        mode = exposed_mode(self.store)
        if mode is not None and not only_looks:
            _warn(
                "others than its owner could open the metadata store, which has the key of its "
                f"filters; their rights are taken away. store={self.shown} mode={mode:04o}"
            )
        topic_of = partial(topic_config, cluster=broker_settings(broker_config))
        given = dict(object_option(text) for text in self.object_options)
        with open_store(
            self.store,
            objects,
            owner=self.owner_name,
            topic_of=topic_of,
            options=given,
            brokers=brokers,
            only_looks=only_looks,
        ) as opened:
            yield opened


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCall(StoreAddress):
    """Which partitions of a store a command is about."""

    scope: ScopeOptions

    def chosen(self, opened: TieredStore) -> list[TopicPartition]:
        """Return the chosen partitions; InvalidError when nothing in the store fits."""
        from keeplast.service.store_choice import choose_partitions

        found = choose_partitions(opened, self.scope)
        if not found:
            _warn("the store has no partitions; keeplast tier import takes some in")
        return found

    def say_assumed(
        self,
        opened: TieredStore,
        partitions: Iterable[TopicPartition],
        broker_config: Path | None,
        *,
        layers: Sequence[Layer] = (),
        is_forced: bool = False,
        cleans: bool = True,
        expires: bool = True,
    ) -> dict[str, str]:
        """Say which defaults a call rests on because no source says them, and return them.

        ``layers`` are what is said beside the settings that are kept with partitions.
        """
        from keeplast.cli.show.output import say
        from keeplast.config.assumed import assumed_of_kept, assumed_sentence

        if broker_config is not None:
            return {}
        assumed = assumed_of_kept(
            (opened.state(each).settings for each in partitions), layers,
            is_forced=is_forced, cleans=cleans, expires=expires,
        )  # fmt: skip
        if assumed:
            say(assumed_sentence(assumed), kind="note")
        return assumed


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedCall(StoreCall):
    """As whom a command changes partitions of a store."""

    owner: Annotated[
        str | None,
        typer.Option(
            "--owner", metavar="NAME", rich_help_panel=OWNER,
            help="Who owns what this command changes. Default: the name of this host.",
        ),
    ] = None  # fmt: skip
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over", rich_help_panel=OWNER,
            help="Fence another owner, or another process of this one. What it does from then on "
            "is "
            "refused.",
        ),
    ] = False  # fmt: skip

    @property
    def owner_name(self) -> str:
        """Return who owns what the command changes: the host unless somebody says otherwise."""
        return self.owner or socket.gethostname()


@dataclass(frozen=True, slots=True, kw_only=True)
class GraceOptions:
    """How long replaced segments stay."""

    grace_ms: Annotated[
        int | None,
        typer.Option(
            "--grace-ms", metavar="MS", parser=span_ms,
            help="How long replaced segments stay for readers that began before: milliseconds, or "
            f"{SPAN_WORDS}. Default: an hour.",
        ),
    ] = None  # fmt: skip

    @property
    def milliseconds(self) -> int:
        """Return what was asked for, or what is usual."""
        from keeplast.store.tiered_store import GRACE_MS_DEFAULT

        return GRACE_MS_DEFAULT if self.grace_ms is None else self.grace_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovalOptions:
    """What is taken out of a store, by whom, and whether it is only said."""

    call: OwnedCall
    yes: Annotated[
        bool,
        typer.Option(
            "--yes", help="Do it. Without, only say what would be lost, and exit with 4."
        ),
    ] = False  # fmt: skip
    grace: GraceOptions
    receipt: Annotated[
        Path | None,
        typer.Option("--receipt", metavar="FILE", help="Append a line for each partition changed."),
    ] = None


DataDirectory = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        help="Copy what the store's partitions gain in this Kafka log.dirs directory. It is only "
        "read; its broker may be running.",
        show_default=False,
    ),
]


HOST = "As a host"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOptions:
    """Whether a process is a host of partitions, below which directory, and by which lease."""

    host_dir: Annotated[
        Path | None,
        typer.Option(
            "--host-dir", metavar="DIR", show_default=False, rich_help_panel=HOST,
            help="Lead or follow the partitions, with their local logs below DIR, which is this "
            "process's alone: segments that object storage has leave it by local.retention. Never "
            "a broker's directory.",
        ),
    ] = None  # fmt: skip
    role: Annotated[
        HostRole | None,
        typer.Option(
            "--role", show_default=False, rich_help_panel=HOST,
            help="auto leads what no host leads and follows the rest, leader leaves the rest "
            "alone, follower never leads. Default: auto. With --host-dir.",
        ),
    ] = None  # fmt: skip
    lease_ms: Annotated[
        int | None,
        typer.Option(
            "--lease-ms", metavar="MS", parser=span_ms, rich_help_panel=HOST,
            help="After how long without a sign of it a leader is taken over: milliseconds, or "
            f"{SPAN_WORDS}. Default: 30 seconds. With --host-dir.",
        ),
    ] = None  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TierRunOptions:
    """What ``tier run`` takes."""

    call: OwnedCall
    data_dir: DataDirectory = None
    host: HostOptions
    loop: LoopOptions
    workers: RunnerOptions
    work: WorkOptions
    settings: SettingOptions
    readers: ReaderOptions
    grace: GraceOptions
    garbage_age_ms: GarbageAgeMs = None
    receipt: Receipt = None
    metrics: MetricsOptions
    console: ConsoleOptions


def local_places(local: Path | None) -> Callable[[TopicPartition], Path | None]:
    """Return where a host with this data directory has a partition, None for one that it has not.

    InvalidError when ``local`` is no data directory.
    """
    from keeplast.log.data_directory import open_data_directory
    from keeplast.log.files import LocalFiles

    if local is None:
        return lambda partition: None
    entries = open_data_directory(local, LocalFiles()).partitions
    return {each.partition: each.path for each in entries if each.mark is None}.get


def spoken_cleaner(broker_config: Path | None) -> CleanerConfig:
    """Return the cleaner's settings as the environment and a broker's file say them."""
    from keeplast.config.choice import SettingSources
    from keeplast.config.sources import read_cleaner_config
    from keeplast.log.files import LocalFiles

    return read_cleaner_config(LocalFiles(), SettingSources(broker_config=broker_config))


def broker_settings(path: Path | None) -> Mapping[str, str]:
    """Return what a broker's file says, once its warnings are said."""
    from keeplast.config.broker_config import read_broker_config
    from keeplast.log.files import LocalFiles

    if path is None:
        return {}
    found = read_broker_config(path, LocalFiles())
    for warning in found.warnings:
        _warn(warning)
    return found.layer.cluster


def _warn(message: str) -> None:
    from keeplast.cli.show.output import say

    say(message, kind="warning")
