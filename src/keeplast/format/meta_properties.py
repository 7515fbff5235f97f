"""The ``meta.properties`` file of a data directory: which cluster and node it belongs to.

Java properties (:mod:`keeplast.format.properties`). Version 1 needs ``cluster.id`` and
``node.id``; version 0, also when the version is missing, has ``broker.id``. Keys that are not ours
are ignored.
Answers to ``MetaProperties``; formats.md section 2.10.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from keeplast.errors import CorruptError
from keeplast.format.checksum import Buffer
from keeplast.format.properties import decode_properties
from keeplast.model.partition import INT32_MAX

VERSIONS = (0, 1)

_INTEGER = re.compile(r"[+-]?[0-9]{1,10}\Z")


class MetaProperties(Struct, frozen=True):
    """The identity of a data directory; ``directory_id`` in its 22-character form."""

    version: int
    cluster_id: str | None
    node_id: int | None
    directory_id: str | None = None


def decode(data: Buffer) -> MetaProperties:
    """Return the identity; CorruptError for an unknown version, or a field missing or no number."""
    properties = decode_properties(data)
    version = _integer(properties, "version") or 0
    if version not in VERSIONS:
        raise CorruptError(
            "unknown version of meta.properties",
            position=0,
            expected="0 or 1",
            found=version,
            code="K221",
        )
    node_key = "node.id" if version else "broker.id"
    if version:
        for key in ("cluster.id", node_key):
            if key not in properties:
                raise CorruptError(
                    "key missing in meta.properties",
                    position=0,
                    expected=key,
                    found="nothing",
                    code="K221",
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
        code="K221",
    )
