"""What a setting is, its value and who said it, as documents and people are shown them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from keeplast.config.definition import Definition, Value
from keeplast.config.definitions import DEFINITIONS
from keeplast.config.effective import Effective
from keeplast.config.internal_topics import SOURCE as INTERNAL_SOURCE
from keeplast.config.layers import ENVIRONMENT_SOURCE, FLAG_SOURCE, variable_of
from keeplast.config.settings import Settings
from keeplast.config.values import value_range, value_text, value_words

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

    Without ``shows_folders`` a file that is a source is told by its name alone: to strangers.
    """

    def told(row: dict[str, Any]) -> dict[str, Any]:
        source = row["source"]
        if shows_folders or source is None or source in _UNFILED:
            return row
        return row | {"source": Path(source).name}

    found = [(each, settings.effective(each, topic)) for each in DEFINITIONS]
    return {
        "topic": topic,
        "settings": [
            definition_row(each) | told(value_row(each, value))
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
