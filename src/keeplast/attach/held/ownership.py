"""The owner object: which decision log, at which epoch, may change a partition's remote tier.

The rule: **it is looked at before each decision and each deletion**, and its owner alone replaces
it. Two decision logs share no fence but this object. So a trial finds a store that would let two
create it, or both replace it, and such a store is refused. An object that says a later epoch than
the decision log means that the log is an older one: restored, or of a clone.
"""

from __future__ import annotations

import json

from msgspec import Struct
from msgspec.structs import replace

from keeplast.cluster.layouts.layout import RemoteLayout
from keeplast.errors import ConflictError, CorruptError, FencedError, RefusedError
from keeplast.format.identifier import encode_id
from keeplast.model.partition import INT64_MAX
from keeplast.tier.state.attached import AttachedName

VERSION = 1
OWNER_BYTES_MAX = 4_096


class Owner(Struct, frozen=True):
    """What an owner object says."""

    cluster_id: str
    topic: str
    topic_id: str
    partition: int
    store_id: str
    epoch: int

    @property
    def is_sound(self) -> bool:
        """Say whether each value is of its kind; their writer is unknown."""
        texts = (self.cluster_id, self.topic, self.topic_id, self.store_id)
        return (
            all(type(each) is str and each.isascii() and each.isprintable() for each in texts)
            and type(self.partition) is type(self.epoch) is int
            and 0 < self.epoch <= INT64_MAX
        )

    def to_bytes(self) -> bytes:
        """Return the object's content."""
        return json.dumps(
            {"version": VERSION, **{name: getattr(self, name) for name in self.__struct_fields__}},
            sort_keys=True,
        ).encode()


class OwnerObject:
    """The owner object of one partition, in the name of one decision log."""

    def __init__(self, layout: RemoteLayout, name: AttachedName, store_id: str) -> None:
        """Look at nothing yet."""
        self._layout = layout
        self._name = name
        self._store_id = store_id
        self.key = (
            f"owner-{name.cluster_id}-{encode_id(name.partition.topic_id)}-"
            f"{name.partition.partition}"
        )

    def probe(self) -> None:
        """Raise RefusedError when the store writes where it should not: it fences no process."""
        self._layout.check_conditions()

    def read(self) -> Owner | None:
        """Return the partition's owner, None without one.

        RefusedError when another decision log does, CorruptError for an object that is damaged.
        """
        owner = self.find()
        if owner is not None and owner.store_id != self._store_id:
            raise RefusedError(
                "another decision log owns the partition; use it (--decisions), or give it up "
                "there with detach. If it is lost: keeplast repair --rebuild. "
                f"partition={self._name} object={self.key} owner={owner.store_id} "
                f"ours={self._store_id}",
                code="K422",
            )
        return owner

    def find(self) -> Owner | None:
        """Return the partition's owner, of any decision log; None without one."""
        data = self._layout.read_own(self.key)
        return None if data is None else self._decode(data)

    def take(self, epoch: int) -> None:
        """Own the partition at ``epoch``; FencedError or ConflictError when another process is
        ahead.
        """
        self.take_from(self.read(), epoch)

    def take_from(self, known: Owner | None, epoch: int) -> None:
        """Own the partition instead of ``known``: another decision log's, or None without an owner.

        Errors as :meth:`take`. A process that works by that log is fenced at its next look.
        """
        mine = self._at(epoch)
        if known is None:
            taken = self._layout.put_new(self.key, mine.to_bytes())
        elif known.epoch >= epoch:
            raise FencedError(
                f"a later epoch owns the partition; stop. partition={self._name} epoch={epoch} "
                f"current={known.epoch}",
                code="K424",
            )
        else:
            taken = self._layout.replace_own(self.key, mine.to_bytes(), known.to_bytes())
        if not taken:
            raise ConflictError(
                f"another process took the owner object. object={self.key}", code="K422"
            )

    def check(self, epoch: int) -> None:
        """Raise FencedError unless the object says ``epoch``; RefusedError when it is gone."""
        known = self.read()
        if known is None:
            raise RefusedError(
                "the owner object is gone: it was removed, or the partition was given up. Nothing "
                f"is decided or deleted. partition={self._name} object={self.key}",
                code="K423",
            )
        if known.epoch != epoch:
            raise FencedError(
                f"another epoch owns the partition; stop. partition={self._name} epoch={epoch} "
                f"current={known.epoch}",
                code="K424",
            )

    def give_up(self, epoch: int) -> None:
        """Remove the object of ``epoch``: the partition has no owner then."""
        self.check(epoch)
        self._layout.delete_own(self.key)

    def _at(self, epoch: int) -> Owner:
        at = self._name.partition
        return Owner(
            self._name.cluster_id, at.topic, encode_id(at.topic_id), at.partition, self._store_id,
            epoch,
        )  # fmt: skip

    def _decode(self, data: bytes) -> Owner:
        # Anybody who may write to the bucket may have written it.
        if len(data) > OWNER_BYTES_MAX:
            raise self._damaged()
        try:
            found = json.loads(data)
            version = found.pop("version")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise self._damaged() from error
        if version != VERSION:
            raise RefusedError(
                f"an owner object of another version; use the keeplast that wrote it. "
                f"object={self.key} version={version!r:.60}",
                code="K425",
            )
        try:
            owner = Owner(**found)
        except TypeError as error:
            raise self._damaged() from error
        if not owner.is_sound or owner.to_bytes() != data:
            raise self._damaged()
        mine = self._at(owner.epoch)
        if replace(owner, store_id=self._store_id) != mine:
            raise CorruptError(
                "the owner object of another partition", path=self.key, found=owner, code="K425"
            )
        return owner

    def _damaged(self) -> CorruptError:
        return CorruptError(
            "not an owner object: keeplast did not write it so. When no keeplast is at work on the "
            "partition, remove it; the next command takes the partition again",
            path=self.key,
            code="K425",
        )
