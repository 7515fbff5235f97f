"""Places by address or by name: what a command line's PLACE means, and where each property is from.

An address says its kind by its beginning; everything else is a path, or the NAME of a
``[place.NAME]`` table in a ``keeplast.toml``. That is first the file of the working directory, then
of ``KEEPLAST_CONFIG``, then of the user's configuration folder. The first file that has the name
counts, and no other.

Rules: the command line beats the file. A path that exists beats a name, and :class:`FoundPlace`
carries the warning. No value is a secret: a file that holds one is refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import platformdirs
from msgspec import Struct, field

from keeplast.config.definition import value_text
from keeplast.config.layers import (
    PLACE_TABLE,
    Layer,
    SettingSources,
    flatten,
    suggestion,
    tables_layer,
    toml_document,
)
from keeplast.config.place_properties import (
    AT,
    BY_NAME,
    PROPERTIES,
    SETTING_TABLES,
    VERB_TABLES,
    WITH,
    PlaceKind,
    PlaceProperty,
    PropertyType,
)
from keeplast.config.sources import FILE_NAME, read_text
from keeplast.errors import InvalidError
from keeplast.log.files import LocalFiles
from keeplast.log.paths import place_path
from keeplast.model.text import (
    HIDDEN,
    SPAN_MS_MAX,
    find_size,
    find_span,
    has_userinfo,
    may_be_secret,
    secrets_of,
    shown_url,
)
from keeplast.tier.objects.object_store import is_reference, read_option

CONFIG_VARIABLE = "KEEPLAST_CONFIG"
NAME_CHARS_MAX = 64
CLUSTER_SCHEME = "kafka://"
SETTING_FILES = frozenset({"config-file", "broker-config"})
"""Properties that say where settings are looked for, also without a place."""
STORE_SCHEMES = ("sqlite://", "postgresql://", "postgresql+psycopg://")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_REMEDIES = {
    "postgres": "write postgresql://USER@HOST/DATABASE",
    "http": "a place is a data directory, a store or a cluster: s3://, postgresql:// or kafka://",
}


class Given(Struct, frozen=True):
    """The value of one property and where it was given: a file's path, or ``--with``."""

    value: str | tuple[str, ...] | Mapping[str, str]
    source: str
    sources: Mapping[str, str] = field(default_factory=dict)
    """Of a table, the keys that another source gave."""


class FoundPlace(Struct, frozen=True):
    """A place as it was asked for: its address and kind, its properties, and who gave each.

    ``name`` is None for an address. ``settings`` is the layer of the topics' settings in the
    place's table; ``defaults`` are texts of options by verb.
    """

    address: str
    kind: PlaceKind
    name: str | None = None
    given: Mapping[str, Given] = field(default_factory=dict)
    settings: Layer | None = None
    defaults: Mapping[str, Mapping[str, str | tuple[str, ...]]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def text(self, name: str) -> str | None:
        """Return a property as text, None where it was not given."""
        found = self.given.get(name)
        return None if found is None else str(found.value)

    def needed(self, name: str) -> str:
        """Return a property that cannot be left out; InvalidError says how to give it."""
        found = self.text(name)
        if found is None:
            raise InvalidError(
                f"this place needs {name}; give {WITH} {name}=… or write it into the place's table "
                f"in {FILE_NAME}. place={self.shown}",
                code="K118",
            )
        return found

    def path(self, name: str) -> Path | None:
        """Return a property that names a file."""
        found = self.text(name)
        return None if found is None else Path(found)

    def options(self, name: str) -> dict[str, str]:
        """Return a property that is a table; values that were named are read now."""
        found = self.given.get(name)
        if found is None or not isinstance(found.value, Mapping):
            return {}
        return {key: read_option(f"{name}.{key}", text) for key, text in found.value.items()}

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a property that is a list."""
        found = self.given.get(name)
        return found.value if found is not None and isinstance(found.value, tuple) else ()

    def milliseconds(self, name: str) -> int | None:
        """Return a span in milliseconds."""
        found = self.text(name)
        return None if found is None else _span(found)

    def size(self, name: str) -> int | None:
        """Return a size in bytes."""
        found = self.text(name)
        return None if found is None else find_size(found)

    def count(self, name: str) -> int | None:
        """Return a whole number."""
        found = self.text(name)
        return None if found is None else int(found)

    def flag(self, name: str) -> bool:
        """Return whether a flag is set."""
        return self.text(name) == "true"

    @property
    def bootstrap_servers(self) -> str:
        """Return the brokers of a cluster, as clients take them."""
        return self.address.removeprefix(CLUSTER_SCHEME)

    @property
    def shown(self) -> str:
        """Return how messages name the place."""
        return shown_url(self.address) if self.name is None else self.name


class PropertyRow(Struct, frozen=True):
    """A property as it is shown, without a secret: ``value`` None and ``source`` None where it was
    not given.
    """

    property: str
    value: str | None
    source: str | None


def property_rows(found: FoundPlace, *, is_whole: bool = False) -> list[PropertyRow]:
    """Return the properties that were given and their sources; all of the kind with ``is_whole``.

    A table has a row for each of its keys.
    """
    rows: list[PropertyRow] = []
    for prop in PROPERTIES:
        given = found.given.get(prop.name)
        if given is None:
            if is_whole and found.kind in prop.kinds and prop.name != AT:
                rows.append(PropertyRow(prop.name, None, None))
        elif isinstance(given.value, Mapping):
            for key, text in given.value.items():
                source = given.sources.get(key, given.source)
                rows.append(PropertyRow(f"{prop.name}.{key}", shown_option(key, text), source))
        else:
            text = given.value if isinstance(given.value, str) else ",".join(given.value)
            shown = shown_url(text) if prop.type is PropertyType.URL else text
            rows.append(PropertyRow(prop.name, shown, given.source))
    return rows


def shown_option(key: str, text: str) -> str:
    """Return the value of an option as it may be shown; a reference is no secret."""
    return text if is_reference(text) or not may_be_secret(key) else HIDDEN


def sources_of(given: Sequence[str], flags: tuple[str, ...]) -> SettingSources:
    """Return where settings are looked for without a place, by ``KEY=VALUE`` texts of properties.

    InvalidError for a property other than the files of settings.
    """
    spoken = _spoken(given)
    for name in spoken:
        if name not in SETTING_FILES:
            raise InvalidError(
                f"this is a property of a place; give PLACE, or leave it out. {WITH} {name}=…",
                code="K103",
            )
    paths = {name: Path(str(each.value)) for name, each in spoken.items()}
    return SettingSources(
        flags=flags, config_file=paths.get("config-file"), broker_config=paths.get("broker-config")
    )


class PlaceTable(Struct, frozen=True):
    """One ``[place.NAME]`` table, and the file that has it."""

    name: str
    file: Path
    table: Mapping[str, Any]


def find_place(
    text: str,
    given: Sequence[str] = (),
    *,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> FoundPlace:
    """Return what ``text`` means: an address, or the name of a table, with ``given`` on top.

    ``given`` are ``KEY=VALUE`` texts; of an option's table ``object-option.KEY=VALUE``.
    ``environment`` and ``folder`` None are the process's own. InvalidError for what is neither an
    address, nor a path, nor a name, and for a property that the kind of place does not have.
    """
    if not text.strip():
        raise InvalidError(
            "an empty place; name one, . for the current directory. place=''", code="K108"
        )
    kind = kind_of(text)
    is_path = kind is PlaceKind.DIRECTORY and "://" not in text
    tables: tuple[PlaceTable, ...] = ()
    if is_path and _NAME.fullmatch(text):
        tables = tuple(each for each in place_tables(environment, folder) if each.name == text)
    is_there = is_path and os.path.lexists(text)
    spoken = _spoken(given)
    if not tables or is_there:
        warnings: tuple[str, ...] = ()
        if tables:
            warnings = (
                f"{text} is a path here and the name of a place in {tables[0].file}; the path "
                f"counts. place={text}",
            )
        elif is_path and not is_there and shown_url(text) != text:
            raise InvalidError(
                "no such path; the address of a store has :// after its kind, as in "
                f"postgresql://HOST/DATABASE. url={shown_url(text)}",
                code="K117",
            )
        elif is_path and not is_there and "/" not in text:
            names = [each.name for each in place_tables(environment, folder)]
            remedy = suggestion(text, names, "correct the path, or see keeplast place list")
            raise InvalidError(
                f"no such path, and no place of this name; {remedy}. place={text}",
                code="K117",
            )
        _check_kinds(spoken, kind, text)
        return FoundPlace(text, kind, given=spoken, warnings=warnings)
    return _named(tables[0], spoken)


def kind_of(address: str) -> PlaceKind:
    """Return what an address is of; InvalidError for a URL that is none of ours."""
    if address.startswith(CLUSTER_SCHEME):
        if has_userinfo(address) or not address.removeprefix(CLUSTER_SCHEME).strip("/"):
            raise InvalidError(
                "a cluster's address is kafka://HOST:PORT[,HOST:PORT]; give credentials with "
                f"command-config. address={shown_url(address)}",
                code="K117",
            )
        return PlaceKind.CLUSTER
    if address.startswith(STORE_SCHEMES):
        return PlaceKind.STORE
    scheme, separator, _ = address.partition("://")
    if separator and scheme in _REMEDIES:
        raise InvalidError(
            f"no such kind of place; {_REMEDIES[scheme]}. address={shown_url(address)}", code="K117"
        )
    place_path(address)
    return PlaceKind.DIRECTORY


def place_files(
    environment: Mapping[str, str] | None = None, folder: Path | None = None
) -> tuple[Path, ...]:
    """Return the files in which names are looked up, in their order, whether they exist or not."""
    named = (os.environ if environment is None else environment).get(CONFIG_VARIABLE)
    found = [(Path() if folder is None else folder) / FILE_NAME]
    if named:
        found.append(Path(named).expanduser())
    found.append(Path(platformdirs.user_config_dir("keeplast", appauthor=False)) / FILE_NAME)
    return tuple(dict.fromkeys(each.absolute() for each in found))


def place_tables(
    environment: Mapping[str, str] | None = None, folder: Path | None = None
) -> tuple[PlaceTable, ...]:
    """Return the table that counts for each name, in the order of files and of their lines.

    InvalidError for a file that cannot be used, and when ``KEEPLAST_CONFIG`` names none.
    """
    found: dict[str, PlaceTable] = {}
    files = place_files(environment, folder)
    named = (os.environ if environment is None else environment).get(CONFIG_VARIABLE)
    for path in files:
        must = bool(named) and path == Path(str(named)).expanduser().absolute()
        if not must and not path.exists():
            continue
        document = toml_document(read_text(path, LocalFiles()), str(path))
        places = document.get(PLACE_TABLE, {})
        if not isinstance(places, dict):
            raise InvalidError(
                f"not a table; write [place.NAME]. path={path} key={PLACE_TABLE!r}", code="K118"
            )
        for name, table in places.items():
            if not isinstance(table, dict):
                raise InvalidError(
                    f"not a table; write [place.NAME]. path={path} place={name!r}", code="K118"
                )
            found.setdefault(name, PlaceTable(name, path, table))
    return tuple(found.values())


def file_for_new(environment: Mapping[str, str] | None = None, folder: Path | None = None) -> Path:
    """Return the file that a new place is written into: the first that exists, else the user's."""
    files = place_files(environment, folder)
    return next((each for each in files if each.exists()), files[-1])


def properties_of(given: Sequence[str], address: str) -> dict[str, Any]:
    """Return the table of a new place: its address and ``KEY=VALUE`` texts, checked.

    A path in the working directory becomes absolute, since the file counts from its own folder.
    """
    spoken = _spoken(given)
    kind = kind_of(address)
    _check_kinds(spoken, kind, address)
    is_path = kind is PlaceKind.DIRECTORY and "://" not in address
    table: dict[str, Any] = {AT: str(Path(address).absolute()) if is_path else address}
    for key, each in spoken.items():
        value = each.value
        if BY_NAME[key].type is PropertyType.FILE:
            table[key] = str(Path(str(value)).absolute())
        elif BY_NAME[key].type is PropertyType.COUNT:
            table[key] = int(str(value))
        elif BY_NAME[key].type is PropertyType.FLAG:
            table[key] = value == "true"
        else:
            table[key] = dict(value) if isinstance(value, Mapping) else value
    return table


def read_table(each: PlaceTable) -> FoundPlace:
    """Return the place that a table says; InvalidError for the first mistake in it."""
    return _named(each, {})


def _named(found: PlaceTable, spoken: Mapping[str, Given]) -> FoundPlace:
    source, where = str(found.file), f"path={found.file} place={found.name}"
    if len(found.name) > NAME_CHARS_MAX or not _NAME.fullmatch(found.name):
        raise InvalidError(
            f"not a place; write [place.NAME] with a name of letters, digits, . _ and -. {where}",
            code="K117",
        )
    given: dict[str, Given] = {}
    defaults: dict[str, Mapping[str, str | tuple[str, ...]]] = {}
    settings: dict[str, Any] = {}
    for key, value in found.table.items():
        if key in BY_NAME:
            given[key] = Given(_checked(BY_NAME[key], value, where, found.file.parent), source)
        elif isinstance(value, dict) and key in SETTING_TABLES:
            settings[key] = value
        elif isinstance(value, dict) and key in VERB_TABLES:
            defaults |= _verb_defaults(key, value, where)
        else:
            raise InvalidError(
                f"unknown property; {_near_property(key)}. {where} property={key}", code="K118"
            )
    if AT not in given:
        raise InvalidError(f'a place needs its address; write at = "…". {where}', code="K118")
    address = str(given.pop(AT).value)
    kind = kind_of(address)
    _check_kinds(given, kind, found.name)
    _check_kinds(spoken, kind, found.name)
    merged = dict(given)
    for key, each in spoken.items():
        below = merged.get(key)
        if isinstance(each.value, Mapping) and below is not None:
            others = {key: below.source for key in _table(below) if key not in each.value}
            each = Given({**_table(below), **each.value}, each.source, others)
        merged[key] = each
    layer = tables_layer(settings, source) if settings else None
    return FoundPlace(address, kind, found.name, merged, layer, defaults)


def _verb_defaults(
    verb: str, table: Mapping[str, Any], where: str
) -> dict[str, Mapping[str, str | tuple[str, ...]]]:
    """Return options of a verb by its words, such as ``erase keys``, each as text."""
    if below := VERB_TABLES[verb]:
        for name, each in table.items():
            if name not in below or not isinstance(each, dict):
                raise InvalidError(
                    f"{verb} has a table for each of its verbs: {', '.join(below)}; write "
                    f"[place.NAME.{verb}.{below[0]}]. {where} table={verb} key={name}",
                    code="K118",
                )
        tables = {f"{verb} {name}": each for name, each in table.items()}
    else:
        tables = {verb: table}
    return {
        words: {
            name: tuple(map(value_text, text)) if isinstance(text, list) else value_text(text)
            for name, text in options.items()
        }
        for words, options in tables.items()
    }


def _table(given: Given) -> Mapping[str, str]:
    return given.value if isinstance(given.value, Mapping) else {}


def _spoken(texts: Sequence[str]) -> dict[str, Given]:
    found: dict[str, Given] = {}
    for each in texts:
        name, equals, value = each.partition("=")
        name = name.strip()
        table, _, key = name.partition(".")
        if not equals or not name:
            # The text may be a secret that lacks its name.
            raise InvalidError(
                f"give KEY=VALUE. {WITH}={name if not equals else '=...'}", code="K112"
            )
        if key and table in BY_NAME and BY_NAME[table].type is PropertyType.OPTIONS:
            below = found.get(table)
            found[table] = Given({**(_table(below) if below else {}), key: value}, WITH)
            continue
        if name not in BY_NAME or name == AT:
            raise InvalidError(
                f"unknown property; {_near_property(name)}. {WITH} {name}=…", code="K118"
            )
        if BY_NAME[name].type is PropertyType.OPTIONS:
            raise InvalidError(f"give {name}.KEY=VALUE. {WITH} {name}=…", code="K112")
        checked = _checked(BY_NAME[name], value, f"{WITH}", None)
        before = found[name].value if name in found else ()
        if isinstance(checked, tuple) and isinstance(before, tuple):
            # A list that is given in parts is all of them.
            checked = (*before, *checked)
        found[name] = Given(checked, WITH)
    return found


def _checked(
    prop: PlaceProperty, value: object, where: str, folder: Path | None
) -> str | tuple[str, ...] | Mapping[str, str]:
    """Return a property's value as text; InvalidError when it is none of its type.

    ``folder`` is the one from which a file's relative paths count, None where the shell's does.
    """
    if prop.type is PropertyType.OPTIONS:
        if not isinstance(value, dict):
            raise InvalidError(f"not a table; write [place.NAME.{prop.name}]. {where}", code="K118")
        found = flatten(value)
        for key, text in found.items():
            if may_be_secret(key) and not is_reference(text) and folder is not None:
                raise InvalidError(
                    "a secret does not belong in this file; write @FILE or env:NAME. "
                    f"{where} property={prop.name}.{key}",
                    code="K119",
                )
        return found
    if isinstance(value, (dict, list)) and prop.type is not PropertyType.LIST:
        raise InvalidError(
            f"not one value; write a text or a number. {where} property={prop.name}", code="K118"
        )
    if prop.type is PropertyType.LIST:
        parts = value if isinstance(value, list) else str(value).split(",")
        return tuple(value_text(each) for each in parts)
    text = value_text(value)
    problem = _problem(prop, text)
    if problem:
        raise InvalidError(f"{problem}. {where} property={prop.name} value={text!r}", code="K118")
    if folder is not None and prop.type is PropertyType.URL and any(secrets_of(text)):
        raise InvalidError(
            f"a password does not belong in this file; leave it to PGPASSWORD or ~/.pgpass. "
            f"{where} property={prop.name} value={shown_url(text)}",
            code="K119",
        )
    if folder is None:
        return text
    is_path = prop.type is PropertyType.FILE or (prop.name == AT and "://" not in text)
    return str(folder / Path(text).expanduser()) if is_path else text


def _problem(prop: PlaceProperty, text: str) -> str | None:
    if not text.strip():
        return "an empty value; leave the property out"
    if prop.choices and text not in prop.choices:
        return f"no such choice; write {', '.join(prop.choices)}"
    if prop.type is PropertyType.FLAG and text not in ("true", "false"):
        return "write true or false"
    if prop.type is PropertyType.SIZE and find_size(text) is None:
        return "not a size; write bytes, or a number with k, m, g or t"
    if prop.type is PropertyType.SPAN and _span(text) is None:
        return "not a span of time; write milliseconds, or 90s, 30min, 12h or 7d"
    if prop.type is PropertyType.COUNT and not re.fullmatch(r"[1-9][0-9]{0,17}", text):
        return "not a whole number of at least 1"
    return None


def _span(text: str) -> int | None:
    found = find_span(text)
    return None if found is None else min(found, SPAN_MS_MAX)


def _check_kinds(given: Mapping[str, Given], kind: PlaceKind, name: str) -> None:
    for each in given:
        kinds = BY_NAME[each].kinds
        if kind not in kinds:
            raise InvalidError(
                f"a {kind} has no such property; it is one of a {' or a '.join(sorted(kinds))}. "
                f"place={shown_url(name)} property={each} source={given[each].source}",
                code="K103",
            )


def _near_property(name: str) -> str:
    return suggestion(name, BY_NAME, "keeplast place list --properties shows all")
