"""The lock of a data directory, against another process and as a JVM takes it."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from keeplast.errors import RefusedError
from keeplast.log.lock import check_held, is_locked, locked
from tests.support.heard_calls import hear

HOLD = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644)
fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("held", flush=True)
sys.stdin.read()
"""
"""What Java's ``FileChannel.tryLock`` does on Linux: an fcntl lock on the whole file."""

TRY = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
try:
    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    print("refused")
else:
    print("free")
"""


def held_by_another(root: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(root / ".lock")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def release(process: subprocess.Popen[str]) -> None:
    process.communicate()


def tried_by_another(root: Path) -> str:
    command = [sys.executable, "-c", TRY, str(root / ".lock")]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_directory_that_another_process_holds_is_refused(tmp_path: Path) -> None:
    process = held_by_another(tmp_path)
    try:
        assert is_locked(tmp_path)
        with pytest.raises(RefusedError), locked(tmp_path):
            pass
    finally:
        release(process)
    assert not is_locked(tmp_path)
    with locked(tmp_path):
        pass


def test_a_user_who_may_only_read_the_lock_file_sees_its_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It said that no process held a directory that a broker served."""

    def only_reads(path: Path, flags: int, *_: int) -> None:
        if flags & os.O_ACCMODE != os.O_RDONLY:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    process = held_by_another(tmp_path)
    try:
        with monkeypatch.context() as patched:
            hear(patched, os, "open", only_reads)
            assert is_locked(tmp_path)
    finally:
        release(process)
    assert not is_locked(tmp_path)


def test_another_process_is_refused_while_it_is_held(tmp_path: Path) -> None:
    with locked(tmp_path):
        assert tried_by_another(tmp_path) == "refused"


def test_file_of_a_broker_stays_and_is_free_afterwards(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_bytes(b"")
    with locked(tmp_path):
        assert tried_by_another(tmp_path) == "refused"
    assert (tmp_path / ".lock").exists()
    assert tried_by_another(tmp_path) == "free"


def test_it_is_released_after_an_error(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_bytes(b"")
    with pytest.raises(KeyError), locked(tmp_path):
        raise KeyError
    assert tried_by_another(tmp_path) == "free"


def test_asking_creates_no_file(tmp_path: Path) -> None:
    assert not is_locked(tmp_path)
    assert os.listdir(tmp_path) == []


def test_it_is_refused_in_the_same_process_and_survives_the_attempt(tmp_path: Path) -> None:
    """The kernel would grant it, and give both up when the second is closed."""
    (tmp_path / ".lock").write_bytes(b"")
    with locked(tmp_path):
        with pytest.raises(RefusedError), locked(tmp_path):
            pass
        assert is_locked(tmp_path)
        link = tmp_path.parent / "same"
        link.symlink_to(tmp_path)
        with pytest.raises(RefusedError), locked(link):
            pass
        assert tried_by_another(tmp_path) == "refused"
    assert not is_locked(tmp_path)


def test_lock_on_a_file_that_has_lost_its_name_is_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process removes its file between our opening and our locking."""
    path = tmp_path / ".lock"
    path.write_bytes(b"")
    hear(monkeypatch, fcntl, "lockf", lambda fd, operation: path.unlink())
    with pytest.raises(RefusedError), locked(tmp_path):
        pass


def test_flock_is_another_kind_of_lock(tmp_path: Path) -> None:
    """A broker would not see it, so neither do we."""
    with (tmp_path / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert not is_locked(tmp_path)


def test_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    (tmp_path / ".lock").symlink_to(target)
    with pytest.raises(RefusedError, match="is a link"), locked(tmp_path):
        pass
    assert not target.exists()


def test_a_read_only_directory_can_be_read_unless_a_broker_holds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keeplast.log.lock._is_read_only", lambda root: True)
    with locked(tmp_path, writes=False):
        assert [] == list(tmp_path.iterdir())
    (tmp_path / ".lock").touch()
    with locked(tmp_path, writes=False):
        pass
    process = held_by_another(tmp_path)
    try:
        with pytest.raises(RefusedError, match="in use"), locked(tmp_path, writes=False):
            pass
    finally:
        release(process)


def test_a_lock_whose_file_was_replaced_is_lost(tmp_path: Path) -> None:
    with locked(tmp_path):
        check_held(tmp_path)
        (tmp_path / ".lock").rename(tmp_path / "gone")
        with pytest.raises(RefusedError, match="removed or replaced"):
            check_held(tmp_path)
