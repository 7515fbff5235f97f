"""``keeplast config``: which settings there are, which count in a place and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.options import Flags, Json
from keeplast.cli.frame.round_options import Given, OptionalPlace, PlaceOptions
from keeplast.errors import InvalidError

if TYPE_CHECKING:
    from keeplast.config.definition import Definition
    from keeplast.config.layers import SettingSources
    from keeplast.config.precedence import Effective as SettingValue

Effective = Annotated[
    bool,
    typer.Option(
        "--effective",
        help="With every default and every property, not only what some source has set.",
    ),
]
Key = Annotated[
    str | None,
    typer.Option(
        "--key", metavar="KEY",
        help="Only this setting, by its topic's or its broker's name. With PLACE: its value, for "
             "scripts, and its source on stderr. Without PLACE: everything about it.",
    ),
]  # fmt: skip
Topic = Annotated[
    str | None,
    typer.Option("--topic", metavar="T", help="Of this topic. Default: of the cluster."),
]
CheckedFile = Annotated[
    Path | None,
    typer.Option(
        "--check", metavar="FILE",
        help="Look for mistakes in a settings file, or in a broker's server.properties (any name "
        "with .properties); all are shown, and the exit code is 1. A directory means its "
        "keeplast.toml.",
    ),
]  # fmt: skip


@command(
    first=("topic", "key", "effective"),
    example="keeplast config DATA_DIR --topic orders --effective",
)
def config(
    place: OptionalPlace = None,
    given: Given = (),
    flags: Flags = (),
    topic: Topic = None,
    key: Key = None,
    effective: Effective = False,
    check: CheckedFile = None,
    as_json: Json = False,
) -> Result:
    """Show the settings: all there are, or those that count in a place and where each comes from.

    A topic's value from any source beats the cluster's, which beats the default. --config beats the
    place's table in keeplast.toml, which beats --config-file, which beats the environment, which
    beats the directory's own metadata, which beats --broker-config. Of a store topics' settings are
    kept with the partitions. The properties of the place are shown too.
    """
    if check is not None:
        if place is not None or key is not None or topic is not None or effective or given or flags:
            raise InvalidError(
                f"--check is about one file; leave everything else out. FILE={check}", code="K101"
            )
        return _check_file(check, as_json=as_json)
    if place is not None:
        where = PlaceOptions(place=place, given=given, flags=flags)
        if key is not None:
            return _value_in_place(where, key, topic, as_json=as_json)
        return _settings_of_place(where, topic, is_whole=effective, as_json=as_json)
    from keeplast.config.places import sources_of

    sources = sources_of(given, flags)
    if key is None:
        return _all_there_are(sources, topic, effective=effective, as_json=as_json)
    if effective or topic is not None or flags or sources.config_file is not None:
        return _value_without_place(key, topic, sources, as_json=as_json)
    return _describe(key, sources.broker_config, as_json=as_json)


def _settings_of_place(
    where: PlaceOptions, topic: str | None, *, is_whole: bool, as_json: bool
) -> Result:
    from keeplast.cli.frame.command import CHECK_FAILED, DONE
    from keeplast.cli.show.config import properties_table, values_table
    from keeplast.cli.show.output import print_result, say
    from keeplast.config.definitions import DEFINITIONS
    from keeplast.config.places import property_rows
    from keeplast.config.setting_rows import settings_document

    found, place = where.open()
    counted = place.effective_settings(topic)
    say(*counted.warnings, kind="warning")
    settings, properties = counted.settings, property_rows(found, is_whole=is_whole)
    values = [(each, settings.effective(each, topic)) for each in DEFINITIONS]
    if not as_json:
        shown = [(each, value) for each, value in values if is_whole or not value.is_default]
        print_result(values_table(shown, counted.root))
        if properties:
            print_result("", properties_table(properties))
    document = settings_document(settings, topic, effective=is_whole)
    say(*document["problems"], kind="error")
    return CHECK_FAILED if document["problems"] else DONE, {
        **place.head, **document, "properties": properties, "warnings": list(counted.warnings),
    }  # fmt: skip


def _value_in_place(where: PlaceOptions, key: str, topic: str | None, *, as_json: bool) -> Result:
    from keeplast.cli.frame.command import DONE
    from keeplast.cli.show.output import say
    from keeplast.config.layers import find_definition
    from keeplast.config.setting_rows import definition_row, origin_text, value_row

    definition = find_definition(key)
    _, place = where.open()
    counted = place.effective_settings(topic)
    say(*counted.warnings, kind="warning")
    value = counted.settings.effective(definition, topic)
    if not as_json:
        _print_value(definition, value, origin_text(definition, value, counted.root))
    row = definition_row(definition) | value_row(definition, value)
    return DONE, {**place.head, "topic": topic, **row}


def _print_value(definition: Definition, value: SettingValue, origin: str) -> None:
    """Print a value for scripts, and where it is from on stderr."""
    from keeplast.cli.show.output import print_result, say
    from keeplast.config.definition import value_text

    print_result(value_text(value.value) if value.value is not None else "")
    say(f"{definition.key}: {origin}")


def _value_without_place(
    key: str, topic: str | None, sources: SettingSources, *, as_json: bool
) -> Result:
    from keeplast.cli.frame.command import DONE
    from keeplast.config.layers import find_definition
    from keeplast.config.setting_rows import definition_row, origin_text, value_row
    from keeplast.config.sources import read_spoken_settings
    from keeplast.log.files import LocalFiles

    definition = find_definition(key)
    value = read_spoken_settings(LocalFiles(), sources).effective(definition, topic)
    if not as_json:
        origin = origin_text(definition, value, Path())
        _print_value(definition, value, f"{origin}; of no place: give PLACE for one")
    return DONE, {"topic": topic, **definition_row(definition), **value_row(definition, value)}


def _all_there_are(
    sources: SettingSources, topic: str | None, *, effective: bool, as_json: bool
) -> Result:
    from keeplast.cli.frame.command import DONE
    from keeplast.cli.show.config import definitions_table
    from keeplast.cli.show.output import print_result
    from keeplast.config.definitions import DEFINITIONS
    from keeplast.config.layers import USUAL_SOURCES
    from keeplast.config.setting_rows import definition_row

    if effective or topic is not None or sources != USUAL_SOURCES:
        raise InvalidError(
            "settings count in a place; give PLACE, or --key KEY. PLACE=", code="K102"
        )
    if not as_json:
        print_result(definitions_table(DEFINITIONS))
    return DONE, {"settings": [definition_row(each) for each in DEFINITIONS]}


def _describe(key: str, broker_config: Path | None, *, as_json: bool) -> Result:
    """Show what a setting means, and what a broker's file says of it."""
    from keeplast.cli.frame.command import DONE
    from keeplast.cli.show.config import broker_text, definition_lines
    from keeplast.cli.show.output import print_result
    from keeplast.config.layers import find_definition, read_broker_config
    from keeplast.config.precedence import Settings
    from keeplast.config.setting_rows import definition_row, value_row
    from keeplast.log.files import LocalFiles

    definition = find_definition(key)
    row = definition_row(definition)
    lines = definition_lines(definition)
    if broker_config is not None:
        broker = read_broker_config(broker_config, LocalFiles())
        value = Settings((), broker=broker).effective(definition, None)
        line = None if value.key is None else broker.lines[value.key]
        row["in_broker_config"] = value_row(definition, value) | {"line": line}
        lines += ["", f"  {broker_text(definition, value, broker.layer.source, line)}"]
    if not as_json:
        print_result(*lines)
    return DONE, row


def _check_file(file: Path, *, as_json: bool) -> Result:
    from keeplast.cli.frame.command import CHECK_FAILED, DONE
    from keeplast.cli.show.output import print_result
    from keeplast.config.setting_rows import check_settings_file
    from keeplast.log.files import LocalFiles

    found = check_settings_file(file, LocalFiles())
    if not as_json:
        for warning in found.warnings:
            print_result(f"warning: {warning}")
        for problem in found.problems:
            print_result(f"mistake: {problem}")
        if not found.problems:
            print_result(f"no mistake: {found.words}. path={found.path}")
    return CHECK_FAILED if found.problems else DONE, {
        "path": str(found.path), "problems": list(found.problems),
        "warnings": list(found.warnings),
    }  # fmt: skip
