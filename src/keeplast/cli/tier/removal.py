"""``keeplast tier truncate`` and ``forget``: what a user takes out of a store, and what that loses.

Without ``--yes`` both say what would be lost, change nothing and exit with 4.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keeplast.cli.frame import options
from keeplast.cli.frame.guard import run_guarded
from keeplast.cli.tier import options as shared
from keeplast.cli.tier.options import Result, StoreCall, check_packages, store_call

if TYPE_CHECKING:
    from keeplast.model.partition import TopicPartition
    from keeplast.store.tiered_store import TieredStore

Yes = Annotated[
    bool,
    typer.Option(
        "--yes", help="Do it. Without, only say what would be lost, and exit with 4."
    ),
]  # fmt: skip
RemovalReceipt = Annotated[
    Path | None,
    typer.Option("--receipt", metavar="FILE", help="Append a line for each partition changed."),
]


def truncate(
    store: shared.Store,
    topic: options.Topics = None,
    partition: options.Partitions = None,
    to_offset: Annotated[
        int | None,
        typer.Option(
            "--to-offset", metavar="OFFSET", min=0,
            help="The offset at which the log ends then, exclusive; of one partition.",
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir", metavar="DIR",
            help="A Kafka data directory: the log ends where its leader epochs, or its end, say "
            "that the directory has no more of it.",
        ),
    ] = None,
    yes: Yes = False,
    grace_ms: shared.GraceMs = None,
    receipt: RemovalReceipt = None,
    object_option: shared.ObjectOptions = None,
    owner: shared.Owner = None,
    take_over: shared.TakeOver = False,
    as_json: options.Json = False,
) -> None:  # fmt: skip
    """Cut the end of a partition off that its broker has truncated, or that nobody wants.

    An unreplicated tail that was copied and is truncated later is another history than the
    directory's: it is copied no further until the store is cut too. Objects go with `collect`,
    when their grace has passed.
    """

    def body() -> Result:
        check_packages()
        from keeplast.cli.tier.removal_steps import remove_each, truncation
        from keeplast.errors import InvalidError
        from keeplast.log.data_directory import open_data_directory
        from keeplast.log.files import LocalFiles

        if (to_offset is None) == (data_dir is None):
            raise InvalidError("give one of --to-offset and --data-dir")
        call = store_call(store, topic, partition, object_option, owner)
        with call.opened() as opened:
            chosen = call.chosen(opened)
            if to_offset is not None and len(chosen) != 1:
                raise InvalidError(
                    "an offset is one partition's; name it with --topic and --partition. "
                    f"partitions={len(chosen)}"
                )
            paths: dict[TopicPartition, Path] = {}
            if data_dir is not None:
                directory = open_data_directory(data_dir, LocalFiles())
                found = [(each, directory.find(each)) for each in chosen]
                paths = {each: entry.path for each, entry in found if entry is not None}
                chosen = list(paths)
                if not chosen:
                    raise InvalidError(
                        f"none of the store's partitions is in the directory. path={data_dir}"
                    )
            step = truncation(
                to_offset, paths, does=yes, grace_ms=grace_ms, takes_over=take_over,
                receipt=receipt,
            )  # fmt: skip
            return remove_each(opened, chosen, step, does=yes, as_json=as_json)

    run_guarded(body, as_json=as_json)


def forget(
    store: shared.Store,
    topic: options.Topics = None,
    partition: options.Partitions = None,
    yes: Yes = False,
    grace_ms: shared.GraceMs = None,
    receipt: RemovalReceipt = None,
    object_option: shared.ObjectOptions = None,
    owner: shared.Owner = None,
    take_over: shared.TakeOver = False,
    as_json: options.Json = False,
) -> None:
    """Give partitions up: they are in the store no more, and `collect` removes their objects.

    Name them with `--topic`. `import` takes one in anew, from its beginning.
    """

    def body() -> Result:
        check_packages()
        from keeplast.cli.tier.removal_steps import forgetting, remove_each
        from keeplast.errors import InvalidError

        if not topic:
            raise InvalidError("name what to give up with --topic, and --partition for one of it")
        call = store_call(store, topic, partition, object_option, owner)
        with call.opened() as opened:
            step = forgetting(does=yes, grace_ms=grace_ms, takes_over=take_over, receipt=receipt)
            return remove_each(opened, _known(call, opened), step, does=yes, as_json=as_json)

    run_guarded(body, as_json=as_json)


def _known(call: StoreCall, opened: TieredStore) -> list[TopicPartition]:
    """Return the chosen partitions; InvalidError says when they were given up already."""
    from keeplast.errors import InvalidError

    gone = [each for each in opened.forgotten() if call.is_about(each)]
    if gone and not any(call.is_about(each) for each in opened.partitions()):
        raise InvalidError(
            "given up already; keeplast tier collect removes the objects. "
            f"partitions={', '.join(map(str, gone))}"
        )
    return call.chosen(opened)
