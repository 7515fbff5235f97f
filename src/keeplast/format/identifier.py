"""The text form of Kafka's 16-byte ids: URL-safe base64 without padding, 22 characters.

Answers to ``org.apache.kafka.common.Uuid``; formats.md section 0.
"""

from __future__ import annotations

import base64
import re

from keeplast.errors import CorruptError, invariant

ID_BYTES = 16
NO_ID = bytes(ID_BYTES)
"""The id that stands for none."""

_TEXT = re.compile(r"([A-Za-z0-9_-]{22})={0,2}\Z")
_PADDING = "=="
_SHOWN_MAX = 48


def decode_id(text: str, *, position: int = 0) -> bytes:
    """Return the 16 bytes; ``position`` is put into the :class:`CorruptError`."""
    match = _TEXT.match(text)
    if match is None:
        raise CorruptError(
            "not an id",
            position=position,
            expected="22 characters of URL-safe base64",
            found=repr(text[:_SHOWN_MAX]),
        )
    return base64.urlsafe_b64decode(match[1] + _PADDING)


def encode_id(raw: bytes) -> str:
    """Return the 22 characters of a 16-byte id: base64 for URLs, without padding."""
    invariant(len(raw) == ID_BYTES, f"not an id of {ID_BYTES} bytes. size={len(raw)}")
    return base64.urlsafe_b64encode(raw).decode("ascii").rstrip("=")
