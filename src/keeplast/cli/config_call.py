"""What the commands of ``keeplast config`` do, once one of them runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keeplast.cli.frame.command import Result
from keeplast.cli.frame.exit_codes import CHECK_FAILED, DONE
from keeplast.cli.show.config import (
    broker_text,
    change_lines,
    definition_lines,
    definitions_table,
    values_table,
)
from keeplast.cli.show.output import print_result, say
from keeplast.config.broker_config import (
    broker_problems,
    read_broker_bytes,
    read_broker_config,
)
from keeplast.config.choice import SettingSources
from keeplast.config.definitions import DEFINITIONS
from keeplast.config.layers import file_layer, file_problems, find_definition, warnings_of
from keeplast.config.setting_rows import definition_row, origin_text, settings_document, value_row
from keeplast.config.settings import Settings
from keeplast.config.settings_file import change_settings
from keeplast.config.sources import FILE_NAME, read_settings, read_spoken_settings, read_text
from keeplast.config.values import value_text
from keeplast.errors import CompactionError, InvalidError
from keeplast.log.data_directory import METADATA_TOPIC, DataDirectory, open_data_directory
from keeplast.log.files import LocalFiles
from keeplast.model.size import format_counted

BROKER_SUFFIX = ".properties"


def list_what_counts(
    data_dir: Path | None,
    topic: str | None,
    sources: SettingSources,
    *,
    effective: bool,
    as_json: bool,
) -> Result:
    """List what there is, or what counts in a data directory."""
    if data_dir is None:
        if effective or topic is not None or sources.broker_config is not None:
            raise InvalidError("whose settings these are is not said; give DATA_DIR. DATA_DIR=")
        if not as_json:
            print_result(definitions_table(DEFINITIONS))
        return DONE, {"settings": [definition_row(each) for each in DEFINITIONS]}
    directory = open_data_directory(data_dir, LocalFiles())
    settings = read_settings(directory.root, LocalFiles(), sources)
    for warning in settings.warnings_of_broker:
        say(warning, kind="warning")
    _warn_of_topic(directory, topic)
    found = [(each, settings.effective(each, topic)) for each in DEFINITIONS]
    shown = [(each, value) for each, value in found if effective or not value.is_default]
    if not as_json:
        print_result(values_table(shown, directory.root))
    document = settings_document(settings, topic, effective=effective)
    for problem in document["problems"]:
        say(problem, kind="error")
    return CHECK_FAILED if document["problems"] else DONE, document


def describe_setting(key: str, broker_config: Path | None, *, as_json: bool) -> Result:
    """Say everything about one setting, and what a broker's file says of it."""
    definition = find_definition(key)
    row: dict[str, Any] = definition_row(definition)
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


def check_file(file: Path, *, as_json: bool) -> Result:
    """Tell every mistake in a file, or in that of a data directory, and what to know of it."""
    if file.is_dir():
        file = file / FILE_NAME
    if file.suffix == BROKER_SUFFIX:
        return _check_broker_file(file, as_json=as_json)
    path = file.resolve()
    text = read_text(path, LocalFiles())
    problems = [str(problem) for problem in file_problems(text, str(file))]
    warnings: list[str] = []
    words = ""
    if not problems:
        layer = file_layer(text, str(file))
        settings = Settings((layer,))
        topics = sorted(layer.topics)
        for topic in (None, *topics):
            problems += settings.problems(topic)
            warnings += settings.hazards(topic)
        problems += _cleaner_problems(settings)
        warnings = [*warnings_of(layer), *dict.fromkeys(warnings)]
        count = len(layer.cluster) + sum(len(own) for own in layer.topics.values())
        words = f"{format_counted(count, 'setting')}, {format_counted(len(topics), 'topic')}"
    return _judged(file, problems, warnings, words, as_json=as_json)


def _check_broker_file(file: Path, *, as_json: bool) -> Result:
    """Tell every mistake in a broker's file; what is not a setting of ours is nobody's business."""
    files, path = LocalFiles(), file.resolve()
    problems = [str(each) for each in broker_problems(read_broker_bytes(path, files), str(path))]
    warnings: list[str] = []
    words = ""
    if not problems:
        broker = read_broker_config(file, files)
        settings = Settings((), broker=broker)
        problems = [*settings.problems(None), *_cleaner_problems(settings)]
        warnings = [*broker.warnings, *settings.hazards(None)]
        words = f"{format_counted(len(broker.layer.cluster), 'setting')} that keeplast knows"
    return _judged(file, problems, warnings, words, as_json=as_json)


def _cleaner_problems(settings: Settings) -> list[str]:
    try:
        settings.cleaner_config()
    except CompactionError as error:
        return [str(error)]
    return []


def _judged(
    file: Path, problems: list[str], warnings: list[str], words: str, *, as_json: bool
) -> Result:
    """Tell what was found in a file; ``words`` say what is in one without a mistake."""
    if not as_json:
        for warning in warnings:
            print_result(f"warning: {warning}")
        for problem in problems:
            print_result(f"mistake: {problem}")
        if not problems:
            print_result(f"no mistake: {words}. path={file}")
    found = {"path": str(file), "problems": problems, "warnings": warnings}
    return CHECK_FAILED if problems else DONE, found


def get_value(
    key: str,
    data_dir: Path | None,
    topic: str | None,
    sources: SettingSources,
    *,
    as_json: bool,
) -> Result:
    """Print the value that counts."""
    definition = find_definition(key)
    if data_dir is None:
        root, settings = Path(), read_spoken_settings(LocalFiles(), sources)
    else:
        directory = open_data_directory(data_dir, LocalFiles())
        root, settings = directory.root, read_settings(directory.root, LocalFiles(), sources)
        _warn_of_topic(directory, topic)
    found = settings.effective(definition, topic)
    if not as_json:
        print_result(value_text(found.value) if found.value is not None else "")
        origin = origin_text(definition, found, root)
        nowhere = "" if data_dir is not None else "; of no data directory: give DATA_DIR for one"
        say(f"{definition.key}: {origin}{nowhere}")
    return DONE, dict(topic=topic, **(definition_row(definition) | value_row(definition, found)))


def check_order(settings: Sequence[str]) -> None:
    """Raise InvalidError where a directory stands among the settings, as other commands have it."""
    for each in settings:
        if Path(each).is_dir():
            raise InvalidError(
                "DATA_DIR stands behind the settings here: keeplast config set KEY=VALUE DATA_DIR. "
                f"argument={each!r}"
            )


def pairs(settings: Sequence[str]) -> dict[str, str | None]:
    """Return ``KEY=VALUE`` texts as a mapping; InvalidError for a text without a value."""
    found: dict[str, str | None] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise InvalidError(f"setting without a value; write KEY=VALUE. setting={setting!r}")
        found[key.strip()] = value
    return found


def change_file(
    changes: Mapping[str, str | None],
    data_dir: Path,
    topic: str | None,
    sources: SettingSources,
    *,
    as_json: bool,
) -> Result:
    """Write settings, or remove those whose value is None, and say what that did."""
    files = LocalFiles()
    directory = open_data_directory(data_dir, files)
    _warn_of_topic(directory, topic)
    edit = change_settings(
        directory.root,
        files,
        changes,
        topic=topic,
        topics_here=_topics(directory),
        sources=sources,
    )
    if not as_json:
        print_result(*change_lines(edit, topic, directory.root))
    for warning in edit.warnings:
        say(warning, kind="warning")
    return DONE, {
        "path": str(edit.path),
        "topic": topic,
        "changes": [
            {
                "key": each.key,
                "before": value_row(each.definition, each.before),
                "after": value_row(each.definition, each.after),
                "removed": list(each.removed),
            }
            for each in edit.changes
        ],
        "warnings": list(edit.warnings),
    }


def _topics(directory: DataDirectory) -> list[str]:
    names = {e.partition.topic for e in directory.partitions if e.mark is None}
    return sorted(names - {METADATA_TOPIC})


def _warn_of_topic(directory: DataDirectory, topic: str | None) -> None:
    if topic is not None and not directory.is_single and topic not in _topics(directory):
        say(f"no such topic in the data directory. topic={topic}", kind="warning")
