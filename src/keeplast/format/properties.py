r"""Java properties, as ``java.util.Properties`` reads them: the form of brokers' small files.

ISO 8859-1, ``#`` and ``!`` comments, key and value separated by ``=``, ``:`` or white space. A
backslash escapes the next character (``\uXXXX``, ``\t``, ``\n``, ``\f``, ``\r``) or joins the next
line. Values may be passwords: no error says more of the text than a malformed escape. Answers to
``Properties.load``; formats.md section 2.10.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

from keeplast.errors import CorruptError
from keeplast.format.checksum import Buffer

_LINE = re.compile(r"([^\r\n]*)(?:\r\n|\n|\r|\Z)")
_SPACE = " \t\f"
_KEY = re.compile(r"(?:[^=: \t\f\\]|\\.?)*", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:(u)([0-9A-Fa-f]{4})?|(.?))", re.DOTALL)
_ESCAPES = {"t": "\t", "n": "\n", "f": "\f", "r": "\r"}


class Property(Struct, frozen=True):
    """A key and its value, and the line (from 1 on) in which they begin."""

    key: str
    value: str
    line: int


def decode_properties(data: Buffer) -> dict[str, str]:
    """Return every key and value; of a repeated key the last one. CorruptError for an escape."""
    return {each.key: each.value for each in read_properties(data)}


def read_properties(data: Buffer) -> Iterator[Property]:
    """Yield every key with its value, in order and with repetitions.

    CorruptError with the position of the line, for an escape that is none.
    """
    position = 0
    logical: str | None = None
    start = first = 0
    text = bytes(data).decode("latin-1")
    for number, line in enumerate(_LINE.finditer(text), start=1):
        part = line[1].lstrip(_SPACE)
        position, line_start = line.end(), position
        if logical is None:
            if not part or part[0] in "#!":
                continue
            logical, start, first = "", line_start, number
        backslashes = len(part) - len(part.rstrip("\\"))
        if backslashes % 2:
            # An odd number: the last one joins the next line.
            logical += part[:-1]
            if not logical and line.end() < len(text):
                # A backslash alone joins nothing to the next line, which may be a comment.
                logical = None
            continue
        yield _property(logical + part, start, first)
        logical = None
    if logical is not None:
        yield _property(logical, start, first)


def _property(line: str, position: int, number: int) -> Property:
    match = _KEY.match(line)
    key = match[0] if match else ""
    rest = line[len(key) :].lstrip(_SPACE)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_SPACE)
    return Property(_unescape(key, position), _unescape(rest, position), number)


def _unescape(text: str, position: int) -> str:
    def character(match: re.Match[str]) -> str:
        if not match[1]:
            return _ESCAPES.get(match[3], match[3])
        if not match[2]:
            raise CorruptError(
                "malformed escape in properties",
                position=position,
                expected="\\uXXXX",
                found="\\u and something else",
                code="K124",
            )
        return chr(int(match[2], 16))

    units = _ESCAPE.sub(character, text).encode("utf-16-be", "surrogatepass")
    # Java escapes a character beyond 16 bits as two; half of one can be printed nowhere.
    return units.decode("utf-16-be", "replace")
