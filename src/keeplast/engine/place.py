"""Where a cleaned partition goes: in place, or below a target directory of the same layout."""

from __future__ import annotations

from pathlib import Path

from keeplast.engine.commit import copy_file
from keeplast.engine.request import CleanRequest, PartitionRequest
from keeplast.errors import RefusedError
from keeplast.format.filename import CLEAN_SHUTDOWN, META_PROPERTIES
from keeplast.log.files import FileSystem
from keeplast.log.partition_log import list_partition


def target_of(partition: PartitionRequest, request: CleanRequest) -> Path:
    """Return the directory that the cleaned partition will be in."""
    if request.target is None:
        return partition.path
    return request.target.absolute() / partition.path.name


def make_target(files: FileSystem, partition: PartitionRequest, request: CleanRequest) -> None:
    """Make the partition's directory at the target.

    RefusedError when something is there already, or when the source would have to be written to.
    """
    if request.roll_active:
        raise RefusedError(
            "--roll-active writes to the log and --to leaves it untouched; give one of them"
        )
    if list_partition(partition.path, files).leftovers:
        raise RefusedError(
            "an interrupted swap lies in the source, which --to may not touch; start a broker on "
            f"it once, or clean in place. path={partition.path}"
        )
    place = target_of(partition, request)
    if place == partition.path:
        raise RefusedError(f"--to is the source itself; leave it out. path={place}")
    if files.exists(place) and files.listdir(place):
        raise RefusedError(f"the target exists; remove it or choose another. path={place}")
    files.make_directory(place)


def copy_root_files(files: FileSystem, root: Path, target: Path) -> None:
    """Bring the identity and the checkpoints of a data directory along, once."""
    for name in files.listdir(root):
        is_wanted = name.endswith("-checkpoint") or name in (META_PROPERTIES, CLEAN_SHUTDOWN)
        if is_wanted and not files.exists(target / name) and not files.is_directory(root / name):
            copy_file(files, root / name, target / name)
