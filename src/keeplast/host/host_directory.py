"""The directory in which one process keeps the logs of its hosts.

What a reader must not break: a host writes its logs and removes what object storage has of them, so
the directory is nobody else's. A broker's is refused, also one that is stopped: the broker would
start on a log whose beginning has gone. The lock is a broker's own, and held for as long as hosts
use the directory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from keeplast.errors import InvalidError, RefusedError
from keeplast.format.filename import parse_partition_directory
from keeplast.log.data_directory import METADATA_TOPIC
from keeplast.log.files import FileSystem
from keeplast.log.lock import locked
from keeplast.log.object_paths import is_object_path
from keeplast.model.partition import TopicPartition

META_PROPERTIES = "meta.properties"
"""What a broker writes into each of its ``log.dirs``. Kafka: ``MetaPropertiesEnsemble``."""


@contextmanager
def host_directory(root: Path, files: FileSystem) -> Iterator[None]:
    """Hold ``root`` for the hosts of this process; it is made where it is missing.

    InvalidError for what is no directory of this machine; RefusedError for a broker's, and for one
    that a broker or another process is using.
    """
    if is_object_path(root) or parse_partition_directory(root.name) is not None:
        raise InvalidError(
            "hosts keep a directory for each partition below a directory of this machine; name "
            f"that. path={root}"
        )
    if not files.exists(root):
        files.make_directory(root)
    if not files.is_directory(root):
        raise InvalidError(f"not a directory; name one for the logs of hosts. path={root}")
    for name in (META_PROPERTIES, f"{METADATA_TOPIC}-0"):
        if files.exists(root / name):
            raise RefusedError(
                "the directory is a broker's, which would start on logs whose beginning local "
                "retention has removed; copy its partitions and checkpoints into a directory of "
                f"their own. path={root / name}"
            )
    with locked(root):
        yield


def check_own_log(root: Path, partition: TopicPartition) -> None:
    """RefusedError where the directory of a log is a link: what it leads to may be a broker's."""
    path = root / str(partition)
    if path.is_symlink():
        raise RefusedError(
            "the directory of a log is a link, which is not followed; put the log itself there. "
            f"path={path}"
        )
