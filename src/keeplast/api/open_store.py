"""A tiered store for programs: opened by its URL, read as of a point, and hosted.

The rule that a reader must not break: nothing is remembered that was not tried, so that a place
with a typing mistake can still be corrected. The metadata remember where the objects are. Of two
stores in one place each would collect the other's objects as garbage, so a place has the name of
its store written on it.

A host of a partition is its leader by a lease, or a follower.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from keeplast.api.open_log import KeyState, OpenLog
from keeplast.clock import Clock, SystemClock
from keeplast.errors import InvalidError
from keeplast.host.leased_host import LEASE_MS_DEFAULT, LeasedHost, host_directory, renewing
from keeplast.log.files import LocalFiles
from keeplast.model.hold import GroupReader
from keeplast.model.partition import TopicPartition
from keeplast.model.text import shown_url
from keeplast.model.topic_config import HostRole, TopicConfig
from keeplast.store.migration import SettingsOf
from keeplast.store.tiered_store import TieredStore
from keeplast.tier.metadata.collection import Marks, write_name
from keeplast.tier.metadata.database import open_database
from keeplast.tier.metadata.metadata_store import MetadataStore
from keeplast.tier.metadata.stored_logs import OBJECTS, require_store, shown_log
from keeplast.tier.objects.log_directory import LogDirectoryRecipe
from keeplast.tier.objects.object_store import STORE_PROBE, ObjectPlace
from keeplast.tier.objects.round_files import ROOT, round_path
from keeplast.tier.objects.stores import check_directory, lasting_url, open_objects


def open_store(
    store: str,
    objects: str | None = None,
    *,
    owner: str,
    topic_of: SettingsOf,
    options: Mapping[str, str] | None = None,
    clock: Clock | None = None,
    brokers: GroupReader | None = None,
    only_looks: bool = False,
) -> TieredStore:
    """Open the store whose metadata is at the URL ``store``.

    ``owner`` is the name under which this process changes partitions; ``topic_of`` makes settings
    of Kafka's names, as :func:`keeplast.topic_config` does. ``objects`` is given once and
    remembered; InvalidError when it is needed and missing, or another one than was remembered.
    ``options`` are the object store's, such as an endpoint. ``brokers`` (:func:`ask_brokers`) read
    what the groups of ``tombstones.wait.for.groups`` have committed; without, tombstones wait for
    them as long as ``tombstones.wait.max.ms`` says. With ``only_looks`` the metadata are opened so
    that nothing can be changed in them, by a principal that may only read.
    """
    clock = SystemClock() if clock is None else clock
    if objects is None:
        require_store(store)
    metadata = MetadataStore(open_database(store, only_looks=only_looks), clock)
    try:
        found = _open_objects(metadata, store, objects, dict(options or {}))
    except BaseException:
        metadata.close()
        raise
    return TieredStore(
        metadata, found, owner=owner, topic_of=topic_of, clock=clock, files=LocalFiles(),
        marks=Marks(metadata, found), brokers=brokers,
    )  # fmt: skip


def _open_objects(
    metadata: MetadataStore, store: str, given: str | None, options: dict[str, str]
) -> ObjectPlace:
    """Open the objects of a store; a place that cannot be opened and listed, or where nothing can
    be deleted, is not remembered."""
    known = metadata.find_fact(OBJECTS)
    url = known if given is None else lasting_url(given)
    if url is None:
        raise InvalidError(
            "this store is new; say where its objects are: keeplast copy DATA_DIR STORE --new "
            f"--objects URL. store={shown_url(store)}",
            code="K321",
        )
    if known in (None, url):
        if known is None:
            opened = open_objects(url, options)
            next(iter(opened.list("")), None)
            write_name(metadata, opened, url)
            _prove_deletion(opened)
            known = metadata.fact(OBJECTS, lambda: url)
        else:
            check_directory(url)
            opened = open_objects(url, options)
        if known == url:
            return opened
    raise InvalidError(
        "the objects of this store are elsewhere; leave --objects out, or make another store. "
        f"given={url} found={known}",
        code="K321",
    )


def _prove_deletion(objects: ObjectPlace) -> None:
    """Raise UnavailableError where the place lets nothing be deleted: a store there only grows.

    It goes by one name: a probe that cannot be removed does not heap.
    """
    objects.put_new(STORE_PROBE, b"probe")
    objects.delete([STORE_PROBE])


def stored_state(
    store: TieredStore,
    partition: TopicPartition,
    topic: TopicConfig | None = None,
    *,
    end_offset: int | None = None,
    as_of_ms: int | None = None,
) -> KeyState:
    """Return the final record of every key that is not deleted, in offset order.

    Of what lies in the store: a local log may be longer. ``topic`` says how records rank, by
    default the partition's settings. ``end_offset`` and ``as_of_ms``, and what is refused, as for
    :meth:`~keeplast.api.open_log.OpenLog.state`. The partition is looked at once: rounds may go on
    meanwhile. InvalidError for one that is not there, ConflictError when an object of what was
    looked at was collected before it was read.
    """
    parts = store.parts()
    state = parts.metadata.load(partition)
    files = LogDirectoryRecipe(ROOT, (shown_log(state, parts.objects),)).open()
    log = OpenLog(round_path(partition), files=files)
    chosen = store.topic_for(state) if topic is None else topic
    return log.state(chosen, end_offset=end_offset, as_of_ms=as_of_ms)


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
        raise InvalidError(
            f"no role of a host. role={role!r} roles={', '.join(HostRole)}", code="K351"
        )
    with host_directory(root, store.parts().files):
        hosted = LeasedHost(store, partition, root, role=HostRole(role), lease_ms=lease_ms)
        with renewing(lambda: (hosted,), lease_ms):
            try:
                yield hosted
            finally:
                hosted.close()
                hosted.give_back()
