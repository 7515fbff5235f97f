"""Kafka's settings that only a broker reads: accepted, checked, and without effect here.

They are in topics that exist and in files that people copy, so that refusing them would be a
nuisance; ``idle`` says why nothing follows from them.
Answers to ``LogConfig``, ``ServerLogConfigs`` and ``QuotaConfig``; cleaning.md section 7.
"""

from __future__ import annotations

from keeplast.config.definition import (
    HOUR_MS,
    Definition,
    Scope,
    Synonym,
    ValueType,
    same_key,
)
from keeplast.model.partition import INT64_MAX

_APPEND = "nothing is appended here"
_APPENDED_DATES = "nothing is appended here; keeplast status rests its bounds on it"
_CODEC = "a rebuilt batch keeps its codec, at Kafka's default level"
_REPLICAS = "one replica is looked at"
_FORCED = "every commit is forced to disk"

BROKER_TOPIC_DEFINITIONS: tuple[Definition, ...] = (
    Definition(
        "segment.jitter.ms",
        ValueType.LONG,
        0,
        "Spreads the rolls of many logs over time: an even load on the disk against segments "
        "of uneven age.",
        (Synonym("log.roll.jitter.ms"), Synonym("log.roll.jitter.hours", HOUR_MS)),
        minimum=0,
        idle="an idle segment rolls when it is due",
    ),
    Definition(
        "file.delete.delay.ms",
        ValueType.LONG,
        60_000,
        "How long replaced files stay for readers that still hold them: longer is kinder to "
        "slow ones, shorter frees disk sooner.",
        same_key("log.segment.delete.delay.ms"),
        minimum=0,
        idle="a reader that holds a replaced file keeps it",
    ),
    Definition(
        "preallocate",
        ValueType.BOOLEAN,
        False,
        "Reserves a segment's disk space when it is made: no fragments, at the price of the space.",
        same_key("log.preallocate"),
        idle="cleaned segments have their real size",
    ),
    Definition(
        "compression.type",
        ValueType.STRING,
        "producer",
        "Codec of what a broker appends: space against its processor time; `producer` keeps "
        "what it is given.",
        same_key("compression.type"),
        choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        idle=_CODEC,
    ),
    Definition(
        "compression.gzip.level",
        ValueType.INT,
        -1,
        "Level of what a broker appends as gzip: smaller against slower; -1 is the library's own.",
        same_key("compression.gzip.level"),
        minimum=1,
        maximum=9,
        outside=(-1,),
        idle=_CODEC,
    ),
    Definition(
        "compression.lz4.level",
        ValueType.INT,
        9,
        "Level of what a broker appends as lz4: smaller against slower.",
        same_key("compression.lz4.level"),
        minimum=1,
        maximum=17,
        idle=_CODEC,
    ),
    Definition(
        "compression.zstd.level",
        ValueType.INT,
        3,
        "Level of what a broker appends as zstd: smaller against slower.",
        same_key("compression.zstd.level"),
        minimum=-131_072,
        maximum=22,
        idle=_CODEC,
    ),
    Definition(
        "message.timestamp.type",
        ValueType.STRING,
        "CreateTime",
        "Whose clock dates new records: CreateTime is when something happened and may be wrong, "
        "LogAppendTime is when it arrived.",
        same_key("log.message.timestamp.type"),
        choices=("CreateTime", "LogAppendTime"),
        idle=_APPENDED_DATES,
    ),
    Definition(
        "message.timestamp.before.max.ms",
        ValueType.LONG,
        INT64_MAX,
        "How far in the past a new record may be dated: lower keeps wrong dates out, higher "
        "lets old data in.",
        same_key("log.message.timestamp.before.max.ms"),
        minimum=0,
        idle=_APPEND,
    ),
    Definition(
        "message.timestamp.after.max.ms",
        ValueType.LONG,
        INT64_MAX,
        "How far in the future a new record may be dated: lower keeps out dates that hold "
        "cleaning back, higher refuses no producer whose clock is fast.",
        same_key("log.message.timestamp.after.max.ms"),
        minimum=0,
        idle=_APPENDED_DATES,
    ),
    Definition(
        "message.timestamp.difference.max.ms",
        ValueType.LONG,
        INT64_MAX,
        "Older name for how far a new record's date may lie in either direction; the two "
        "newer settings replace it.",
        same_key("log.message.timestamp.difference.max.ms"),
        minimum=0,
        idle=_APPENDED_DATES,
    ),
    Definition(
        "message.format.version",
        ValueType.STRING,
        "3.0-IV1",
        "Format of what a broker older than 4.0 appends: old consumers against headers and "
        "transactions.",
        same_key("log.message.format.version"),
        idle="what is rebuilt has magic 2, as in Kafka 4",
    ),
    Definition(
        "message.downconversion.enable",
        ValueType.BOOLEAN,
        True,
        "Whether a broker older than 4.0 converts for old consumers, at the price of its memory.",
        same_key("log.message.downconversion.enable"),
        idle="nothing is served to consumers",
    ),
    Definition(
        "min.insync.replicas",
        ValueType.INT,
        1,
        "Replicas that must have a record before a producer gets its answer: durability against "
        "availability.",
        same_key("min.insync.replicas"),
        minimum=1,
        idle=_REPLICAS,
    ),
    Definition(
        "unclean.leader.election.enable",
        ValueType.BOOLEAN,
        False,
        "Whether a replica that lacks records may lead: availability against lost records.",
        same_key("unclean.leader.election.enable"),
        idle=_REPLICAS,
    ),
    Definition(
        "leader.replication.throttled.replicas",
        ValueType.LIST,
        (),
        "Replicas whose leaders send at a limited rate: room for clients against slower recovery.",
        idle=_REPLICAS,
    ),
    Definition(
        "follower.replication.throttled.replicas",
        ValueType.LIST,
        (),
        "Replicas that fetch at a limited rate: room for clients against slower recovery.",
        idle=_REPLICAS,
    ),
    Definition(
        "flush.messages",
        ValueType.LONG,
        INT64_MAX,
        "Records after which a broker forces the log to disk: fewer can be lost, each append "
        "costs more.",
        same_key("log.flush.interval.messages"),
        minimum=1,
        idle=_FORCED,
    ),
    Definition(
        "flush.ms",
        ValueType.LONG,
        INT64_MAX,
        "Time after which a broker forces the log to disk: less can be lost, appends cost more.",
        same_key("log.flush.interval.ms"),
        minimum=0,
        idle=_FORCED,
    ),
    Definition(
        "remote.log.copy.disable",
        ValueType.BOOLEAN,
        False,
        "Stops the copying to remote storage and keeps what is there: no new cost, no more room.",
        idle="`clean` and `run` move nothing to remote storage",
    ),
    Definition(
        "remote.log.delete.on.disable",
        ValueType.BOOLEAN,
        False,
        "Deletes what is in remote storage when that is switched off: frees the store, loses "
        "the records.",
        idle="`clean` and `run` move nothing to remote storage",
    ),
)

BROKER_CLUSTER_DEFINITIONS: tuple[Definition, ...] = (
    Definition(
        "log.cleaner.io.buffer.size",
        ValueType.INT,
        524_288,
        "Buffer memory of a broker's cleaner: larger reads fewer times.",
        scope=Scope.CLUSTER,
        minimum=0,
        idle="use --memory",
    ),
    Definition(
        "log.initial.task.delay.ms",
        ValueType.LONG,
        30_000,
        "Pause of a broker before its first retention and checkpoint run: a quicker start "
        "against sooner work.",
        scope=Scope.CLUSTER,
        minimum=0,
        idle="a call begins at once",
    ),
    Definition(
        "log.flush.start.offset.checkpoint.interval.ms",
        ValueType.INT,
        60_000,
        "How often a broker writes the log start offsets: less to redo after a crash against "
        "more writes.",
        scope=Scope.CLUSTER,
        minimum=0,
        idle="checkpoints are written with the change",
    ),
    Definition(
        "log.flush.offset.checkpoint.interval.ms",
        ValueType.INT,
        60_000,
        "How often a broker writes the recovery points: less to recover after a crash against "
        "more writes.",
        scope=Scope.CLUSTER,
        minimum=0,
        idle="checkpoints are written with the change",
    ),
    Definition(
        "producer.id.expiration.check.interval.ms",
        ValueType.INT,
        600_000,
        "How often a broker looks for expired producers: memory freed sooner against more looking.",
        scope=Scope.CLUSTER,
        minimum=1,
        idle="every round looks",
    ),
)
