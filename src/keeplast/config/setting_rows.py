"""What is said of settings: rows for documents and people, assumed defaults, mistakes in files.

*Rows* show documents and people what a setting is, its value and who said it.

*Assumed defaults* are those of Kafka's that a call rests on because no source says what the
broker's are. A broker keeps its cluster's settings in ``server.properties``, which lies elsewhere.
A default that is taken in its place can remove something early, or clean what should wait. So it is
said, once a call and as short as can be.

*Mistakes* are all that a settings file or a broker's ``server.properties`` has, and its hazards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from keeplast.config.definition import (
    Definition,
    Scope,
    Value,
    value_range,
    value_text,
    value_words,
)
from keeplast.config.definitions import BY_KEY, CLUSTER_KEYS, DEFINITIONS
from keeplast.config.layers import (
    ENVIRONMENT_SOURCE,
    FLAG_SOURCE,
    Layer,
    broker_problems,
    file_layer,
    file_problems,
    flags_layer,
    read_broker_bytes,
    read_broker_config,
    variable_of,
    warnings_of,
)
from keeplast.config.precedence import EXPIRY_KEYS, Effective, Settings
from keeplast.config.precedence import SOURCE as INTERNAL_SOURCE
from keeplast.config.sources import FILE_NAME, read_text
from keeplast.errors import CompactionError
from keeplast.log.files import FileSystem
from keeplast.model.text import format_counted
from keeplast.model.topic_config import TopicConfig

_UNFILED = (FLAG_SOURCE, ENVIRONMENT_SOURCE, INTERNAL_SOURCE)


def definition_row(definition: Definition) -> dict[str, Any]:
    """Return a setting as a document shows it; values are Kafka's text."""
    return {
        "key": definition.key,
        "broker_keys": [synonym.key for synonym in definition.synonyms],
        "scope": definition.scope.value,
        "type": definition.type.value,
        "default": None if definition.default is None else value_text(definition.default),
        "range": value_range(definition),
        "variable": variable_of(definition),
        "about": definition.about,
        "has_effect": definition.has_effect,
        "no_effect_because": definition.idle,
    }


def value_row(definition: Definition, found: Effective) -> dict[str, Any]:
    """Return the value that counts and where it comes from."""
    return {
        "value": None if found.value is None else value_text(found.value),
        "meaning": value_words(definition, found.value) or None,
        "is_default": found.is_default,
        "source": found.source,
        "source_scope": None if found.scope is None else found.scope.value,
        "source_key": found.key,
    }


def settings_document(
    settings: Settings, topic: str | None, *, effective: bool = True, shows_folders: bool = True
) -> dict[str, Any]:
    """Return what counts for ``topic``; all of it, or only what some source has set.

    Without ``shows_folders`` a file that is a source is shown by its name alone: to strangers.
    """

    def shown(row: dict[str, Any]) -> dict[str, Any]:
        source = row["source"]
        if shows_folders or source is None or source in _UNFILED:
            return row
        return row | {"source": Path(source).name}

    found = [(each, settings.effective(each, topic)) for each in DEFINITIONS]
    return {
        "topic": topic,
        "settings": [
            definition_row(each) | shown(value_row(each, value))
            for each, value in found
            if effective or not value.is_default
        ],
        "problems": settings.problems(topic),
    }


def origin_text(definition: Definition, found: Effective, root: Path | None) -> str:
    """Return who said a value: ``default``, or a source, its scope, and another name it used.

    Files are shown as :func:`shown_source` does.
    """
    if found.source is None or found.scope is None:
        return "default"
    source = found.source if found.source in _UNFILED else shown_source(Path(found.source), root)
    name = "" if found.key == definition.key else f" ({found.key})"
    return f"{source}, {found.scope.value}{name}"


def shown_source(path: Path, root: Path | None) -> str:
    """Return a file by its name where it lies in ``root``, or there is none, else by its path."""
    return path.name if root is None or path.parent == root else str(path)


def shown_value(definition: Definition, value: Value | None) -> str:
    """Return a value for people: Kafka's text, and what it means."""
    if value in (None, "", ()):
        return "none"
    words = value_words(definition, value)
    text = value_text(value)
    return words if words == "no limit" else f"{text} ({words})" if words else text


ROUND_KEYS = (
    "compaction.strategy", "delete.retention.ms", "min.compaction.lag.ms",
    "producer.id.expiration.ms",
)  # fmt: skip
"""What decides which record stays in a round, and when something may go or must stay."""
RATIO_KEY = "min.cleanable.dirty.ratio"


def assumed_defaults(
    settings: Settings,
    topics: Mapping[str, TopicConfig],
    *,
    is_forced: bool = False,
    cleans: bool = True,
    expires: bool = True,
) -> dict[str, str]:
    """Return the defaults, as Kafka's texts by key, that no source says of one of ``topics``.

    ``cleans`` and ``expires`` are what the call does; ``is_forced`` says that it asks for no ratio.
    """
    compacted = [topic for topic, config in topics.items() if config.is_compacted] if cleans else []
    expiring = [topic for topic, config in topics.items() if config.expires] if expires else []
    keys = ROUND_KEYS if is_forced else (*ROUND_KEYS, RATIO_KEY)
    return settings.assumed(compacted, keys) | settings.assumed(expiring, EXPIRY_KEYS)


def assumed_of_kept(
    kept: Iterable[Mapping[str, str]],
    layers: Sequence[Layer] = (),
    *,
    is_forced: bool = False,
    cleans: bool = True,
    expires: bool = True,
) -> dict[str, str]:
    """Return the same of partitions by the settings that a store keeps with each of them.

    ``layers`` are what else is said, the strongest first. Of them the cleaner's own settings count:
    those of topics act by what is kept with a partition, and by a broker's file.
    """
    found: dict[str, str] = {}
    beside = [of_the_cleaner(layer) for layer in layers]
    for texts in {tuple(sorted(each.items())): None for each in kept}:
        own = flags_layer(f"{key}={text}" for key, text in texts)
        settings = Settings((own, *beside))
        found |= assumed_defaults(
            settings, {"": settings.topic_config("")},
            is_forced=is_forced, cleans=cleans, expires=expires,
        )  # fmt: skip
    return found


def of_the_cleaner(layer: Layer) -> Layer:
    """Return what a layer says of settings that no topic has."""
    cluster = {
        key: text
        for key, text in layer.cluster.items()
        if CLUSTER_KEYS[key][0].scope is Scope.CLUSTER
    }
    return Layer(layer.source, cluster)


def assumed_sentence(assumed: Mapping[str, str]) -> str:
    """Return the sentence that shows people defaults, which are at least one."""
    values = []
    for key, text in assumed.items():
        words = value_words(BY_KEY[key], BY_KEY[key].default)
        values.append(f"{key}={text} ({words})" if words else f"{key}={text}")
    return (
        f"Kafka's defaults are assumed, no source says otherwise: {', '.join(values)}; "
        "--broker-config FILE reads the broker's"
    )


BROKER_SUFFIX = ".properties"


class FileCheck(Struct, frozen=True):
    """What was found in a file; ``words`` count its settings where there is no mistake."""

    path: Path
    problems: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    words: str = ""


def check_settings_file(file: Path, files: FileSystem) -> FileCheck:
    """Return all mistakes of a file; of a directory those of its ``keeplast.toml``.

    A name with ``.properties`` is a broker's file. InvalidError for what is no file of text.
    """
    if file.is_dir():
        file = file / FILE_NAME
    if file.suffix == BROKER_SUFFIX:
        return _check_broker_file(file, files)
    text = read_text(file.resolve(), files)
    problems = [str(problem) for problem in file_problems(text, str(file))]
    if problems:
        return FileCheck(file, tuple(problems))
    layer = file_layer(text, str(file))
    settings = Settings((layer,))
    topics = sorted(layer.topics)
    hazards: list[str] = []
    for topic in (None, *topics):
        problems += settings.problems(topic)
        hazards += settings.hazards(topic)
    problems += _cleaner_problems(settings)
    count = len(layer.cluster) + sum(len(own) for own in layer.topics.values())
    return FileCheck(
        file, tuple(problems), (*warnings_of(layer), *dict.fromkeys(hazards)),
        f"{format_counted(count, 'setting')}, {format_counted(len(topics), 'topic')}",
    )  # fmt: skip


def _check_broker_file(file: Path, files: FileSystem) -> FileCheck:
    """Return all mistakes of a broker's file in the settings that keeplast knows."""
    path = file.resolve()
    problems = [str(each) for each in broker_problems(read_broker_bytes(path, files), str(path))]
    if problems:
        return FileCheck(file, tuple(problems))
    broker = read_broker_config(file, files)
    settings = Settings((), broker=broker)
    problems = [*settings.problems(None), *_cleaner_problems(settings)]
    return FileCheck(
        file, tuple(problems), (*broker.warnings, *settings.hazards(None)),
        f"{format_counted(len(broker.layer.cluster), 'setting')} that keeplast knows",
    )  # fmt: skip


def _cleaner_problems(settings: Settings) -> list[str]:
    try:
        settings.cleaner_config()
    except CompactionError as error:
        return [str(error)]
    return []
