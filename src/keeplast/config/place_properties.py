"""The properties of a place: what a ``[place.NAME]`` table and ``--with`` may say, defined once.

The parser, ``keeplast place`` and the reference page read :data:`PROPERTIES` and nothing else. The
rule: a secret is never a property's value. It is named, as ``@FILE`` or ``env:NAME``.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

WITH = "--with"
"""The option that says a property on a command line."""


class PlaceKind(StrEnum):
    """Where logs lie."""

    DIRECTORY = "directory"
    STORE = "store"
    CLUSTER = "cluster"


class PropertyType(StrEnum):
    """How a property is written."""

    TEXT = "text"
    FILE = "file"
    URL = "url"
    SIZE = "size"
    SPAN = "span"
    COUNT = "count"
    FLAG = "true or false"
    LIST = "list"
    OPTIONS = "table"


class PlaceProperty(Struct, frozen=True):
    """One property: its name, the kinds of place that have it, its type and one sentence."""

    name: str
    type: PropertyType
    kinds: frozenset[PlaceKind]
    about: str
    choices: tuple[str, ...] = ()


_ALL = frozenset(PlaceKind)
_D, _S, _C = (frozenset({each}) for each in PlaceKind)

AT = "at"
PROPERTIES: tuple[PlaceProperty, ...] = (
    PlaceProperty(
        AT, PropertyType.URL, _ALL,
        "The address: a path, `s3://`, `gs://`, `az://`; `sqlite:///FILE`, `postgresql://…`; "
        "`kafka://HOST:PORT[,HOST:PORT…]`.",
    ),
    PlaceProperty(
        "command-config", PropertyType.FILE, _ALL,
        "`client.properties` as Kafka's own tools take it, for SSL and SASL.",
    ),
    PlaceProperty(
        "bootstrap-server", PropertyType.TEXT, _D | _S,
        "Brokers that know what consumer groups have committed, for `tombstones.wait.for.groups` "
        "and `export --checkpoint-group`: `HOST:PORT`, separated by commas. Default: the place's "
        "own `__consumer_offsets`.",
    ),
    PlaceProperty(
        "broker-config", PropertyType.FILE, _D | _S,
        "The broker's `server.properties`: the cluster's defaults where nothing else gives them.",
    ),
    PlaceProperty(
        "config-file", PropertyType.FILE, _ALL,
        'TOML with `[cluster]` and `[topic."name"]` tables. Default of a directory: the '
        "`keeplast.toml` in it.",
    ),
    PlaceProperty(
        "object-option", PropertyType.OPTIONS, _D | _S,
        "Options of the object store, such as `endpoint`.",
    ),
    PlaceProperty(
        "objects", PropertyType.URL, _S,
        "Where a new store keeps its objects: `file://`, `s3://`, `gs://` or `az://`.",
    ),
    PlaceProperty(
        "owner", PropertyType.TEXT, _S,
        "The name under which this host changes partitions. Default: the host's name.",
    ),
    PlaceProperty(
        "data-dir", PropertyType.FILE, _S,
        "A Kafka `log.dirs` directory of this host: `run` copies what partitions gain in it, and "
        "`status` and `console` show it next to the store. Only read; its broker may be running.",
    ),
    PlaceProperty(
        "garbage-age-ms", PropertyType.SPAN, _S,
        "How old an object must be before it goes although no row of the metadata names it. "
        "Default: a day.",
    ),
    PlaceProperty(
        "storage", PropertyType.URL, _C,
        "Where the brokers' plugin keeps segments: `local:PATH` for Kafka's LocalTieredStorage, "
        "`aiven:URL` for Aiven's.",
    ),
    PlaceProperty(
        "storage-option", PropertyType.OPTIONS, _C,
        "Settings of the plugin, or options of its object store.",
    ),
    PlaceProperty(
        "decisions", PropertyType.URL, _C,
        "The decision log: `sqlite:///FILE` or `postgresql://USER@HOST/DATABASE`. One for all "
        "hosts that compact a cluster.",
    ),
    PlaceProperty(
        "accept-untested", PropertyType.FLAG, _C,
        "Go on where a broker has a release that keeplast was not tested with. Records may be "
        "lost for good.",
    ),
    PlaceProperty(
        "grace-ms", PropertyType.SPAN, _S | _C,
        "How long replaced segments stay for readers that began before the round, and for you to "
        "look. Default: an hour; of a live cluster in an object store a minute at least.",
    ),
    PlaceProperty(
        "broker-metrics", PropertyType.LIST, _C,
        "Each broker's JMX exporter (`http://HOST:PORT/metrics`): nothing is deleted while one "
        "lags in `__remote_log_metadata` or does not answer.",
    ),
    PlaceProperty(
        "keep-sources", PropertyType.SPAN, _C,
        "Keep replaced segments for so long at least. Never shorter than the grace.",
    ),
    PlaceProperty(
        "interval", PropertyType.SPAN, _C,
        "How long `run` waits between two looks, and first after a failure; a second at least. "
        "Default: a minute.",
    ),
    PlaceProperty(
        "requests-per-second", PropertyType.COUNT, _C,
        "Requests of `run` to the remote tier, counted as the most that there can be. Each Spark "
        "slot has its share. Default: 200.",
    ),
    PlaceProperty(
        "bytes-per-second", PropertyType.SIZE, _C,
        "Bytes that `run` reads from the remote tier and writes to it, together; 1m at least. "
        "Default: 128m.",
    ),
    PlaceProperty(
        "back-off-ms", PropertyType.SPAN, _C,
        "How long every request of `run` waits when a store answers 503, SlowDown or 429; twice "
        "that the next time, a minute at most. Default: 1s.",
    ),
    PlaceProperty(
        "swaps-per-day", PropertyType.COUNT, _C,
        "Swaps of `run` on all hosts in any 24 hours, as the decision log has them. Default: 500.",
    ),
    PlaceProperty(
        "records-per-day", PropertyType.COUNT, _C,
        "Records of `__remote_log_metadata` in any 24 hours, likewise, with those that "
        "collect replaced segments. They stay for good. Default: 20000.",
    ),
    PlaceProperty(
        "keyless", PropertyType.TEXT, _C,
        "What becomes of records without a key, which belong to no key. Default: fail.",
        ("fail", "drop", "retain"),
    ),
    PlaceProperty(
        "receipt", PropertyType.FILE, _ALL,
        "The file of receipts. Default of `run` over a directory: one in it.",
    ),
    PlaceProperty(
        "memory", PropertyType.SIZE, _ALL,
        "Buffers, and decompressed data kept between the two passes.",
    ),
    PlaceProperty(
        "task-memory", PropertyType.SIZE, _ALL,
        "Key map of one Spark task; a log with more keys is cut into several tasks.",
    ),
    PlaceProperty(
        "key-map-bytes", PropertyType.SIZE, _D,
        "Key map of a round, as a broker's log.cleaner.dedupe.buffer.size. Default: no limit.",
    ),
    PlaceProperty(
        "shape", PropertyType.TEXT, _ALL,
        "How the work of a partition is cut. Default: each partition as it needs.",
        ("partition", "broadcast", "bucket"),
    ),
    PlaceProperty(
        "runner", PropertyType.TEXT, _ALL,
        "Threads of this process, or Spark. Default: local; spark where `master` is given and "
        "under spark-submit.",
        ("local", "spark"),
    ),
    PlaceProperty("master", PropertyType.URL, _ALL, "Spark master."),
    PlaceProperty("cores", PropertyType.COUNT, _ALL, "Cores to use. Default: all."),
    PlaceProperty(
        "no-values", PropertyType.FLAG, _ALL,
        "Never show values of records in the console. Default: hidden until asked for.",
    ),
    PlaceProperty(
        "closed-topics", PropertyType.LIST, _ALL,
        "Topics in which the console searches no key, as shell patterns; `*` closes all of them.",
    ),
    PlaceProperty(
        "search-seconds", PropertyType.COUNT, _ALL,
        "The longest that the search for a key from a page of the console may take; 50 at most. "
        "Default: 20.",
    ),
    PlaceProperty(
        "search-bytes", PropertyType.SIZE, _ALL,
        "The most that the search for a key from a page of the console may read. Default: 8g.",
    ),
)  # fmt: skip
BY_NAME = {each.name: each for each in PROPERTIES}
VERB_TABLES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        (
            "status", "plan", "clean", "run", "verify", "explain", "inspect", "console", "undo",
            "export", "config", "configure", "copy", "collect", "repair", "pause", "detach",
            "delete-records",
        ),
        (),
    ),
    "hold": ("add", "list", "release"),
    "erase": ("keys", "requests", "certify", "check"),
}  # fmt: skip
"""Tables of a place that hold defaults of a verb's options; a group of verbs has one for each."""
SETTING_TABLES = frozenset({"cluster", "topic"})
