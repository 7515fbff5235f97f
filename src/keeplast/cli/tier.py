"""``keeplast tier``: partitions whose history is in object storage.

Every command names the metadata store; the objects' place is given once, to ``init``. A command
that changes a partition owns it: see ``--owner`` and ``--take-over``.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keeplast.cli import options
from keeplast.cli.guard import JSON_VERSION, run_guarded
from keeplast.cli.wiring import RunnerName

if TYPE_CHECKING:
    from keeplast.engine.open_store import TieredStore
    from keeplast.model.partition import TopicPartition

tier = typer.Typer(
    name="tier",
    help="Partitions whose history is in object storage (KIP-1272).",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

OWNER = "Who does it"

Store = Annotated[
    str,
    typer.Option(
        "--store", metavar="URL", show_default=False,
        help="The metadata store: sqlite:///FILE, or postgresql://USER@HOST/DATABASE.",
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
        help="Fence another owner. What it does from then on is refused.",
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

Result = tuple[int, dict[str, Any]]


@tier.command()
def init(
    store: Store,
    objects: Objects = None,
    object_option: ObjectOptions = None,
    as_json: options.Json = False,
) -> None:
    """Make the tables of a new metadata store, and remember where its objects are."""

    def body() -> Result:
        from keeplast.cli.output import print_result

        with _opened(store, objects, object_option, None) as opened:
            count = len(opened.partitions())
        if not as_json:
            print_result(f"the store is ready, {count} partitions")
        return 0, {"version": JSON_VERSION, "store": store, "objects": objects, "count": count}

    run_guarded(body, as_json=as_json)


@tier.command("import")
def import_(
    data_dir: options.DataDir,
    store: Store,
    topic: options.Topics = None,
    partition: options.Partitions = None,
    config: options.Config = None,
    config_file: options.ConfigFile = None,
    object_option: ObjectOptions = None,
    owner: Owner = None,
    take_over: TakeOver = False,
    as_json: options.Json = False,
) -> None:
    """Copy partitions of a Kafka data directory into the store, or what they have gained since.

    The directory is only read. Settings are kept with the partition: from the config file, the
    directory's own metadata log, the environment or `--config`.
    """

    def body() -> Result:
        from keeplast.cli.tier_import import import_directory

        with _opened(store, None, object_option, owner) as opened:
            return import_directory(
                opened, data_dir, topics=tuple(topic or ()), partitions=tuple(partition or ()),
                flags=tuple(config or ()), config_file=config_file, takes_over=take_over,
                as_json=as_json,
            )  # fmt: skip

    run_guarded(body, as_json=as_json)


@tier.command()
def status(
    store: Store,
    topic: options.Topics = None,
    partition: options.Partitions = None,
    object_option: ObjectOptions = None,
    as_json: options.Json = False,
) -> None:
    """Show each partition: what is cleaned and dirty, who owns it, and what waits to be removed."""

    def body() -> Result:
        from keeplast.cli.output import print_result
        from keeplast.cli.tier_view import status_document, status_parts

        with _opened(store, None, object_option, None) as opened:
            found = [opened.status(each) for each in _chosen(opened, topic, partition)]
        if not as_json:
            print_result(*status_parts(found))
        return 0, {"version": JSON_VERSION, "partitions": [status_document(s) for s in found]}

    run_guarded(body, as_json=as_json)


@tier.command()
def clean(
    store: Store,
    topic: options.Topics = None,
    partition: options.Partitions = None,
    force: options.Force = False,
    runner: options.Runner = RunnerName.LOCAL,
    master: options.Master = None,
    cores: options.Cores = None,
    memory: options.Memory = options.MEMORY_DEFAULT,
    shape: options.Shape = None,
    task_memory: options.TaskMemory = options.TASK_MEMORY_DEFAULT,
    grace_ms: GraceMs = None,
    object_option: ObjectOptions = None,
    owner: Owner = None,
    take_over: TakeOver = False,
    as_json: options.Json = False,
) -> None:
    """Do one round for each partition: read and written as streams, no segment on this disk.

    On Spark the executors read and write the object store themselves.
    """

    def body() -> Result:
        from keeplast.cleaner.shapes import Shape
        from keeplast.cli.tier_clean import clean_partitions

        with _opened(store, None, object_option, owner) as opened:
            return clean_partitions(
                opened, _chosen(opened, topic, partition), force=force, memory=memory,
                runner=runner, master=master, cores=cores,
                shape=None if shape is None else Shape(shape), task_memory=task_memory,
                grace_ms=grace_ms, takes_over=take_over, as_json=as_json,
            )  # fmt: skip

    run_guarded(body, as_json=as_json)


@tier.command()
def expire(
    store: Store,
    topic: options.Topics = None,
    partition: options.Partitions = None,
    grace_ms: GraceMs = None,
    object_option: ObjectOptions = None,
    owner: Owner = None,
    take_over: TakeOver = False,
    as_json: options.Json = False,
) -> None:
    """Let go what retention and the log start offset let go."""

    def act(opened: TieredStore, each: TopicPartition) -> dict[str, Any]:
        from keeplast.engine.open_store import GRACE_MS_DEFAULT

        grace = GRACE_MS_DEFAULT if grace_ms is None else grace_ms
        done = opened.expire(each, takes_over=take_over, grace_ms=grace)
        return {
            "log_start": done.plan.log_start, "segments": done.segments, "bytes": done.bytes,
            "notes": list(done.plan.notes),
        }  # fmt: skip

    _each(store, topic, partition, object_option, owner, as_json, act)


@tier.command()
def collect(
    store: Store,
    topic: options.Topics = None,
    partition: options.Partitions = None,
    garbage_age_ms: GarbageAgeMs = None,
    object_option: ObjectOptions = None,
    owner: Owner = None,
    take_over: TakeOver = False,
    as_json: options.Json = False,
) -> None:
    """Remove replaced segments whose grace has passed, and objects that nobody names."""

    def act(opened: TieredStore, each: TopicPartition) -> dict[str, Any]:
        from keeplast.engine.open_store import GARBAGE_AGE_MS_DEFAULT

        age = GARBAGE_AGE_MS_DEFAULT if garbage_age_ms is None else garbage_age_ms
        done = opened.collect(each, takes_over=take_over, garbage_age_ms=age)
        return {
            "segments": done.segments, "objects": done.objects, "bytes": done.bytes,
            "waiting": done.waiting,
        }  # fmt: skip

    _each(store, topic, partition, object_option, owner, as_json, act)


@tier.command()
def verify(
    store: Store,
    topic: options.Topics = None,
    partition: options.Partitions = None,
    object_option: ObjectOptions = None,
    as_json: options.Json = False,
) -> None:
    """Read every live object and check the store's invariants; changes nothing."""

    def body() -> Result:
        from keeplast.cli.exit_codes import CHECK_FAILED, DONE
        from keeplast.cli.output import print_result
        from keeplast.cli.tier_view import findings_document, findings_lines

        with _opened(store, None, object_option, None) as opened:
            found = {
                each: opened.verify(each, _silent) for each in _chosen(opened, topic, partition)
            }
        if not as_json:
            print_result(*findings_lines(found))
        code = CHECK_FAILED if any(found.values()) else DONE
        return code, {"version": JSON_VERSION, "partitions": findings_document(found)}

    run_guarded(body, as_json=as_json)


@tier.command()
def export(
    store: Store,
    to: Annotated[
        Path, typer.Option("--to", metavar="DIR", help="The log.dirs directory to write into.")
    ],
    topic: options.Topics = None,
    partition: options.Partitions = None,
    object_option: ObjectOptions = None,
    as_json: options.Json = False,
) -> None:
    """Write partitions as directories that a broker serves."""

    def act(opened: TieredStore, each: TopicPartition) -> dict[str, Any]:
        state = opened.state(each)
        opened.export(each, to / str(each), _silent)
        return {
            "path": str(to / str(each)), "segments": len(state.routes),
            "bytes": state.effective_bytes(), "log_end": state.remote_end,
        }  # fmt: skip

    _each(store, topic, partition, object_option, None, as_json, act)


def _each(
    store: str,
    topic: list[str] | None,
    partition: list[int] | None,
    object_option: list[str] | None,
    owner: str | None,
    as_json: bool,
    act: Callable[[TieredStore, TopicPartition], dict[str, Any]],
) -> None:
    """Do the same for each chosen partition and show what came of it in a line."""

    def body() -> Result:
        from keeplast.cli.output import print_result
        from keeplast.cli.tier_view import fact_line

        documents = []
        with _opened(store, None, object_option, owner) as opened:
            for each in _chosen(opened, topic, partition):
                facts = act(opened, each)
                documents.append({"topic": each.topic, "partition": each.partition, **facts})
                if not as_json:
                    print_result(fact_line(each, facts))
        return 0, {"version": JSON_VERSION, "partitions": documents}

    run_guarded(body, as_json=as_json)


@contextlib.contextmanager
def _opened(
    store: str, objects: str | None, object_option: list[str] | None, owner: str | None
) -> Iterator[TieredStore]:
    from keeplast.config.mapping import topic_config
    from keeplast.engine.kernel_cache import load_kernels

    load_kernels(_warn)
    try:
        from keeplast.engine.open_store import open_store
    except ModuleNotFoundError as error:
        from keeplast.errors import InvalidError

        raise InvalidError(
            f"the tier needs more packages; run pip install 'keeplast[tier]'. missing={error.name}"
        ) from error
    given = dict(_pair(text) for text in object_option or ())
    with open_store(
        store, objects, owner=owner or socket.gethostname(), topic_of=topic_config, options=given
    ) as opened:
        yield opened


def _pair(text: str) -> tuple[str, str]:
    from keeplast.errors import InvalidError

    key, separator, value = text.partition("=")
    if not separator or not key:
        raise InvalidError(f"give KEY=VALUE. --object-option={text}")
    return key, value


def _chosen(
    opened: TieredStore, topics: list[str] | None, partitions: list[int] | None
) -> list[TopicPartition]:
    """Return the chosen partitions; InvalidError when nothing in the store fits."""
    from keeplast.errors import InvalidError

    known = opened.partitions()
    found = [
        each
        for each in known
        if (not topics or each.topic in topics) and (not partitions or each.partition in partitions)
    ]
    if not found and not (topics or partitions):
        _warn("the store has no partitions; keeplast tier import takes some in")
    elif not found:
        names = ", ".join(str(each) for each in known[:10]) or "none"
        raise InvalidError(
            f"no such partition in the store. topics={topics} partitions={partitions} there={names}"
        )
    return found


def _warn(message: str) -> None:
    from keeplast.cli.output import say

    say(message, kind="warning")


def _silent(count: int) -> None:
    """Hear of progress and say nothing."""
