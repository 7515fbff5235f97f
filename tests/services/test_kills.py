"""Two hosts compete for a partition; one is killed, or sleeps, inside each step of its work.

Hosts are processes, the metadata is in PostgreSQL, the objects are in S3. Whatever the first one
was doing when SIGKILL ended it, the second takes over, finishes, finds every invariant in order and
shows every reader what was written. A host that was frozen in the same places and wakes up after
the other took over is refused, and changes nothing but garbage.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.services.conftest import S3
from tests.support.host_process import HostProcess, Place
from tests.support.rival_hosts import Rivals, place_of

pytestmark = pytest.mark.services

KILLS = {
    "copy": [
        ("upload .log", 2), ("upload .timeindex", 2), ("before commit_copy", 2),
        ("in commit_copy", 2), ("after commit_copy", 2),
    ],
    "clean": [
        ("read .log", 1), ("upload .log", 1), ("upload .index", 2), ("before commit_swap", 2),
        ("in commit_swap", 2), ("after commit_swap", 1), ("before publish", 1), ("in publish", 1),
        ("after publish", 1),
    ],
    "expire": [("before commit_expiry", 1), ("in commit_expiry", 1), ("after commit_expiry", 1)],
    "collect": [
        ("in start_delete", 1), ("after start_delete", 1), ("delete", 2),
        ("before finish_delete", 1), ("in finish_delete", 1), ("after finish_delete", 1),
    ],
    "lead": [("before take_over", 1), ("in take_over", 1), ("after take_over", 1)],
}  # fmt: skip
BEFORE = {
    "copy": [], "clean": ["copy"], "expire": ["copy"], "collect": ["copy", "clean"], "lead": [],
}  # fmt: skip
ZOMBIES = {
    "copy": [("upload .log", 2), ("before commit_copy", 2)],
    "clean": [
        ("read .log", 1), ("upload .log", 1), ("before commit_swap", 2), ("before publish", 1),
    ],
    "expire": [("before commit_expiry", 1)],
    "collect": [("before start_delete", 1), ("after start_delete", 1), ("delete", 2)],
}  # fmt: skip
IDLE_MS = 3000
"""After so long the server ends a session; a host that is only slow is quicker."""
Steps = dict[str, list[tuple[str, int]]]


def each(steps: Steps) -> list[tuple[str, str, int]]:
    return [(method, step, nth) for method, places in steps.items() for step, nth in places]


@pytest.fixture(scope="module")
def module_database(new_database: Callable[[], str]) -> str:
    """One database for all cases; each has a partition of its own."""
    return new_database()


@pytest.fixture
def rivals(
    module_database: str, s3_server: S3, tmp_path: Path, numbers: Iterator[int]
) -> Iterator[Rivals]:
    place = place_of(
        module_database, f"{s3_server.url}/kills", tmp_path, f"t{next(numbers)}", s3_server.options
    )
    made = Rivals(place)
    yield made
    made.b.close()


@pytest.fixture(scope="module")
def numbers() -> Iterator[int]:
    return itertools.count()


@pytest.mark.parametrize(("method", "step", "nth"), each(KILLS))
def test_the_other_host_finishes_what_a_killed_one_began(
    rivals: Rivals, method: str, step: str, nth: int
) -> None:
    a = HostProcess(rivals.place, "a")
    try:
        if method != "lead":
            a.call("lead", 0)
        for earlier in BEFORE[method]:
            a.call(earlier)
        a.call_until(step, nth, method, *([0] if method == "lead" else []))
    finally:
        a.kill()
    rivals.finish_as_b()
    rivals.rejoin_as_a()


def wake_too_late(
    rivals: Rivals, place: Place, method: str, step: str, nth: int
) -> tuple[str | None, object, object]:
    """Freeze host a at a step until b has finished.

    Returns the error that a ends with, and b's state and orphans from before a went on.
    """
    a = HostProcess(place, "a")
    try:
        a.call("lead", 0)
        for earlier in BEFORE[method]:
            a.call(earlier)
        a.call_until(step, nth, method)
        a.freeze()
        a.go()
        rivals.finish_as_b()
        before = rivals.b.store.load(rivals.place.partition)
        orphans = rivals.b.store.orphans(rivals.place.partition)
        a.wake()
        return a.outcome().error, before, orphans
    finally:
        a.wake()
        a.kill()


@pytest.mark.parametrize(("method", "step", "nth"), each(ZOMBIES))
def test_a_host_that_wakes_up_too_late_changes_nothing_but_garbage(
    rivals: Rivals, method: str, step: str, nth: int
) -> None:
    """ST-4, ST-20, I-19."""
    error, before, orphans = wake_too_late(rivals, rivals.place, method, step, nth)
    assert "FencedError" == error
    assert before == rivals.b.store.load(rivals.place.partition)
    assert orphans == rivals.b.store.orphans(rivals.place.partition)
    rivals.check_sound(rivals.b)
    rivals.check_read(rivals.b)
    rivals.b.collect()
    rivals.check_tidy(rivals.b)


@pytest.mark.parametrize(
    ("method", "step", "nth"),
    [("copy", "in commit_copy", 2), ("clean", "in commit_swap", 2), ("clean", "in publish", 1)],
)
def test_a_host_that_sleeps_in_a_transaction_keeps_the_other_out_for_a_while_only(
    rivals: Rivals, method: str, step: str, nth: int
) -> None:
    """The server ends its session and with it the transaction; what it sends later is nothing."""
    limit = f"?options=-c%20idle_in_transaction_session_timeout%3D{IDLE_MS}"
    place = replace(rivals.place, database=rivals.place.database + limit)
    error, before, _ = wake_too_late(rivals, place, method, step, nth)
    assert "ConflictError" == error
    assert before == rivals.b.store.load(rivals.place.partition)
    rivals.check_sound(rivals.b)
    rivals.check_read(rivals.b)
