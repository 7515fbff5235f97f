"""Every setting that cleaning, rolling, retention and tiering read, defined once.

The loader, the validation, ``keeplast config`` and ``docs/reference/settings.md`` read this table
and nothing else. Keys keep Kafka's spelling, type, default and range. ``segment.bytes`` starts at
14 as in Kafka 3, because 4.x's floor of 1 MiB would refuse logs that exist. What only a broker
reads is in :mod:`~keeplast.config.broker_definitions`.

Answers to ``LogConfig``, ``CleanerConfig`` and KIP-280; cleaning.md sections 7.1 to 7.3.
"""

from __future__ import annotations

from keeplast.config.broker_definitions import (
    BROKER_CLUSTER_DEFINITIONS,
    BROKER_TOPIC_DEFINITIONS,
)
from keeplast.config.definition import (
    DOUBLE_MAX,
    HOUR_MS,
    MINUTE_MS,
    Definition,
    Scope,
    Synonym,
    ValueType,
    cluster_spellings,
    same_key,
    topic_spellings,
)
from keeplast.model.hold import AGE_MS_MAX
from keeplast.model.partition import INT64_MAX

_TIER = "what is in a store is tiered, and nothing else is"

TOPIC_DEFINITIONS: tuple[Definition, ...] = (
    Definition(
        "cleanup.policy",
        ValueType.LIST,
        ("delete",),
        "Only a topic whose policy contains `compact` is cleaned; there is no guess, because "
        "compacting a `delete` topic loses its history.",
        same_key("log.cleanup.policy"),
        choices=("compact", "delete"),
        field="cleanup_policy",
    ),
    Definition(
        "min.cleanable.dirty.ratio",
        ValueType.DOUBLE,
        0.5,
        "A log is cleaned when more than this share of its bytes is dirty: lower saves disk, "
        "higher saves rewriting.",
        same_key("log.cleaner.min.cleanable.ratio"),
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
        same_key("log.cleaner.min.compaction.lag.ms"),
        minimum=0,
        field="min_compaction_lag_ms",
    ),
    Definition(
        "max.compaction.lag.ms",
        ValueType.LONG,
        INT64_MAX,
        "A log with a dirty record older than this is cleaned whatever its ratio: lower removes "
        "old values sooner and rewrites more often.",
        same_key("log.cleaner.max.compaction.lag.ms"),
        minimum=1,
        field="max_compaction_lag_ms",
    ),
    Definition(
        "delete.retention.ms",
        ValueType.LONG,
        86_400_000,
        "Tombstones and transaction markers stay at least this long after they are first cleaned: "
        "longer lets slow readers see every deletion, shorter frees their space sooner.",
        same_key("log.cleaner.delete.retention.ms"),
        minimum=0,
        field="delete_retention_ms",
    ),
    Definition(
        "tombstones.wait.for.groups",
        ValueType.LIST,
        (),
        "Consumer groups that must have committed beyond a tombstone or transaction marker before "
        "it goes, once `delete.retention.ms` has passed. No slow reader misses a deletion then, "
        "and unread ones take space. Their offsets come from the directory's own "
        "`__consumer_offsets`, or from brokers (`--bootstrap-server`). Not in Kafka.",
        field="tombstones_wait_for_groups",
    ),
    Definition(
        "tombstones.wait.max.ms",
        ValueType.LONG,
        604_800_000,
        "How long `tombstones.wait.for.groups` keeps what has passed its horizon at most: longer "
        "waits for readers that are away for longer, shorter frees deleted keys for sure. The "
        "default is that of a broker's `offsets.retention.minutes`, after which a group that is "
        "away starts over. Not in Kafka.",
        minimum=0,
        maximum=AGE_MS_MAX,
        field="tombstones_wait_max_ms",
    ),
    Definition(
        "segment.bytes",
        ValueType.INT,
        1 << 30,
        "Size at which a segment rolls and limit of a group: smaller leaves less in the "
        "active segment, larger keeps fewer files.",
        same_key("log.segment.bytes"),
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
        "segment.index.bytes",
        ValueType.INT,
        10_485_760,
        "Capacity of a segment's indexes and limit of a group: too small splits segments early.",
        same_key("log.index.size.max.bytes"),
        minimum=4,
        field="segment_index_bytes",
    ),
    Definition(
        "index.interval.bytes",
        ValueType.INT,
        4096,
        "Distance between index entries: smaller finds offsets faster and makes larger indexes.",
        same_key("log.index.interval.bytes"),
        minimum=0,
        field="index_interval_bytes",
    ),
    Definition(
        "max.message.bytes",
        ValueType.INT,
        1_048_588,
        "Largest batch a broker accepts; larger ones that are already in the log are read anyway.",
        same_key("message.max.bytes"),
        minimum=0,
        field="max_message_bytes",
    ),
    Definition(
        "retention.ms",
        ValueType.LONG,
        604_800_000,
        "Age at which the policy `delete` removes a segment, -1 never: longer keeps history for "
        "late readers, shorter frees disk.",
        (
            Synonym("log.retention.ms", is_endless_below_zero=True),
            Synonym("log.retention.minutes", MINUTE_MS, is_endless_below_zero=True),
            Synonym("log.retention.hours", HOUR_MS, is_endless_below_zero=True),
        ),
        minimum=-1,
        field="retention_ms",
    ),
    Definition(
        "retention.bytes",
        ValueType.LONG,
        -1,
        "Size above which the policy `delete` removes the oldest segments, negative never: a "
        "firm limit on disk, paid with history that depends on traffic.",
        same_key("log.retention.bytes"),
        field="retention_bytes",
    ),
    Definition(
        "local.retention.ms",
        ValueType.LONG,
        -2,
        "Age at which a segment that is in a tiered store leaves the local disk of its host. "
        "-2 is `retention.ms`. Shorter frees disk, longer spares readers the slower store.",
        same_key("log.local.retention.ms"),
        minimum=-2,
        field="local_retention_ms",
    ),
    Definition(
        "local.retention.bytes",
        ValueType.LONG,
        -2,
        "Size above which segments that are in a tiered store leave the local disk of their host, "
        "-2 as `retention.bytes`: less disk against more reads from the slower store.",
        same_key("log.local.retention.bytes"),
        minimum=-2,
        field="local_retention_bytes",
    ),
    Definition(
        "local.delete.requires.clean",
        ValueType.BOOLEAN,
        False,
        "Whether a local segment of a tiered log with the policy `compact` alone waits to be "
        "cleaned before local retention takes it. That spares downloads; a slow cleaner fills the "
        "disk up to the two limits below. Not in Kafka; one of the two readings of KIP-1272.",
        field="local_delete_requires_clean",
    ),
    Definition(
        "local.delete.max.extra.ms",
        ValueType.LONG,
        86_400_000,
        "How long `local.delete.requires.clean` keeps a segment at most beyond "
        "`local.retention.ms`: longer spares more downloads, shorter bounds the disk.",
        minimum=0,
        field="local_delete_max_extra_ms",
    ),
    Definition(
        "local.delete.max.extra.bytes",
        ValueType.LONG,
        1 << 30,
        "How much `local.delete.requires.clean` keeps at most beyond `local.retention.bytes`: "
        "more spares more downloads, less bounds the disk.",
        minimum=0,
        field="local_delete_max_extra_bytes",
    ),
    Definition(
        "remote.storage.enable",
        ValueType.BOOLEAN,
        False,
        "Keeps closed segments in remote storage: cheap room against slower reads of old records. "
        "Accepted together with `compact` (KIP-1272), which a broker refuses.",
        idle=_TIER,
    ),
    Definition(
        "tier.chunk.bytes",
        ValueType.LONG,
        -1,
        "How many dirty bytes in object storage a round on one host indexes at a time. -1 is "
        "`segment.bytes`. Each chunk reads the clean segments of its keys again: larger ones read "
        "less and hold more keys in memory. Not in Kafka.",
        minimum=-1,
        outside=(0,),
        field="tier_chunk_bytes",
    ),
    Definition(
        "tier.filter.fpp",
        ValueType.DOUBLE,
        0.01,
        "How often a segment in object storage is read although it has none of a round's dirty "
        "keys, when these are as many as its own. Lower reads less and makes larger filters; 0 "
        "makes none. Not in Kafka.",
        minimum=0,
        maximum=0.5,
        field="tier_filter_fpp",
    ),
    Definition(
        "compaction.strategy",
        ValueType.STRING,
        "offset",
        "Which record of a key wins (KIP-280): with `offset` the last one in the log, with "
        "`timestamp` the greatest timestamp, with `header` the greatest version in a header. The "
        "last two survive reordering and believe the producer. They take 32 bytes a key instead "
        "of 24, and read the clean part of the log once more.",
        same_key("log.cleaner.compaction.strategy"),
        choices=("offset", "timestamp", "header"),
        empty_means="offset",
        ignores_case=True,
        field="strategy",
    ),
    Definition(
        "compaction.strategy.header",
        ValueType.STRING,
        None,
        "Header that carries a record's version for the strategy `header`, which needs it. The "
        "last one of exactly this name counts: eight bytes, a signed big-endian number. A record "
        "without it loses to any that has it.",
        same_key("log.cleaner.compaction.strategy.header"),
        field="strategy_header",
    ),
    Definition(
        "undo.retention.ms",
        ValueType.LONG,
        0,
        "How long a round in a data directory or a store keeps the segments that it replaced, so "
        "that `keeplast undo` can put them back. 0 keeps none. Longer leaves more time to notice "
        "a mistake. It takes the space of both logs, and deleted values stay so much longer. At "
        "most `max.compaction.lag.ms`. Not in Kafka.",
        minimum=0,
        maximum=366 * 24 * HOUR_MS,
        field="undo_retention_ms",
    ),
    Definition(
        "keep.versioned.tombstones",
        ValueType.BOOLEAN,
        False,
        "Whether tombstones that have a version never expire. No late record of an older version "
        "can bring a key back then, and deleted keys take space for good. Not in Kafka, and "
        "without effect with the strategy `offset`.",
        same_key("log.cleaner.keep.versioned.tombstones"),
        field="keep_versioned_tombstones",
    ),
)

CLUSTER_DEFINITIONS: tuple[Definition, ...] = (
    Definition(
        "log.cleaner.dedupe.buffer.size",
        ValueType.LONG,
        134_217_728,
        "Bounds the key map when it is set here: 24 bytes a key, 32 with a strategy other than "
        "`offset`, above 1 MiB a thread. Less memory means more rounds. Unset, the map grows with "
        "the keys. `--key-map-bytes` beats it.",
        scope=Scope.CLUSTER,
        field="key_map_bytes",
    ),
    Definition(
        "log.cleaner.io.buffer.load.factor",
        ValueType.DOUBLE,
        0.9,
        "Share (above 0, at most 1) of a bounded key map's slots that may be used: more keys a "
        "round, more collisions.",
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
        "Whether a broker runs its cleaner: off saves its work and lets compacted logs grow.",
        scope=Scope.CLUSTER,
        idle="the caller of keeplast decides",
    ),
    Definition(
        "log.cleaner.threads",
        ValueType.INT,
        1,
        "Threads of a broker's cleaner: more clean more logs at once, and divide the key map.",
        scope=Scope.CLUSTER,
        minimum=1,
        idle="use --cores",
    ),
    Definition(
        "log.cleaner.io.max.bytes.per.second",
        ValueType.DOUBLE,
        DOUBLE_MAX,
        "Limits (above 0) what all workers together read and write, so that others get their share "
        "of the disk: lower is gentler and slower.",
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
        "passed, as `clean --expired` does. That waits for no new data and costs a rewrite. Not "
        "in Kafka.",
        scope=Scope.CLUSTER,
        field="has_expired_rounds",
    ),
    Definition(
        "log.retention.check.interval.ms",
        ValueType.LONG,
        300_000,
        "How often expired segments are looked for: shorter frees disk sooner, longer looks less "
        "often.",
        scope=Scope.CLUSTER,
        minimum=1,
        idle="`run` looks in every round",
    ),
)

DEFINITIONS: tuple[Definition, ...] = (
    TOPIC_DEFINITIONS + BROKER_TOPIC_DEFINITIONS + CLUSTER_DEFINITIONS + BROKER_CLUSTER_DEFINITIONS
)

TOPIC_KEYS = {key: each for each in DEFINITIONS for key in topic_spellings(each)}
"""Every name under which a topic knows a setting."""
CLUSTER_KEYS = {name.key: (each, name) for each in DEFINITIONS for name in cluster_spellings(each)}
"""Every name under which a cluster knows a setting, with its unit."""
BY_KEY = {each.key: each for each in DEFINITIONS}
"""Every setting under its own name."""
