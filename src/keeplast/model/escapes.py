"""Makes text and bytes from a log safe to print.

Keys, values and names are written by strangers. A terminal obeys what it is sent, so whatever is no
visible character leaves here as a backslash escape: control characters of both ranges, marks that
turn the direction of writing, separators of lines, halves of surrogate pairs.
"""

from __future__ import annotations

import unicodedata

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def printable(text: str) -> str:
    """Return ``text`` with every character that is not visible written as an escape."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape(c) if unicodedata.category(c) in _HIDDEN else c for c in text)


def shown_bytes(data: bytes | None, limit: int = 60) -> str:
    """Return bytes for a table: quoted text when they are UTF-8, else hex; ``limit`` characters.

    None is ``null``, which is not the empty text.
    """
    if data is None:
        return "null"
    head = bytes(data[: limit * 4])
    try:
        text = head.decode() if len(head) == len(data) else head.decode(errors="ignore")
    except UnicodeDecodeError:
        shown = "0x" + head.hex()
    else:
        if len(head) < len(data) and len(text.encode()) < len(head) - 3:
            shown = "0x" + head.hex()
        else:
            shown = '"' + printable(text).replace('"', '\\"') + '"'
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def _escape(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
