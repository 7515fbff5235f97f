"""Every setting that Kafka's cleaner, rolling and retention know, defined once.

The loader, the validation, the warnings and ``docs/reference/settings.md`` read this table and
nothing else. Keys keep Kafka's spelling, type, default and range; a definition without ``field`` is
accepted, checked, and has no effect here. ``segment.bytes`` starts at 14 as in Kafka 3, because
4.x's floor of 1 MiB would refuse logs that exist.

Answers to ``LogConfig``, ``CleanerConfig`` and ``ServerTopicConfigSynonyms``; cleaning.md section
7.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from keeplast.model.offsets import INT32_MAX, INT64_MAX

MINUTE_MS = 60_000
HOUR_MS = 3_600_000
DOUBLE_MAX = 1.7976931348623157e308

Value = int | float | bool | str | tuple[str, ...]


class ValueType(Enum):
    """How a value is written."""

    INT = "int"
    LONG = "long"
    DOUBLE = "double"
    BOOLEAN = "boolean"
    STRING = "string"
    LIST = "list"


class Scope(Enum):
    """What one value of a key is about."""

    TOPIC = "topic"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class Synonym:
    """A broker's name for a topic setting; ``factor`` turns its unit into the topic's."""

    key: str
    factor: int = 1


@dataclass(frozen=True, slots=True)
class Definition:
    """One setting.

    ``minimum`` and ``maximum`` are inclusive and apply to the value in the topic's unit;
    ``outside`` lists values that are allowed although they lie outside. ``empty_means`` is what an
    empty text stands for. ``field`` names the field of ``TopicConfig`` or ``CleanerConfig`` that
    carries the value; None means no effect here. ``overridden_by`` is a second topic spelling,
    which wins when both are set.
    """

    key: str
    type: ValueType
    default: Value | None
    about: str
    synonyms: tuple[Synonym, ...] = ()
    scope: Scope = Scope.TOPIC
    minimum: int | float | None = None
    maximum: int | float | None = None
    outside: tuple[int, ...] = ()
    choices: tuple[str, ...] | None = None
    empty_means: str | None = None
    field: str | None = None
    overridden_by: str | None = None

    @property
    def has_effect(self) -> bool:
        """True when the value changes what keeplast does."""
        return self.field is not None


def _same(key: str) -> tuple[Synonym, ...]:
    return (Synonym(key),)


TOPIC_DEFINITIONS: tuple[Definition, ...] = (
    Definition(
        "cleanup.policy",
        ValueType.LIST,
        ("delete",),
        "Only a topic whose policy contains `compact` is cleaned; there is no guess, because "
        "compacting a `delete` topic loses its history.",
        _same("log.cleanup.policy"),
        choices=("compact", "delete"),
        field="cleanup_policy",
    ),
    Definition(
        "min.cleanable.dirty.ratio",
        ValueType.DOUBLE,
        0.5,
        "A log is cleaned when more than this share of its bytes is dirty: lower saves disk, "
        "higher saves rewriting.",
        _same("log.cleaner.min.cleanable.ratio"),
        minimum=0,
        maximum=1,
        field="min_cleanable_dirty_ratio",
    ),
    Definition(
        "min.compaction.lag.ms",
        ValueType.LONG,
        0,
        "Records younger than this stay, so that readers can see every update for that long; "
        "their segments cannot be cleaned meanwhile.",
        _same("log.cleaner.min.compaction.lag.ms"),
        minimum=0,
        field="min_compaction_lag_ms",
    ),
    Definition(
        "max.compaction.lag.ms",
        ValueType.LONG,
        INT64_MAX,
        "A log with a dirty record older than this is cleaned whatever its ratio: lower removes "
        "old values sooner and rewrites more often.",
        _same("log.cleaner.max.compaction.lag.ms"),
        minimum=1,
        field="max_compaction_lag_ms",
    ),
    Definition(
        "delete.retention.ms",
        ValueType.LONG,
        86_400_000,
        "Tombstones and transaction markers stay at least this long after they are first cleaned: "
        "longer lets slow readers see every deletion, shorter frees their space sooner.",
        _same("log.cleaner.delete.retention.ms"),
        minimum=0,
        field="delete_retention_ms",
    ),
    Definition(
        "segment.bytes",
        ValueType.INT,
        1 << 30,
        "Size at which a segment rolls and limit of a group: smaller leaves less behind in the "
        "active segment, larger keeps fewer files.",
        _same("log.segment.bytes"),
        minimum=14,
        field="segment_bytes",
        overridden_by="internal.segment.bytes",
    ),
    Definition(
        "segment.ms",
        ValueType.LONG,
        604_800_000,
        "Age at which a segment rolls: shorter makes records cleanable sooner, longer keeps fewer "
        "files.",
        (Synonym("log.roll.ms"), Synonym("log.roll.hours", HOUR_MS)),
        minimum=1,
        field="segment_ms",
    ),
    Definition(
        "segment.jitter.ms",
        ValueType.LONG,
        0,
        "Spreads a broker's rolls over time; one log at a time has nothing to spread.",
        (Synonym("log.roll.jitter.ms"), Synonym("log.roll.jitter.hours", HOUR_MS)),
        minimum=0,
    ),
    Definition(
        "segment.index.bytes",
        ValueType.INT,
        10_485_760,
        "Capacity of a segment's indexes and limit of a group: too small splits segments early.",
        _same("log.index.size.max.bytes"),
        minimum=4,
        field="segment_index_bytes",
    ),
    Definition(
        "index.interval.bytes",
        ValueType.INT,
        4096,
        "Distance between index entries: smaller finds offsets faster and makes larger indexes.",
        _same("log.index.interval.bytes"),
        minimum=0,
        field="index_interval_bytes",
    ),
    Definition(
        "max.message.bytes",
        ValueType.INT,
        1_048_588,
        "Largest batch a broker accepts; larger ones that are already in the log are read anyway.",
        _same("message.max.bytes"),
        minimum=0,
        field="max_message_bytes",
    ),
    Definition(
        "file.delete.delay.ms",
        ValueType.LONG,
        60_000,
        "How long a broker keeps replaced files for readers that still hold them; without a broker "
        "nobody does.",
        _same("log.segment.delete.delay.ms"),
        minimum=0,
    ),
    Definition(
        "preallocate",
        ValueType.BOOLEAN,
        False,
        "Reserves a segment's disk space when it is created; cleaned segments are written at their "
        "real size.",
        _same("log.preallocate"),
    ),
    Definition(
        "compression.type",
        ValueType.STRING,
        "producer",
        "Codec of what a broker appends; cleaning keeps the codec that each batch has.",
        _same("compression.type"),
        choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    ),
    Definition(
        "compression.gzip.level",
        ValueType.INT,
        -1,
        "Level of what a broker appends as gzip; rebuilt batches use Kafka's default level.",
        _same("compression.gzip.level"),
        minimum=1,
        maximum=9,
        outside=(-1,),
    ),
    Definition(
        "compression.lz4.level",
        ValueType.INT,
        9,
        "Level of what a broker appends as lz4; rebuilt batches use Kafka's default level.",
        _same("compression.lz4.level"),
        minimum=1,
        maximum=17,
    ),
    Definition(
        "compression.zstd.level",
        ValueType.INT,
        3,
        "Level of what a broker appends as zstd; rebuilt batches use Kafka's default level.",
        _same("compression.zstd.level"),
        minimum=-131_072,
        maximum=22,
    ),
    Definition(
        "message.timestamp.type",
        ValueType.STRING,
        "CreateTime",
        "Whose clock a broker writes into new batches; batches that exist say it themselves.",
        _same("log.message.timestamp.type"),
        choices=("CreateTime", "LogAppendTime"),
    ),
    Definition(
        "message.timestamp.before.max.ms",
        ValueType.LONG,
        INT64_MAX,
        "How far in the past a producer's timestamp may lie when it is appended.",
        _same("log.message.timestamp.before.max.ms"),
        minimum=0,
    ),
    Definition(
        "message.timestamp.after.max.ms",
        ValueType.LONG,
        INT64_MAX,
        "How far in the future a producer's timestamp may lie when it is appended.",
        _same("log.message.timestamp.after.max.ms"),
        minimum=0,
    ),
    Definition(
        "retention.ms",
        ValueType.LONG,
        604_800_000,
        "Age at which the policy `delete` removes a segment: shorter frees disk sooner, longer "
        "keeps history for late readers; -1 keeps it for ever.",
        (
            Synonym("log.retention.ms"),
            Synonym("log.retention.minutes", MINUTE_MS),
            Synonym("log.retention.hours", HOUR_MS),
        ),
        minimum=-1,
        field="retention_ms",
    ),
    Definition(
        "retention.bytes",
        ValueType.LONG,
        -1,
        "Size of a partition above which the policy `delete` removes its oldest segments; it "
        "bounds disk, not age, and -1 is no bound.",
        _same("log.retention.bytes"),
        field="retention_bytes",
    ),
    Definition(
        "local.retention.ms",
        ValueType.LONG,
        -2,
        "Age at which an uploaded segment leaves local disk; -2 follows `retention.ms`. Needs the "
        "tier.",
        _same("log.local.retention.ms"),
        minimum=-2,
    ),
    Definition(
        "local.retention.bytes",
        ValueType.LONG,
        -2,
        "Size above which uploaded segments leave local disk; -2 follows `retention.bytes`. Needs "
        "the tier.",
        _same("log.local.retention.bytes"),
        minimum=-2,
    ),
    Definition(
        "remote.storage.enable",
        ValueType.BOOLEAN,
        False,
        "Keeps closed segments in remote storage; accepted together with `compact` (KIP-1272), "
        "which a broker refuses.",
    ),
    Definition(
        "min.insync.replicas",
        ValueType.INT,
        1,
        "Replicas that must have a record before a producer is told so.",
        _same("min.insync.replicas"),
        minimum=1,
    ),
    Definition(
        "unclean.leader.election.enable",
        ValueType.BOOLEAN,
        False,
        "Whether a replica that is behind may lead: availability against lost records.",
        _same("unclean.leader.election.enable"),
    ),
    Definition(
        "flush.messages",
        ValueType.LONG,
        INT64_MAX,
        "Records after which a broker forces the log to disk; every commit here is forced.",
        _same("log.flush.interval.messages"),
        minimum=1,
    ),
    Definition(
        "flush.ms",
        ValueType.LONG,
        INT64_MAX,
        "Time after which a broker forces the log to disk; every commit here is forced.",
        _same("log.flush.interval.ms"),
        minimum=0,
    ),
    Definition(
        "compaction.strategy",
        ValueType.STRING,
        "offset",
        "Which record of a key wins (KIP-280): the last one in the log, the one with the greatest "
        "timestamp, or the one with the greatest version in a header; the latter two take 32 "
        "bytes a key instead of 24, and read the clean part of the log once more.",
        _same("log.cleaner.compaction.strategy"),
        choices=("offset", "timestamp", "header"),
        empty_means="offset",
        field="strategy",
    ),
    Definition(
        "compaction.strategy.header",
        ValueType.STRING,
        None,
        "Header that carries a record's version for the strategy `header`, which needs it: the "
        "last one of exactly this name, eight bytes, a signed big-endian number (KIP-280).",
        _same("log.cleaner.compaction.strategy.header"),
        field="strategy_header",
    ),
    Definition(
        "keep.versioned.tombstones",
        ValueType.BOOLEAN,
        False,
        "Whether tombstones that have a version never expire: no late record of an older version "
        "can bring a key back, and deleted keys take space for ever. Not in Kafka, and without "
        "effect with the strategy `offset`.",
        field="keep_versioned_tombstones",
    ),
)

CLUSTER_DEFINITIONS: tuple[Definition, ...] = (
    Definition(
        "log.cleaner.dedupe.buffer.size",
        ValueType.LONG,
        134_217_728,
        "Bounds the key map when it is set here (24 bytes a key): less memory, more rounds; "
        "unset, the map grows with the keys. `--key-map-bytes` beats it.",
        scope=Scope.CLUSTER,
        field="key_map_bytes",
    ),
    Definition(
        "log.cleaner.io.buffer.load.factor",
        ValueType.DOUBLE,
        0.9,
        "Share of a bounded key map's slots that may be used: more keys a round, more collisions.",
        scope=Scope.CLUSTER,
        field="load_factor",
    ),
    Definition(
        "producer.id.expiration.ms",
        ValueType.INT,
        86_400_000,
        "How long a producer's last batch is kept after its time: longer recognises late "
        "duplicates, shorter frees a header per producer.",
        scope=Scope.CLUSTER,
        minimum=1,
        field="producer_id_expiration_ms",
    ),
    Definition(
        "log.cleaner.enable",
        ValueType.BOOLEAN,
        True,
        "Whether a broker runs its cleaner; whoever calls `clean` has decided.",
        scope=Scope.CLUSTER,
    ),
    Definition(
        "log.cleaner.threads",
        ValueType.INT,
        1,
        "Threads of a broker's cleaner; use `--cores` here.",
        scope=Scope.CLUSTER,
        minimum=1,
    ),
    Definition(
        "log.cleaner.io.buffer.size",
        ValueType.INT,
        524_288,
        "Buffer memory of a broker's cleaner; use `--memory` here.",
        scope=Scope.CLUSTER,
        minimum=0,
    ),
    Definition(
        "log.cleaner.io.max.bytes.per.second",
        ValueType.DOUBLE,
        DOUBLE_MAX,
        "Limits what all workers together read and write, so that others get their share of the "
        "disk: lower is gentler and slower.",
        scope=Scope.CLUSTER,
        field="io_bytes_per_second",
    ),
    Definition(
        "log.cleaner.backoff.ms",
        ValueType.LONG,
        15_000,
        "How long `run` waits when nothing is dirty enough, and at first before it tries again "
        "what failed: shorter notices sooner, longer looks less often.",
        scope=Scope.CLUSTER,
        minimum=0,
        field="backoff_ms",
    ),
    Definition(
        "log.cleaner.expired.rounds",
        ValueType.BOOLEAN,
        False,
        "Whether `run` rewrites a clean log only to remove tombstones and markers whose time has "
        "passed, as `clean --expired` does: frees them without waiting for new data, at the cost "
        "of a rewrite. Not in Kafka.",
        scope=Scope.CLUSTER,
        field="has_expired_rounds",
    ),
    Definition(
        "log.retention.check.interval.ms",
        ValueType.LONG,
        300_000,
        "How often a broker looks for expired segments.",
        scope=Scope.CLUSTER,
        minimum=1,
    ),
    Definition(
        "log.initial.task.delay.ms",
        ValueType.LONG,
        30_000,
        "Pause of a broker before its first retention and checkpoint run.",
        scope=Scope.CLUSTER,
        minimum=0,
    ),
    Definition(
        "log.flush.start.offset.checkpoint.interval.ms",
        ValueType.INT,
        60_000,
        "How often a broker writes the log start offsets.",
        scope=Scope.CLUSTER,
        minimum=0,
    ),
    Definition(
        "log.flush.offset.checkpoint.interval.ms",
        ValueType.INT,
        60_000,
        "How often a broker writes the recovery points.",
        scope=Scope.CLUSTER,
        minimum=0,
    ),
    Definition(
        "producer.id.expiration.check.interval.ms",
        ValueType.INT,
        600_000,
        "How often a broker looks for expired producers.",
        scope=Scope.CLUSTER,
        minimum=1,
    ),
)

DEFINITIONS: tuple[Definition, ...] = TOPIC_DEFINITIONS + CLUSTER_DEFINITIONS

INTEGER_BOUNDS: dict[ValueType, tuple[int, int]] = {
    ValueType.INT: (-INT32_MAX - 1, INT32_MAX),
    ValueType.LONG: (-INT64_MAX - 1, INT64_MAX),
}
