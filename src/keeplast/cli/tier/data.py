"""``keeplast tier init``, ``import``, ``copy`` and ``export``: into a store and out of it.

A data directory is only read; what an import or a copy takes over counts as dirty.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keeplast.cli.frame import options
from keeplast.cli.frame.guard import run_guarded
from keeplast.cli.show.output import JSON_VERSION
from keeplast.cli.tier import options as shared
from keeplast.cli.tier.options import Result, each_partition, store_call

if TYPE_CHECKING:
    from keeplast.cli.tier.steps import Step
    from keeplast.tier.state.partition_state import PartitionState


def init(
    store: shared.Store,
    objects: shared.Objects = None,
    object_option: shared.ObjectOptions = None,
    as_json: options.Json = False,
) -> None:
    """Make the tables of a new metadata store, and remember where its objects are."""

    def body() -> Result:
        from keeplast.cli.show.output import print_result
        from keeplast.cli.show.sizes import format_counted

        call = store_call(store, object_option=object_option)
        with call.opened(objects) as opened:
            count = len(opened.partitions())
        if not as_json:
            words = format_counted(count, "partition")
            print_result(f"the store is ready, {words}; next: keeplast tier import DATA_DIR")
        return 0, {
            "version": JSON_VERSION, "store": call.shown, "objects": objects, "count": count,
        }  # fmt: skip

    run_guarded(body, as_json=as_json)


def import_(
    data_dir: shared.DataDir,
    store: shared.Store,
    topic: options.Topics = None,
    partition: options.Partitions = None,
    config: options.Config = None,
    config_file: options.ConfigFile = None,
    broker_config: options.BrokerConfig = None,
    object_option: shared.ObjectOptions = None,
    owner: shared.Owner = None,
    take_over: shared.TakeOver = False,
    as_json: options.Json = False,
) -> None:
    """Copy partitions of a Kafka data directory into the store, the active segments too.

    The directory is only read. Settings are kept with the partition: from the config file, the
    directory's own metadata log, the environment, `--config` or `--broker-config`.
    """

    def body() -> Result:
        from keeplast.cli.tier.importing import import_directory

        call = store_call(store, topic, partition, object_option, owner)
        with call.opened() as opened:
            return import_directory(
                opened, data_dir, topics=call.topics, partitions=call.partitions,
                flags=tuple(config or ()), config_file=config_file,
                broker_config=broker_config, takes_over=take_over, as_json=as_json,
            )  # fmt: skip

    run_guarded(body, as_json=as_json)


def copy(
    data_dir: shared.DataDir,
    store: shared.Store,
    topic: options.Topics = None,
    partition: options.Partitions = None,
    broker_config: options.BrokerConfig = None,
    object_option: shared.ObjectOptions = None,
    owner: shared.Owner = None,
    take_over: shared.TakeOver = False,
    as_json: options.Json = False,
) -> None:
    """Copy what partitions of the store have gained in a Kafka data directory since the last time.

    Closed segments that are replicated and decided; the directory is only read, and its broker may
    be running. What the store does not know is left alone: `import` takes that in.
    """

    def body() -> Result:
        from keeplast.cli.tier.importing import copy_directory

        call = store_call(store, topic, partition, object_option, owner)
        with call.opened() as opened:
            return copy_directory(
                opened, data_dir, call.chosen(opened), broker_config=broker_config,
                takes_over=take_over, as_json=as_json,
            )  # fmt: skip

    run_guarded(body, as_json=as_json)


def export(
    store: shared.Store,
    to: Annotated[
        Path, typer.Option("--to", metavar="DIR", help="The log.dirs directory to write into.")
    ],
    topic: options.Topics = None,
    partition: options.Partitions = None,
    object_option: shared.ObjectOptions = None,
    as_json: options.Json = False,
) -> None:
    """Write partitions as directories that a broker serves."""

    def step() -> Step[tuple[Path, PartitionState]]:
        from keeplast.cli.tier.steps import export_step

        return export_step(to)

    each_partition(store_call(store, topic, partition, object_option), step, as_json=as_json)
