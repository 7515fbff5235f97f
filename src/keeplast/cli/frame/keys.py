"""Keys of records as people write them, so that none need stand in a list of processes."""

from __future__ import annotations

from pathlib import Path

from keeplast.errors import InvalidError
from keeplast.model.key_text import KeyForm, decode_key

KEY_BYTES_MAX = 1 << 20
KEY_WORDS = (
    "text, hex:DIGITS, base64:DATA, or @FILE whose bytes are the key; text:TEXT is taken as it "
    "stands"
)
FROM_FILE = "@"
FORMS = {"text:": KeyForm.TEXT, "hex:": KeyForm.HEX, "base64:": KeyForm.BASE64}


def parse_key(text: str) -> bytes:
    """Return the bytes of a key; InvalidError, without the key, for what is none.

    A file's bytes are all of it, a newline at its end included only if there are two: editors add
    one, on some systems behind a carriage return.
    """
    if text.startswith(FROM_FILE):
        return _read_key(Path(text.removeprefix(FROM_FILE)).expanduser())
    for prefix, form in FORMS.items():
        if text.startswith(prefix):
            return decode_key(text.removeprefix(prefix), form)
    return decode_key(text, KeyForm.TEXT)


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
    has_newline = data.endswith(b"\n")
    return data.removesuffix(b"\n").removesuffix(b"\r") if has_newline else data
