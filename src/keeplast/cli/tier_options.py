"""The options that the commands of ``keeplast tier`` share, spelled once, and what they open.

Imports nothing heavy: the database and the object store are opened when a command's body runs.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keeplast.cli.guard import run_guarded
from keeplast.cli.options import RUN
from keeplast.cli.places import object_option

if TYPE_CHECKING:
    from keeplast.cli.tier_steps import Step
    from keeplast.engine.tiered_store import TieredStore
    from keeplast.model.partition import TopicPartition

OWNER = "Who does it"
ROUNDS_MAX = 32
"""How many partitions of a store are worked on at once, however many cores a cluster has."""

Store = Annotated[
    str,
    typer.Option(
        "--store", metavar="URL", show_default=False,
        help="The metadata store: sqlite:///FILE, or postgresql://USER@HOST/DATABASE.",
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
        help="An option of the object store, such as endpoint=http://host:port; repeatable.",
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

    @contextlib.contextmanager
    def opened(self, objects: str | None = None) -> Iterator[TieredStore]:
        """Open the store; InvalidError says which package or which argument is missing."""
        from keeplast.config.mapping import topic_config
        from keeplast.engine.kernel_cache import load_kernels

        load_kernels(_warn)
        check_packages()
        from keeplast.engine.open_store import open_store

        given = dict(object_option(text) for text in self.object_options)
        with open_store(
            self.store, objects, owner=self.owner_name, topic_of=topic_config, options=given
        ) as opened:
            yield opened

    @property
    def owner_name(self) -> str:
        """Return who owns what the command changes: the host unless somebody says otherwise."""
        return self.owner or socket.gethostname()

    @property
    def shown(self) -> str:
        """Return the store's URL without a password."""
        from keeplast.tier.database import shown_url

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

    from keeplast.errors import InvalidError

    missing = [
        name
        for name in ("sqlalchemy", "alembic", "obstore")
        if importlib.util.find_spec(name) is None
    ]
    if missing:
        raise InvalidError(
            "the tier needs more packages; run pip install 'keeplast[tier]'. "
            f"missing={', '.join(missing)}"
        )


def store_call(
    store: str,
    topic: list[str] | None = None,
    partition: list[int] | None = None,
    object_option: list[str] | None = None,
    owner: str | None = None,
) -> StoreCall:
    """Return the call that the values of the shared options make."""
    return StoreCall(
        store, tuple(object_option or ()), owner, tuple(topic or ()), tuple(partition or ())
    )


def each_partition(call: StoreCall, step_of: Callable[[], Step[Any]], *, as_json: bool) -> None:
    """Do a step for each chosen partition, and show what came of it.

    What ``step_of`` raises is about the call, and said before anything is opened.
    """

    def body() -> Result:
        check_packages()
        from keeplast.cli.tier_steps import do_each

        step = step_of()
        with call.opened() as opened:
            return do_each(opened, call.chosen(opened), step, as_json=as_json)

    run_guarded(body, as_json=as_json)


def _warn(message: str) -> None:
    from keeplast.cli.output import say

    say(message, kind="warning")
