"""The keyed hash by which requests and certificates name keys of records. Pure.

HMAC-SHA-256 with the operator's hash key: whoever has it can tell whether a key is meant, and
nobody else can, not even by trying every key that there may be.

The rule that a reader must not break: a hash key, and a key of a record, stand in no ``repr``,
error or document.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field

from keeplast.errors import InvalidError

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
                f"openssl rand -hex 32. bytes={len(self.hash_key)}"
            )

    def hash_of(self, key: bytes) -> str:
        """Return the hash of a record's key, 64 hexadecimal digits."""
        return hmac.digest(self.hash_key, _OF_KEY + key, "sha256").hex()

    @property
    def check(self) -> str:
        """Return by what this hash key is told from another one; says nothing else about it."""
        return hmac.digest(self.hash_key, _OF_CHECK, "sha256").hex()[:_CHECK_HEX]
