"""Devices report out of order: the state is the greatest version of each, whatever rounds do.

A device numbers its readings and sends them when it has a connection, so that old ones arrive
behind new ones, some twice, and some after the device was given up. The topic ranks by the number,
in the header ``version``. After every batch, and again after every round, the state must be the
greatest version that has arrived; so must the fold of a live consumer, and of one that comes late.

    python examples/devices/devices.py DIRECTORY

The rule: a delete carries a version like every other record, and stays, by the setting
``keep.versioned.tombstones``, so that nothing older brings its key back.
"""

from __future__ import annotations

import random
import struct
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import keeplast
from keeplast.log.append import LogAppender, NewRecord
from keeplast.log.files import LocalFiles
from keeplast.log.lock import locked

DEVICES, READINGS, PARTITIONS, BATCHES, SEED = 40, 25, 2, 6, 280
LATE_MAX, TWICE_SHARE, GIVEN_UP_SHARE = 8, 0.1, 0.2
START_MS, BETWEEN_MS = 1_700_000_000_000, 1_000
TOPIC, HEADER = "readings", "version"
SETTINGS = {
    "cleanup.policy": "compact",
    "compaction.strategy": "header",
    "compaction.strategy.header": HEADER,
    "keep.versioned.tombstones": "true",
}
BY_OFFSET = keeplast.topic_config({"cleanup.policy": "compact"})


@dataclass(frozen=True, slots=True)
class Reading:
    """What a device says with its ``version``-th message; ``value`` None when it is given up."""

    device: int
    version: int
    value: bytes | None

    @property
    def key(self) -> bytes:
        """The device's name."""
        return b"device-%02d" % self.device


Newest = dict[bytes, Reading]
"""The reading with the greatest version that has arrived, by key."""


def arriving(dice: random.Random) -> list[Reading]:
    """Return all readings in the order in which they arrive."""
    sent: list[tuple[float, Reading]] = []
    for device in range(DEVICES):
        is_given_up = dice.random() < GIVEN_UP_SHARE
        for version in range(1, READINGS + 1):
            is_last = is_given_up and version == READINGS
            value = None if is_last else b'{"celsius":%d}' % dice.randrange(-20, 40)
            reading = Reading(device, version, value)
            for _ in range(2 if dice.random() < TWICE_SHARE else 1):
                # A delete that comes at once is what late readings could undo.
                late = 0.0 if is_last else dice.uniform(0, LATE_MAX)
                sent.append((version + late, reading))
    return [reading for _, reading in sorted(sent, key=lambda each: each[0])]


def append(data: Path, readings: Iterable[Reading], at_ms: int) -> None:
    """Write readings as they arrived: ``at_ms`` and later, by the clock of who took them."""
    topic = keeplast.topic_config(SETTINGS)
    with locked(data):
        logs = [
            LogAppender(data / f"{TOPIC}-{number}", LocalFiles(), topic=topic)
            for number in range(PARTITIONS)
        ]
        for number, reading in enumerate(readings):
            header = (HEADER.encode(), struct.pack(">q", reading.version))
            record = NewRecord(reading.key, reading.value, at_ms + number, (header,))
            logs[reading.device % PARTITIONS].append([record])
        for log in logs:
            log.close()


def opened(data: Path) -> list[keeplast.OpenLog]:
    """Return the topic's logs, by partition."""
    return [keeplast.open_log(data / f"{TOPIC}-{number}") for number in range(PARTITIONS)]


def state_of(data: Path, topic: keeplast.TopicConfig | None = None) -> dict[bytes, bytes | None]:
    """Return the topic's state by the settings that lie in the directory, or by others."""
    found: dict[bytes, bytes | None] = {}
    for log in opened(data):
        found |= {key: record.value for key, record in log.state(topic).items()}
    return found


def folded(data: Path, into: keeplast.LiveState) -> keeplast.LiveState:
    """Give a consumer what is behind the place where it has read to."""
    for number, log in enumerate(opened(data)):
        for record in log.records(from_offset=into.positions.get(number, 0)):
            into.apply(
                partition=number, offset=record.offset, timestamp_ms=record.timestamp,
                key=record.key, value=record.value, headers=record.headers,
            )  # fmt: skip
    return into


def values_of(consumer: keeplast.LiveState) -> dict[bytes, bytes | None]:
    """Return what a consumer holds, by key."""
    return {key: record.value for (_, key), record in consumer.items()}


def values_in(newest: Mapping[bytes, Reading]) -> dict[bytes, bytes | None]:
    """Return the state that there must be: no device that was given up."""
    return {key: each.value for key, each in newest.items() if each.value is not None}


def main(directory: Path) -> None:
    """Write, check, clean, check again; AssertionError when an older reading has won."""
    data = directory / "data"
    data.mkdir(parents=True)
    lines = [f'"{name}" = "{value}"\n' for name, value in SETTINGS.items()]
    (data / "keeplast.toml").write_text(f'[topic."{TOPIC}"]\n' + "".join(lines))
    topic = keeplast.topic_config(SETTINGS)
    readings = arriving(random.Random(SEED))
    newest: Newest = {}
    live = keeplast.LiveState(topic)
    size = -(-len(readings) // BATCHES)
    late = wrong_once = 0
    for number in range(BATCHES):
        batch = readings[number * size : (number + 1) * size]
        append(data, batch, START_MS + number * size * BETWEEN_MS)
        for reading in batch:
            known = newest.get(reading.key)
            if known is None or reading.version >= known.version:
                newest[reading.key] = reading
            else:
                late += 1
        expected = values_in(newest)
        by_offset = state_of(data, BY_OFFSET)
        wrong = sum(by_offset.get(key) != value for key, value in expected.items())
        wrong += len(by_offset.keys() - expected.keys())
        wrong_once += wrong > 0
        assert expected == state_of(data), "before the round"
        assert expected == values_of(folded(data, live)), "of the live consumer"
        for log in opened(data):
            report = log.clean(topic, force=True, roll_active=True)
            assert report.rounds[-1].error is None, report.rounds[-1].error
        assert expected == state_of(data), "after the round"
        print(
            f"batch {number + 1}: {len(batch)} readings; {len(expected)} devices, each at its "
            f"greatest version, before the round and after it; by offset {wrong} would be wrong"
        )
    consumer = folded(data, keeplast.LiveState(topic))
    assert values_in(newest) == values_of(consumer), "of the late consumer"
    left = sum(1 for log in opened(data) for _ in log.records())
    gone = sum(each.value is None for each in newest.values())
    assert late, "nothing came late"
    assert gone, "nothing was given up"
    assert wrong_once, "by offset it would be the same"
    print(f"{late} of {len(readings)} readings came behind a newer one; {left} records are left")
    print(f"{gone} devices were given up and did not come back; a late consumer sees the same")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
