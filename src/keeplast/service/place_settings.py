"""The settings that count in a place and where each comes from, and changing them.

A data directory has all sources, and a settings file that is written. Of a store see
:mod:`keeplast.service.stored_settings`. A live cluster's topics are what keeplast is to make of
them (:mod:`keeplast.config.mapping`), and brokers keep their settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from keeplast.config.layers import PartitionChoice, SettingSources
from keeplast.config.precedence import Settings
from keeplast.config.settings_file import Edit, change_settings
from keeplast.config.sources import read_settings
from keeplast.errors import Despite, InvalidError
from keeplast.log.data_directory import DataDirectory, open_data_directory
from keeplast.log.files import FileSystem
from keeplast.model.partition import TopicPartition

if TYPE_CHECKING:
    from keeplast.store.migration import Migration


class PlaceSettings(Struct, frozen=True):
    """Settings, and what is to be known of them.

    ``root`` is the folder whose files are shown by their names, None where there is none.
    """

    settings: Settings
    root: Path | None = None
    warnings: tuple[str, ...] = ()


def directory_settings(
    path: Path, files: FileSystem, sources: SettingSources, topic: str | None
) -> PlaceSettings:
    """Return what counts in the data directory at ``path``."""
    directory = open_data_directory(path, files)
    settings = read_settings(directory.root, files, sources)
    warnings = (*settings.warnings_of_broker, *unknown_topic(directory, topic))
    return PlaceSettings(settings, directory.root, warnings)


def unknown_topic(directory: DataDirectory, topic: str | None) -> tuple[str, ...]:
    """Return a sentence where a data directory does not have ``topic``."""
    if topic is None or directory.is_single or topic in directory.topics():
        return ()
    return (f"no such topic in the data directory. topic={topic}",)


class ChangeTerms(Struct, frozen=True, kw_only=True):
    """How settings are changed: ``plans`` only says what would follow.

    ``drops_keyless`` confirms that records without a key go where a topic becomes compacted, and
    ``takes_over`` takes a partition from another process: both of a store alone.
    """

    plans: bool = False
    drops_keyless: bool = False
    takes_over: bool = False


class ConfiguredPartition(Struct, frozen=True):
    """What follows from the change for one partition of a store, or why it failed."""

    partition: TopicPartition
    migration: Migration | None = None
    failure: Exception | None = None


class ConfiguredPlace(Struct, frozen=True):
    """What a change did: to a data directory's file, or to each partition of a store.

    ``root`` is the data directory, None of a store.
    """

    edit: Edit | None = None
    topic: str | None = None
    root: Path | None = None
    partitions: tuple[ConfiguredPartition, ...] = ()
    warnings: tuple[str, ...] = ()


def configure_directory(
    path: Path,
    files: FileSystem,
    changes: Mapping[str, str | None],
    scope: PartitionChoice,
    sources: SettingSources,
    terms: ChangeTerms,
) -> ConfiguredPlace:
    """Write ``changes`` into the settings file, judged together with every other source.

    InvalidError for a value that cannot be used, and for what only a store takes; nothing is
    written then.
    """
    if scope.partitions or len(scope.topics) > 1:
        raise InvalidError(
            "the file of a data directory has tables of topics; give one --topic and no "
            f"--partition. topics={list(scope.topics)} partitions={list(scope.partitions)}",
            code="K103",
        )
    if terms.drops_keyless or terms.takes_over:
        raise InvalidError(
            "only partitions of a store are taken over and counted; leave --take-over and "
            f"--despite {Despite.KEYLESS_RECORDS} out. path={path}",
            code="K103",
        )
    topic = scope.topics[0] if scope.topics else None
    directory = open_data_directory(path, files)
    edit = change_settings(
        directory.root, files, changes, topic=topic, topics_here=sorted(directory.topics()),
        sources=sources, writes=not terms.plans,
    )  # fmt: skip
    warnings = (*unknown_topic(directory, topic), *edit.warnings)
    return ConfiguredPlace(edit, topic, directory.root, warnings=warnings)
