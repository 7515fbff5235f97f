"""A person's data is gone by a date: a phone number first, then the person (KIP-354's example).

Users are keys, what is known of them are values. John has his phone number taken out, which is a
new value; then he leaves, which is a tombstone. ``max.compaction.lag.ms`` says how long the old
values may stay at most, and keeplast by when they are gone; then it does what is to be done, signs
that no trace was found, and every byte of the directory is searched to see that it is so.

    python examples/gone-by-a-date/forget.py DIRECTORY

The rule: keeplast writes no tombstone. Who is to go is said by the topic, and nobody else.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import keeplast
from keeplast.log.append import LogAppender, NewRecord
from keeplast.log.files import LocalFiles

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
LAG_MS = 7 * DAY_MS
TOPIC, JOHN, JANE, PHONE = "users", b"user-1", b"user-2", b"5555555"
SETTINGS = {
    "cleanup.policy": "compact",
    "max.compaction.lag.ms": str(LAG_MS),
    "delete.retention.ms": "0",
}
"""Readers who come later than a round miss the tombstone: a real topic gives them some hours."""


def append(data: Path, key: bytes, value: bytes | None, at_ms: int) -> None:
    """Write one record, as a producer does."""
    topic = keeplast.topic_config(SETTINGS)
    with LogAppender(data / f"{TOPIC}-0", LocalFiles(), topic=topic) as log:
        log.append([NewRecord(key, value, at_ms)])


def told(*arguments: object) -> dict[str, Any]:
    """Run keeplast and return what it says; its own errors say what is wrong."""
    command = [sys.executable, "-m", "keeplast", *map(str, arguments), "--json"]
    done = subprocess.run(command, check=True, capture_output=True)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def write_keys(apart: Path) -> tuple[Path, Path, Path, Path]:
    """Make what is kept apart: who is to go, what keys are hashed with, and a pair that signs."""
    apart.mkdir()
    leaving, hash_key = apart / "leaving.txt", apart / "hash.key"
    private, public = apart / "sign.pem", apart / "sign.pub"
    leaving.write_bytes(JOHN + b"\n")
    pair = Ed25519PrivateKey.generate()
    for secret in (hash_key, private):
        secret.touch(mode=0o600)
    hash_key.write_bytes(Ed25519PrivateKey.generate().private_bytes_raw().hex().encode())
    private.write_bytes(
        pair.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    public.write_bytes(
        pair.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    return leaving, hash_key, private, public


def places_of(data: Path, what: bytes) -> int:
    """Return in how many files of the directory some bytes are; nothing here is compressed."""
    return sum(what in path.read_bytes() for path in data.rglob("*") if path.is_file())


def main(directory: Path) -> None:
    """Write, ask by when, erase, certify; AssertionError when a date or a trace is not as said."""
    data = directory / "data"
    data.mkdir(parents=True)
    lines = [f'"{name}" = "{value}"\n' for name, value in SETTINGS.items()]
    (data / "keeplast.toml").write_text(
        f'[cluster]\n"log.cleaner.expired.rounds" = true\n[topic."{TOPIC}"]\n' + "".join(lines)
    )
    first_ms = int(time.time() * 1000) - 3 * DAY_MS
    append(data, JOHN, b'{"name": "John Doe", "phone": "%s"}' % PHONE, first_ms)
    append(data, JANE, b'{"name": "Jane Doe", "phone": "6666666"}', first_ms)
    append(data, JOHN, b'{"name": "John Doe"}', first_ms + HOUR_MS)
    (users,) = told("status", data, "--topic", TOPIC)["partitions"]
    late_ms = users["erased_by"]["by_ms"] - first_ms - LAG_MS
    assert 0 <= late_ms < HOUR_MS, late_ms
    assert places_of(data, PHONE) == 1
    print("the old phone number is there, and gone within 7 days and an hour of its being written")

    append(data, JOHN, None, first_ms + DAY_MS)
    leaving, hash_key, private, public = write_keys(directory / "apart")
    asked = ("erase", "keys", data, "--keys", leaving, "--hash-key", hash_key, "--topic", TOPIC)
    (john,) = told(*asked)["keys"]
    assert john["decided"]
    assert john["gone_by_ms"] <= first_ms + LAG_MS + 2 * HOUR_MS
    print(f"John: deleted, {john['places'][0]['records']} records of him are there, with a date")
    (john,) = told(*asked, "--now")["keys"]
    assert not john["is_there"]
    out = directory / "gone.json"
    told("erase", "certify", data, "--hash-key", hash_key, "--sign-key", private, "--out", out)
    proof = ("--public-key", public, "--hash-key", hash_key, "--keys", leaving)
    proven = told("erase", "check", out, data, *proof)
    assert [each["standing"] for each in proven["data"]] == ["same"]
    assert [each["is_within"] for each in proven["keys"]] == [True]
    print("erase --now: no trace is left, and a certificate says so, which holds")

    state = keeplast.open_log(data / f"{TOPIC}-0").state()
    assert list(state) == [JANE]
    left = [places_of(data, what) for what in (JOHN, b"John", PHONE)]
    assert left == [0, 0, 0], left
    print("no byte of the directory has his key, his name or his number; Jane is there as she was")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
