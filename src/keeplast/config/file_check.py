"""Every mistake in a settings file or a broker's ``server.properties``, and its hazards."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from keeplast.config.broker_config import broker_problems, read_broker_bytes, read_broker_config
from keeplast.config.layers import file_layer, file_problems, warnings_of
from keeplast.config.settings import Settings
from keeplast.config.sources import FILE_NAME, read_text
from keeplast.errors import CompactionError
from keeplast.log.files import FileSystem
from keeplast.model.size import format_counted

BROKER_SUFFIX = ".properties"


@dataclass(frozen=True, slots=True)
class FileCheck:
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
