"""Small git repositories for tests, independent of the user's own git configuration."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ISOLATED = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.org",
}


class GitRepository:
    """A repository in ``path``; every commit is one second later than the one before."""

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._seconds = 1_600_000_000
        self.git("init", "-q", "-b", "main")

    def git(self, *arguments: str | bytes, data: bytes | None = None) -> bytes:
        """Run git in the repository and return what it prints."""
        self._seconds += 1
        when = f"{self._seconds} +0000"
        done = subprocess.run(
            ["git", *arguments],
            cwd=self.path,
            input=data,
            env=os.environ | ISOLATED | {"GIT_AUTHOR_DATE": when, "GIT_COMMITTER_DATE": when},
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def write(self, name: str | bytes, content: str = "x") -> None:
        """Write a file of the working tree, with its directories."""
        # In UTF-8 whatever the locale, as the log of a history has it.
        path = os.path.join(
            os.fsencode(self.path), name.encode() if isinstance(name, str) else name
        )
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(content)

    def commit(self, message: str = "change") -> str:
        """Commit everything in the working tree and return the commit's id."""
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD").decode().strip()


def long_history(path: Path, commits: int) -> GitRepository:
    """Make a repository with many commits over a few hundred paths, some of them deleted again."""
    repository = GitRepository(path)
    stream: list[str] = []
    for number in range(commits):
        stream += [
            "commit refs/heads/main",
            f"committer a <a@example.org> {1_600_000_000 + number} +0000",
            "data 1",
            "x",
        ]
        if number % 7 == 6:
            stream.append(f"D directory-{number % 13}/file-{(number - 3) % 101}")
        content = str(number)
        stream += [
            f"M 100644 inline directory-{number % 13}/file-{number % 101}",
            f"data {len(content)}",
            content,
        ]
    repository.git("fast-import", "--quiet", data=("\n".join(stream) + "\n").encode())
    return repository
