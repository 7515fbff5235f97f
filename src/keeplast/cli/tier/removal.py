"""``keeplast tier truncate`` and ``forget``: what a user takes out of a store, and what that loses.

Without ``--yes`` both say what would be lost, change nothing and exit with 4.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.packages import check_packages
from keeplast.cli.frame.parameters import Json
from keeplast.cli.tier.options import OwnedCall, RemovalOptions

if TYPE_CHECKING:
    from keeplast.model.partition import TopicPartition
    from keeplast.store.tiered_store import TieredStore


@command(
    first=("store", "topics", "to_offset"),
    example="keeplast tier truncate --store sqlite:///meta.db --data-dir DATA_DIR",
)
def truncate(
    options: RemovalOptions,
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
    as_json: Json = False,
) -> Result:  # fmt: skip
    """Cut the end of a partition off that its broker has truncated, or that nobody wants.

    An unreplicated tail that was copied and is truncated later is another history than the
    directory's: it is copied no further until the store is cut too. Objects go with `collect`,
    when their grace has passed.
    """
    check_packages()
    from keeplast.cli.tier.removal_steps import remove_each, truncation
    from keeplast.errors import InvalidError
    from keeplast.log.data_directory import open_data_directory
    from keeplast.log.files import LocalFiles

    if (to_offset is None) == (data_dir is None):
        raise InvalidError("give one of --to-offset and --data-dir")
    with options.call.opened() as opened:
        chosen = options.call.chosen(opened)
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
        step = truncation(options, to_offset, paths)
        return remove_each(opened, chosen, step, does=options.yes, as_json=as_json)


@command(
    first=("store", "topics", "yes"),
    example="keeplast tier forget --store sqlite:///meta.db --topic orders",
)
def forget(options: RemovalOptions, as_json: Json = False) -> Result:
    """Give partitions up: they are in the store no more, and `collect` removes their objects.

    Name them with `--topic`. `import` takes one in anew, from its beginning.
    """
    check_packages()
    from keeplast.cli.tier.removal_steps import forgetting, remove_each
    from keeplast.errors import InvalidError

    if not options.call.scope.topics:
        raise InvalidError("name what to give up with --topic, and --partition for one of it")
    with options.call.opened() as opened:
        chosen = _choose_known(options.call, opened)
        return remove_each(opened, chosen, forgetting(options), does=options.yes, as_json=as_json)


def _choose_known(call: OwnedCall, opened: TieredStore) -> list[TopicPartition]:
    """Return the chosen partitions; InvalidError says when they were given up already."""
    from keeplast.errors import InvalidError

    gone = [each for each in opened.forgotten() if call.scope.includes(each)]
    if gone and not any(call.scope.includes(each) for each in opened.partitions()):
        raise InvalidError(
            "given up already; keeplast tier collect removes the objects. "
            f"partitions={', '.join(map(str, gone))}"
        )
    return call.chosen(opened)
