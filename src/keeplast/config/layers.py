"""What each source says, before anything is decided: flags, environment, file.

A layer holds text by scope. The rule that a reader must not break: *presence decides*. A key that a
source names is set by it, whatever its value; a key that it does not name is left to the next
source.

Flags: the topic's spelling is about the chosen topics, the broker's about the cluster.
Environment: ``KEEPLAST_<KEY>``, upper case, dots as underscores; always about the cluster.
File (TOML): a ``[cluster]`` table and ``[topic."name"]`` tables; keys may be quoted or dotted.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from keeplast.config.definition import Definition, Scope, Synonym, cluster_spellings
from keeplast.config.definitions import CLUSTER_KEYS, DEFINITIONS, TOPIC_KEYS
from keeplast.config.values import setting_value, value_text
from keeplast.errors import InvalidError

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


@dataclass(frozen=True, slots=True)
class Layer:
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
            raise InvalidError(f"setting without a value; write KEY=VALUE. --config={setting!r}")
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
                f"unknown variable; {_suggestion(variable, _VARIABLES)}. name={variable}"
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
            f"path={path}"
        )
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        # The likeliest cause: of compaction.strategy and compaction.strategy.header the first
        # cannot be a value and a table of the second at once.
        remedy = (
            "quote keys of which one begins like another"
            if "overwrite" in str(error)
            else ("correct it")
        )
        raise InvalidError(f"not a TOML document; {remedy}. path={path} problem={error}") from error


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
                    f"path={path} table={name!r}"
                )
            )
        elif not isinstance(table, dict):
            problems.append(InvalidError(f"not a table; write [{name}]. path={path} key={name!r}"))
        elif name == "cluster":
            cluster = _flatten(table)
            problems += _cluster_problems(cluster, path)
        else:
            for topic, own in table.items():
                if isinstance(own, dict):
                    topics[topic] = _flatten(own)
                    problems += _topic_problems(topics[topic], path, topic)
                else:
                    problems.append(
                        InvalidError(
                            f'not a table; write [topic."name"]. path={path} '
                            f"key={'topic.' + topic!r}"
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
                f"unknown setting; {_suggestion(key, CLUSTER_KEYS)}. key={key} source={source}"
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
                f"key={key} topic={topic} source={source}"
            )
        else:
            yield InvalidError(
                f"unknown setting; {_suggestion(key, TOPIC_KEYS)}. "
                f"key={key} topic={topic} source={source}"
            )


def _value_problems(
    definition: Definition, text: str, source: str, spelling: Synonym
) -> Iterator[InvalidError]:
    try:
        setting_value(definition, text, source=source, spelling=spelling)
    except InvalidError as error:
        yield error


def _flatten(table: Mapping[str, object]) -> dict[str, str]:
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
        f"unknown setting; {_suggestion(key, [*TOPIC_KEYS, *CLUSTER_KEYS])}. key={key}"
    )


def variable_of(definition: Definition) -> str:
    """Return the variable of the environment that sets ``definition`` for the cluster."""
    return _variable(cluster_spellings(definition)[0].key)


def _suggestion(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"did you mean {close[0]}" if close else "keeplast config shows those that exist"
