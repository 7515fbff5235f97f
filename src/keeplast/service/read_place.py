"""Places of logs in the words of the data source, which alone says what a state is as of a point.

A store and a live cluster's remote tier are shown as a directory that is only read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from keeplast.config.layers import SettingSources
from keeplast.config.mapping import stored_topic_config
from keeplast.config.sources import read_settings
from keeplast.log.data_directory import open_data_directories
from keeplast.log.paths import shown
from keeplast.model.hold import GroupReader
from keeplast.model.topic_config import TopicConfig

if TYPE_CHECKING:
    from keeplast.pipeline.source_options import SourceOptions


@dataclass(frozen=True, slots=True)
class ReadPlace:
    """A place that is read.

    ``given`` says where it is, in the words of the data source, ``shows`` what of it is read with
    some options, and ``configs`` how topics rank there. ``groups`` read what consumer groups have
    committed, None where files do. Within ``named`` errors name what is really there. ``notes`` are
    to be said of it, ``object_options`` are its object store's.
    """

    given: Mapping[str, str]
    configs: Callable[[SourceOptions], Callable[[str], TopicConfig]]
    shows: Callable[[SourceOptions], SourceOptions] = lambda options: options
    groups: GroupReader | None = None
    named: Callable[[], AbstractContextManager[None]] = nullcontext
    notes: tuple[str, ...] = ()
    object_options: Mapping[str, str] = field(default_factory=dict, repr=False)


class ReadTerms(Struct, frozen=True, kw_only=True):
    """How a place is read, apart from the choice of partitions.

    ``checkpoint`` is TOPIC[@OFFSET]. ``also`` are further directories of a place of directories,
    which ``takes_partial`` topics too. ``brokers`` read what consumer groups have committed, None
    where the place itself does.
    """

    checkpoint: str | None = None
    also: tuple[Path, ...] = ()
    takes_partial: bool = False
    brokers: GroupReader | None = None


PLAIN_READ = ReadTerms()


def topics_read(topics: Sequence[str], checkpoint: str | None) -> tuple[str, ...]:
    """Return the topics that are looked at for ``topics``, none for all: a checkpoint's too."""
    named = checkpoint_topic(checkpoint)
    return tuple({*topics, named}) if topics and named else tuple(topics)


def checkpoint_topic(checkpoint: str | None) -> str:
    """Return the topic of ``TOPIC[@OFFSET]``, nothing without one."""
    return (checkpoint or "").partition("@")[0]


def directory_read(
    path: Path, sources: SettingSources, object_options: Mapping[str, str], terms: ReadTerms
) -> ReadPlace:
    """Return a data directory, or a partition in it, to read from as one place with the others.

    Topics that are not whole there are refused unless partial ones are taken.
    """
    configs = partial(_directory_configs, sources)
    given = {
        "paths": json.dumps([shown(str(each)) for each in (path, *terms.also)]),
        "partialTopics": str(terms.takes_partial).lower(),
    }
    return ReadPlace(given, configs, groups=terms.brokers, object_options=object_options)


def store_read(
    store: str, cluster: Mapping[str, object], object_options: Mapping[str, str],
    brokers: GroupReader | None,
) -> ReadPlace:  # fmt: skip
    """Return the store at a URL to read from; ``cluster`` is what a broker's file says."""

    def configs(options: SourceOptions) -> Callable[[str], TopicConfig]:
        return stored_topic_config(options.shown_logs(), cluster)

    return ReadPlace(
        {"store": store}, configs, shows=lambda options: options.of(options.shown_logs()),
        groups=brokers, object_options=object_options,
    )  # fmt: skip


def _directory_configs(
    sources: SettingSources, options: SourceOptions
) -> Callable[[str], TopicConfig]:
    there = options.recipe().open()
    root = open_data_directories(options.paths, there).root
    return read_settings(root, there, sources).topic_config
