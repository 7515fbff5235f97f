"""Opens a tiered store by the URL of its metadata; where its objects are is remembered there.

Nothing is remembered that was not tried: a place with a typing mistake can still be corrected. Of
two stores in one place each would collect the other's objects as garbage, so a place has the name
of its store written on it.
"""

from __future__ import annotations

from collections.abc import Mapping

from keeplast.clock import Clock, SystemClock
from keeplast.errors import InvalidError
from keeplast.log.files import LocalFiles
from keeplast.model.reader_wait import GroupReader
from keeplast.model.redaction import shown_url
from keeplast.store.migration import SettingsOf
from keeplast.store.tiered_store import TieredStore
from keeplast.tier.metadata.database import open_database
from keeplast.tier.metadata.marks import Marks
from keeplast.tier.metadata.metadata_store import MetadataStore
from keeplast.tier.metadata.store_name import write_name
from keeplast.tier.metadata.stored_logs import OBJECTS, require_store
from keeplast.tier.objects.object_store import STORE_PROBE, ObjectPlace
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
    ``options`` are the object store's, such as an endpoint. ``brokers`` (:func:`ask_brokers`) tell
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
            "this store is new; say where its objects are: keeplast tier init --store URL "
            "--objects URL. "
            f"store={shown_url(store)}"
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
        f"given={url} found={known}"
    )


def _prove_deletion(objects: ObjectPlace) -> None:
    """Raise UnavailableError where the place lets nothing be deleted: a store there only grows.

    It goes by one name: a probe that nobody may remove does not heap.
    """
    objects.put_new(STORE_PROBE, b"probe")
    objects.delete([STORE_PROBE])
