"""Makes this process a host of a partition of a store: its leader by a lease, or a follower."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from keeplast.errors import InvalidError
from keeplast.host.host_directory import host_directory
from keeplast.host.lease_keeper import renewing
from keeplast.host.leased_host import LEASE_MS_DEFAULT, LeasedHost
from keeplast.model.host_role import HostRole
from keeplast.model.partition import TopicPartition
from keeplast.store.tiered_store import TieredStore


@contextmanager
def host_partition(
    store: TieredStore,
    partition: TopicPartition,
    root: Path,
    *,
    role: str = HostRole.AUTO,
    lease_ms: int = LEASE_MS_DEFAULT,
) -> Iterator[LeasedHost]:
    """Host a partition with its local log below ``root``, a directory of this process alone.

    ``role`` is ``auto``, ``leader`` or ``follower``. A leader renews its lease while the block
    lasts; one that does not for ``lease_ms`` is taken over. The caller asks for a
    :meth:`~keeplast.host.leased_host.LeasedHost.turn` again and again, and appends with ``host``
    where the host leads. What is in object storage is replicated: records count once the high
    watermark is beyond them. At the end of the block a leader copies the rest and gives the
    partition back.

    RefusedError for a directory that is a broker's, or in use by another process; InvalidError for
    a partition that is not in the store, and for another role.
    """
    if role not in list(HostRole):
        raise InvalidError(f"no role of a host. role={role!r} roles={', '.join(HostRole)}")
    with host_directory(root, store.parts().files):
        hosted = LeasedHost(store, partition, root, role=HostRole(role), lease_ms=lease_ms)
        with renewing(lambda: (hosted,), lease_ms):
            try:
                yield hosted
            finally:
                hosted.close()
                hosted.give_back()
