"""Keys that must go: as they are written, hashed, requested, and named in signed statements. Pure.

What a reader must not break: a hash key, and a key of a record, stand in no ``repr``, error or
document.

*Written*: a person writes a key of a record as text, hexadecimal digits or base64.

*Hashed*: requests and certificates name keys of records by HMAC-SHA-256 with the operator's hash
key. Its holder can see whether a key is meant. Without the hash key that cannot be seen, not even
by trying every key that there may be.

*Requested*: a request that keys be gone names keys by their keyed hashes alone.

*Signed*: a statement is written in one form, so that every change to it shows. It is JSON with
sorted names, one space of indent, ASCII alone, and a newline at the end. A reader compares the
bytes with those that it would have written. A name that stands twice, another order, a space more
are found like any other edit.
"""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from msgspec import Struct

from keeplast.errors import InvalidError
from keeplast.model.partition import TopicPartition


class KeyForm(StrEnum):
    """How a key is written."""

    TEXT = "text"
    HEX = "hex"
    BASE64 = "base64"


def decode_key(text: str, form: KeyForm) -> bytes:
    """Return the bytes of a key; InvalidError for what is none in that form."""
    if form is KeyForm.HEX:
        try:
            return bytes.fromhex(text)
        except ValueError:
            raise InvalidError(
                "a key in hex is pairs of hexadecimal digits; write hex:0a1b", code="K136"
            ) from None
    if form is KeyForm.BASE64:
        try:
            return base64.b64decode(text, validate=True)
        except ValueError as error:
            raise InvalidError(
                f"a key in base64 cannot be read; correct it. error={error}", code="K136"
            ) from None
    return text.encode("utf-8", "surrogateescape")


ALGORITHM = "HMAC-SHA-256"
HASH_HEX = 64
HASH_KEY_BYTES_MIN = 32
HASH_KEY_BYTES_MAX = 4096
_OF_KEY = b"keeplast erasure key\n"
_OF_CHECK = b"keeplast erasure check\n"
_CHECK_HEX = 16


@dataclass(frozen=True, slots=True)
class KeyHasher:
    """Hashes keys with ``hash_key``; InvalidError for one that is too short to keep anything."""

    hash_key: bytes = field(repr=False)

    def __post_init__(self) -> None:
        """Refuse what could be guessed."""
        if not HASH_KEY_BYTES_MIN <= len(self.hash_key) <= HASH_KEY_BYTES_MAX:
            raise InvalidError(
                f"a hash key has {HASH_KEY_BYTES_MIN} to {HASH_KEY_BYTES_MAX} bytes; make one with "
                f"openssl rand -hex 32. bytes={len(self.hash_key)}",
                code="K613",
            )

    def hash_of(self, key: bytes) -> str:
        """Return the hash of a record's key, 64 hexadecimal digits."""
        return hmac.digest(self.hash_key, _OF_KEY + key, "sha256").hex()

    @property
    def check(self) -> str:
        """Return what distinguishes this hash key from another one; says nothing else about it."""
        return hmac.digest(self.hash_key, _OF_CHECK, "sha256").hex()[:_CHECK_HEX]


KEYS_MAX = 10_000
"""Keys of one request; the records of all of them are in memory while one log is described."""


class SegmentDigest(Struct, frozen=True, order=True):
    """A ``.log`` file of a partition: its name, the bytes that count, and their SHA-256."""

    partition: TopicPartition
    name: str
    size_bytes: int
    sha256: str


class ErasureRequest(Struct, frozen=True):
    """Keys that are to be gone from ``topics``; without any, from every compacted topic.

    ``keys`` are keyed hashes, sorted, made with the hash key whose check is ``hash_check``.
    ``before`` are the segments in which they were found when it was made, at ``created_ms``.
    """

    request_id: str
    created_ms: int
    topics: tuple[str, ...]
    hash_check: str
    keys: tuple[str, ...]
    before: tuple[SegmentDigest, ...] = ()

    @property
    def about(self) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
        """Return what is asked for; a request for the same is the same."""
        return self.hash_check, self.topics, self.keys

    def require_check(self, check: str) -> None:
        """Raise InvalidError unless the hash key with this check is the one it was made with."""
        if check != self.hash_check:
            raise InvalidError(
                "the hash key is not the one that the request was made with; give that one. "
                f"request={self.request_id} hash_key={check} wanted={self.hash_check}",
                code="K613",
            )


class KeptElsewhere(Struct, frozen=True):
    """A request that is kept in another list than its log directory's: its id, and its topics."""

    request_id: str
    topics: tuple[str, ...]


class RequestBook(Struct, frozen=True):
    """A list of requests, oldest first.

    Those ``elsewhere`` are named only so that nothing is put back that they want gone.
    """

    requests: tuple[ErasureRequest, ...] = ()
    elsewhere: tuple[KeptElsewhere, ...] = ()

    def wants(self, topic: str) -> str | None:
        """Return the id of a request that wants keys of ``topic`` gone, None without."""
        every: Sequence[ErasureRequest | KeptElsewhere] = (*self.requests, *self.elsewhere)
        return next((e.request_id for e in every if not e.topics or topic in e.topics), None)


def statement_bytes(statement: dict[str, Any]) -> bytes:
    """Return the bytes of a statement; what is signed, and what lies in a file."""
    return json.dumps(statement, sort_keys=True, indent=1, ensure_ascii=True).encode() + b"\n"


def read_statement(data: bytes) -> dict[str, Any]:
    """Return the statement in ``data``; InvalidError unless it is written as it would be here."""
    try:
        found = json.loads(data)
        is_ours = isinstance(found, dict) and statement_bytes(found) == data
    except (ValueError, RecursionError) as error:
        raise InvalidError(f"not a statement of keeplast. problem={error}", code="K617") from None
    if not is_ours:
        raise InvalidError(
            "it is not as it was written: something in it was edited, added, doubled or put in "
            "another order",
            code="K617",
        )
    return dict(found)
