"""A host is stopped at every operation on its disk, and opened on what the disk may hold then."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from keeplast.host.partition_host import PartitionHost
from tests.support.crashing_files import CrashingFiles, Image, Mode
from tests.support.hosts import Cluster, read_all, write
from tests.support.observed_files import Crash

STATES_PER_POINT = 2


def prepared(cluster: Cluster) -> tuple[Image, dict[bytes | None, bytes | None]]:
    """Return the disk of a leader whose log object storage has cleaned, and what it reads."""
    files = CrashingFiles({cluster.root: {}, cluster.root / "a": {}})
    host = cluster.host("a", files)
    host.become_leader(0)
    write(host, 24)
    host.copy()
    cluster.clean()
    expected = read_all(host)
    host.close()
    return files.image(), expected


def images_after(
    cluster: Cluster, image: Image, act: Callable[[PartitionHost], object]
) -> Iterator[Image]:
    """Yield disks that a crash in ``act`` may leave, at each of its operations."""
    dice = random.Random(1)
    point = 0
    while True:
        files = CrashingFiles(image)
        host = cluster.host("a", files)
        host.become_leader(0) if act is not drop else None
        files.operations.clear()
        files.crash_at = point
        try:
            act(host)
        except Crash:
            pass
        else:
            return
        for mode in Mode:
            yield from files.survivors(dice, mode=mode, limit=STATES_PER_POINT)
        point += 1


def drop(host: PartitionHost) -> None:
    """Let segments leave the disk as a follower does."""
    host.drop_below(host.closed_segments()[2][1])


def agree(host: PartitionHost) -> None:
    """Give the local overlap the bytes of object storage."""
    host._agree(host.state())


@pytest.mark.parametrize("act", [drop, agree])
def test_a_crash_of_the_local_half_loses_nothing(
    cluster: Cluster, act: Callable[[PartitionHost], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Object storage is committed; what becomes of the disk then, the log is read as before."""
    image, expected = prepared(cluster)
    if act is agree:
        # Taking over would drop what is to be replaced.
        monkeypatch.setattr(PartitionHost, "drop_below", lambda self, offset: [])
    states = 0
    for left in images_after(cluster, image, act):
        host = cluster.host("a", CrashingFiles(left), recovers=True)
        assert expected == read_all(host)
        bases = [segment.base_offset for segment in host.listing().segments]
        assert host.log_end_offset == 24
        assert bases == sorted(bases)
        states += 1
    assert states > 10


def test_a_crash_while_appending_leaves_a_beginning_of_the_log(cluster: Cluster) -> None:
    image, expected = prepared(cluster)
    for left in images_after(cluster, image, lambda host: write(host, 6, start=24)):
        host = cluster.host("a", CrashingFiles(left), recovers=True)
        assert 24 <= host.log_end_offset <= 30
        assert expected.keys() == read_all(host).keys()
        host.become_leader(0)
        write(host, 2, start=40)
