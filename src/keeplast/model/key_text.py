"""A key of a record as a person writes it: text, hexadecimal digits or base64. Pure.

What a reader must not break: no error has the key in it.
"""

from __future__ import annotations

import base64
from enum import StrEnum

from keeplast.errors import InvalidError


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
            raise InvalidError("a key in hex is pairs of hexadecimal digits.") from None
    if form is KeyForm.BASE64:
        try:
            return base64.b64decode(text, validate=True)
        except ValueError as error:
            raise InvalidError(f"a key in base64 cannot be read. error={error}") from None
    return text.encode("utf-8", "surrogateescape")
