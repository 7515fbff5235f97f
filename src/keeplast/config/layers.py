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
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from keeplast.config.definitions import DEFINITIONS, Definition, Scope, Synonym
from keeplast.config.values import setting_value, value_text
from keeplast.errors import InvalidError

ENVIRONMENT_PREFIX = "KEEPLAST_"
OTHER_VARIABLES = frozenset({"KEEPLAST_CACHE_DIR"})
"""Variables with the prefix that other rooms read; they are no settings of Kafka's."""
FLAG_SOURCE = "--config"
ENVIRONMENT_SOURCE = "environment"


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


def topic_spellings(definition: Definition) -> tuple[str, ...]:
    """Return the keys under which a topic sets ``definition``, the winning one first."""
    if definition.scope is Scope.CLUSTER:
        return ()
    if definition.overridden_by is not None:
        return (definition.overridden_by, definition.key)
    return (definition.key,)


def cluster_spellings(definition: Definition) -> tuple[Synonym, ...]:
    """Return the keys under which a cluster sets ``definition``, the winning one first.

    The topic's spelling comes last: it is understood where the place already says "cluster".
    """
    own = tuple(Synonym(key) for key in topic_spellings(definition) or (definition.key,))
    named = {synonym.key for synonym in definition.synonyms}
    return definition.synonyms + tuple(synonym for synonym in own if synonym.key not in named)


_TOPIC_KEYS = {key: d for d in DEFINITIONS for key in topic_spellings(d)}
_CLUSTER_KEYS = {s.key: (d, s) for d in DEFINITIONS for s in cluster_spellings(d)}
_VARIABLES = {
    ENVIRONMENT_PREFIX + key.upper().replace(".", "_"): key for key in sorted(_CLUSTER_KEYS)
}


def flags_layer(settings: Iterable[str]) -> Layer:
    """Return the layer of ``--config KEY=VALUE`` arguments; a later one beats an earlier one."""
    every_topic: dict[str, str] = {}
    cluster: dict[str, str] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        key = key.strip()
        if not equals:
            raise InvalidError(f"setting without a value; write KEY=VALUE. --config={setting!r}")
        if key in _TOPIC_KEYS:
            _check(_TOPIC_KEYS[key], text, key=key, source=FLAG_SOURCE)
            every_topic[key] = text
        else:
            cluster[key] = text
    return Layer(FLAG_SOURCE, _checked_cluster(cluster, FLAG_SOURCE), every_topic)


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
    return Layer(ENVIRONMENT_SOURCE, _checked_cluster(cluster, ENVIRONMENT_SOURCE))


def file_layer(text: str, path: str) -> Layer:
    """Return the layer of a TOML document; ``path`` is for messages."""
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidError(
            f"not a TOML document; correct it. path={path} problem={error}"
        ) from error
    for name, table in document.items():
        if name not in ("cluster", "topic"):
            raise InvalidError(
                f'unknown table; settings belong under [cluster] or [topic."name"]. '
                f"path={path} table={name!r}"
            )
        if not isinstance(table, dict):
            raise InvalidError(f"not a table; write [{name}]. path={path} key={name!r}")
    cluster = _checked_cluster(_flattened(document.get("cluster", {})), path)
    topics: dict[str, Mapping[str, str]] = {}
    for topic, table in document.get("topic", {}).items():
        if not isinstance(table, dict):
            raise InvalidError(
                f'not a table; write [topic."name"]. path={path} key={"topic." + topic!r}'
            )
        topics[topic] = _checked_topic(_flattened(table), path, topic)
    return Layer(path, cluster, topics=topics)


def warnings_of(layer: Layer) -> list[str]:
    """Return a sentence for each key of ``layer`` that is accepted and changes nothing."""
    used = {_CLUSTER_KEYS[key][0].key: key for key in layer.cluster if key in _CLUSTER_KEYS}
    for table in (layer.every_topic, *layer.topics.values()):
        used.update({_TOPIC_KEYS[key].key: key for key in table if key in _TOPIC_KEYS})
    return [
        f"setting has no effect here. key={used[definition.key]} source={layer.source}"
        for definition in DEFINITIONS
        if definition.key in used and not definition.has_effect
    ]


def _checked_cluster(table: Mapping[str, str], source: str) -> Mapping[str, str]:
    for key, text in table.items():
        if key not in _CLUSTER_KEYS:
            raise InvalidError(
                f"unknown setting; {_suggestion(key, _CLUSTER_KEYS)}. key={key} source={source}"
            )
        definition, synonym = _CLUSTER_KEYS[key]
        _check(definition, text, key=key, source=source, factor=synonym.factor)
    return table


def _checked_topic(table: Mapping[str, str], source: str, topic: str) -> Mapping[str, str]:
    for key, text in table.items():
        if key in _TOPIC_KEYS:
            _check(_TOPIC_KEYS[key], text, key=key, source=source)
        elif key in _CLUSTER_KEYS:
            definition = _CLUSTER_KEYS[key][0]
            remedy = (
                "move it to [cluster]"
                if definition.scope is Scope.CLUSTER
                else f"a topic calls it {definition.key}"
            )
            raise InvalidError(
                f"setting of a cluster under a topic; {remedy}. "
                f"key={key} topic={topic} source={source}"
            )
        else:
            raise InvalidError(
                f"unknown setting; {_suggestion(key, _TOPIC_KEYS)}. "
                f"key={key} topic={topic} source={source}"
            )
    return table


def _check(definition: Definition, text: str, *, key: str, source: str, factor: int = 1) -> None:
    setting_value(definition, text, key=key, source=source, factor=factor)


def _flattened(table: Mapping[str, object]) -> dict[str, str]:
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


def _suggestion(name: str, known: Iterable[str]) -> str:
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.0)
    return f"did you mean {close[0]}" if close else f"use one of {', '.join(names)}"
