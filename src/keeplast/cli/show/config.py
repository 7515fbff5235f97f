"""Settings as tables, lines and rows: what one means, which value counts and who said so."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from keeplast.cli.show.rows import new_table
from keeplast.config.definition import Definition, Scope, Value
from keeplast.config.effective import Effective
from keeplast.config.internal_topics import SOURCE as INTERNAL_SOURCE
from keeplast.config.layers import ENVIRONMENT_SOURCE, FLAG_SOURCE, variable_of
from keeplast.config.settings_file import Edit
from keeplast.config.values import value_range, value_text, value_words
from keeplast.model.duration import duration_text
from keeplast.model.escapes import printable

WIDTH = 88
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


def definitions_table(definitions: Iterable[Definition]) -> Table:
    """Return a row per setting: its default, its range, and whether it acts."""
    table = new_table("=setting", "default", "range", "acts")
    for each in definitions:
        table.add_row(
            each.key,
            _show(each, each.default),
            value_range(each),
            "yes" if each.has_effect else "no",
        )
    return table


def values_table(values: Sequence[tuple[Definition, Effective]], root: Path) -> Table:
    """Return a row per setting: the value that counts, and who said so."""
    table = new_table("=setting", "value", "from")
    for definition, found in values:
        table.add_row(
            definition.key,
            Text(printable(_show(definition, found.value))),
            Text(printable(origin_text(definition, found, root))),
        )
    return table


def definition_lines(definition: Definition) -> list[str]:
    """Return everything there is to say about a setting."""
    brokers = [
        each.key if each.factor == 1 else f"{each.key} (in units of {duration_text(each.factor)})"
        for each in definition.synonyms
        if each.key != definition.key
    ]
    is_topics = definition.scope is Scope.TOPIC
    facts = [
        ("type", definition.type.value),
        ("default", _show(definition, definition.default)),
        ("range", value_range(definition)),
        ("about", "a topic, or the cluster as its default" if is_topics else "the cluster"),
        ("broker's name", ", ".join(brokers)),
        ("other name", definition.overridden_by or ""),
        ("variable", f"{variable_of(definition)} (cluster)"),
        ("acts here", "yes" if definition.has_effect else f"no: {definition.idle}"),
    ]
    return [
        definition.key,
        *(f"  {line}" for line in textwrap.wrap(definition.about.replace("`", ""), WIDTH)),
        "",
        *(f"  {name:<14} {words}" for name, words in facts if words),
        "",
        f"  keeplast config set {definition.key}=VALUE {'--topic T ' if is_topics else ''}DATA_DIR",
    ]


def change_lines(edit: Edit, topic: str | None, root: Path) -> list[str]:
    """Return a line per setting that was written or removed: what counts now, and what did."""
    table = "[cluster]" if topic is None else f'[topic."{topic}"]'
    lines = [printable(f"{_name(edit.path, root)} {table}")]
    for each in edit.changes:
        definition = each.definition
        after, before = _show(definition, each.after.value), _show(definition, each.before.value)
        words = f"  {definition.key} = {after}, from {origin_text(definition, each.after, root)}"
        if before != after:
            words += f"; was {before}, from {origin_text(definition, each.before, root)}"
        lines.append(printable(words))
    return lines


def broker_text(definition: Definition, found: Effective, source: str, line: int | None) -> str:
    """Return what a broker's file says of a setting, or that it says nothing."""
    if line is None:
        return f"{source} does not name it: the default counts on that broker"
    return f"{source}, line {line}: {found.key}, which is {_show(definition, found.value)}"


def origin_text(definition: Definition, found: Effective, root: Path) -> str:
    """Return who said a value: ``default``, or a source, its scope, and another name it used."""
    if found.source is None or found.scope is None:
        return "default"
    source = found.source if found.source in _UNFILED else _name(Path(found.source), root)
    name = "" if found.key == definition.key else f" ({found.key})"
    return f"{source}, {found.scope.value}{name}"


def _name(path: Path, root: Path) -> str:
    return path.name if path.parent == root else str(path)


def _show(definition: Definition, value: Value | None) -> str:
    if value in (None, "", ()):
        return "none"
    words = value_words(definition, value)
    text = value_text(value)
    return words if words == "no limit" else f"{text} ({words})" if words else text
