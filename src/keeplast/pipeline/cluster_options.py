"""Options of ``kafka-log`` that name a live cluster, whose remote tier is read as a directory is.

The rule: **these are texts, and nothing is opened here**. What may be a secret is in the file that
``commandConfig`` names, or is a reference, and only the driver that looks at the cluster reads that
file: options stand in plans, and in logs of events.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from keeplast.errors import InvalidError
from keeplast.model.redaction import shown_url
from keeplast.pipeline.option_texts import OptionTexts

STORAGE_PREFIX = "storage."
"""Begins options of the remote tier's storage: ``storage.endpoint`` is its ``endpoint``."""
BOOTSTRAP = "bootstrapServers"
CLUSTER_NAMES = (BOOTSTRAP, "storage", "commandConfig")
"""With ``store``, which is the decision log then."""


@dataclass(frozen=True, slots=True)
class ClusterPlace:
    """A live cluster, its remote tier and its decision log (None: unknown), as they were given.

    ``storage`` is PLUGIN:PLACE, ``command_config`` the path of the client's properties.
    """

    bootstrap_servers: str
    storage: str = field(repr=False)
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    command_config: str | None = None
    store: str | None = field(default=None, repr=False)

    def where(self) -> str:
        """Return what is read, for people."""
        return f"{BOOTSTRAP}={shown_url(self.bootstrap_servers)}"


def read_cluster(
    options: OptionTexts, object_options: Mapping[str, str], *, is_streaming: bool
) -> ClusterPlace | None:
    """Return the cluster that the options name, None for none.

    ``object_options`` are those of directories and stores. InvalidError for what does not go
    together, and for a stream.
    """
    servers, storage = options.text(BOOTSTRAP, None), options.text("storage", None)
    given = options.prefixed(STORAGE_PREFIX)
    if servers is None:
        _refuse_alone(options, given)
        return None
    where = f"{BOOTSTRAP}={shown_url(servers)}"
    if is_streaming:
        raise InvalidError(
            "a stream reads a directory, not the remote tier of a live cluster; read that with "
            f"spark.read, or the topic itself with Spark's kafka source. {where}"
        )
    if storage is None:
        raise InvalidError(
            "say where the brokers' plugin keeps segments: give storage, as local:PATH or "
            f"aiven:URL. {where}"
        )
    if object_options:
        raise InvalidError(
            "options of an object store begin with storage. for a live cluster's remote tier. "
            f"option=object.{next(iter(object_options))} {where}"
        )
    return ClusterPlace(
        servers, storage, given, options.text("commandConfig", None), options.text("store", None)
    )


def _refuse_alone(options: OptionTexts, storage_options: Mapping[str, str]) -> None:
    names = options.given(CLUSTER_NAMES) + [STORAGE_PREFIX + name for name in storage_options]
    if names:
        raise InvalidError(
            f"this is about a live cluster; give {BOOTSTRAP} too, or leave it out. "
            f"option={names[0]}"
        )
