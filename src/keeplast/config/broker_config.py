"""What a broker's ``server.properties`` says of its cluster's settings.

It is the weakest source: below all that somebody says to keeplast, and below the dynamic settings
in the directory's metadata log, as on the broker. What it leaves out has Kafka's default on that
broker, so that with it nothing is assumed.

The rule that a reader must not break: the file holds passwords. Nothing of it is kept or shown but
the settings that keeplast knows, under the names that a broker knows them by; what a broker ignores
(a topic's name of a setting) is ignored here too. Answers to ``KafkaConfig`` and
``DynamicBrokerConfig``.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path

from keeplast.config.definition import Definition, Scope, Synonym
from keeplast.config.definitions import DEFINITIONS, TOPIC_KEYS
from keeplast.config.layers import Layer
from keeplast.config.values import setting_value
from keeplast.errors import CorruptError, InvalidError
from keeplast.format.properties import Property, read_properties
from keeplast.log.files import FileSystem, LocalFiles

FILE_BYTES_MAX = 4 << 20
BROKER_KEYS: dict[str, tuple[Definition, Synonym]] = {
    synonym.key: (definition, synonym)
    for definition in DEFINITIONS
    for synonym in (
        *definition.synonyms,
        *([Synonym(definition.key)] if definition.scope is Scope.CLUSTER else []),
    )
}
"""Every name of a setting in a broker's file, with its unit."""
NODE_KEYS = ("node.id", "broker.id")
_OURS = ("log.cleaner.", "log.cleanup.", "log.retention.", "log.roll.", "log.segment.")
"""Of these every name that a broker knows is known here: another one is a mistake in writing."""
_PROVIDED = "${"
_TABLE = re.compile(rb"^[ \t]*(\[(?:cluster|topic\b[^\]\r\n]*)\])[ \t]*\r?$", re.MULTILINE)
"""A table of a settings file; as a property it would be a name that no broker knows."""


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """The settings of a file, by the names that it uses; ``lines`` are where they stand.

    ``node_id`` is the broker's, None when the file does not say. ``warnings`` are of what looks
    like a setting and is none.
    """

    layer: Layer
    lines: dict[str, int]
    node_id: str | None
    warnings: tuple[str, ...]


def read_broker_config(path: Path, files: FileSystem) -> BrokerConfig:
    """Return what the file says; InvalidError with its line when something in it cannot be used."""
    # A file that the user names may be a link.
    resolved = path.resolve()
    return decode_broker_config(read_broker_bytes(resolved, files), str(resolved))


def read_broker_bytes(path: Path, files: FileSystem) -> bytes:
    """Return a broker's file; InvalidError when it is missing, or larger than one can be."""
    try:
        return files.read_bytes(path, FILE_BYTES_MAX)
    except FileNotFoundError as error:
        raise InvalidError(
            f"no such file; name the broker's server.properties. path={path}"
        ) from error


def broker_settings(path: Path | str) -> dict[str, str]:
    """Return the settings of a broker's ``server.properties`` that keeplast knows, by their names.

    For ``topic_config(..., cluster=...)``. InvalidError when one of them cannot be used.
    """
    return dict(read_broker_config(Path(path), LocalFiles()).layer.cluster)


def decode_broker_config(data: bytes, path: str) -> BrokerConfig:
    """Return what the bytes of a file say; ``path`` is for messages."""
    problems = broker_problems(data, path)
    for problem in problems:
        raise problem
    entries = {each.key: each for each in read_properties(data)}
    known = {key: each for key, each in entries.items() if key in BROKER_KEYS}
    node = next((entries[key].value.strip() for key in NODE_KEYS if key in entries), None)
    return BrokerConfig(
        Layer(path, {key: each.value for key, each in known.items()}),
        {key: each.line for key, each in known.items()},
        node,
        tuple(_warnings(entries, path)),
    )


def broker_problems(data: bytes, path: str) -> list[InvalidError]:
    """Return everything that cannot be used, each with its line, in the order of the file."""
    table = _TABLE.search(data)
    if table is not None:
        line = data[: table.start(1)].count(b"\n") + 1
        return [
            InvalidError(
                "this is a settings file and no broker's; give it with --config-file. "
                f"path={path} line={line}"
            )
        ]
    try:
        entries = {each.key: each for each in read_properties(data)}
    except CorruptError as error:
        # The error's own text may be a part of a password.
        line = data[: error.position or 0].count(b"\n") + 1
        return [
            InvalidError(
                f"malformed escape, a broker would not start with it; write \\uXXXX, or \\\\ for a "
                f"backslash. path={path} line={line}"
            )
        ]
    problems = []
    for each in sorted(entries.values(), key=lambda entry: entry.line):
        if each.key not in BROKER_KEYS:
            continue
        definition, spelling = BROKER_KEYS[each.key]
        if _PROVIDED in each.value:
            problems.append(
                InvalidError(
                    "the value comes from a config provider, which is not asked; give a copy of "
                    f"the file with the value in it. key={each.key} path={path} line={each.line}"
                )
            )
            continue
        try:
            setting_value(
                definition, each.value, source=f"{path} line={each.line}", spelling=spelling,
                is_brokers=True,
            )  # fmt: skip
        except InvalidError as error:
            problems.append(error)
    return problems


def _warnings(entries: dict[str, Property], path: str) -> list[str]:
    found = []
    for key, each in entries.items():
        if key in BROKER_KEYS:
            continue
        where = f"key={key} path={path} line={each.line}"
        if key in TOPIC_KEYS:
            names = ", ".join(name.key for name in TOPIC_KEYS[key].synonyms)
            found.append(
                f"a broker ignores a topic's name of a setting, and so it counts for nothing; "
                f"the broker's is {names or 'none'}. {where}"
            )
        elif key.startswith(_OURS):
            close = difflib.get_close_matches(key, list(BROKER_KEYS), n=1, cutoff=0.5)
            remedy = f"; did you mean {close[0]}" if close else ""
            found.append(f"no setting of a broker, which ignores it{remedy}. {where}")
    return found
