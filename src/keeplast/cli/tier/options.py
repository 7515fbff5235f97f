"""The options that the commands of ``keeplast tier`` share, spelled once, and what they open.

Imports nothing heavy: the database and the object store are opened when a command's body runs.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keeplast.cli.frame.guard import run_guarded
from keeplast.cli.frame.options import RUN
from keeplast.cli.frame.places import object_option

if TYPE_CHECKING:
    from keeplast.cli.tier.steps import Step
    from keeplast.config.layers import Layer
    from keeplast.model.partition import TopicPartition
    from keeplast.store.tiered_store import TieredStore

OWNER = "Who does it"
ROUNDS_MAX = 32
"""How many partitions of a store are worked on at once, however many cores a cluster has."""

Store = Annotated[
    str,
    typer.Option(
        "--store", metavar="URL", show_default=False,
        help="The metadata store: sqlite:///FILE, or postgresql://USER@HOST/DATABASE with the "
        "password in PGPASSWORD or ~/.pgpass.",
    ),
]  # fmt: skip
DataDir = Annotated[
    Path,
    typer.Argument(
        metavar="DATA_DIR", show_default=False,
        help="A Kafka log.dirs directory on this host, or one partition directory in it.",
    ),
]  # fmt: skip
Objects = Annotated[
    str | None,
    typer.Option(
        "--objects", metavar="URL",
        help="Where the objects are: file://, s3://, gs:// or az://. Remembered by the store.",
    ),
]  # fmt: skip
ObjectOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--object-option", metavar="KEY=VALUE",
        help="An option of the object store, such as endpoint=http://host:port; repeatable. Give "
        "secrets as KEY=@FILE or KEY=env:NAME, or leave them to AWS_ACCESS_KEY_ID and its like.",
    ),
]  # fmt: skip
Master = Annotated[
    str | None,
    typer.Option(
        "--master", metavar="URL", rich_help_panel=RUN,
        help="Spark master; its executors read and write the objects themselves, file:// ones at "
        "the same path on every host. Default: local[*].",
    ),
]  # fmt: skip
Owner = Annotated[
    str | None,
    typer.Option(
        "--owner", metavar="NAME", rich_help_panel=OWNER,
        help="Who owns what this command changes. Default: the name of this host.",
    ),
]  # fmt: skip
TakeOver = Annotated[
    bool,
    typer.Option(
        "--take-over", rich_help_panel=OWNER,
        help="Fence another owner, or another process of this one. What it does from then on is "
        "refused.",
    ),
]  # fmt: skip
GraceMs = Annotated[
    int | None,
    typer.Option(
        "--grace-ms", metavar="MS", min=0,
        help="How long replaced segments stay for readers that began before. Default: an hour.",
    ),
]  # fmt: skip
GarbageAgeMs = Annotated[
    int | None,
    typer.Option(
        "--garbage-age-ms", metavar="MS", min=0,
        help="How old an object must be that no row names. Default: a day.",
    ),
]  # fmt: skip
ExpiryReceipt = Annotated[
    Path | None,
    typer.Option(
        "--receipt", metavar="FILE",
        help="Append a line for each partition of which something went.",
    ),
]  # fmt: skip

Result = tuple[int, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class StoreCall:
    """Which store a command opens, as whom, and which of its partitions it is about."""

    store: str
    object_options: tuple[str, ...] = ()
    owner: str | None = None
    topics: tuple[str, ...] = ()
    partitions: tuple[int, ...] = ()
    broker_config: Path | None = None

    @contextlib.contextmanager
    def opened(self, objects: str | None = None) -> Iterator[TieredStore]:
        """Open the store; InvalidError says which package or which argument is missing."""
        from functools import partial

        from keeplast.config.mapping import topic_config
        from keeplast.rewrite.kernels import load_kernels

        load_kernels(_warn)
        check_packages()
        from keeplast.api.open_store import open_store
        from keeplast.tier.metadata.database import exposed_mode

        mode = exposed_mode(self.store)
        if mode is not None:
            _warn(
                "others than its owner could open the metadata store, which has the key of its "
                f"filters; their rights are taken away. store={self.shown} mode={mode:04o}"
            )
        topic_of = partial(topic_config, cluster=self._broker_settings())
        given = dict(object_option(text) for text in self.object_options)
        with open_store(
            self.store, objects, owner=self.owner_name, topic_of=topic_of, options=given
        ) as opened:
            yield opened

    def _broker_settings(self) -> Mapping[str, str]:
        """Return what a broker's file says, once its warnings are said."""
        from keeplast.config.broker_config import read_broker_config
        from keeplast.log.files import LocalFiles

        if self.broker_config is None:
            return {}
        found = read_broker_config(self.broker_config, LocalFiles())
        for warning in found.warnings:
            _warn(warning)
        return found.layer.cluster

    def say_assumed(
        self,
        opened: TieredStore,
        partitions: Iterable[TopicPartition],
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

        if self.broker_config is not None:
            return {}
        assumed = assumed_of_kept(
            (opened.state(each).settings for each in partitions), layers,
            is_forced=is_forced, cleans=cleans, expires=expires,
        )  # fmt: skip
        if assumed:
            say(assumed_sentence(assumed), kind="note")
        return assumed

    @property
    def owner_name(self) -> str:
        """Return who owns what the command changes: the host unless somebody says otherwise."""
        return self.owner or socket.gethostname()

    @property
    def shown(self) -> str:
        """Return the store's URL without a password."""
        from keeplast.model.redaction import shown_url

        return shown_url(self.store)

    def is_about(self, partition: TopicPartition) -> bool:
        """Say whether a partition is one of those that were asked for."""
        return (not self.topics or partition.topic in self.topics) and (
            not self.partitions or partition.partition in self.partitions
        )

    def chosen(self, opened: TieredStore) -> list[TopicPartition]:
        """Return the chosen partitions; InvalidError when nothing in the store fits."""
        from keeplast.errors import InvalidError

        known = opened.partitions()
        found = [each for each in known if self.is_about(each)]
        if not found and not (self.topics or self.partitions):
            _warn("the store has no partitions; keeplast tier import takes some in")
        elif not found:
            names = ", ".join(str(each) for each in known[:10]) or "none"
            raise InvalidError(
                f"no such partition in the store. topics={list(self.topics)} "
                f"partitions={list(self.partitions)} there={names}"
            )
        return found


def check_packages() -> None:
    """Raise InvalidError when the packages of the tier are not installed."""
    import importlib.util

    from keeplast.errors import InvalidError, installing

    missing = [
        name
        for name in ("sqlalchemy", "alembic", "obstore")
        if importlib.util.find_spec(name) is None
    ]
    if missing:
        raise InvalidError(
            f"the tier needs more packages; {installing('tier')}. missing={', '.join(missing)}"
        )


def store_call(
    store: str,
    topic: list[str] | None = None,
    partition: list[int] | None = None,
    object_option: list[str] | None = None,
    owner: str | None = None,
    broker_config: Path | None = None,
) -> StoreCall:
    """Return the call that the values of the shared options make."""
    return StoreCall(
        store, tuple(object_option or ()), owner, tuple(topic or ()), tuple(partition or ()),
        broker_config,
    )  # fmt: skip


def each_partition(
    call: StoreCall,
    step_of: Callable[[], Step[Any]],
    *,
    as_json: bool,
    with_forgotten: bool = False,
    assumes_retention: bool = False,
) -> None:
    """Do a step for each chosen partition, and show what came of it.

    ``with_forgotten`` takes those in that were given up; ``assumes_retention`` says that the step
    removes what retention lets go, whose assumed defaults are said. What ``step_of`` raises is
    about the call, and said before anything is opened.
    """

    def body() -> Result:
        check_packages()
        from keeplast.cli.tier.steps import do_each

        step = step_of()
        with call.opened() as opened:
            gone = opened.forgotten() if with_forgotten else ()
            also = [each for each in gone if call.is_about(each)]
            # Where nothing but these fits, that is no mistake.
            known = any(call.is_about(each) for each in opened.partitions())
            chosen = call.chosen(opened) if known or not also else []
            assumed = {}
            if assumes_retention:
                assumed = call.say_assumed(opened, chosen, cleans=False)
            code, document = do_each(opened, sorted([*chosen, *also]), step, as_json=as_json)
            return code, document | ({"assumed": assumed} if assumes_retention else {})

    run_guarded(body, as_json=as_json)


def _warn(message: str) -> None:
    from keeplast.cli.show.output import say

    say(message, kind="warning")
