"""Whether a round could do its work in a remote tier, and whether deletion frees anything.

The rule: **each right that is missing is named, and nothing is left there**. One segment that
brokers serve is opened of each topic. An operator who names another bucket or prefix than the
brokers' finds nothing, and would take that for damage later. Only then a probe is written among
keeplast's own objects, read, and removed: a right to delete that is missing shows nowhere else
before a claim.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator

from msgspec import Struct

from keeplast.cluster.check import AttachFinding, Severity
from keeplast.cluster.layouts.layout import PROBE, PROBES, AuxiliaryFile, RemoteLayout
from keeplast.cluster.metadata_cache import ClusterCache
from keeplast.errors import (
    CompactionError,
    CorruptError,
    InvalidError,
    RefusedError,
    UnavailableError,
)
from keeplast.format.remote_log_metadata import RemoteLogSegment
from keeplast.model.text import shown_url
from keeplast.tier.objects.object_store import StoreAction, right_of
from keeplast.tier.objects.stores import is_forbidden, refused_actions

NOT_STORED_REMEDY = "give --storage as the plugin is configured on the brokers"
TOKEN_BYTES = 16


def newest_served(cache: ClusterCache, topics: Iterable[str]) -> list[RemoteLogSegment]:
    """Return of each topic that has any the segment that was announced last of what is served."""
    found: dict[str, RemoteLogSegment] = {}
    wanted = {*topics}
    for partition, known in cache.partitions.items():
        for each in known.served() if partition.topic in wanted else ():
            before = found.setdefault(partition.topic, each.segment)
            if each.segment.event_timestamp_ms > before.event_timestamp_ms:
                found[partition.topic] = each.segment
    return [found[topic] for topic in sorted(found)]


def check_storage(
    layout: RemoteLayout, storage: str, segments: Iterable[RemoteLogSegment]
) -> Iterator[AttachFinding]:
    """Yield what stands in the way of a round on ``segments``, one of each topic, at ``storage``.

    UnavailableError when the storage fails otherwise than by refusing.
    """
    place = _StoragePlace(storage)
    hides = is_elsewhere = False
    named: set[StoreAction] = set()
    for each in segments:
        topic = each.id.partition.topic
        try:
            read_stored(layout, each)
        except FileNotFoundError as error:
            is_elsewhere = True
            yield _refuse("not-stored", topic, not_stored(error), NOT_STORED_REMEDY)
            continue
        except UnavailableError as error:
            yield place.refused(error, topic, StoreAction.READ)
            named.add(StoreAction.READ)
            continue
        except (CorruptError, RefusedError, InvalidError) as error:
            yield _refuse("stored-otherwise", topic, f"its newest segment cannot be read: {error}")
            continue
        try:
            next(iter(layout.list(each.id.partition)), None)
        except UnavailableError as error:
            yield place.refused(error, topic, StoreAction.LIST)
            named.add(StoreAction.LIST)
        hides |= layout.hides_deleted(each)
    # What may be somebody else's bucket gets no probe.
    if not is_elsewhere:
        yield from place.tried(layout, named)
    yield from place.warnings(hides=hides)


def not_stored(error: FileNotFoundError) -> str:
    """Return what it means that an object of a segment that brokers serve is not there."""
    return (
        "brokers serve a segment of which the storage has nothing: --storage or its prefix is "
        "another one than the brokers' plugin has, or the object is lost. "
        f"object={shown_url(str(error.filename))}"
    )


def read_stored(layout: RemoteLayout, segment: RemoteLogSegment) -> None:
    """Read the description, a file next to the log, and the log's first byte.

    FileNotFoundError for what is not there; errors otherwise as the layout's.
    """
    reader = layout.open(segment)
    reader.read_auxiliary(AuxiliaryFile.LEADER_EPOCHS)
    reader.read_log(0, 1)


class _StoragePlace(Struct, frozen=True):
    """Where segments lie, as it was given."""

    storage: str

    @property
    def scheme(self) -> str:
        return self.storage.partition(":")[2].partition("://")[0]

    def tried(
        self, layout: RemoteLayout, named: Collection[StoreAction]
    ) -> Iterator[AttachFinding]:
        """Yield what the store refuses to do with a probe, but for what is ``named`` already.

        And that it heeds no conditions, where it does not.

        UnavailableError when it fails otherwise.
        """
        token = secrets.token_hex(TOKEN_BYTES).encode()
        steps: dict[StoreAction, Callable[[], object]] = {
            StoreAction.WRITE: lambda: layout.put_new(PROBE, token),
            StoreAction.READ: lambda: layout.read_own(PROBE),
            StoreAction.LIST: lambda: deque(layout.list_own(PROBES), maxlen=0),
            StoreAction.DELETE: lambda: layout.delete_own(PROBE),
        }
        refused = refused_actions(steps)
        for action, error in refused.items():
            if action not in named:
                yield self.refused(error, None, action)
        if not refused:
            try:
                layout.check_conditions()
            except RefusedError as error:
                yield _refuse("storage-conditions", None, str(error))

    def refused(
        self, error: CompactionError, topic: str | None, action: StoreAction
    ) -> AttachFinding:
        """Return what is missing; ``error`` itself where nothing was refused."""
        if not is_forbidden(error):
            raise error
        right = right_of(self.scheme, action)
        return _refuse(
            "storage-permission", topic,
            f"the storage refuses to {action} objects: the principal needs {right}",
            f"allow {right}, on {shown_url(self.storage)} and all below it",
        )  # fmt: skip

    def warnings(self, *, hides: bool) -> Iterator[AttachFinding]:
        """Yield why deleted objects may stay and cost; ``hides`` says that an object shows it."""
        if hides:
            yield AttachFinding(
                "bucket-versions", Severity.WARNS, None,
                "the bucket keeps versions of its objects, and may lock them: what is collected is "
                "only hidden, can be read by who asks for a version, and costs as before",
                "see that the bucket has a rule that expires noncurrent versions, and that no "
                "object lock keeps them",
            )  # fmt: skip
        elif self.scheme in ("gs", "az"):
            yield AttachFinding(
                "soft-delete", Severity.WARNS, None,
                "whether the bucket keeps what is deleted (soft delete, versions of older objects) "
                "cannot be seen from here: it would only be hidden, and cost as before",
                "see that soft delete is off, or as short as can be",
            )  # fmt: skip


def _refuse(rule: str, topic: str | None, words: str, remedy: str = "") -> AttachFinding:
    return AttachFinding(rule, Severity.REFUSES, topic, words, remedy)
