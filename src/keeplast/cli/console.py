"""``keeplast console``: the anatomy of every log in a browser, where nothing runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.console import (
    PORT_DEFAULT,
    EntranceOptions,
    SearchOptions,
    check_packages,
    console_address,
    console_served,
    directory_finder,
    directory_scanner,
    say_console,
)
from keeplast.cli.frame.options import ScopeOptions, SettingOptions
from keeplast.cli.frame.parameters import LOOPBACK, Json, ObjectOptions
from keeplast.cli.frame.places import place, recipe_for
from keeplast.errors import InvalidError
from keeplast.model.redaction import shown_url

if TYPE_CHECKING:
    from keeplast.clock import Clock
    from keeplast.log.files import FileSystem
    from keeplast.service.console.searches import HeaderScanner, KeyFinder
    from keeplast.service.console.view import Watcher

Where = Annotated[
    Path | None,
    typer.Argument(
        metavar="[DATA_DIR]", show_default=False, parser=place,
        help="A Kafka log.dirs directory; by URL too. Only looked at.",
    ),
]  # fmt: skip
Store = Annotated[
    str | None,
    typer.Option(
        "--store", metavar="URL", show_default=False,
        help="Look at a tiered store instead: its metadata, as for tier status. With "
        "--bootstrap-server: the decision log of the cluster's attached topics.",
    ),
]  # fmt: skip
Bootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-server", metavar="HOST:PORT", show_default=False,
        help="Look at the tiered topics of a live cluster instead, as keeplast attach status does.",
    ),
]  # fmt: skip
ClientConfig = Annotated[
    Path | None,
    typer.Option(
        "--command-config", metavar="FILE",
        help="client.properties as Kafka's own tools take it, for SSL and SASL.",
    ),
]  # fmt: skip
Segments = Annotated[
    str | None,
    typer.Option(
        "--storage", metavar="PLUGIN:PLACE", show_default=False,
        help="With --bootstrap-server: where the brokers' plugin keeps segments, as for attach "
        "explain; keys are found there. Default: none are.",
    ),
]  # fmt: skip
SegmentOptions = Annotated[
    tuple[str, ...],
    typer.Option(
        "--storage-option", metavar="KEY=VALUE",
        help="A setting of the plugin, or an option of its store; repeatable. Give secrets as "
        "KEY=@FILE or KEY=env:NAME.",
    ),
]  # fmt: skip
ReceiptFile = Annotated[
    Path | None,
    typer.Option(
        "--receipt", metavar="FILE", show_default=False,
        help="Of a store or a live cluster: the receipt file of a loop on this host, whose rounds, "
        "and verdicts on them, are shown. Only read.",
    ),
]  # fmt: skip
Local = Annotated[
    Path | None,
    typer.Option(
        "--local", metavar="DIR", show_default=False,
        help="Of a store: the data directory of a host, whose logs are shown beside what is in "
        "object storage, as for tier status. Only read.",
    ),
]  # fmt: skip
Listen = Annotated[
    str,
    typer.Option(
        "--listen", metavar="HOST:PORT",
        help="Where browsers find it; HOST or PORT alone is enough, port 0 takes a free one.",
    ),
]  # fmt: skip


@command(first=("store", "listen", "topics"), example="keeplast console DATA_DIR")
def console(
    scope: ScopeOptions,
    settings: SettingOptions,
    entrance: EntranceOptions,
    search: SearchOptions,
    data_dir: Where = None,
    store: Store = None,
    bootstrap_server: Bootstrap = None,
    command_config: ClientConfig = None,
    storage: Segments = None,
    storage_options: SegmentOptions = (),
    receipt: ReceiptFile = None,
    local: Local = None,
    listen: Listen = f"{LOOPBACK}:{PORT_DEFAULT}",
    object_options: ObjectOptions = (),
    as_json: Json = False,
) -> Result:
    """Show logs in a browser until Ctrl-C; runs nothing, takes no lock and changes nothing.

    A loop's own console, keeplast run --console, shows the work too.
    """
    import threading

    from keeplast.cli.frame.exit_codes import DONE
    from keeplast.clock import SystemClock

    check_packages()
    address = console_address(listen)
    check_place(data_dir, store, bootstrap_server, command_config)
    if bootstrap_server is None and (storage is not None or storage_options):
        raise InvalidError(
            "--storage is about a live cluster; give --bootstrap-server too. "
            f"--storage={shown_url(storage or '')}"
        )
    check_receipt(receipt, data_dir)
    if local is not None and (store is None or bootstrap_server is not None):
        raise InvalidError(
            "--local is about a tiered store; give --store URL, and no other place. "
            f"--local={local}"
        )
    clock = SystemClock()
    find: KeyFinder | None = None
    scan: HeaderScanner | None = None
    if data_dir is not None:
        files = recipe_for((data_dir,), object_options).open()
        watcher = directory_watcher(data_dir, files, scope, settings, clock)
        find = directory_finder(data_dir, files, scope, settings)
        scan = directory_scanner(data_dir, files)
    elif bootstrap_server is not None:
        from keeplast.cli.attach.options import ClusterOptions, TierOptions, WantedOptions
        from keeplast.cli.attach.run_options import CapOptions
        from keeplast.cli.attach.watching import (
            attached_finder,
            attached_scanner,
            attached_watcher,
        )
        from keeplast.cluster.layouts.paced import pace_of

        cluster = ClusterOptions(
            bootstrap_server=bootstrap_server, command_config=command_config, topics=scope.topics
        )
        wanted = WantedOptions(flags=settings.flags, config_file=settings.config_file)
        watcher = attached_watcher(
            cluster, store, clock, wanted=wanted, partitions=scope.partitions, receipt=receipt
        )
        if storage is not None:
            tier = TierOptions(store=store or "", storage=storage, storage_options=storage_options)
            pace = pace_of(CapOptions().pace())
            find = attached_finder(
                cluster, store, tier, wanted, clock, pace, partitions=scope.partitions
            )
            scan = attached_scanner(cluster, tier, pace, partitions=scope.partitions)
    else:
        from keeplast.cli.tier.options import StoreCall
        from keeplast.cli.tier.watching import store_finder, store_scanner, store_watcher

        call = StoreCall(store=store or "", object_options=object_options, scope=scope)
        watcher = store_watcher(
            call, settings.broker_config, clock, receipt, local=local, sources=settings
        )
        find = store_finder(call, settings.broker_config)
        scan = store_scanner(call)
    with watcher, console_served(
        watcher, address, entrance, clock, allows_actions=False, search=search, find=find,
        scan=scan,
    ) as server:  # fmt: skip
        say_console(server, entrance)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            return DONE, {"address": server.address}
    return DONE, {}


def check_place(
    data_dir: Path | None,
    store: str | None,
    bootstrap_server: str | None,
    command_config: Path | None,
) -> None:
    """Raise InvalidError unless exactly one place is named."""
    if data_dir is None and store is None and bootstrap_server is None:
        raise InvalidError(
            "what to look at is not said; give a data directory, a tiered store with --store URL, "
            "or a live cluster with --bootstrap-server HOST:PORT"
        )
    if data_dir is not None and (store is not None or bootstrap_server is not None):
        other = "--store" if bootstrap_server is None else "--bootstrap-server"
        raise InvalidError(
            f"what to look at is said twice; give one of them. DATA_DIR={data_dir} "
            f"{other}={store if bootstrap_server is None else bootstrap_server}"
        )
    if command_config is not None and bootstrap_server is None:
        raise InvalidError(
            "client settings are about a live cluster; give --bootstrap-server too. "
            f"--command-config={command_config}"
        )


def check_receipt(receipt: Path | None, data_dir: Path | None) -> None:
    """Raise InvalidError for a receipt file that is not shown, or of which nothing can be."""
    if receipt is None:
        return
    if data_dir is not None:
        raise InvalidError(
            "--receipt is of a store or a live cluster; a data directory has its own. "
            f"--receipt={receipt}"
        )
    if receipt.is_dir() or not receipt.resolve().parent.is_dir():
        raise InvalidError(
            "no file of that name can be a receipt; name the one that tier run or attach run "
            f"appends to. --receipt={receipt}"
        )


def directory_watcher(
    data_dir: Path,
    files: FileSystem,
    scope: ScopeOptions,
    settings: SettingOptions,
    clock: Clock,
) -> Watcher:
    """Return what looks at a data directory again and again."""
    from keeplast.config.selection import select_partitions
    from keeplast.log.data_directory import open_data_directory
    from keeplast.service.console.view import Looked, Watcher
    from keeplast.service.directory_look import look_at_directory
    from keeplast.service.receipt_shelf import ReceiptShelf

    root = open_data_directory(data_dir, files).root

    def look() -> Looked:
        selection = select_partitions(data_dir, files, scope, settings)
        return Looked(look_at_directory(selection, files, clock.now_ms()))

    shelf = ReceiptShelf.of_directory(files, root)
    return Watcher(str(root), look, clock, files, shelf)
