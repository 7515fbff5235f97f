"""What lies next to the data of an export: its hidden directory, and the facts to go on from.

While an export to ``NAME`` is made, ``.NAME.TOKEN.partial`` with its files and ``.NAME.TOKEN.lock``
lie next to it. For a moment so does ``.NAME.TOKEN.replaced``, the earlier export in its way. All
belong to the holder of the ``flock`` of the lock file, which ends with that process in any case.
The rules:

1. Only what no process holds is swept, and only of the same target. Another export to the same
   place may be running, and loses by being last, not by losing its files.
2. A lock counts while its file has the name: a process that finds that another one has removed it
   meanwhile has locked nothing.
3. An earlier export that was renamed, and whose successor never came, gets its name back.

An export says of itself what the next one goes on from, in files next to its topics.
``_state.json`` has how the records of each topic ranked, and whether tombstones are rows::

    {"format": 1, "tombstones": true,
     "topics": {"orders": {"strategy": "header", "strategy_header": "ver"}}}

An export without it was made by an earlier version, which wrote no tombstones; how its records
ranked is not known.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from msgspec import Struct, field

from keeplast.errors import CorruptError, RefusedError
from keeplast.log.files import FileSystem
from keeplast.log.lock import has_name
from keeplast.model.topic_config import Strategy, TopicConfig

_PARTIAL, _REPLACED, _LOCK = "partial", "replaced", "lock"


class BucketPlace(Struct, frozen=True):
    """An attempt in an object store, under a name of its own; its versions remove it."""

    staging: Path

    def held(self) -> AbstractContextManager[None]:
        """Do nothing: a version that may count yet is not swept."""
        return contextlib.nullcontext()

    def put_in_place(self, files: FileSystem) -> None:
        """Do nothing: what leads to the version is written last."""


class ExportPlace(Struct, frozen=True):
    """One attempt at an export to ``target``, whose links are resolved."""

    target: Path
    token: str = field(default_factory=lambda: secrets.token_hex(4))

    @property
    def staging(self) -> Path:
        """Return the directory that is written to."""
        return self._beside(_PARTIAL)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep others from sweeping what is made here; nothing of it is left afterwards."""
        self.target.parent.mkdir(parents=True, exist_ok=True)
        path = self._beside(_LOCK)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            with contextlib.suppress(OSError):
                # Where there are no locks no process gets one, and nothing is swept. A process that
                # sweeps at this moment is waited for.
                fcntl.flock(fd, fcntl.LOCK_EX)
            if not has_name(fd, path):
                raise RefusedError(
                    f"another export to the same place has taken this one for a killed one; run it "
                    f"again. --to={self.target}",
                    code="K145",
                )
            try:
                yield
            finally:
                shutil.rmtree(self.staging, ignore_errors=True)
                with contextlib.suppress(OSError):
                    path.unlink()
        finally:
            os.close(fd)

    def put_in_place(self, files: FileSystem) -> None:
        """Give the finished export its name; what had it is removed after that."""
        staging, target, old = self.staging, self.target, self._beside(_REPLACED)
        files.fsync_directory(staging)
        is_replacing = files.exists(target)
        if is_replacing:
            files.rename(target, old)
        try:
            files.rename(staging, target)
        except OSError:
            if is_replacing:
                files.rename(old, target)
            raise
        files.fsync_directory(target.parent)
        if is_replacing:
            shutil.rmtree(old)

    def _beside(self, kind: str) -> Path:
        return self.target.with_name(f".{self.target.name}.{self.token}.{kind}")

    def _sweep(self) -> None:
        """Remove what is left of this attempt, unless a process is at it."""
        path = self._beside(_LOCK)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not has_name(fd, path):
                return
            old = self._beside(_REPLACED)
            if old.is_dir() and not self.target.exists():
                old.rename(self.target)
            shutil.rmtree(old, ignore_errors=True)
            shutil.rmtree(self.staging, ignore_errors=True)
            path.unlink()
        finally:
            os.close(fd)


Attempt = ExportPlace | BucketPlace
"""One attempt at an export; both are asked for the same."""


def sweep_killed(target: Path) -> None:
    """Remove what killed exports to ``target`` have left; what cannot be removed stays."""
    pattern = re.compile(
        rf"\.{re.escape(target.name)}\.([0-9a-f]{{8}})\.(?:{_PARTIAL}|{_REPLACED}|{_LOCK})"
    )
    try:
        names = os.listdir(target.parent)
    except FileNotFoundError:
        return
    for token in {match[1] for name in names if (match := pattern.fullmatch(name)) is not None}:
        with contextlib.suppress(OSError):
            ExportPlace(target, token)._sweep()


OFFSETS_FILE = "_offsets.json"
ENDS_FILE = "_ending_offsets.json"
STATE_FILE = "_state.json"
FACTS_BYTES_MAX = 64 << 20

_FORMAT = 1


class ExportFacts(Struct, frozen=True):
    """How topics ranked, by name: the strategy, and its header for ``header``, else None.

    ``tombstones`` says whether what deletes its key is a row.
    """

    tombstones: bool
    topics: Mapping[str, tuple[Strategy, str | None]]


def ranked_by(topic: TopicConfig) -> tuple[Strategy, str | None]:
    """Return what of a topic's settings says how its records rank."""
    is_named = topic.strategy is Strategy.HEADER
    return topic.strategy, topic.strategy_header if is_named else None


def encode_facts(topics: Mapping[str, TopicConfig], *, tombstones: bool) -> bytes:
    """Return the bytes of ``_state.json``."""
    ranks = {name: ranked_by(topic) for name, topic in topics.items()}
    document = {
        "format": _FORMAT,
        "tombstones": tombstones,
        "topics": {
            name: {"strategy": strategy.value, "strategy_header": header}
            for name, (strategy, header) in ranks.items()
        },
    }
    return (json.dumps(document, indent=1) + "\n").encode()


def decode_facts(data: bytes) -> ExportFacts:
    """Return what ``_state.json`` says; CorruptError, to be located, when it says nothing."""
    try:
        found = json.loads(data)
        if found["format"] != _FORMAT or not isinstance(found["tombstones"], bool):
            raise ValueError(f"format {found['format']}, tombstones {found['tombstones']}")
        topics = {
            str(name): (Strategy(each["strategy"]), each["strategy_header"])
            for name, each in found["topics"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptError(
            f"not what an export says of itself; export again: {error!r}", code="K147"
        ) from error
    return ExportFacts(found["tombstones"], topics)


def decode_offsets(data: bytes, topic: str) -> dict[int, int]:
    """Return where to go on in each partition of ``topic``, none where it is not in the export.

    CorruptError, to be located, for what are no offsets.
    """
    try:
        found = json.loads(data)
        offsets = {int(number): int(offset) for number, offset in found.get(topic, {}).items()}
        if any(number < 0 or offset < 0 for number, offset in offsets.items()):
            raise ValueError(f"negative: {offsets}")
    except (ValueError, TypeError, AttributeError) as error:
        raise CorruptError(
            f"these are no offsets of an export; export again: {error!r}", code="K147"
        ) from error
    return offsets
