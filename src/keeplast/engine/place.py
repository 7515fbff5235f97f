"""Where a cleaned partition goes: in place, or below a target directory of the same layout.

A target is marked incomplete before anything else is there and until its checkpoint is written, on
disks as in object stores. So a crash leaves what says of itself that it is no log, and the same
call begins anew.
"""

from __future__ import annotations

from pathlib import Path

from keeplast.engine.commit import copy_file
from keeplast.engine.request import CleanRequest, PartitionRequest
from keeplast.errors import ConflictError, RefusedError
from keeplast.format.filename import CLEAN_SHUTDOWN, INCOMPLETE, META_PROPERTIES
from keeplast.log.files import FileSystem
from keeplast.log.object_paths import is_object_path
from keeplast.log.partition_log import list_partition

MARK_BYTES_MAX = 256
UNFINISHED_MARK = f"{INCOMPLETE}.tmp"


def target_of(partition: PartitionRequest, request: CleanRequest) -> Path:
    """Return the directory that the cleaned partition will be in."""
    if request.target is None:
        return partition.path
    return request.target.absolute() / partition.path.name


def check_places(request: CleanRequest, files: FileSystem) -> None:
    """Raise RefusedError when a log in an object store would have to change where it is, or when
    the target lies in a broker's data directory.

    A store renames nothing: while segments were swapped, readers would see two logs in one. And
    brokers do not start on a data directory that holds a directory which is no partition.
    """
    for partition in request.partitions:
        root = partition.path.parent
        if (
            request.target is not None
            and files.exists(root / META_PROPERTIES)
            and root.resolve() in request.target.resolve().parents
        ):
            raise RefusedError(
                "--to lies in the data directory, on which no broker would start then; give a "
                f"place outside of it. --to={request.target} path={root}"
            )
        if request.target is None and is_object_path(partition.path):
            raise RefusedError(
                "a log in an object store is not cleaned in place; give --to and another prefix, "
                f"bucket or directory. path={partition.path}"
            )
    if request.target is not None and is_object_path(request.target) and request.rounds != 1:
        raise RefusedError(
            "the first round writes the target, and another one would change it in place, which "
            "an object store does not allow; leave --rounds and --until-done out, or give --to a "
            f"directory. path={request.target}"
        )


def make_target(
    files: FileSystem, partition: PartitionRequest, request: CleanRequest, *, run: str
) -> bool:
    """Make the partition's directory at the target, with a mark that it is incomplete.

    Returns whether another run had begun there and not finished: what it left is removed.
    RefusedError when something else is there, or when the source would have to be written to.
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
    return begin_target(files, place, run=run)


def begin_target(files: FileSystem, place: Path, *, run: str) -> bool:
    """Make the directory ``place`` for ``run`` to fill, with a mark that it is incomplete.

    Returns whether another run had begun there and not finished: what it left is removed.
    RefusedError when something else is there.
    """
    names = files.listdir(place) if files.exists(place) else []
    # A mark that was never finished says that nothing else had begun.
    names = [name for name in names if name != UNFINISHED_MARK]
    if names and INCOMPLETE not in names:
        raise RefusedError(f"the target exists; remove it or choose another. path={place}")
    files.make_directory(place)
    # The mark changes hands first: a run that is still at work finds it is not its own any more.
    files.write_durable(place / INCOMPLETE, run.encode())
    for name in names:
        if name != INCOMPLETE:
            files.unlink(place / name)
    return bool(names)


def check_target(files: FileSystem, place: Path, *, run: str) -> None:
    """Raise ConflictError unless this run is the one that writes ``place``."""
    try:
        found = files.read_bytes(place / INCOMPLETE, MARK_BYTES_MAX).decode(errors="replace")
    except FileNotFoundError:
        found = "nobody"
    if found != run:
        raise ConflictError(
            "another clean --to has begun at the target meanwhile, and goes on alone; let only one "
            f"at it. path={place} run={run} found={found}"
        )


def complete_target(files: FileSystem, place: Path, *, run: str) -> None:
    """Take the mark away: from now on ``place`` is a log."""
    check_target(files, place, run=run)
    files.unlink(place / INCOMPLETE)
    files.fsync_directory(place)


def copy_root_files(files: FileSystem, root: Path, target: Path) -> None:
    """Bring the identity and the checkpoints of a data directory along, once."""
    for name in files.listdir(root):
        is_wanted = name.endswith("-checkpoint") or name in (META_PROPERTIES, CLEAN_SHUTDOWN)
        if is_wanted and not files.exists(target / name) and not files.is_directory(root / name):
            copy_file(files, root / name, target / name)
