"""Where settings are looked for, and what they say right now.

Nothing is remembered: every call reads file, environment and the directory's metadata anew, so that
whoever works in rounds sees a change with the next one. A source that cannot be used is an error of
the whole call, and whoever goes on keeps what it had.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from keeplast.config.broker_config import BrokerConfig, read_broker_config
from keeplast.config.choice import USUAL_SOURCES, SettingSources
from keeplast.config.layers import Layer, environment_layer, file_layer, flags_layer
from keeplast.config.metadata_log import read_metadata, read_node_id
from keeplast.config.settings import Settings
from keeplast.errors import InvalidError
from keeplast.log.files import FileSystem
from keeplast.model.topic_config import CleanerConfig

FILE_NAME = "keeplast.toml"
FILE_BYTES_MAX = 4 << 20


def read_settings(
    root: Path,
    files: FileSystem,
    sources: SettingSources = USUAL_SOURCES,
    *,
    key_map_bytes: int | None = None,
    file_text: str | None = None,
) -> Settings:
    """Return the settings of every source for the data directory ``root``, as they are now.

    ``file_text`` takes the place of what the file says. InvalidError when a source cannot be used,
    CorruptError when the metadata are damaged.
    """
    path = settings_path(root, sources.config_file)
    if file_text is None and (sources.config_file is not None or files.exists(path)):
        file_text = read_text(path, files)
    file = () if file_text is None else (file_layer(file_text, str(path)),)
    return Settings(
        _layers(sources, file),
        directory_layer=read_metadata(root, files),
        broker=_broker(sources.broker_config, files, root),
        key_map_bytes=key_map_bytes,
    )


def _broker(path: Path | None, files: FileSystem, root: Path | None = None) -> BrokerConfig | None:
    """Return what a broker's file says, with a warning when the directory is another broker's."""
    if path is None:
        return None
    found = read_broker_config(path, files)
    node = None if root is None else read_node_id(root, files)
    if node is None or found.node_id is None or found.node_id == node:
        return found
    warning = (
        "this is another broker's file, whose settings may be others; name that of the directory's "
        f"broker. node.id={found.node_id} directory={node} path={path}"
    )
    return replace(found, warnings=(*found.warnings, warning))


def read_cleaner_config(files: FileSystem, sources: SettingSources) -> CleanerConfig:
    """Return the cleaner's settings where there is no data directory, as they are now."""
    return read_spoken_settings(files, sources).cleaner_config()


def read_spoken_settings(files: FileSystem, sources: SettingSources) -> Settings:
    """Return the settings where there is no data directory, as they are now.

    Errors are those of :func:`read_settings`; without a ``config_file`` there is no file.
    """
    broker = _broker(sources.broker_config, files)
    return Settings(read_layers(files, sources), broker=broker)


def read_layers(files: FileSystem, sources: SettingSources) -> list[Layer]:
    """Return what is said where there is no data directory, the strongest source first."""
    if sources.config_file is None:
        return _layers(sources, ())
    path = sources.config_file.resolve()
    return _layers(sources, (file_layer(read_text(path, files), str(path)),))


def _layers(sources: SettingSources, file: Sequence[Layer]) -> list[Layer]:
    """Return the flags, the place's table, the settings file and the environment, in this order."""
    environment = os.environ if sources.environment is None else sources.environment
    place = () if sources.place is None else (sources.place,)
    return [flags_layer(sources.flags), *place, *file, environment_layer(environment)]


def settings_path(root: Path, config_file: Path | None) -> Path:
    """Return the settings file that counts for ``root``, whether it exists or not.

    A file that the user names may be a link; what lies in the data directory may not.
    """
    return root / FILE_NAME if config_file is None else config_file.resolve()


def read_text(path: Path, files: FileSystem) -> str:
    """Return the text of a settings file; InvalidError when it is none."""
    try:
        return files.read_bytes(path, FILE_BYTES_MAX).decode()
    except FileNotFoundError as error:
        raise InvalidError(f"no such settings file; name one that exists. path={path}") from error
    except UnicodeDecodeError as error:
        raise InvalidError(
            f"not UTF-8 text; save it as UTF-8. path={path} position={error.start}"
        ) from error
