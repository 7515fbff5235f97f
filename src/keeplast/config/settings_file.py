"""Changes ``keeplast.toml`` and leaves everything else in it as it is, comments included.

The order keeps a bad value out: the new text is made, read again, and judged together with every
other source. Only then it is put in the place of the old one, atomically. What the new text says
must be what the old one said but for the change. A file that is written in a way that cannot be
edited like this is left to its owner. Sole home of ``tomlkit``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomlkit
from msgspec import Struct
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import Comment, Table

from keeplast.config.definition import (
    Definition,
    Scope,
    Synonym,
    Value,
    cluster_spellings,
    topic_spellings,
    value_text,
    written_value,
)
from keeplast.config.layers import (
    PLACE_TABLE,
    USUAL_SOURCES,
    Layer,
    SettingSources,
    file_layer,
    find_definition,
    toml_document,
)
from keeplast.config.places import FoundPlace, PlaceTable, read_table
from keeplast.config.precedence import Effective, Settings
from keeplast.config.sources import read_settings, read_text, settings_path
from keeplast.errors import ConflictError, InvalidError
from keeplast.log.files import FileSystem
from keeplast.log.lock import edited

TOPICS_SHOWN_MAX = 10


class SettingChange(Struct, frozen=True):
    """One setting as it was and as it is now; ``removed`` are other names of it that went."""

    key: str
    definition: Definition
    before: Effective
    after: Effective
    removed: tuple[str, ...]


class Edit(Struct, frozen=True):
    """What a call did to the file at ``path``, and what is worth knowing about it."""

    path: Path
    changes: tuple[SettingChange, ...]
    warnings: tuple[str, ...]


def change_settings(
    root: Path,
    files: FileSystem,
    changes: Mapping[str, str | None],
    *,
    topic: str | None,
    topics_here: Sequence[str] = (),
    sources: SettingSources = USUAL_SOURCES,
    writes: bool = True,
) -> Edit:
    """Write ``changes`` (None removes a key) for ``topic`` or the cluster, and say what it did.

    Without ``writes`` it is only said. ``topics_here`` are the topics of the data directory; a
    cluster's value must suit all of them. InvalidError when a value, or what follows from it
    together with the others, cannot be used; nothing is written then. ConflictError when the file
    changed meanwhile.
    """
    path = settings_path(root, sources.config_file)
    old = _present_text(path, files)

    def settings_with(text: str) -> Settings:
        return read_settings(root, files, sources, file_text=text)

    new, removed = edited_text(old or "", changes, topic=topic, path=str(path))
    before, after = settings_with(old or ""), settings_with(new)
    judged = [topic] if topic else [None, *sorted({*topics_here, *after.topic_names()})]
    for each in judged:
        for problem in after.problems(each):
            raise InvalidError(problem, code="K121")
    after.cleaner_config()
    if writes:
        _write(path, files, old, new)
    made: list[SettingChange] = []
    for key in changes:
        definition = find_definition(key)
        was, now = before.effective(definition, topic), after.effective(definition, topic)
        made.append(SettingChange(key, definition, was, now, removed[key]))
    hazards = [hazard for each in judged for hazard in after.hazards(each)]
    warnings = [*_warnings(made, changes, str(path)), *hazards]
    if topic is None:
        warnings += _own_values(after, [e for e in made if changes[e.key] is not None], topics_here)
    return Edit(path, tuple(made), tuple(warnings))


def _write(path: Path, files: FileSystem, old: str | None, new: str) -> None:
    """Put the new text into the place of the old; ConflictError when that is another by now."""
    with edited(path):
        if _present_text(path, files) != old:
            raise ConflictError(
                f"another process has changed the file; run again. path={path}", code="K202"
            )
        if new != (old or ""):
            files.write_durable(path, new.encode())


def edited_text(
    text: str, changes: Mapping[str, str | None], *, topic: str | None, path: str
) -> tuple[str, dict[str, tuple[str, ...]]]:
    """Return the document with ``changes`` made, and by key its other names that were removed.

    InvalidError when the document or a change cannot be used, also when the document is written in
    a way that cannot be changed but by its owner.
    """
    old = file_layer(text, path)
    table = old.cluster if topic is None else old.topics.get(topic, {})
    values: dict[str, Value] = {}
    removed: dict[str, tuple[str, ...]] = {}
    gone: set[str] = set()
    chosen = {find_definition(key).key for key in changes}
    if len(chosen) < len(changes):
        raise InvalidError(
            f"two names of the same setting; keep one. keys={','.join(changes)} path={path}",
            code="K126",
        )
    for key, value in changes.items():
        names = {name.key: name for name in _names(key, topic, path)}
        removed[key] = tuple(name for name in names if name != key and name in table)
        gone.update(removed[key])
        if value is None:
            gone.update({key} & table.keys())
        else:
            values[key] = written_value(
                find_definition(key), value, source=path, spelling=names[key]
            )
    wanted = {key: each for key, each in table.items() if key not in gone}
    wanted.update({key: value_text(value) for key, value in values.items()})
    if wanted == table:
        return text, removed
    # tomlkit would add a key to the last line where that has no end, and a key with two dots.
    try:
        new = _rewritten(_with_last_end(text), gone, values, topic)
        found = file_layer(new, path)
    except (TOMLKitError, InvalidError, TypeError, ValueError, LookupError):
        found = Layer(path)
        new = ""
    cluster = wanted if topic is None else old.cluster
    topics = dict(old.topics) if topic is None else {**old.topics, topic: wanted}
    if (cluster, topics) != (dict(found.cluster), dict(found.topics)):
        raise InvalidError(
            f"the file is written in a way that cannot be edited; change it by hand. "
            f"path={path} keys={','.join(changes)}",
            code="K126",
        )
    return new, removed


def _with_last_end(text: str) -> str:
    """Return a text whose last line has an end."""
    return text if not text or text.endswith("\n") else f"{text}\n"


def _present_text(path: Path, files: FileSystem) -> str | None:
    return read_text(path, files) if files.exists(path) else None


def _names(key: str, topic: str | None, path: str) -> Sequence[Synonym]:
    """Return every name of the setting in this scope; InvalidError unless ``key`` is one."""
    definition = find_definition(key)
    if topic is None:
        return cluster_spellings(definition)
    names = topic_spellings(definition)
    if key not in names:
        remedy = f"a topic calls it {definition.key}" if names else "leave --topic out"
        raise InvalidError(
            f"setting of a cluster under a topic; {remedy}. key={key} topic={topic} source={path}",
            code="K125",
        )
    return [Synonym(name) for name in names]


def _rewritten(text: str, gone: set[str], values: Mapping[str, Value], topic: str | None) -> str:
    document = tomlkit.parse(text)
    table: Any = document.get("cluster") if topic is None else document.get("topic", {}).get(topic)
    if table is None:
        own = {key: _toml_value(value) for key, value in values.items()}
        return _with_new_table(text, ("cluster",) if topic is None else ("topic", topic), own)
    places = dict(_places(table, ""))
    for key, value in values.items():
        if key in places:
            holder, name = places[key]
            holder[name] = _toml_value(value)
        else:
            _append(table, key, _toml_value(value))
    if not gone:
        return tomlkit.dumps(document)
    # A key a reading: tomlkit finds others no more in a dotted table that has lost one.
    key = min(gone)
    holder, name = places[key]
    del holder[name]
    return _rewritten(tomlkit.dumps(document), gone - {key}, {}, topic)


def _places(table: Any, prefix: str) -> Iterator[tuple[str, tuple[Any, str]]]:
    """Yield each setting's name, dotted or quoted, with the table and key that hold its value."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _places(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", (table, name)


def _append(table: Any, key: str, value: object) -> None:
    """Add a key after the table's last one: what follows a blank line belongs to the next."""
    tail: list[Any] = []
    body = table.value.body if isinstance(table, Table) else []
    while body and body[-1][0] is None:
        tail.insert(0, body.pop())
    while tail and isinstance(tail[0][1], Comment):
        body.append(tail.pop(0))
    table[key] = value
    body.extend(tail)


def _with_new_table(lines: str, name: tuple[str, ...], values: Mapping[str, object]) -> str:
    """Return the document with a table at its end, where it can disturb no other.

    ``name`` are its words, of which there are one or two.
    """
    own = tomlkit.table()
    own.update(values)
    addition = tomlkit.document()
    if name[1:]:
        addition[name[0]] = tomlkit.table(is_super_table=True)
        addition[name[0]][name[1]] = own
    else:
        addition[name[0]] = own
    blank = "\n" if lines and not lines.endswith("\n\n") else ""
    return lines + blank + tomlkit.dumps(addition)


def _toml_value(value: Value) -> object:
    if isinstance(value, tuple):
        return list(value) if len(value) > 1 else "".join(value)
    return value


def _own_values(
    after: Settings, made: Sequence[SettingChange], topics_here: Sequence[str]
) -> Iterator[str]:
    """Yield which topics a cluster's new value does not reach, because they have their own."""
    for each in made:
        values = {topic: after.effective(each.definition, topic) for topic in topics_here}
        kept = {t: value for t, value in values.items() if value.scope is Scope.TOPIC}
        if each.definition.scope is not Scope.TOPIC or not kept:
            continue
        named = sorted(kept)[:TOPICS_SHOWN_MAX]
        shown = ", ".join(f"{topic}={value_text(kept[topic].value)}" for topic in named)
        more = f" and {len(kept) - len(named)} more" if len(kept) > len(named) else ""
        yield (
            "topics keep a value of their own, which beats the cluster's; change it with --topic. "
            f"key={each.key} topics={shown}{more}"
        )


def _warnings(
    made: Sequence[SettingChange], changes: Mapping[str, str | None], path: str
) -> Iterator[str]:
    for each in made:
        for name in each.removed:
            yield f"removed the other name of the same setting. key={name} path={path}"
        if changes[each.key] is None:
            continue
        if not each.definition.has_effect:
            yield f"setting has no effect here: {each.definition.idle}. key={each.key}"
        if each.after.source != path:
            yield (
                f"the file is not what counts: {each.after.source} says otherwise. "
                f"key={each.after.key} value={value_text(each.after.value)}"
            )


def add_place(
    path: Path, files: FileSystem, name: str, properties: Mapping[str, Any]
) -> FoundPlace:
    """Append a ``[place.NAME]`` table to the file ``path``, which is made if need be; return it.

    The rest of the file stays as it is. InvalidError when the file has the name already or the
    table cannot be used; nothing is written then. ConflictError when the file changed meanwhile.
    """
    old = _present_text(path, files)
    there = toml_document(old or "", str(path)).get(PLACE_TABLE, {})
    if name in there:
        raise InvalidError(
            f"the file has a place of this name; choose another name, or edit the file. "
            f"path={path} place={name}",
            code="K126",
        )
    new = _with_new_table(_with_last_end(old or ""), (PLACE_TABLE, name), properties)
    written = toml_document(new, str(path))
    if written.get(PLACE_TABLE) != {**there, name: tomlkit.item(dict(properties)).unwrap()}:
        raise InvalidError(
            f"the file is written in a way that cannot be edited; change it by hand. path={path}",
            code="K126",
        )
    found = read_table(PlaceTable(name, path, written[PLACE_TABLE][name]))
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, files, old, new)
    return found
