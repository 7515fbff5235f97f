"""What each source says, before anything is decided: flags, environment, file, a broker's file.

A layer holds text by scope. The rule that a reader must not break: *presence decides*. A key that a
source names is set by it, whatever its value; a key that it does not name is left to the next
source.

*Flags*: the topic's spelling is about the chosen topics, the broker's about the cluster.

*Environment*: ``KEEPLAST_<KEY>``, upper case, dots as underscores; always about the cluster.

*File* (TOML): a ``[cluster]`` table and ``[topic."name"]`` tables; keys may be quoted or dotted.

*What a call chooses*: which partitions it is about, and where settings are looked for. These are
plain values, passed on as they are from caller to reader. The command line declares its options as
these, so the module imports nothing heavy.

*A broker's* ``server.properties`` is the weakest source. It is below all that somebody says to
keeplast, and below the dynamic settings in the directory's metadata log, as on the broker. What it
leaves out has Kafka's default on that broker, so that with it nothing is assumed. The rule that a
reader must not break: the file holds passwords. Nothing of it is kept or shown but the settings
that keeplast knows, under the names that a broker knows them by. What a broker ignores (a topic's
name of a setting) is ignored here too. Answers to ``KafkaConfig`` and ``DynamicBrokerConfig``.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from keeplast.config.definition import (
    Definition,
    Scope,
    Synonym,
    cluster_spellings,
    setting_value,
    value_text,
)
from keeplast.config.definitions import CLUSTER_KEYS, DEFINITIONS, TOPIC_KEYS
from keeplast.errors import CorruptError, InvalidError
from keeplast.format.properties import Property, read_properties
from keeplast.log.files import FileSystem, LocalFiles
from keeplast.model.partition import TopicPartition

ENVIRONMENT_PREFIX = "KEEPLAST_"
OTHER_VARIABLES = frozenset({"KEEPLAST_CACHE_DIR", "KEEPLAST_CONFIG"})
"""Variables with the prefix that other rooms read; they are no settings of Kafka's."""
FLAG_SOURCE = "--config"
ENVIRONMENT_SOURCE = "environment"
CLUSTER_SOURCE = "cluster"
PLACE_TABLE = "place"
_OF_A_BROKER = re.compile(
    r"^\s*(broker\.id|node\.id|process\.roles|log\.dirs?|zookeeper\.connect)\s*[=:]", re.MULTILINE
)
"""A line that brokers' files have, and no settings file."""


class Layer(Struct, frozen=True):
    """One source's settings: texts by spelling.

    ``every_topic`` is about whichever topics were chosen, ``topics`` about those named, ``cluster``
    about all topics that say nothing themselves.
    """

    source: str
    cluster: Mapping[str, str] = field(default_factory=dict)
    every_topic: Mapping[str, str] = field(default_factory=dict)
    topics: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def topic(self, name: str) -> Mapping[str, str]:
        """Return what this source says about the topic itself."""
        own = self.topics.get(name)
        return self.every_topic if own is None else {**own, **self.every_topic}


def _variable(key: str) -> str:
    return ENVIRONMENT_PREFIX + key.upper().replace(".", "_")


_VARIABLES = {_variable(key): key for key in sorted(CLUSTER_KEYS)}


def flags_layer(settings: Iterable[str]) -> Layer:
    """Return the layer of ``--config KEY=VALUE`` arguments; a later one beats an earlier one."""
    every_topic: dict[str, str] = {}
    cluster: dict[str, str] = {}
    for key, text in flag_pairs(settings).items():
        if key in TOPIC_KEYS:
            setting_value(TOPIC_KEYS[key], text, source=FLAG_SOURCE, spelling=Synonym(key))
            every_topic[key] = text
        else:
            cluster[key] = text
    return Layer(FLAG_SOURCE, _check_cluster(cluster, FLAG_SOURCE), every_topic)


def flag_pairs(settings: Iterable[str]) -> dict[str, str]:
    """Return ``KEY=VALUE`` texts by key; InvalidError for a text without a value."""
    found: dict[str, str] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise InvalidError(
                f"setting without a value; write KEY=VALUE. --config={setting!r}", code="K112"
            )
        found[key.strip()] = text
    return found


def flag_texts(settings: Mapping[str, str]) -> tuple[str, ...]:
    """Return settings as :func:`flag_pairs` reads them."""
    return tuple(f"{key}={value}" for key, value in settings.items())


def cluster_layer(settings: Mapping[str, str]) -> Layer:
    """Return the layer of what a caller says of the cluster."""
    return Layer(CLUSTER_SOURCE, _check_cluster(settings, CLUSTER_SOURCE))


def environment_layer(environment: Mapping[str, str]) -> Layer:
    """Return the layer of the variables that start with ``KEEPLAST_``."""
    cluster: dict[str, str] = {}
    for variable in sorted(environment):
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in OTHER_VARIABLES:
            continue
        if variable not in _VARIABLES:
            raise InvalidError(
                f"unknown variable; {suggestion(variable, _VARIABLES)}. name={variable}",
                code="K120",
            )
        cluster[_VARIABLES[variable]] = environment[variable]
    return Layer(ENVIRONMENT_SOURCE, _check_cluster(cluster, ENVIRONMENT_SOURCE))


def file_layer(text: str, path: str) -> Layer:
    """Return the layer of a TOML document; ``path`` is for messages. Raises for the first problem.

    :func:`file_problems` returns them all.
    """
    return tables_layer(toml_document(text, path), path)


def tables_layer(tables: Mapping[str, object], path: str) -> Layer:
    """Return the layer of tables that were read already; errors as for :func:`file_layer`."""
    layer, problems = _read_tables(tables, path)
    for problem in problems:
        raise problem
    return layer


def file_problems(text: str, path: str) -> list[InvalidError]:
    """Return everything that is wrong with a TOML document by itself, in its order."""
    try:
        return _read_tables(toml_document(text, path), path)[1]
    except InvalidError as error:
        return [error]


def toml_document(text: str, path: str) -> dict[str, Any]:
    """Return the tables of a document; InvalidError when it is no TOML."""
    if path.endswith(".properties") or _OF_A_BROKER.search(text):
        raise InvalidError(
            "this is a broker's file and no settings file; give it with --broker-config. "
            f"path={path}",
            code="K123",
        )
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        # The likeliest cause: of compaction.strategy and compaction.strategy.header the first
        # cannot be a value and a table of the second at once.
        remedy = (
            "quote keys of which one begins like another"
            if "overwrite" in str(error)
            else ("correct it")
        )
        raise InvalidError(
            f"not a TOML document; {remedy}. path={path} problem={error}", code="K122"
        ) from error


def _read_tables(document: Mapping[str, object], path: str) -> tuple[Layer, list[InvalidError]]:
    """Return the usable part of a document, and its mistakes; tables of places are not settings."""
    problems: list[InvalidError] = []
    cluster: dict[str, str] = {}
    topics: dict[str, Mapping[str, str]] = {}
    for name, table in document.items():
        if name == PLACE_TABLE:
            continue
        if name not in ("cluster", "topic"):
            problems.append(
                InvalidError(
                    f'unknown table; settings belong under [cluster] or [topic."name"]. '
                    f"path={path} table={name!r}",
                    code="K122",
                )
            )
        elif not isinstance(table, dict):
            problems.append(
                InvalidError(f"not a table; write [{name}]. path={path} key={name!r}", code="K122")
            )
        elif name == "cluster":
            cluster = flatten(table)
            problems += _cluster_problems(cluster, path)
        else:
            for topic, own in table.items():
                if isinstance(own, dict):
                    topics[topic] = flatten(own)
                    problems += _topic_problems(topics[topic], path, topic)
                else:
                    problems.append(
                        InvalidError(
                            f'not a table; write [topic."name"]. path={path} '
                            f"key={'topic.' + topic!r}",
                            code="K122",
                        )
                    )
    return Layer(path, cluster, topics=topics), problems


def warnings_of(layer: Layer) -> list[str]:
    """Return a sentence for each key of ``layer`` that is accepted and changes nothing."""
    used = {CLUSTER_KEYS[key][0].key: key for key in layer.cluster if key in CLUSTER_KEYS}
    for table in (layer.every_topic, *layer.topics.values()):
        used.update({TOPIC_KEYS[key].key: key for key in table if key in TOPIC_KEYS})
    return [
        f"setting has no effect here: {definition.idle}. "
        f"key={used[definition.key]} source={layer.source}"
        for definition in DEFINITIONS
        if definition.key in used and not definition.has_effect
    ]


def _check_cluster(table: Mapping[str, str], source: str) -> Mapping[str, str]:
    for problem in _cluster_problems(table, source):
        raise problem
    return table


def _cluster_problems(table: Mapping[str, str], source: str) -> Iterator[InvalidError]:
    for key, text in table.items():
        if key in CLUSTER_KEYS:
            definition, synonym = CLUSTER_KEYS[key]
            yield from _value_problems(definition, text, source, synonym)
        else:
            yield InvalidError(
                f"unknown setting; {suggestion(key, CLUSTER_KEYS)}. key={key} source={source}",
                code="K120",
            )


def _topic_problems(table: Mapping[str, str], source: str, topic: str) -> Iterator[InvalidError]:
    for key, text in table.items():
        if key in TOPIC_KEYS:
            yield from _value_problems(TOPIC_KEYS[key], text, source, Synonym(key))
        elif key in CLUSTER_KEYS:
            definition = CLUSTER_KEYS[key][0]
            remedy = (
                "move it to [cluster]"
                if definition.scope is Scope.CLUSTER
                else f"a topic calls it {definition.key}"
            )
            yield InvalidError(
                f"setting of a cluster under a topic; {remedy}. "
                f"key={key} topic={topic} source={source}",
                code="K125",
            )
        else:
            yield InvalidError(
                f"unknown setting; {suggestion(key, TOPIC_KEYS)}. "
                f"key={key} topic={topic} source={source}",
                code="K120",
            )


def _value_problems(
    definition: Definition, text: str, source: str, spelling: Synonym
) -> Iterator[InvalidError]:
    try:
        setting_value(definition, text, source=source, spelling=spelling)
    except InvalidError as error:
        yield error


def flatten(table: Mapping[str, object]) -> dict[str, str]:
    """Return dotted keys, whether they were written ``"a.b" = 1`` or ``a.b = 1``."""
    flat: dict[str, str] = {}
    stack = list(reversed(list(table.items())))
    while stack:
        key, value = stack.pop()
        if isinstance(value, dict):
            stack.extend((f"{key}.{name}", inner) for name, inner in reversed(list(value.items())))
        else:
            flat[key] = value_text(value)
    return flat


def find_definition(key: str) -> Definition:
    """Return the setting that a topic or a cluster calls ``key``; InvalidError when none does."""
    if key in TOPIC_KEYS:
        return TOPIC_KEYS[key]
    if key in CLUSTER_KEYS:
        return CLUSTER_KEYS[key][0]
    raise InvalidError(
        f"unknown setting; {suggestion(key, [*TOPIC_KEYS, *CLUSTER_KEYS])}. key={key}", code="K120"
    )


def variable_of(definition: Definition) -> str:
    """Return the variable of the environment that sets ``definition`` for the cluster."""
    return _variable(cluster_spellings(definition)[0].key)


def suggestion(
    name: str,
    known: Iterable[str],
    otherwise: str = "keeplast config shows those that exist",
    *,
    cutoff: float = 0.5,
) -> str:
    """Return which of the ``known`` names is nearest to one that is none, else ``otherwise``."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f"did you mean {close[0]}" if close else otherwise


class PartitionChoice(Struct, frozen=True, kw_only=True):
    """Partitions by topic and by number; nothing given means all."""

    topics: tuple[str, ...] = ()
    partitions: tuple[int, ...] = ()

    def includes(self, partition: TopicPartition) -> bool:
        """Say whether a partition is one of those that were asked for."""
        return (not self.topics or partition.topic in self.topics) and (
            not self.partitions or partition.partition in self.partitions
        )


class SettingSources(Struct, frozen=True, kw_only=True):
    """The sources of settings that a caller names.

    ``flags`` are ``KEY=VALUE`` texts; ``config_file`` None means ``keeplast.toml`` in the data
    directory when there is one; ``broker_config`` is a broker's ``server.properties``;
    ``environment`` None means the process's own. ``place`` is what the table of a named place says
    of its topics.
    """

    flags: tuple[str, ...] = ()
    config_file: Path | None = None
    broker_config: Path | None = None
    environment: Mapping[str, str] | None = None
    place: Layer | None = None


ALL_PARTITIONS = PartitionChoice()
USUAL_SOURCES = SettingSources()


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


class BrokerConfig(Struct, frozen=True):
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
            f"no such file; name the broker's server.properties. path={path}", code="K110"
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
                f"path={path} line={line}",
                code="K123",
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
                f"backslash. path={path} line={line}",
                code="K124",
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
                    f"the file with the value in it. key={each.key} path={path} line={each.line}",
                    code="K124",
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
            nearest = suggestion(key, BROKER_KEYS, "")
            remedy = f"; {nearest}" if nearest else ""
            found.append(f"no setting of a broker, which ignores it{remedy}. {where}")
    return found
