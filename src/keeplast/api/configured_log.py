"""``keeplast.open_log``: one log, with settings as every command reads them.

Which record of a key is final is the topic's to say, so a log that is opened by its path looks for
what its data directory says of the topic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from keeplast.api.open_log import OpenLog
from keeplast.config.sources import read_settings
from keeplast.log.files import FileSystem
from keeplast.log.object_paths import place_path
from keeplast.model.topic_config import TopicConfig


def open_log(directory: Path | str, *, object_options: Mapping[str, str] | None = None) -> OpenLog:
    """Open one partition directory, such as ``/data/prices-0`` or ``s3://bucket/data/prices-0``.

    ``object_options`` are those of the object store, such as its ``endpoint``. A log there is
    cleaned ``to`` another place, never where it is.
    InvalidError when its name is no ``<topic>-<number>`` or it is no directory. Nothing is read
    yet.
    """
    return OpenLog(place_path(str(directory)), options=object_options, topic_configs=_topic_configs)


def _topic_configs(root: Path, files: FileSystem) -> Callable[[str], TopicConfig]:
    return read_settings(root, files).topic_config
