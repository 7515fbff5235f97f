"""Random logs, and random ways to clean them, from a seed: same seed, same case.

A log is a script of appends that ``LogWriter.java`` carries out with Kafka's own classes. Producer
ids, epochs and sequences stay consistent, because Kafka refuses an append that breaks them; all
else is left to chance: codecs, old magics, timestamps that run backwards, gaps between offsets,
tombstones, missing keys, transactions that stay open.
"""

from __future__ import annotations

import random
from typing import Any

from msgspec import Struct

Json = dict[str, Any]

START_MS = 1_700_000_000_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
FIRST_TRANSACTIONAL_ID = 1000
FIRST_IDEMPOTENT_ID = 2000
SEQUENCE_COUNT = 1 << 31
DAY_MS = 86_400_000
LARGE_MAP: Json = {"map_bytes": 1 << 20, "load_factor": 0.9}
MAP_ENTRY_BYTES = 24


class Features(Struct, frozen=True):
    """What kind of log it is; every field is one roll of the dice."""

    codecs: tuple[str, ...]
    key_count: int
    key_kind: str
    value_bytes: int
    tombstone_rate: float
    keyless_rate: float
    header_rate: float
    timestamps: str
    idempotent_producers: int
    transactional_producers: int
    abort_rate: float
    old_magic_rate: float
    gap_rate: float
    epoch_rate: float
    batch_records_max: int
    leader_change_rate: float
    producers_expire: bool

    @staticmethod
    def draw(dice: random.Random) -> Features:
        """Return features drawn with ``dice``."""
        return Features(
            codecs=tuple(dice.sample(CODECS, dice.choice([1, 2, 5]))),
            key_count=dice.choice([3, 12, 60, 300]),
            key_kind=dice.choice(["short", "short", "long", "binary"]),
            value_bytes=dice.choice([8, 40, 200, 200, 200, 3000]),
            tombstone_rate=dice.choice([0, 0.1, 0.4]),
            keyless_rate=dice.choice([0, 0, 0, 0.05]),
            header_rate=dice.choice([0, 0.2]),
            timestamps=dice.choice(["create", "create", "back", "log", "none", "mixed"]),
            idempotent_producers=dice.choice([0, 0, 2, 4]),
            transactional_producers=dice.choice([0, 0, 1, 3]),
            abort_rate=dice.choice([0.2, 0.6]),
            old_magic_rate=dice.choice([0, 0, 0, 0, 0.3]),
            gap_rate=dice.choice([0, 0, 0.05]),
            epoch_rate=dice.choice([0, 0.03]),
            batch_records_max=dice.choice([1, 4, 20]),
            leader_change_rate=dice.choice([0, 0, 0.02]),
            producers_expire=dice.random() < 0.15,
        )


class Script:
    """Writes appends one after another and keeps what producers have to remember."""

    def __init__(self, dice: random.Random, features: Features) -> None:
        """Start an empty log."""
        self.now_ms = START_MS
        self.next_offset = 0
        self._dice = dice
        self._features = features
        self._leader_epoch = 0
        self._sequences: dict[int, int] = {}
        self._epochs: dict[int, int] = {}
        self._open: dict[int, int] = {}
        self._value_seed = dice.randrange(1 << 30)

    def appends(self, count: int, roll_every: int) -> list[Json]:
        """Return about ``count`` appends; a roll every ``roll_every`` of them, 0 for none."""
        operations: list[Json] = []
        for _ in range(count):
            if self._dice.random() < self._features.epoch_rate:
                self._leader_epoch += self._dice.randint(1, 3)
            if self._dice.random() < self._features.leader_change_rate:
                operations.append(self._leader_change())
            if roll_every and self._dice.random() < 1 / roll_every:
                operations.append({"t": "roll"})
            operations.append(self._append())
        return operations

    @property
    def first_unstable_offset(self) -> int:
        """Where the oldest open transaction begins, or the log end."""
        return min(self._open.values(), default=self.next_offset)

    def ends(self) -> list[Json]:
        """Return the markers that end every open transaction."""
        return [self._marker(producer_id) for producer_id in sorted(self._open)]

    def _append(self) -> Json:
        chance = self._dice.random()
        if self._features.transactional_producers and chance < 0.5:
            return self._transactional()
        if self._features.idempotent_producers and chance < 0.75:
            producers = self._features.idempotent_producers
            producer_id = FIRST_IDEMPOTENT_ID + self._dice.randrange(producers)
            self._sequences.setdefault(producer_id, 0)
            self._epochs.setdefault(producer_id, self._dice.choice([0, 5]))
            if self._dice.random() < 0.03:
                self._raise_epoch(producer_id)
            return self._batch(producer_id, is_transactional=False)
        return self._batch(None, is_transactional=False)

    def _transactional(self) -> Json:
        producers = self._features.transactional_producers
        producer_id = FIRST_TRANSACTIONAL_ID + self._dice.randrange(producers)
        # Some start just below the greatest sequence number, so that it wraps.
        start = self._dice.choice([0, SEQUENCE_COUNT - 6])
        self._sequences.setdefault(producer_id, start)
        self._epochs.setdefault(producer_id, 0)
        ends = producer_id in self._open and self._dice.random() < 0.4
        is_empty_transaction = self._dice.random() < 0.04
        if ends or is_empty_transaction:
            return self._marker(producer_id)
        operation = self._batch(producer_id, is_transactional=True)
        self._open.setdefault(producer_id, operation["base"])
        return operation

    def _raise_epoch(self, producer_id: int) -> None:
        self._epochs[producer_id] += 1
        self._sequences[producer_id] = 0

    def _leader_change(self) -> Json:
        self.next_offset += 1
        return {
            "t": "leader",
            "ts": self.now_ms,
            "le": self._leader_epoch,
            "base": self.next_offset - 1,
        }

    def _marker(self, producer_id: int) -> Json:
        self.now_ms += self._dice.randint(0, 20)
        self._open.pop(producer_id, None)
        # Transactions of version 2 raise the epoch together with the marker.
        if self._dice.random() < 0.3:
            self._raise_epoch(producer_id)
        self.next_offset += 1
        is_abort = self._dice.random() < self._features.abort_rate
        return {
            "t": "m",
            "pid": producer_id,
            "pe": self._epochs[producer_id],
            "type": "abort" if is_abort else "commit",
            "ts": self.now_ms,
            "le": self._leader_epoch,
            "base": self.next_offset - 1,
        }

    def _batch(self, producer_id: int | None, *, is_transactional: bool) -> Json:
        dice, features = self._dice, self._features
        count = dice.randint(1, features.batch_records_max)
        mode = features.timestamps
        if mode == "mixed":
            mode = dice.choice(["create", "back", "log", "none"])
        operation: Json = {
            "t": "b",
            "codec": dice.choice(features.codecs),
            "recs": [self._record(mode) for _ in range(count)],
            "le": self._leader_epoch,
        }
        if mode == "log":
            operation |= {"ts_type": "log", "append_time": self.now_ms}
        is_old = producer_id is None and dice.random() < features.old_magic_rate
        if is_old:
            self._make_old(operation)
        if producer_id is not None:
            operation |= {
                "pid": producer_id,
                "pe": self._epochs[producer_id],
                "seq": self._sequences[producer_id],
                "txn": is_transactional,
            }
            sequence = self._sequences[producer_id] + count
            self._sequences[producer_id] = sequence % SEQUENCE_COUNT
        if not is_old and dice.random() < features.gap_rate:
            self.next_offset += dice.randint(1, 50)
        operation["base"] = self.next_offset
        self.next_offset += count
        return operation

    def _make_old(self, operation: Json) -> None:
        """Turn a batch into a message set of magic 0 or 1, with what those can hold."""
        operation["magic"] = self._dice.choice([0, 1])
        del operation["le"]
        codecs = [codec for codec in self._features.codecs if codec != "zstd"] or ["none"]
        operation["codec"] = self._dice.choice(codecs)
        for record in operation["recs"]:
            del record[3:]
        if operation["magic"] == 0:
            operation.pop("ts_type", None)
            operation.pop("append_time", None)
            # Kafka's writer has no lz4 frames of magic 0: their checksum is a known defect.
            if operation["codec"] == "lz4":
                operation["codec"] = "none"

    def _record(self, mode: str) -> list[Any]:
        dice = self._dice
        self.now_ms += dice.randint(0, 40)
        timestamp = {
            "create": self.now_ms,
            "back": self.now_ms - dice.randint(0, 100_000),
            "log": self.now_ms - dice.randint(0, 999),
            "none": -1,
        }[mode]
        record: list[Any] = [self._key(), self._value(), timestamp]
        if dice.random() < self._features.header_rate:
            record.append([self._header() for _ in range(dice.randint(1, 3))])
        return record

    def _header(self) -> list[Any]:
        key = self._dice.choice(["ver", "h", ""])
        value = self._dice.choice([None, "", "x", {"n": 8, "seed": self._dice.randrange(99)}])
        return [key, value]

    def _key(self) -> str | Json | None:
        features = self._features
        if self._dice.random() < features.keyless_rate:
            return None
        # Squared, so that few keys are written often and many rarely.
        number = int(features.key_count * self._dice.random() ** 2)
        if number == 0 and features.key_count > 10:
            return ""
        if features.key_kind == "short":
            return f"k{number}"
        if features.key_kind == "binary":
            return {"x": f"{number & 255:02x}" * (1 + number % 7) + "00ff"}
        if number % 5 == 0:
            return {"n": (number * 37) % 1025, "seed": number, "alpha": 6}
        return f"key-{number:06d}"

    def _value(self) -> str | Json | None:
        if self._dice.random() < self._features.tombstone_rate:
            return None
        if self._dice.random() < 0.05:
            return ""
        self._value_seed += 1
        size = int(self._features.value_bytes * (0.2 + 1.6 * self._dice.random()))
        return {"n": size, "seed": self._value_seed, "alpha": 4}


def random_case(name: str, seed: int, *, size: int | None = None) -> Json:
    """Return the case that ``seed`` gives; ``size`` is the number of appends, else drawn."""
    dice = random.Random(seed)
    features = Features.draw(dice)
    script = Script(dice, features)
    count = size or dice.choice([8, 30, 80])
    config = _config(dice)
    roll_every = dice.choice([0, 5, 15])
    stages, was_cleaned = _stages(dice, script, count, roll_every)
    params: Json = {"rounds": _rounds(dice, script, features)}
    if was_cleaned and dice.random() < 0.4:
        # No cleaner ever gets past an open transaction.
        highest = min(script.next_offset // 2, script.first_unstable_offset)
        params["checkpoint"] = dice.randrange(max(1, highest))
    if dice.random() < 0.1:
        params["log_start"] = dice.randrange(1, max(2, script.next_offset // 2))
    return {
        "name": name,
        "kind": "random",
        "about": f"random log; {features}",
        "seed": seed,
        "config": config,
        "now": START_MS,
        "stages": stages,
        "params": params,
    }


def _config(dice: random.Random) -> Json:
    config: Json = {
        "segment.bytes": dice.choice([700, 2000, 6000, 20000, 1 << 20]),
        "delete.retention.ms": dice.choice([0, 1000, DAY_MS, DAY_MS, 2**63 - 1]),
        "index.interval.bytes": dice.choice([0, 512, 4096]),
        "segment.index.bytes": dice.choice([1048576, 1048576, 65536, 480]),
    }
    if dice.random() < 0.2:
        config["min.compaction.lag.ms"] = dice.choice([200, 2000])
    if dice.random() < 0.2:
        config["max.compaction.lag.ms"] = dice.choice([3000, 100000])
    if dice.random() < 0.1:
        config["min.cleanable.dirty.ratio"] = dice.choice([0.2, 0.5, 0.9])
    return config


def _stages(
    dice: random.Random, script: Script, count: int, roll_every: int
) -> tuple[list[Json], bool]:
    """Return how the log comes to be: appends, sometimes with earlier rounds between them."""
    operations = script.appends(count, roll_every)
    if dice.random() < 0.6:
        operations.append({"t": "roll"})
    stages: list[Json] = [{"write": operations, "now": START_MS, "mtime": START_MS + 1}]
    earlier_rounds = dice.choice([0, 0, 1, 2])
    for _ in range(earlier_rounds):
        delay_ms = dice.choice([0, 500, DAY_MS + 3_600_000])
        rounds = [{"now": script.now_ms + delay_ms, **LARGE_MAP, **_buffers(dice)}]
        stages.append({"clean": {"rounds": rounds}})
        script.now_ms += delay_ms
        operations = script.appends(max(3, count // 3), roll_every)
        if dice.random() < 0.5:
            operations += script.ends()
        operations.append({"t": "roll"})
        stages.append({"write": operations, "now": script.now_ms, "mtime": script.now_ms})
    if dice.random() < 0.4:
        operations = [*script.ends(), {"t": "roll"}]
        stages.append({"write": operations, "now": script.now_ms, "mtime": script.now_ms})
    return stages, earlier_rounds > 0


def _rounds(dice: random.Random, script: Script, features: Features) -> list[Json]:
    """Return the rounds that are recorded; the later ones let delete horizons expire."""
    wait_ms = 100_000_000 if features.producers_expire else dice.choice([0, 10, 1500])
    now_ms = script.now_ms + wait_ms
    key_map = LARGE_MAP
    if dice.random() < 0.45:
        key_map = {
            "map_bytes": MAP_ENTRY_BYTES * dice.choice([2, 4, 8, 20, 60]),
            "load_factor": dice.choice([0.9, 1.0, 0.5, 0.75]),
        }
    first: Json = {"now": now_ms, **key_map, **_buffers(dice)}
    if dice.random() < 0.5:
        first["repeat"] = 5
    if dice.random() < 0.1:
        first["high_watermark"] = dice.randrange(script.next_offset + 1)
    if dice.random() < 0.2:
        first["honour_ratio"] = True
    rounds = [first]
    for _ in range(dice.choice([0, 1, 1, 2])):
        now_ms += dice.choice([0, 1000, DAY_MS, DAY_MS + 1])
        again: Json = {"now": now_ms, "first_dirty": 0, **LARGE_MAP, **_buffers(dice)}
        if dice.random() < 0.3:
            again["config"] = {"segment.bytes": dice.choice([3000, 1 << 20])}
        rounds.append(again)
    return rounds


def _buffers(dice: random.Random) -> Json:
    return {"io_buffer": dice.choice([256, 1000, 4000, 262144])}
