"""Reads a git repository as a stream of keyed changes, and writes it as a compacted topic.

A commit on the first-parent chain changes paths; a path is the key, ``mode blobid`` the value and a
deletion the tombstone. Replaying the changes in order gives exactly the tree of the last commit,
which is how the demo knows what must remain. Git is asked for NUL-separated output and no renames,
so any byte but NUL may occur in a path. Its output is consumed as it comes and never held whole.

The Kafka data directory is laid out as a KRaft broker with one partition leaves it after a clean
stop. So every other command works on it too. Segments are small for their topic: a demo that fits
into the active segment would have nothing to clean.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from msgspec import Struct

from keeplast.errors import InvalidError
from keeplast.format import checkpoint, meta_properties
from keeplast.format.compression import Codec
from keeplast.format.filename import (
    CLEAN_SHUTDOWN,
    CLEANER_CHECKPOINT,
    LOG_START_CHECKPOINT,
    META_PROPERTIES,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_CHECKPOINT,
)
from keeplast.format.meta_properties import MetaProperties
from keeplast.log.append import LogAppender, NewRecord
from keeplast.log.files import FileSystem
from keeplast.model.partition import INT64_MAX, TopicPartition
from keeplast.model.topic_config import TopicConfig

READ_BYTES = 1 << 16
TOKEN_BYTES_MAX = 1 << 20
"""A header or a path; git itself refuses paths longer than a few thousand bytes."""
MODE_ABSENT = b"000000"
LOCATION_VARIABLES = frozenset(
    {
        "GIT_ALTERNATE_OBJECT_DIRECTORIES",
        "GIT_COMMON_DIR",
        "GIT_DIR",
        "GIT_INDEX_FILE",
        "GIT_NAMESPACE",
        "GIT_OBJECT_DIRECTORY",
        "GIT_PREFIX",
        "GIT_WORK_TREE",
    }
)
"""Set inside hooks; they would win over the path that the user named."""


class Commit(Struct, frozen=True):
    """One step of the history; ``changes`` are (path, value), value None for a deletion."""

    commit_id: str
    time_ms: int
    changes: tuple[tuple[bytes, bytes | None], ...]


class GitHistory:
    """The first-parent history of the commit that ``HEAD`` names when this is made."""

    def __init__(self, path: Path) -> None:
        """Resolve ``HEAD``; InvalidError when there is no git, repository or commit."""
        self._path = path
        if not path.is_dir():
            raise InvalidError(
                f"no such directory; name a git repository with --git. path={path}", code="K135"
            )
        self._text("rev-parse", "--git-dir")
        try:
            self.head = self._text("rev-parse", "--verify", "--quiet", "HEAD^{commit}")
        except InvalidError as error:
            raise InvalidError(
                f"the repository has no commit yet; commit something or name another with --git. "
                f"path={path}",
                code="K135",
            ) from error

    def commit_count(self) -> int:
        """Return how many commits :meth:`commits` gives."""
        return int(self._text("rev-list", "--count", "--first-parent", self.head))

    def is_shallow(self) -> bool:
        """True when older commits were never fetched; the oldest one then adds its whole tree."""
        return self._text("rev-parse", "--is-shallow-repository") == "true"

    def commits(self) -> Iterator[Commit]:
        """Yield the commits from the oldest to ``HEAD``, one at a time."""
        header: tuple[str, int] | None = None
        changes: list[tuple[bytes, bytes | None]] = []
        tokens = self._tokens(
            *("-c", "log.showRoot=true", "log", "--first-parent", "-m", "--reverse"),
            *("--no-renames", "--no-relative", "--no-show-signature", "--no-notes", "--no-color"),
            *("--ignore-submodules=none", "--raw", "--no-abbrev", "-z", "--format=tformat:%H %ct"),
            *(self.head, "--"),
        )
        for token in tokens:
            word = token.lstrip(b"\n")
            if word.startswith(b":"):
                _, mode, _, blob_id, _ = word.split(b" ")
                path = next(tokens)
                changes.append((path, None if mode == MODE_ABSENT else mode + b" " + blob_id))
            elif word:
                if header is not None:
                    yield Commit(*header, tuple(changes))
                commit_id, seconds = word.split(b" ")
                # Kafka's timestamps are not negative; git's may be.
                header = commit_id.decode(), max(int(seconds), 0) * 1000
                changes = []
        if header is not None:
            yield Commit(*header, tuple(changes))

    def tree(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield (path, ``mode blobid``) of everything in the tree of ``HEAD``."""
        for token in self._tokens("ls-tree", "-r", "-z", "--full-tree", self.head):
            description, path = token.split(b"\t", 1)
            mode, _, blob_id = description.split(b" ")
            yield path, mode + b" " + blob_id

    def _command(self, *arguments: str) -> list[str]:
        return ["git", "--no-pager", "-C", str(self._path), *arguments]

    def _text(self, *arguments: str) -> str:
        """Return the one line that a short command prints."""
        try:
            done = subprocess.run(
                self._command(*arguments), capture_output=True, env=_environment(), check=False
            )
        except FileNotFoundError as error:
            raise InvalidError(
                "git is not installed; install the package git", code="K135"
            ) from error
        if done.returncode != 0:
            problem = done.stderr.decode(errors="replace").strip()
            raise InvalidError(
                f"not a git repository that can be read; name one with --git. "
                f"path={self._path} git={problem!r}",
                code="K135",
            )
        return done.stdout.decode(errors="replace").strip()

    def _tokens(self, *arguments: str) -> Iterator[bytes]:
        """Yield the NUL-terminated pieces of a command's output."""
        with tempfile.TemporaryFile() as complaints:
            with subprocess.Popen(
                self._command(*arguments),
                stdout=subprocess.PIPE,
                stderr=complaints,
                env=_environment(),
            ) as process:
                pipe = cast(IO[bytes], process.stdout)
                rest = b""
                while chunk := os.read(pipe.fileno(), READ_BYTES):
                    *pieces, rest = (rest + chunk).split(b"\0")
                    yield from pieces
                    if len(rest) > TOKEN_BYTES_MAX:
                        raise InvalidError(
                            "git printed a name without an end; give another repository with "
                            f"--git. path={self._path}",
                            code="K135",
                        )
            if process.returncode != 0:
                complaints.seek(0)
                problem = complaints.read(READ_BYTES).decode(errors="replace").strip()
                raise InvalidError(
                    "git could not read the repository's history; run git fsck, or give another "
                    f"with --git. path={self._path} git={problem!r}",
                    code="K135",
                )


def find_history() -> GitHistory | None:
    """Return the history of the repository around the working directory, None without one."""
    try:
        return GitHistory(Path())
    except InvalidError:
        return None


def _environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in LOCATION_VARIABLES}
    return kept | {"LC_ALL": "C"}


PARTITION = TopicPartition("git-tree", 0)
TOPIC_ID = b"keeplast-example"
IDENTITY = MetaProperties(1, "a2VlcGxhc3QtZGVtby1pZA", 1, "a2VlcGxhc3QtZGVtby1kcg")
SEGMENTS_WANTED = 12
SEGMENT_BYTES_MIN = 8 << 10
SEGMENT_BYTES_MAX = 64 << 20
RECORD_BYTES = 110
"""What a change takes in the log, roughly: a path, a mode and an id, and its part of a batch."""
CHANGES_PER_COMMIT = 2
BATCH_BYTES = 2 << 10
"""A quarter of the smallest segment, so that one long path cannot outgrow it."""


class Replay(Struct, frozen=True):
    """What was written: counts, and the settings that the topic has."""

    commits: int
    records: int
    topic: TopicConfig


def topic_for(history: GitHistory) -> TopicConfig:
    """Return the settings of a topic in which ``history`` takes about a dozen segments.

    Tombstones go in the second cleaning after the one that first sees them: no reader is waited
    for.
    """
    files = sum(1 for _ in history.tree())
    estimate = (files + CHANGES_PER_COMMIT * history.commit_count()) * RECORD_BYTES
    segment_bytes = min(max(estimate // SEGMENTS_WANTED, SEGMENT_BYTES_MIN), SEGMENT_BYTES_MAX)
    return TopicConfig(
        cleanup_policy=frozenset({"compact"}),
        delete_retention_ms=0,
        segment_bytes=segment_bytes,
        # A history spans years; its segments are to end by size.
        segment_ms=INT64_MAX,
    )


def write_topic(history: GitHistory, root: Path, files: FileSystem) -> Replay:
    """Replay ``history`` into a new data directory ``root``."""
    topic = topic_for(history)
    commits = records = 0
    files.make_directory(root)
    with LogAppender(root / str(PARTITION), files, topic=topic, topic_id=TOPIC_ID) as log:
        for commit in history.commits():
            commits += 1
            for batch in _batches(commit):
                records += len(batch)
                log.append(batch, codec=Codec.NONE)
        log_end = log.log_end_offset
    _finish(root, files, log_end)
    return Replay(commits, records, topic)


def _batches(commit: Commit) -> Iterator[list[NewRecord]]:
    """Yield a commit's changes in batches of a few kilobytes."""
    batch: list[NewRecord] = []
    size = 0
    for path, value in commit.changes:
        grown = size + len(path) + len(value or b"") + 2 * 10
        if batch and grown > BATCH_BYTES:
            yield batch
            batch, grown = [], grown - size
        batch.append(NewRecord(path, value, commit.time_ms))
        size = grown
    if batch:
        yield batch


def _finish(root: Path, files: FileSystem, log_end: int) -> None:
    """Write what a broker leaves in the data directory itself."""
    everything = checkpoint.encode_offsets({PARTITION: log_end})
    nothing = checkpoint.encode_offsets({})
    for name, data in (
        (META_PROPERTIES, meta_properties.encode(IDENTITY)),
        (RECOVERY_POINT_CHECKPOINT, everything),
        (REPLICATION_CHECKPOINT, everything),
        (LOG_START_CHECKPOINT, nothing),
        (CLEANER_CHECKPOINT, nothing),
        (CLEAN_SHUTDOWN, b'{"version":0,"brokerEpoch":-1}'),
    ):
        files.write_durable(root / name, data)
