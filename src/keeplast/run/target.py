"""Where a cleaned partition goes: in place, or below a target directory of the same layout.

A target is marked incomplete before anything else is there and until its checkpoint is written, on
disks as in object stores. So a crash leaves a mark that it is no log, and the same call begins
again. An earlier log that is to be replaced stays what it is until all of the new one lies next to
it, read, checked and staged. A source that cannot be read never costs the earlier one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from keeplast.errors import ConflictError, CorruptError, Despite, RefusedError
from keeplast.format.filename import (
    CLEAN_SHUTDOWN,
    CLEANER_CHECKPOINT,
    INCOMPLETE,
    LOCK,
    LOG_START_CHECKPOINT,
    META_PROPERTIES,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_CHECKPOINT,
)
from keeplast.format.identifier import encode_id
from keeplast.log.checkpoints import drop_from_checkpoint, read_checkpoint, update_checkpoint
from keeplast.log.data_directory import read_topic_id
from keeplast.log.files import FileSystem
from keeplast.log.partition_log import find_tail, list_partition
from keeplast.log.paths import child_path, is_object_path
from keeplast.log.recovery import is_settled
from keeplast.log.root_files import read_holds, write_holds
from keeplast.log.truncation import noted_log_start
from keeplast.model.partition import TopicPartition
from keeplast.run.commit import copy_file
from keeplast.run.foresight import PROBE
from keeplast.survey.request import CleanRequest, PartitionRequest

NAMES_SHOWN_MAX = 10
OFFSET_CHECKPOINTS = (
    CLEANER_CHECKPOINT,
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_CHECKPOINT,
)
MARK_BYTES_MAX = 256
UNFINISHED_MARK = f"{INCOMPLETE}.tmp"


def target_of(partition: PartitionRequest, request: CleanRequest) -> Path:
    """Return the directory that the cleaned partition will be in."""
    if request.target is None:
        return partition.path
    return request.target.absolute() / partition.path.name


def places_of(request: CleanRequest) -> frozenset[Path]:
    """Return every partition directory that a call reads or writes."""
    found = {each.path for each in request.partitions}
    return frozenset(found | {target_of(each, request) for each in request.partitions})


def check_places(request: CleanRequest, files: FileSystem) -> None:
    """Raise RefusedError when rounds could not write where they should.

    A log in an object store may not change where it is. The target may not lie in a broker's data
    directory. Two rounds may not write to one place.

    A store renames nothing: while segments were swapped, readers would see two logs in one. And
    brokers do not start on a data directory that holds a directory which is no partition.
    """
    written: set[Path] = set()
    roots: dict[Path, Path] = {}
    for partition in request.partitions:
        place = _resolved(target_of(partition, request), roots)
        if place in written:
            raise RefusedError(
                "two rounds of one call would write to the same place; name each once. "
                f"path={place}",
                code="K229",
            )
        written.add(place)
    for partition in request.partitions:
        root = partition.path.parent
        if request.target is not None and not is_object_path(root):
            target = request.target.resolve()
            around = (target, *target.parents)
            if partition.path.resolve() in around or (
                files.exists(root / META_PROPERTIES) and root.resolve() in target.parents
            ):
                raise RefusedError(
                    "--to lies in the data directory, on which no broker would start then; give a "
                    f"place outside of it. --to={request.target} path={root}",
                    code="K229",
                )
        if request.target is None and is_object_path(partition.path):
            raise RefusedError(
                "a log in an object store is not cleaned in place; give --to and another prefix, "
                f"bucket or directory. path={partition.path}",
                code="K231",
            )
    if request.target is not None and is_object_path(request.target) and request.rounds != 1:
        raise RefusedError(
            "the first round writes the target. Another one would change it in place, which an "
            "object store does not allow; leave --rounds and --until-done out, or give --to a "
            f"directory. path={request.target}",
            code="K231",
        )


def _resolved(place: Path, roots: dict[Path, Path]) -> Path:
    """Return ``place.resolve()``; a directory of thousands of them is followed once."""
    if not place.name or place.name == ".." or place.is_symlink():
        return place.resolve()
    root = place.parent
    if root not in roots:
        roots[root] = root.resolve()
    return child_path(roots[root], place.name)


def check_target_root(files: FileSystem, request: CleanRequest) -> None:
    """Raise RefusedError when other things lie at the target and the call does not overwrite them.

    An empty directory will do, and one in which a run like this one has not finished. That has a
    partition with its mark, or holds nothing but the files of a data directory that were brought
    along.
    """
    root = request.target
    if root is None or request.overwrites or not files.exists(root):
        return
    if any(partition.path.parent == root.absolute() for partition in request.partitions):
        return  # the source itself, which is refused with its reason
    if not is_object_path(root) and not files.is_directory(root.resolve()):
        raise RefusedError(f"--to is no directory; choose another. --to={root}", code="K229")
    # A directory is made before its mark: with nothing in it, it has no owner.
    names = [
        name
        for name in files.listdir(root)
        if not _is_root_file(name)
        and not (files.is_directory(root / name) and not files.listdir(root / name))
    ]
    if names and not any(_is_unfinished(files, root / name) for name in names):
        shown = ", ".join(repr(name) for name in names[:NAMES_SHOWN_MAX])
        raise RefusedError(
            "other things lie at --to, and would be mixed with the log; choose an empty or a new "
            f"directory; {Despite.EXISTING_TARGET.remedy}. --to={root} there={shown}",
            code="K229",
        )


def _is_root_file(name: str) -> bool:
    known = name.removesuffix(".tmp")
    return (
        known.endswith("-checkpoint")
        or known in (META_PROPERTIES, CLEAN_SHUTDOWN, LOCK)
        or known.startswith(PROBE)
    )


def _is_unfinished(files: FileSystem, place: Path) -> bool:
    if not files.is_directory(place):
        return False
    return not {INCOMPLETE, UNFINISHED_MARK}.isdisjoint(files.listdir(place))


def make_target(
    files: FileSystem, partition: PartitionRequest, request: CleanRequest, *, run: str
) -> bool:
    """Make the partition's directory at the target, with a mark that it is incomplete.

    Returns whether another run had begun there and not finished: what it left is removed.
    RefusedError when something else is there, or when the source would have to be written to. An
    earlier log that ``request`` overwrites is left as it is, for :func:`replace_target`.
    """
    if not is_settled(files, partition.path):
        raise RefusedError(
            "an interrupted swap lies in the source, which --to may not touch; end it with "
            f"keeplast clean in place, or start a broker on it once. path={partition.path}",
            code="K204",
        )
    place = target_of(partition, request)
    # Two names on disks are of one directory by a link or a mount.
    is_there = not is_object_path(place) and place.exists()
    if place == partition.path or (is_there and place.samefile(partition.path)):
        raise RefusedError(f"--to is the source itself; leave it out. path={place}", code="K229")
    if request.overwrites and is_finished(files, place):
        _names_at(files, place, overwrites=True)
        _require_earlier(files, partition.path, place)
        return False
    return begin_target(files, place, run=run, overwrites=request.overwrites)


def _require_earlier(files: FileSystem, source: Path, place: Path) -> None:
    """Raise RefusedError unless the log at ``place`` may be an earlier one of ``source``.

    ``overwrites`` replaces what an earlier call wrote. A topic of the same name that is another
    one, and a log that goes further than the source, are another writer's: a broker's, in a data
    directory that was named by mistake. An unreadable log is no reason to stay.
    """
    try:
        ids = [read_topic_id(each, files) for each in (source, place)]
        ends = [_log_end(files, each) for each in (source, place)]
    except CorruptError:
        return
    if None not in ids and ids[0] != ids[1]:
        raise RefusedError(
            "another topic of the same name lies at --to. Only an earlier copy of the same topic "
            "is replaced; choose another directory, or remove that one if it is not needed. "
            f"path={place} topic_id={encode_id(ids[1] or b'')} source={encode_id(ids[0] or b'')}",
            code="K229",
        )
    if ends[1] > ends[0]:
        raise RefusedError(
            "the log at --to goes further than the source. Its records after the source's end "
            "would be lost; choose another directory, or remove that one if it is not needed. "
            f"path={place} log_end={ends[1]} source_log_end={ends[0]}",
            code="K229",
        )


def _log_end(files: FileSystem, path: Path) -> int:
    listing = list_partition(path, files, if_empty=noted_log_start(files, path))
    return find_tail(listing, files).log_end


def replace_target(
    files: FileSystem,
    partition: TopicPartition,
    root: Path,
    place: Path,
    *,
    run: str,
    staged: Collection[str],
) -> None:
    """Give up the earlier log at ``place`` for what lies ``staged`` next to it, of data in
    ``root``.

    ConflictError, and the earlier log stays, when some of that is gone.
    """
    missing = set(staged).difference(files.listdir(place))
    if missing:
        raise ConflictError(
            "another clean --to has replaced what lies at the target meanwhile; let only one at "
            f"it. path={place} missing={min(missing)!r}",
            code="K230",
        )
    begin_target(files, place, run=run, overwrites=True, staged=staged)
    _bring_lines(files, root, place.parent, [partition])


def begin_target(
    files: FileSystem,
    place: Path,
    *,
    run: str,
    overwrites: bool = False,
    staged: Collection[str] = (),
) -> bool:
    """Make the directory ``place`` for ``run`` to fill, with a mark that it is incomplete.

    Returns whether another run had begun there and not finished: what it left is removed.
    RefusedError when something else is there, unless ``overwrites`` gives it up. Names that are
    ``staged`` stay.
    """
    names = _names_at(files, place, overwrites=overwrites)
    files.make_directory(place)
    # The mark changes hands first: a run that is still at work finds it is not its own any more.
    files.write_durable(place / INCOMPLETE, run.encode())
    for name in names:
        if name != INCOMPLETE and name not in staged:
            files.unlink(place / name)
    return bool(names)


def _names_at(files: FileSystem, place: Path, *, overwrites: bool) -> list[str]:
    """Return what lies at ``place`` and would go; RefusedError when it may not."""
    if not is_object_path(place) and files.exists(place) and not files.is_directory(place):
        # What a link points to may be a log of somebody else, or the one that is being cleaned.
        raise RefusedError(
            "a file or a link lies where a partition is to be; remove it or choose another place. "
            f"path={place}",
            code="K229",
        )
    names = files.listdir(place) if files.exists(place) else []
    # A mark that was never finished says that nothing else had begun.
    names = [name for name in names if name != UNFINISHED_MARK]
    if names and INCOMPLETE not in names and not overwrites:
        raise RefusedError(
            f"the target exists; remove it or choose another. path={place}", code="K229"
        )
    directories = [name for name in names if files.is_directory(place / name)]
    if directories:
        # It would be removed with the rest; no log holds one.
        raise RefusedError(
            "a directory lies where a partition is to be; remove it or choose another place. "
            f"path={place / directories[0]}",
            code="K229",
        )
    return names


def check_target(files: FileSystem, place: Path, *, run: str) -> None:
    """Raise ConflictError unless this run is the one that writes ``place``."""
    try:
        found = files.read_bytes(place / INCOMPLETE, MARK_BYTES_MAX).decode(errors="replace")
    except FileNotFoundError:
        found = "none"
    if found != run:
        raise ConflictError(
            "another clean --to has begun at the target meanwhile, and goes on alone; let only one "
            f"at it. path={place} run={run} found={found}",
            code="K230",
        )


def complete_target(files: FileSystem, place: Path, *, run: str) -> None:
    """Take the mark away: from now on ``place`` is a log."""
    check_target(files, place, run=run)
    files.unlink(place / INCOMPLETE)
    files.fsync_directory(place)


def copy_root_files(files: FileSystem, root: Path, target: Path, request: CleanRequest) -> None:
    """Bring the identity and the checkpoints of a data directory along, once.

    A checkpoint may be there already. Then the lines of partitions that are about to be written
    become the source's: those of another log would hide records of this one. An earlier log keeps
    its lines until it is replaced.
    """
    chosen = [
        each.partition
        for each in request.partitions
        if not is_finished(files, target_of(each, request))
    ]
    # Whole checkpoints would have lines of the earlier logs, too.
    left_out = OFFSET_CHECKPOINTS if len(chosen) < len(request.partitions) else ()
    for name in files.listdir(root):
        is_wanted = name.endswith("-checkpoint") or name in (META_PROPERTIES, CLEAN_SHUTDOWN)
        is_wanted = is_wanted and name not in left_out
        if is_wanted and not files.exists(target / name) and not files.is_directory(root / name):
            copy_file(files, root / name, target / name)
    _bring_lines(files, root, target, chosen)
    _bring_holds(files, root, target, chosen)


def _bring_lines(
    files: FileSystem, root: Path, target: Path, chosen: Sequence[TopicPartition]
) -> None:
    for name in OFFSET_CHECKPOINTS:
        try:
            known, there = read_checkpoint(files, root, name), read_checkpoint(files, target, name)
        except CorruptError:
            continue  # said of each partition by its round
        changes = {each: known[each] for each in chosen if each in known}
        update_checkpoint(files, target, name, changes)
        for each in chosen:
            if each in there and each not in known:
                drop_from_checkpoint(files, target, name, each)


def _bring_holds(
    files: FileSystem, root: Path, target: Path, chosen: Sequence[TopicPartition]
) -> None:
    """Let the holds of what is written count at the target too: later rounds are done there."""
    if is_object_path(target):
        return
    brought = {each for each in read_holds(files, root) if each.partition in set(chosen)}
    there = set(read_holds(files, target))
    if not brought <= there:
        write_holds(files, target, brought | there)


def is_finished(files: FileSystem, place: Path) -> bool:
    """Say whether something lies at ``place`` that does not call itself incomplete."""
    # One without anything in it has no owner, as where it is made.
    return (
        files.is_directory(place)
        and bool(files.listdir(place))
        and not _is_unfinished(files, place)
    )
