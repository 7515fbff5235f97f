"""Which partitions of a data directory a call is about, and with what settings.

The rules that keep a log from being compacted by accident:

1. A partition is worked on only when its topic's policy is *known* to contain ``compact``. It is
   known from the user's sources, from the directory's own metadata, or because it is one of the
   topics that brokers keep for themselves. Unknown is refused, with the remedy.
2. ``cleanup.policy`` given for the chosen topics decides only about topics that the user named,
   unless there is one topic. A cluster's default, from whichever source, decides only about named
   topics, however many there are: a topic may have its own, which is not to be seen here.
3. The metadata log, and replicas that are being deleted, moved or set aside, are never cleaned.

What is refused or skipped here becomes a report of its own; the other partitions go on.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from keeplast.cleaner.reasons import NotCompacted
from keeplast.cleaner.settings import check_internal
from keeplast.config.definition import value_text
from keeplast.config.layers import (
    ALL_PARTITIONS,
    FLAG_SOURCE,
    USUAL_SOURCES,
    PartitionChoice,
    SettingSources,
    suggestion,
)
from keeplast.config.precedence import PolicyOrigin, Settings
from keeplast.config.sources import FILE_NAME, read_settings
from keeplast.errors import InvalidError, RefusedError
from keeplast.format.filename import parse_partition_directory
from keeplast.log.data_directory import (
    METADATA_TOPIC,
    DataDirectory,
    PartitionEntry,
    open_data_directory,
)
from keeplast.log.files import FileSystem
from keeplast.model.partition import TopicPartition
from keeplast.survey.report import PartitionReport, RoundReport, describe_error
from keeplast.survey.request import PartitionRequest

NAMES_SHOWN_MAX = 10


class Selection(Struct, frozen=True):
    """The partitions to work on, and reports of those that were decided without reading them.

    ``settings`` are all that were read.
    """

    directory: DataDirectory
    partitions: tuple[PartitionRequest, ...]
    decided: tuple[PartitionReport, ...]
    warnings: tuple[str, ...]
    settings: Settings


def select_partitions(
    data_directory: Path,
    files: FileSystem,
    choice: PartitionChoice = ALL_PARTITIONS,
    sources: SettingSources = USUAL_SOURCES,
    *,
    key_map_bytes: int | None = None,
) -> Selection:
    """Return what a call with these arguments is about.

    Raises InvalidError for anything that names nothing or contradicts itself, RefusedError for what
    must not be touched.
    """
    found = _find(data_directory, files, choice, sources, key_map_bytes=key_map_bytes)
    directory, settings = found.directory, found.settings
    names = {entry.partition.topic for entry in _in_service(directory)}
    _check_policy_flag(choice, sources, names)
    is_named = bool(choice.topics)
    warnings = [*settings.warnings, *_find_left_alone(directory)]
    for topic in sorted(settings.topic_names() - names):
        if not directory.is_single:
            warnings.append(f"settings for a topic that is not here. topic={topic}")
    requests: list[PartitionRequest] = []
    decided: list[PartitionReport] = []
    for entry in found.entries:
        outcome = _decide(entry, settings, is_named=is_named, root=directory.root)
        if isinstance(outcome, PartitionRequest):
            requests.append(outcome)
        else:
            decided.append(
                PartitionReport(entry.partition.topic, entry.partition.partition, (outcome,))
            )
    topics = list(dict.fromkeys(request.partition.topic for request in requests))
    for topic in topics:
        warnings += settings.hazards(topic)
    warnings += _find_borrowed(settings, topics)
    return Selection(directory, tuple(requests), tuple(decided), tuple(warnings), settings)


def choose_partition(
    data_directory: Path,
    files: FileSystem,
    partition: TopicPartition,
    sources: SettingSources = USUAL_SOURCES,
) -> tuple[PartitionRequest, tuple[str, ...]]:
    """Return one partition, whatever its policy is, and warnings.

    Errors are those of :func:`select_partitions`; RefusedError too when no source says what its
    policy is.
    """
    topic = partition.topic
    choice = PartitionChoice(topics=(topic,), partitions=(partition.partition,))
    found = _find(data_directory, files, choice, sources)
    (entry,), settings = found.entries, found.settings
    if settings.policy_origin(topic) is PolicyOrigin.UNKNOWN:
        raise _unknown_policy(topic, found.directory.root)
    request = PartitionRequest(
        entry.partition, entry.path, settings.topic_config(topic), settings.cleaner_config()
    )
    return request, settings.warnings


def select_directory(
    data_directory: Path,
    files: FileSystem,
    choice: PartitionChoice = ALL_PARTITIONS,
    sources: SettingSources = USUAL_SOURCES,
) -> tuple[tuple[tuple[PartitionEntry, dict[str, str] | RefusedError], ...], tuple[str, ...]]:
    """Return partitions whatever their policy is, each with what is set for it, and warnings.

    What is set are Kafka's names and texts, without the defaults. In their place stands the refusal
    of a topic that must not be touched, or whose policy no source gives. Errors are those of
    :func:`select_partitions`.
    """
    found = _find(data_directory, files, choice, sources)
    directory, settings = found.directory, found.settings
    names = {entry.partition.topic for entry in _in_service(directory)}
    _check_policy_flag(choice, sources, names)
    is_named = bool(choice.topics)
    warnings = [*settings.warnings, *_find_left_alone(directory)]
    given: dict[str, dict[str, str] | RefusedError] = {}
    for topic in dict.fromkeys(entry.partition.topic for entry in found.entries):
        try:
            given[topic] = _kept_settings(settings, topic, directory.root, is_named=is_named)
        except RefusedError as error:
            given[topic] = error
        else:
            warnings += settings.hazards(topic)
    taken = {topic for topic, each in given.items() if not isinstance(each, RefusedError)}
    warnings += _find_borrowed(settings, taken)
    return tuple((entry, given[entry.partition.topic]) for entry in found.entries), tuple(warnings)


def _kept_settings(settings: Settings, topic: str, root: Path, *, is_named: bool) -> dict[str, str]:
    """Return what is kept with the partitions of a topic; RefusedError where that is unknown."""
    check_internal(topic, settings.topic_config(topic))
    origin = settings.policy_origin(topic)
    if origin is PolicyOrigin.UNKNOWN:
        raise _unknown_policy(topic, root)
    if origin is PolicyOrigin.CLUSTER and not is_named:
        # It would be kept as the topic's own: to compact it by, or to let it expire by.
        raise _default_policy(topic, root)
    return {
        key: value_text(value.value)
        for key, value in settings.topic_values(topic).items()
        if not value.is_default and value.value is not None
    }


class _Found(Struct, frozen=True):
    """The chosen partitions of a directory, whatever their policy is, and all settings."""

    directory: DataDirectory
    settings: Settings
    entries: list[PartitionEntry]


def _find(
    data_directory: Path,
    files: FileSystem,
    choice: PartitionChoice,
    sources: SettingSources,
    *,
    key_map_bytes: int | None = None,
) -> _Found:
    directory = open_data_directory(data_directory, files)
    settings = read_settings(directory.root, files, sources, key_map_bytes=key_map_bytes)
    return _Found(directory, settings, _chosen(directory, choice))


def _find_left_alone(directory: DataDirectory) -> list[str]:
    """Return a warning when something has a partition's name and is no directory of its own."""
    names = [name for name in directory.ignored if parse_partition_directory(name) is not None]
    if not names:
        return []
    shown = ", ".join(names[:NAMES_SHOWN_MAX]) + (" ..." if len(names) > NAMES_SHOWN_MAX else "")
    return [
        "links are not followed, and files are no partitions: left alone; name the directory that "
        f"is meant. names={shown} path={directory.root}"
    ]


def _in_service(directory: DataDirectory) -> list[PartitionEntry]:
    return [
        entry
        for entry in directory.partitions
        if entry.mark is None and entry.partition.topic != METADATA_TOPIC
    ]


def _chosen(directory: DataDirectory, choice: PartitionChoice) -> list[PartitionEntry]:
    available = _in_service(directory)
    if directory.is_single and not available:
        _refuse(directory.partitions[0])
    for topic in choice.topics:
        if any(entry.partition.topic == topic for entry in available):
            continue
        for entry in directory.partitions:
            if entry.partition.topic == topic:
                _refuse(entry)
        here = {entry.partition.topic for entry in available}
        nearest = suggestion(topic, here, "there is none", cutoff=0.0)
        raise InvalidError(
            f"no such topic in the data directory; {nearest}. topic={topic} path={directory.root}",
            code="K114",
        )
    chosen = [entry for entry in available if choice.includes(entry.partition)]
    for number in choice.partitions:
        if all(entry.partition.partition != number for entry in chosen):
            raise InvalidError(
                f"no such partition in the data directory; leave --partition out to take all. "
                f"partition={number} path={directory.root}",
                code="K115",
            )
    if not chosen:
        raise InvalidError(
            f"no partition in the data directory; give a Kafka log.dirs directory or a partition "
            f"in it. path={directory.root}",
            code="K116",
        )
    return chosen


def _refuse(entry: PartitionEntry) -> None:
    if entry.mark is not None:
        raise RefusedError(
            f"the replica is marked {entry.mark}, a broker disposes of it; choose one in service. "
            f"path={entry.path}",
            code="K206",
        )
    raise RefusedError(
        f"the metadata log has its own snapshots; leave it alone. path={entry.path}", code="K207"
    )


def _check_policy_flag(choice: PartitionChoice, sources: SettingSources, names: set[str]) -> None:
    """Raise InvalidError where a flag gives topics a policy and several are not named.

    ``names`` are all topics that there are.
    """
    keys = {flag.partition("=")[0].strip() for flag in sources.flags}
    if "cleanup.policy" in keys and not choice.topics and len(names) > 1:
        raise InvalidError(
            f"cleanup.policy for every topic at once; name the topics with --topic. "
            f"source={FLAG_SOURCE} topics={','.join(sorted(names))}",
            code="K127",
        )


def _find_borrowed(settings: Settings, topics: Iterable[str]) -> list[str]:
    """Return a warning for defaults of a broker's file that count for topics of unknown settings.

    Without a broker's file the defaults that are assumed are said elsewhere
    (:mod:`~keeplast.config.setting_rows`).
    """
    found: dict[str, list[str]] = {}
    for topic in topics:
        borrowed = settings.borrowed(topic)
        if borrowed:
            text = ", ".join(f"{key}={value}" for key, value in borrowed.items())
            found.setdefault(text, []).append(topic)
    return [
        f"the broker's defaults count for topics that may have settings of their own, and "
        f"{METADATA_TOPIC}-0, which would say, is not here: {text}; say a topic's own with "
        f"--config, or in {FILE_NAME}. topics={_shown_names(names)}"
        for text, names in found.items()
    ]


def _shown_names(names: Iterable[str]) -> str:
    listed = sorted(names)
    return ",".join(listed[:NAMES_SHOWN_MAX]) + (",..." if len(listed) > NAMES_SHOWN_MAX else "")


def _decide(
    entry: PartitionEntry, settings: Settings, *, is_named: bool, root: Path
) -> PartitionRequest | RoundReport:
    """Return the request for ``entry``, or the report that takes its place."""
    topic = entry.partition.topic
    config = settings.topic_config(topic)
    origin = settings.policy_origin(topic)
    try:
        if origin is PolicyOrigin.UNKNOWN:
            raise _unknown_policy(topic, root)
        if origin is PolicyOrigin.CLUSTER and config.is_compacted and not is_named:
            raise _default_policy(topic, root)
        check_internal(topic, config)
        if not config.is_compacted:
            policy = ",".join(sorted(config.cleanup_policy)) or "empty"
            return RoundReport(skipped=True, cause=NotCompacted(policy))
        return PartitionRequest(entry.partition, entry.path, config, settings.cleaner_config())
    except RefusedError as error:
        return RoundReport(error=describe_error(error), failure=error)


def _default_policy(topic: str, root: Path) -> RefusedError:
    return RefusedError(
        f"only the cluster's default policy is known, the topic may have its own, and "
        f"{METADATA_TOPIC}-0, which would say, is not here; name the topic with --topic {topic}, "
        f'or in {FILE_NAME} under [topic."{topic}"]. topic={topic} path={root}',
        code="K127",
    )


def _unknown_policy(topic: str, root: Path) -> RefusedError:
    return RefusedError(
        f"cleanup.policy of the topic is unknown; say it with --topic {topic} --config "
        f'cleanup.policy=compact, or in {FILE_NAME} under [topic."{topic}"]. '
        f"topic={topic} path={root}",
        code="K127",
    )
