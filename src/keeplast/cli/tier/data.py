"""``keeplast tier init``, ``import``, ``copy`` and ``export``: into a store and out of it.

A data directory is only read; what an import or a copy takes over counts as dirty.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.options import SettingOptions
from keeplast.cli.frame.packages import check_packages
from keeplast.cli.frame.parameters import BrokerConfig, Json
from keeplast.cli.tier.options import (
    DataDir,
    Objects,
    OwnedCall,
    StoreAddress,
    StoreCall,
)


@command(
    first=("store", "objects", "object_options"),
    example="keeplast tier init --store sqlite:///meta.db --objects file:///objects",
)
def init(place: StoreAddress, objects: Objects = None, as_json: Json = False) -> Result:
    """Make the tables of a new metadata store, and remember where its objects are."""
    from keeplast.cli.show.output import print_result
    from keeplast.errors import InvalidError
    from keeplast.model.size import format_counted

    check_packages()
    from keeplast.tier.metadata.database import is_missing

    if objects is None and is_missing(place.store):
        raise InvalidError(
            "a new store must know where its objects are; give --objects URL (file://, s3://, "
            f"gs:// or az://). store={place.shown}"
        )
    with place.opened(objects) as opened:
        count = len(opened.partitions())
    if not as_json:
        words = format_counted(count, "partition")
        print_result(
            f"the store is ready, {words}; "
            f"next: keeplast tier import DATA_DIR --store {place.shown}"
        )
    return 0, {
        "store": place.shown, "objects": objects, "count": count,
    }  # fmt: skip


@command(
    first=("store", "topics", "flags"),
    example="keeplast tier import DATA_DIR --store sqlite:///meta.db --topic orders",
)
def import_(
    data_dir: DataDir, call: OwnedCall, settings: SettingOptions, as_json: Json = False
) -> Result:
    """Copy partitions of a Kafka data directory into the store, the active segments too.

    The directory is only read. Settings are kept with the partition: from the config file, the
    directory's own metadata log, the environment, `--config` or `--broker-config`.
    """
    from keeplast.cli.tier.importing import import_directory

    with call.opened() as opened:
        return import_directory(opened, data_dir, call, settings, as_json=as_json)


@command(
    first=("store", "topics", "broker_config"),
    example="keeplast tier copy DATA_DIR --store sqlite:///meta.db",
)
def copy(
    data_dir: DataDir, call: OwnedCall, broker_config: BrokerConfig = None, as_json: Json = False
) -> Result:
    """Copy what partitions of the store have gained in a Kafka data directory since the last time.

    Closed segments that are replicated and decided; the directory is only read, and its broker may
    be running. What the store does not know is left alone: `import` takes that in.
    """
    from keeplast.cli.tier.importing import copy_directory

    with call.opened() as opened:
        return copy_directory(opened, data_dir, call, broker_config, as_json=as_json)


@command(
    first=("store", "to", "topics"),
    example="keeplast tier export --store sqlite:///meta.db --to LOG_DIR",
)
def export(
    call: StoreCall,
    to: Annotated[
        Path, typer.Option("--to", metavar="DIR", help="The log.dirs directory to write into.")
    ],
    as_json: Json = False,
) -> Result:
    """Write partitions as directories that a broker serves."""
    check_packages()
    from keeplast.cli.tier.steps import each_partition, export_step

    return each_partition(call, export_step(to), as_json=as_json)
