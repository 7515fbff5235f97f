"""What a round needs at its end, proven before anything is replaced: its receipt, its checkpoint.

A round that found out afterwards would leave segments replaced, nobody told, and the next receipt
about a log that no receipt tells of. What is tried here is undone again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable
from pathlib import Path

from keeplast.errors import RefusedError, UnavailableError, making
from keeplast.format.filename import CLEAN_SHUTDOWN, CLEANER_CHECKPOINT, LOCK, META_PROPERTIES
from keeplast.log.erasure_requests import REQUESTS_NAME
from keeplast.log.files import FileSystem, reading
from keeplast.log.holds import HOLDS_NAME
from keeplast.log.object_paths import is_object_path
from keeplast.survey.receipt_book import VERSIONS

ROOM_BYTES = 1 << 20
"""What must be free where a receipt or a checkpoint goes: more than a line of either takes."""

PROBE = ".keeplast-probe"
"""A file in a data directory by which is tried what its store allows, and, with more behind the
name, whether executors of Spark see it."""
PROBE_MS_MAX = 3_600_000
"""Nobody looks at a probe that is older: who wrote it ended before removing it."""

NAMES_TAKEN = (
    META_PROPERTIES,
    CLEAN_SHUTDOWN,
    LOCK,
    "keeplast-set-aside",
    "keeplast-failing",
    HOLDS_NAME,
    REQUESTS_NAME,
    "keeplast.toml",
)
"""What brokers and keeplast look for in a data directory, with the checkpoints, by these names."""


BEGINNINGS = tuple(
    b'{"version":%d,"topic":%s' % (version, value) for version in VERSIONS for value in (b'"', b"n")
)
"""What a line of a receipt begins with; what was asked for of all partitions has no topic."""


def prove_receipt(files: FileSystem, path: Path | None, partitions: Collection[Path] = ()) -> None:
    """Raise RefusedError unless a line can be appended to ``path``; None wants no receipt.

    What is there and no receipt is refused too: a line at its end would damage it. So is a name
    under which somebody looks for something else, and any in one of the directories ``partitions``,
    where a file is taken for a part of the log, or removed with it.
    """
    if path is None:
        return
    if _is_taken(path, partitions):
        raise RefusedError(
            "the receipt would be taken for a file of a log or of its data directory; give it "
            f"another name, outside of partitions. --receipt={path}"
        )
    try:
        _try_receipt(files, path)
    except OSError as error:
        raise RefusedError(
            "the receipt cannot be written; name another file, or leave --receipt out. "
            f"--receipt={path} problem={error}"
        ) from error


def leave_receipt(files: FileSystem, path: Path, partitions: Collection[Path]) -> None:
    """Make sure that there is a receipt file: an empty one says that nothing was changed.

    Who asks by its name can then tell it from a name that is wrong. Errors are those of
    :func:`prove_receipt`.
    """
    if not files.exists(path):
        prove_receipt(files, path, partitions)
        files.open_write(path, append=True).close()


def _is_taken(path: Path, partitions: Collection[Path]) -> bool:
    name = path.name.removesuffix(".tmp")
    if name in NAMES_TAKEN or name.endswith(("-checkpoint", ".checkpoint")):
        return True
    around = path.resolve().parents
    return any(each.resolve() in around for each in partitions)


def _try_receipt(files: FileSystem, path: Path) -> None:
    if not path.name or not path.parent.is_dir():
        raise RefusedError(
            f"there is no directory for the receipt; {making(path.parent)}, or name another. "
            f"--receipt={path}"
        )
    if path.is_symlink():
        raise RefusedError(f"the receipt is a link; name the file itself. --receipt={path}")
    if files.is_directory(path):
        raise RefusedError(f"the receipt is a directory; name a file in it. --receipt={path}")
    is_new = not files.exists(path)
    if not is_new:
        _check_content(files, path)
    files.open_write(path, append=True).close()
    if is_new:
        files.unlink(path)
    _check_room(files, path.parent, "the receipt")


def prove_checkpoints(files: FileSystem, root: Path) -> None:
    """Raise OSError unless the checkpoints of a data directory can be replaced.

    RefusedError where there is no room for them; UnavailableError where a store does not let a
    round write and delete.
    """
    if is_object_path(root):
        # What a round replaces it removes. One name: a probe that nobody may remove does not heap.
        files.write_durable(root / PROBE, b"probe")
        files.unlink(root / PROBE)
        return  # the room of a store has no end
    # The name under which a checkpoint is written before it takes the place of the old one.
    probe = root / f"{CLEANER_CHECKPOINT}.tmp"
    files.open_write(probe).close()
    # One that stays is empty, means nothing to a broker, and is written over by the checkpoint.
    with contextlib.suppress(OSError):
        files.unlink(probe)
    _check_room(files, root, "the checkpoints")


def unready_roots(files: FileSystem, roots: Iterable[Path], now_ms: int) -> dict[Path, Exception]:
    """Return why no round can be ended in these data directories; those that are ready are not in
    it. What is left of old probes at ``now_ms`` goes."""
    unready: dict[Path, Exception] = {}
    for root in roots:
        try:
            prove_checkpoints(files, root)
            _sweep_probes(files, root, now_ms)
        except (RefusedError, UnavailableError, OSError) as error:
            unready[root] = error
    return unready


def _sweep_probes(files: FileSystem, root: Path, now_ms: int) -> None:
    """Remove the probes of processes that ended before they did."""
    if is_object_path(root):
        return  # executors are asked about disks alone
    for name in files.listdir(root):
        if name.startswith(f"{PROBE}-"):
            with contextlib.suppress(OSError):
                age_ms = now_ms - files.stat(root / name).mtime_ns // 1_000_000
                if age_ms > PROBE_MS_MAX:
                    files.unlink(root / name)


def _check_content(files: FileSystem, path: Path) -> None:
    """Raise RefusedError unless the file begins as a receipt does, whole or cut off by a crash.

    Any other JSON too: what a cut-off line is taken for is removed before one is appended.
    """
    with reading(files, path) as handle:
        first = bytearray(min(handle.size_bytes, max(map(len, BEGINNINGS))))
        del first[handle.pread_into(memoryview(first), 0) :]
    if not any(first.startswith(each[: len(first)]) for each in BEGINNINGS):
        raise RefusedError(
            f"what is there is no receipt, and would be damaged; name another. --receipt={path}"
        )


def _check_room(files: FileSystem, place: Path, what: str) -> None:
    free = files.free_bytes(place)
    if free < ROOM_BYTES:
        raise RefusedError(
            f"no room for {what}; free some. path={place} needed_bytes={ROOM_BYTES} "
            f"free_bytes={free}"
        )
