"""A request that keys be gone, as it is kept: it names keys by their keyed hashes alone. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from keeplast.errors import InvalidError
from keeplast.model.partition import TopicPartition

KEYS_MAX = 10_000
"""Keys of one request; the records of all of them are in memory while one log is told of."""


@dataclass(frozen=True, slots=True, order=True)
class SegmentDigest:
    """A ``.log`` file of a partition: its name, the bytes that count, and their SHA-256."""

    partition: TopicPartition
    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class ErasureRequest:
    """Keys that are to be gone from ``topics``; without any, from every compacted topic.

    ``keys`` are keyed hashes, sorted, made with the hash key whose check is ``hash_check``.
    ``before`` are the segments in which they were found when it was made, at ``created_ms``.
    """

    request_id: str
    created_ms: int
    topics: tuple[str, ...]
    hash_check: str
    keys: tuple[str, ...]
    before: tuple[SegmentDigest, ...] = ()

    @property
    def about(self) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
        """Return what is asked for; a request for the same is the same."""
        return self.hash_check, self.topics, self.keys

    def require_check(self, check: str) -> None:
        """Raise InvalidError unless the hash key with this check is the one it was made with."""
        if check != self.hash_check:
            raise InvalidError(
                "the hash key is not the one that the request was made with; give that one. "
                f"request={self.request_id} hash_key={check} wanted={self.hash_check}"
            )


@dataclass(frozen=True, slots=True)
class KeptElsewhere:
    """A request that is kept in another list than its log directory's: its id, and its topics."""

    request_id: str
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RequestBook:
    """A list of requests, oldest first.

    Those ``elsewhere`` are named only so that nothing is put back that they want gone.
    """

    requests: tuple[ErasureRequest, ...] = ()
    elsewhere: tuple[KeptElsewhere, ...] = ()

    def wants(self, topic: str) -> str | None:
        """Return the id of a request by which keys of ``topic`` are to be gone, None without."""
        every: Sequence[ErasureRequest | KeptElsewhere] = (*self.requests, *self.elsewhere)
        return next((e.request_id for e in every if not e.topics or topic in e.topics), None)
