"""Kafka's own console consumer, in Java, as a second opinion on what a consumer is given.

Shares no code with librdkafka. Keys and values are bytes, shown as Kafka's ``Bytes.toString`` shows
them: what is not printable, and the backslash, as ``\\xHH``.
"""

from __future__ import annotations

import subprocess

from msgspec import Struct

from tests.kafka.broker import HEAP, QUICK_START, broker_libs
from tests.support.live_rounds import Got

STALL_MS = 120_000
"""Without a record for so long it ends, and what it has is too little."""
_BYTES = "org.apache.kafka.common.serialization.BytesDeserializer"
_SHOWN = ("timestamp", "offset", "headers", "key", "value")


class Shown(Struct, frozen=True):
    """A record as the console consumer prints it."""

    timestamp: int
    offset: int
    headers: str
    key: str
    value: str


def read_with_java(version: str, address: str, topic: str, count: int, level: str) -> list[Shown]:
    """Return the first ``count`` records from the start of a topic, in an isolation level."""
    shown = [f"print.{each}=true" for each in _SHOWN]
    how = [*shown, f"key.deserializer={_BYTES}", f"value.deserializer={_BYTES}"]
    option = "--property" if version.startswith("3") else "--formatter-property"
    command = [
        "java", HEAP, *QUICK_START, "-cp", f"{broker_libs(version)}/*",
        "org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", address,
        "--topic", topic, "--from-beginning", "--isolation-level", level,
        "--max-messages", str(count), "--timeout-ms", str(STALL_MS),
        *(word for each in how for word in (option, each)),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stderr
    return [_decoded(line) for line in done.stdout.splitlines()]


def as_shown(record: Got) -> Shown:
    """Return what the console consumer prints of a record that another consumer was given."""
    headers = ",".join(f"{name}:{_text(value)}" for name, value in record.headers)
    return Shown(
        record.timestamp, record.offset, headers or "NO_HEADERS", _text(record.key),
        _text(record.value),
    )  # fmt: skip


def _decoded(line: str) -> Shown:
    timestamp, offset, headers, key, value = line.split("\t")
    return Shown(
        int(timestamp.partition(":")[2]), int(offset.partition(":")[2]), headers, key, value
    )


def _text(data: bytes | None) -> str:
    if data is None:
        return "null"
    return "".join(
        chr(each) if 0x20 <= each <= 0x7E and each != 0x5C else f"\\x{each:02X}" for each in data
    )
