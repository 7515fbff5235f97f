r"""The ``meta.properties`` file of a data directory: which cluster and node it belongs to.

Java properties, as ``java.util.Properties`` reads them: ISO 8859-1, ``#`` and ``!`` comments, key
and value separated by ``=``, ``:`` or white space, a backslash escaping the next character
(``\uXXXX``, ``\t``, ``\n``, ``\f``, ``\r``) or joining the next line. Of a repeated key the last
counts. Version 1 needs ``cluster.id`` and ``node.id``; version 0, also when the version is
missing, has ``broker.id``. Keys that are not ours are ignored.
Answers to ``MetaProperties``; formats.md section 2.10.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from keeplast.errors import CorruptError
from keeplast.format.checksum import Buffer
from keeplast.model.offsets import INT32_MAX

VERSIONS = (0, 1)

_LINE = re.compile(r"([^\r\n]*)(?:\r\n|\n|\r|\Z)")
_SPACE = " \t\f"
_KEY = re.compile(r"(?:[^=: \t\f\\]|\\.?)*", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:(u)([0-9A-Fa-f]{4})?|(.?))", re.DOTALL)
_ESCAPES = {"t": "\t", "n": "\n", "f": "\f", "r": "\r"}
_INTEGER = re.compile(r"[+-]?[0-9]{1,10}\Z")


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """The identity of a data directory; ``directory_id`` in its 22-character form."""

    version: int
    cluster_id: str | None
    node_id: int | None
    directory_id: str | None = None


def decode(data: Buffer) -> MetaProperties:
    """Return the identity or raise :class:`CorruptError`."""
    properties = decode_properties(data)
    version = _integer(properties, "version") or 0
    if version not in VERSIONS:
        raise CorruptError(
            "unknown version of meta.properties", position=0, expected="0 or 1", found=version
        )
    node_key = "node.id" if version else "broker.id"
    if version:
        for key in ("cluster.id", node_key):
            if key not in properties:
                raise CorruptError(
                    "key missing in meta.properties", position=0, expected=key, found="nothing"
                )
    return MetaProperties(
        version=version,
        cluster_id=properties.get("cluster.id"),
        node_id=_integer(properties, node_key),
        directory_id=properties.get("directory.id"),
    )


def encode(properties: MetaProperties) -> bytes:
    """Return the file's bytes; what is None is left out."""
    fields = {
        "version": properties.version,
        "cluster.id": properties.cluster_id,
        "node.id" if properties.version else "broker.id": properties.node_id,
        "directory.id": properties.directory_id,
    }
    lines = [f"{key}={_escape(str(value))}\n" for key, value in fields.items() if value is not None]
    return "".join(lines).encode("latin-1")


def decode_properties(data: Buffer) -> dict[str, str]:
    """Return every key and value of Java properties."""
    properties: dict[str, str] = {}
    position = 0
    logical: str | None = None
    start = 0
    for line in _LINE.finditer(bytes(data).decode("latin-1")):
        part = line[1].lstrip(_SPACE)
        position, line_start = line.end(), position
        if logical is None:
            if not part or part[0] in "#!":
                continue
            logical, start = "", line_start
        backslashes = len(part) - len(part.rstrip("\\"))
        if backslashes % 2:
            # An odd number: the last one joins the next line.
            logical += part[:-1]
            continue
        _store(properties, logical + part, start)
        logical = None
    if logical is not None:
        _store(properties, logical, start)
    return properties


def _store(properties: dict[str, str], line: str, position: int) -> None:
    match = _KEY.match(line)
    key = match[0] if match else ""
    rest = line[len(key) :].lstrip(_SPACE)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_SPACE)
    properties[_unescape(key, position)] = _unescape(rest, position)


def _unescape(text: str, position: int) -> str:
    def character(match: re.Match[str]) -> str:
        if not match[1]:
            return _ESCAPES.get(match[3], match[3])
        if not match[2]:
            raise CorruptError(
                "malformed escape in properties",
                position=position,
                expected="\\uXXXX",
                found=repr(text[match.start() : match.start() + 6]),
            )
        return chr(int(match[2], 16))

    units = _ESCAPE.sub(character, text).encode("utf-16-be", "surrogatepass")
    # Java escapes a character beyond 16 bits as two; half of one can be printed nowhere.
    return units.decode("utf-16-be", "replace")


def _escape(text: str) -> str:
    out = []
    for index, character in enumerate(text):
        code = ord(character)
        if character in "\\#!=:" or (character == " " and index == 0):
            out.append(f"\\{character}")
        elif 0x20 <= code < 0x7F:
            out.append(character)
        else:
            units = character.encode("utf-16-be", "surrogatepass").hex()
            out += [f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4)]
    return "".join(out)


def _integer(properties: Mapping[str, str], key: str) -> int | None:
    text = properties.get(key)
    if text is None:
        return None
    if _INTEGER.match(text) and -INT32_MAX - 1 <= int(text) <= INT32_MAX:
        return int(text)
    raise CorruptError(
        "not a number in meta.properties",
        position=0,
        expected=f"{key}=integer",
        found=repr(text[:60]),
    )
