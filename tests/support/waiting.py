"""Waiting for what another process or thread does: for the event itself, never for a time.

``SECONDS_MAX`` only ends what would hang; nothing that works comes near it on a slow machine.
"""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

SECONDS_MAX = 300.0
POLL_SECONDS = 0.05


def _no_words() -> str:
    return ""


def wait_until(
    reached: Callable[[], bool],
    *,
    by: Callable[[], bool] = lambda: True,
    words: Callable[[], str] = _no_words,
) -> None:
    """Return when ``reached()``; AssertionError with ``words()`` when ``by()`` is no more.

    ``by`` says whether who is waited for still lives; what it did last is looked at once more.
    """
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        lives = by()
        if reached():
            return
        assert lives, f"who is waited for has ended. {words()}"
        assert time.monotonic() < deadline, f"waited for {SECONDS_MAX:g} s. {words()}"
        time.sleep(POLL_SECONDS)


def run_at_once(tasks: Iterable[Callable[[], object]]) -> None:
    """Run each task in a thread of its own, and return when all have ended."""
    threads = [threading.Thread(target=each, daemon=True) for each in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS_MAX)


def wait_for_line(process: subprocess.Popen[str], pattern: str) -> re.Match[str]:
    """Read what a process says on stderr until ``pattern`` is found in a line of it.

    The line may hold a path: a pattern is chosen that none can match.
    """
    assert process.stderr is not None
    said: list[str] = []
    # A process that has gone says nothing more, and reading ends.
    giving_up = threading.Timer(SECONDS_MAX, process.kill)
    giving_up.start()
    try:
        for line in process.stderr:
            said.append(line)
            found = re.search(pattern, line)
            if found is not None:
                return found
    finally:
        giving_up.cancel()
        giving_up.join()
    raise AssertionError(f"no line has {pattern!r} in it: {''.join(said)}")


def wait_for_end(process_ids: list[int]) -> None:
    """Return when none of the processes runs; one that was not waited for does not."""
    left = set(process_ids)

    def are_over() -> bool:
        left.intersection_update([each for each in left if _runs(each)])
        return not left

    wait_until(are_over, words=lambda: f"processes {sorted(left)} still run")


def _runs(process_id: int) -> bool:
    try:
        status = Path(f"/proc/{process_id}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in ("Z", "X")
