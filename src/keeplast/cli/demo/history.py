"""Reads a git repository as a stream of keyed changes: what the demo compacts.

A commit on the first-parent chain changes paths; a path is the key, ``mode blobid`` the value and
a deletion the tombstone. Replaying the changes in order gives exactly the tree of the last commit,
which is how the demo knows what must remain. Git is asked for NUL-separated output and no renames,
so any byte but NUL may occur in a path; its output is consumed as it comes and never held whole.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from keeplast.errors import InvalidError

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


@dataclass(frozen=True, slots=True)
class Commit:
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
            raise InvalidError(f"no such directory; name a git repository with --git. path={path}")
        self._text("rev-parse", "--git-dir")
        try:
            self.head = self._text("rev-parse", "--verify", "--quiet", "HEAD^{commit}")
        except InvalidError as error:
            raise InvalidError(
                f"the repository has no commit yet; commit something or name another with --git. "
                f"path={path}"
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
            raise InvalidError("git is not installed; install the package git") from error
        if done.returncode != 0:
            problem = done.stderr.decode(errors="replace").strip()
            raise InvalidError(
                f"not a git repository that can be read; name one with --git. "
                f"path={self._path} git={problem!r}"
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
                        raise InvalidError(f"git printed an endless word. path={self._path}")
            if process.returncode != 0:
                complaints.seek(0)
                problem = complaints.read(READ_BYTES).decode(errors="replace").strip()
                raise InvalidError(
                    f"git could not read its own history. path={self._path} git={problem!r}"
                )


def _environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in LOCATION_VARIABLES}
    return kept | {"LC_ALL": "C"}
