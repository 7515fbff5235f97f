"""``keeplast.open``: a place of logs by its address or its name, for every verb.

What each kind of place needs is read here from its properties and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from keeplast.api.directory_logs import DirectoryLogs
from keeplast.api.place import UNHEARD, AskedPlace, PlaceEvents
from keeplast.config.place_properties import PlaceKind
from keeplast.config.places import FoundPlace, find_place
from keeplast.errors import InvalidError, installing

if TYPE_CHECKING:
    from keeplast.cluster.group_offsets import BrokerGroups

Value = str | int | bool | Path | Mapping[str, str]


def open(
    place: str | Path, *, config: Mapping[str, str] | None = None, **properties: Value
) -> AskedPlace:
    """Return the logs at an address, or those of a place in ``keeplast.toml``.

    ``place`` is a path, ``s3://``, ``gs://``, ``az://``; ``sqlite:///FILE``, ``postgresql://…``;
    ``kafka://HOST:PORT``; or a name. ``config`` are topics' settings by Kafka's names.
    ``properties`` are those of a place's table, with ``_`` for ``-`` (``command_config="…"``); they
    beat the table. Nothing is connected yet. InvalidError for what no such place has.
    """
    given: list[str] = []
    for key, value in properties.items():
        name = key.replace("_", "-")
        if isinstance(value, Mapping):
            given += [f"{name}.{option}={text}" for option, text in value.items()]
        else:
            given.append(f"{name}={str(value).lower() if isinstance(value, bool) else value}")
    return open_found(find_place(str(place), given), config=config or {})


def placed(place: AskedPlace | str | Path) -> AskedPlace:
    """Return a place; a text is what :func:`open` takes, a path a data directory."""
    if isinstance(place, str):
        return open(place)
    return DirectoryLogs(place) if isinstance(place, Path) else place


def open_found(
    found: FoundPlace, *, config: Mapping[str, str], events: PlaceEvents = UNHEARD
) -> AskedPlace:
    """Return the place that was found; InvalidError where its packages are missing."""
    for warning in found.warnings:
        events.warned(warning)
    if found.kind is PlaceKind.DIRECTORY:
        return DirectoryLogs(
            found.address,
            config=config,
            config_file=found.path("config-file"),
            broker_config=found.path("broker-config"),
            object_options=found.options("object-option"),
            settings=found.settings,
        )
    try:
        open_kind = _store if found.kind is PlaceKind.STORE else _cluster
        return open_kind(found, config, events)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("keeplast"):
            raise
        extra = "tier" if found.kind is PlaceKind.STORE else "cluster"
        raise InvalidError(
            f"a {found.kind} needs more packages; {installing(extra)}. missing={error.name}",
            code="K134",
        ) from error


def _store(found: FoundPlace, config: Mapping[str, str], events: PlaceEvents) -> AskedPlace:
    from keeplast.api.stored_logs import StoredLogs
    from keeplast.config.layers import SettingSources, flag_texts, read_broker_config
    from keeplast.log.files import LocalFiles
    from keeplast.store.tiered_store import GARBAGE_AGE_MS_DEFAULT, GRACE_MS_DEFAULT

    broker: Mapping[str, str] = {}
    path = found.path("broker-config")
    if path is not None:
        read = read_broker_config(path, LocalFiles())
        for warning in read.warnings:
            events.warned(warning)
        broker = read.layer.cluster
    grace_ms, age_ms = found.milliseconds("grace-ms"), found.milliseconds("garbage-age-ms")
    return StoredLogs(
        found.address, object_options=found.options("object-option"), broker=broker,
        owner=found.text("owner"), objects=found.text("objects"), events=events,
        sources=SettingSources(
            flags=flag_texts(config),
            config_file=found.path("config-file"), broker_config=path, place=found.settings,
        ),
        grace_ms=GRACE_MS_DEFAULT if grace_ms is None else grace_ms,
        data_dir=found.path("data-dir"),
        garbage_age_ms=GARBAGE_AGE_MS_DEFAULT if age_ms is None else age_ms,
    )  # fmt: skip


def _cluster(found: FoundPlace, config: Mapping[str, str], events: PlaceEvents) -> AskedPlace:
    from keeplast.api.attached_logs import AttachedLogs
    from keeplast.attach.upkeep.replaced_segments import GRACE_MS_DEFAULT
    from keeplast.cluster.client_properties import read_client_properties
    from keeplast.service.attached_sight import LoopLimits

    grace_ms = found.milliseconds("grace-ms")
    limits = {
        "interval_ms": found.milliseconds("interval"),
        "requests_per_second": found.count("requests-per-second"),
        "bytes_per_second": found.size("bytes-per-second"),
        "back_off_ms": found.milliseconds("back-off-ms"),
        "swaps_per_day": found.count("swaps-per-day"),
        "records_per_day": found.count("records-per-day"),
    }
    return AttachedLogs(
        found.bootstrap_servers,
        storage=found.text("storage") or "", storage_options=found.options("storage-option"),
        store=found.text("decisions"),
        client=read_client_properties(found.path("command-config"), "command-config"),
        config=config, config_file=found.path("config-file"), settings=found.settings,
        accepts_untested=found.flag("accept-untested"), events=events,
        broker_metrics=found.texts("broker-metrics"),
        limits=LoopLimits(**{key: value for key, value in limits.items() if value is not None}),
        grace_ms=GRACE_MS_DEFAULT if grace_ms is None else grace_ms,
    )  # fmt: skip


def brokers_of(found: FoundPlace) -> BrokerGroups | None:
    """Return what reads committed offsets of consumer groups, None where the place itself does."""
    servers = found.text("bootstrap-server")
    if servers is None:
        if found.kind is not PlaceKind.CLUSTER and found.path("command-config") is not None:
            raise InvalidError(
                "there is no broker to connect to; add --bootstrap-server. "
                f"--command-config={found.path('command-config')}",
                code="K102",
            )
        return None
    from keeplast.cluster.client import ClusterClient
    from keeplast.cluster.client_properties import read_client_properties
    from keeplast.cluster.group_offsets import BrokerGroups

    settings = read_client_properties(found.path("command-config"), "command-config")
    return BrokerGroups(ClusterClient(servers, settings))
