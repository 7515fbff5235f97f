"""Keys of records as people write them, so that none need stand in a list of processes."""

from __future__ import annotations

import base64
import binascii
from pathlib import Path

from keeplast.errors import InvalidError

KEY_BYTES_MAX = 1 << 20
KEY_WORDS = (
    "text, hex:DIGITS, base64:DATA, or @FILE whose bytes are the key; text:TEXT is taken as it "
    "stands"
)
FROM_FILE, TEXT, HEX, BASE64 = "@", "text:", "hex:", "base64:"


def parse_key(text: str) -> bytes:
    """Return the bytes of a key; InvalidError, without the key, for what is none.

    A file's bytes are all of it, a newline at its end included only if there are two: editors add
    one.
    """
    if text.startswith(FROM_FILE):
        return _read_key(Path(text.removeprefix(FROM_FILE)).expanduser())
    if text.startswith(HEX):
        try:
            return bytes.fromhex(text.removeprefix(HEX))
        except ValueError:
            raise InvalidError("a key after hex: is pairs of hexadecimal digits.") from None
    if text.startswith(BASE64):
        try:
            return base64.b64decode(text.removeprefix(BASE64), validate=True)
        except binascii.Error as error:
            raise InvalidError(f"a key after base64: cannot be read. error={error}") from None
    return text.removeprefix(TEXT).encode("utf-8", "surrogateescape")


def _read_key(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(KEY_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidError(
            f"the file of a key cannot be read; name another one. path={path} "
            f"error={(error.strerror or str(error)).lower()}"
        ) from None
    if len(data) > KEY_BYTES_MAX:
        raise InvalidError(f"the file is larger than a key. path={path} limit={KEY_BYTES_MAX}")
    return data.removesuffix(b"\n")
