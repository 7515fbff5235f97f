"""A git repository as a stream of changes: replaying them gives git's own tree."""

from __future__ import annotations

import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest

from keeplast.cli.demo.history import GitHistory
from keeplast.errors import InvalidError
from tests.support.git_repository import GitRepository, long_history

ODD_NAMES: list[str | bytes] = [
    "new\nline",
    "tab\tand \"quotes\" and 'apostrophes'",
    "-rf",
    ":colon first",
    " space ",
    "back\\slash",
    "é/ü",
    b"not \xff utf-8",
    "\x1b[31mred",
]


def replayed(history: GitHistory) -> dict[bytes, bytes]:
    state: dict[bytes, bytes] = {}
    for commit in history.commits():
        for path, value in commit.changes:
            if value is None:
                del state[path]
            else:
                state[path] = value
    return state


def assert_replay_gives_the_tree(path: Path) -> GitHistory:
    history = GitHistory(path)
    assert dict(history.tree()) == replayed(history)
    return history


@pytest.fixture
def repository(tmp_path: Path) -> GitRepository:
    return GitRepository(tmp_path)


def test_changes_of_every_kind_add_up_to_the_tree(
    repository: GitRepository, tmp_path: Path
) -> None:
    repository.write("kept")
    repository.write("changed", "1")
    repository.write("deleted")
    repository.write("becomes a directory")
    repository.write("directory/becomes a file")
    repository.write("renamed", "a content long enough to be found again" * 9)
    first = repository.commit()
    repository.write("changed", "2")
    for name in ("deleted", "becomes a directory"):
        (tmp_path / name).unlink()
    repository.write("becomes a directory/file")
    (tmp_path / "directory/becomes a file").unlink()
    (tmp_path / "directory").rmdir()
    repository.write("directory")
    repository.git("mv", "renamed", "renamed too")
    (tmp_path / "link").symlink_to("kept")
    (tmp_path / "kept").chmod(0o755)
    repository.commit()
    repository.git("update-index", "--add", "--cacheinfo", f"160000,{first},module")
    repository.git("commit", "-q", "-m", "a submodule")
    history = assert_replay_gives_the_tree(tmp_path)
    commits = list(history.commits())
    assert [len(commit.changes) for commit in commits] == [6, 10, 1]
    assert first == commits[0].commit_id
    assert (b"deleted", None) in commits[1].changes


def test_odd_names_arrive_byte_for_byte(repository: GitRepository, tmp_path: Path) -> None:
    for name in ODD_NAMES:
        repository.write(name)
    repository.commit()
    history = assert_replay_gives_the_tree(tmp_path)
    expected = {name if isinstance(name, bytes) else name.encode() for name in ODD_NAMES}
    assert expected == {path for path, _ in history.tree()}


def test_merges_are_followed_along_the_first_parent(
    repository: GitRepository, tmp_path: Path
) -> None:
    repository.write("a")
    repository.commit()
    repository.git("checkout", "-q", "-b", "side")
    for number in range(3):
        repository.write(f"side {number}")
        repository.commit()
    repository.git("checkout", "-q", "main")
    repository.write("b")
    repository.commit()
    repository.git("merge", "-q", "--no-ff", "-m", "merge", "side")
    history = assert_replay_gives_the_tree(tmp_path)
    assert [len(commit.changes) for commit in history.commits()] == [1, 1, 3]
    assert history.commit_count() == 3


def test_commits_without_changes_and_of_1970_are_fine(
    repository: GitRepository, tmp_path: Path
) -> None:
    stream = "commit refs/heads/main\ncommitter a <a@b> 0 +0000\ndata 1\nx\n"
    repository.git("fast-import", "--quiet", data=stream.encode())
    repository.git("reset", "-q", "--hard")
    repository.write("a")
    repository.commit()
    assert [(commit.time_ms, len(commit.changes)) for commit in GitHistory(tmp_path).commits()] == [
        (0, 0),
        (1_600_000_005_000, 1),
    ]


def test_shallow_clone_starts_with_its_whole_tree(tmp_path: Path) -> None:
    repository = GitRepository(tmp_path / "full")
    for number in range(5):
        repository.write(f"file {number}")
        repository.commit()
    assert not GitHistory(repository.path).is_shallow()
    source = f"file://{repository.path}"
    repository.git("clone", "-q", "--depth", "2", source, str(tmp_path / "shallow"))
    history = assert_replay_gives_the_tree(tmp_path / "shallow")
    assert history.is_shallow()
    assert [len(commit.changes) for commit in history.commits()] == [4, 1]


def test_directory_inside_a_repository_and_a_bare_one_mean_the_whole(tmp_path: Path) -> None:
    repository = GitRepository(tmp_path / "full")
    repository.write("top")
    repository.write("inner/file")
    repository.commit()
    repository.git("config", "diff.relative", "true")
    repository.git("clone", "-q", "--bare", str(repository.path), str(tmp_path / "bare"))
    for path in (repository.path / "inner", tmp_path / "bare"):
        assert len(replayed(assert_replay_gives_the_tree(path))) == 2


def test_settings_of_the_user_do_not_change_what_is_read(
    repository: GitRepository, tmp_path: Path
) -> None:
    for key, value in (
        ("log.showRoot", "false"),
        ("color.ui", "always"),
        ("diff.renames", "copies"),
        ("log.diffMerges", "combined"),
        ("core.quotePath", "true"),
    ):
        repository.git("config", key, value)
    repository.write("a", "a content long enough to be found again" * 9)
    repository.commit()
    repository.git("mv", "a", "é".encode())
    repository.commit()
    history = assert_replay_gives_the_tree(tmp_path)
    assert [len(commit.changes) for commit in history.commits()] == [1, 2]


def test_location_variables_of_a_hook_do_not_win(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = GitRepository(tmp_path / "named")
    repository.write("a")
    repository.commit()
    other = GitRepository(tmp_path / "other")
    monkeypatch.setenv("GIT_DIR", str(other.path / ".git"))
    assert GitHistory(repository.path).commit_count() == 1


def test_long_history_adds_up(tmp_path: Path) -> None:
    repository = long_history(tmp_path, 2_000)
    assert assert_replay_gives_the_tree(repository.path).commit_count() == 2_000


def test_history_can_be_left_in_the_middle(tmp_path: Path) -> None:
    commits = GitHistory(long_history(tmp_path, 2_000).path).commits()
    assert len(next(commits).changes) == 1
    assert isinstance(commits, Generator)
    commits.close()


@pytest.mark.parametrize("kind", ["missing", "no repository", "a file", "empty"])
def test_an_unreadable_repository_is_a_usage_error(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "place"
    if kind == "empty":
        GitRepository(path)
    elif kind == "a file":
        path.write_text("x")
    elif kind == "no repository":
        path.mkdir()
    with pytest.raises(InvalidError):
        GitHistory(path)


def test_missing_git_is_a_usage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    GitRepository(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InvalidError):
        GitHistory(tmp_path)


def test_history_that_git_cannot_read_is_an_error(
    repository: GitRepository, tmp_path: Path
) -> None:
    repository.write("a", "1")
    repository.commit()
    tree = repository.git("rev-parse", "HEAD^{tree}").decode().strip()
    repository.write("b")
    repository.commit()
    history = GitHistory(tmp_path)
    (tmp_path / ".git/objects" / tree[:2] / tree[2:]).unlink()
    with pytest.raises(InvalidError):
        list(history.commits())


def test_git_here_is_recent_enough() -> None:
    """The options of the history need git 2.28, which is of 2020."""
    version = subprocess.run(["git", "--version"], capture_output=True, text=True, check=True)
    assert tuple(int(part) for part in version.stdout.split()[2].split(".")[:2]) >= (2, 28)
