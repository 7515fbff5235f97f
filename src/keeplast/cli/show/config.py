"""Settings as tables, lines and rows: what one means, which value counts and who said so."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from keeplast.cli.show.tables import new_table
from keeplast.config.definition import Definition, Scope, value_range
from keeplast.config.layers import variable_of
from keeplast.config.places import PropertyRow
from keeplast.config.precedence import Effective
from keeplast.config.setting_rows import origin_text, shown_source, shown_value
from keeplast.config.settings_file import Edit
from keeplast.model.partition import TopicPartition
from keeplast.model.text import duration_text, format_bytes, format_count, format_counted, printable

if TYPE_CHECKING:
    from keeplast.store.migration import Migration

WIDTH = 88


def definitions_table(definitions: Iterable[Definition]) -> Table:
    """Return a row per setting: its default, its range, and whether it acts."""
    return new_table(
        "=setting",
        "default",
        "range",
        "acts",
        rows=(
            (
                each.key,
                shown_value(each, each.default),
                value_range(each),
                "yes" if each.has_effect else "no",
            )
            for each in definitions
        ),
    )


def values_table(values: Sequence[tuple[Definition, Effective]], root: Path | None) -> Table:
    """Return a row per setting: the value that counts, and who said so."""
    return new_table(
        "=setting",
        "value",
        "from",
        rows=(
            (
                definition.key,
                Text(printable(shown_value(definition, found.value))),
                Text(printable(origin_text(definition, found, root))),
            )
            for definition, found in values
        ),
    )


def properties_table(rows: Iterable[PropertyRow]) -> Table:
    """Return a row per property of a place: its value, and the source that gave it."""
    return new_table(
        "=property",
        "value",
        "from",
        rows=(
            (
                each.property,
                Text(printable(each.value or "")),
                Text(printable(each.source or "not given")),
            )
            for each in rows
        ),
    )


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
        ("default", shown_value(definition, definition.default)),
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
        f"  keeplast configure PLACE {definition.key}=VALUE{' --topic T' if is_topics else ''}",
    ]


def change_lines(edit: Edit, topic: str | None, root: Path | None) -> list[str]:
    """Return a line per setting that was written or removed: what counts now, and what did."""
    table = "[cluster]" if topic is None else f'[topic."{topic}"]'
    lines = [printable(f"{shown_source(edit.path, root)} {table}")]
    for each in edit.changes:
        definition = each.definition
        after, before = (
            shown_value(definition, each.after.value),
            shown_value(definition, each.before.value),
        )
        words = f"  {definition.key} = {after}, from {origin_text(definition, each.after, root)}"
        if before != after:
            words += f"; was {before}, from {origin_text(definition, each.before, root)}"
        lines.append(printable(words))
    return lines


def migration_lines(partition: TopicPartition, found: Migration, *, plans: bool) -> list[str]:
    """Return what is kept with a partition now, and how many records go where it becomes compacted.

    With ``plans`` it would be so.
    """
    name = printable(str(partition))
    words = " ".join(f"{key}={value}" for key, value in sorted(found.settings.items()))
    lines = [f"{name}: the settings {'would be' if plans else 'are now'} {printable(words)}"]
    if found.becomes_compacted and found.records:
        lines.append(
            f"{name}: becomes compacted: of {format_counted(found.records, 'record')} "
            f"{format_count(found.keyless_records)} without a key "
            f"{'would go' if plans else 'go'} ({format_bytes(found.keyless_bytes)})"
        )
    return lines


def broker_text(definition: Definition, found: Effective, source: str, line: int | None) -> str:
    """Return what a broker's file says of a setting, or that it says nothing."""
    if line is None:
        return f"{source} does not name it: the default counts on that broker"
    return f"{source}, line {line}: {found.key}, which is {shown_value(definition, found.value)}"
