"""``keeplast.explain``: what there is of keys in a log, and what becomes of each record."""

from __future__ import annotations

from collections.abc import Collection

from keeplast.api.open_log import OpenLog
from keeplast.clock import SystemClock
from keeplast.errors import InvalidError
from keeplast.inspect.explain import AskedKey, KeyExplanation, explain_key
from keeplast.inspect.explain import explain_keys as explain_many
from keeplast.model.topic_config import TopicConfig
from keeplast.rewrite.workspace import Workspace
from keeplast.survey.request import MEMORY_BYTES_DEFAULT, CleanRequest, PartitionRequest


def explain(
    log: OpenLog,
    topic: TopicConfig,
    *,
    key: bytes | None = None,
    offset: int | None = None,
    header: str | None = None,
    now_ms: int | None = None,
) -> KeyExplanation:
    """Return every record of ``key``, or of the key that the record at ``offset`` has.

    What becomes of each is by the settings in ``topic``, as of ``now_ms`` (None: now). ``header``
    names the one by which the strategy ``header`` is tried where the topic has none. The log is
    read once; nothing is locked or written. InvalidError unless a key or an offset is given, for a
    key that is not bytes, and when no record with a key is there; CorruptError where the log cannot
    be read.
    """
    _require_bytes(() if key is None else (key,))
    now_ms = SystemClock().now_ms() if now_ms is None else now_ms
    return explain_key(
        PartitionRequest(log.partition, log.path, topic), CleanRequest((), rolls_idle=True),
        log.files, now_ms, AskedKey(key, offset, header), Workspace(MEMORY_BYTES_DEFAULT),
        lambda read_bytes: None,
    )  # fmt: skip


def explain_keys(
    log: OpenLog, topic: TopicConfig, keys: Collection[bytes], *, now_ms: int | None = None
) -> dict[bytes, KeyExplanation]:
    """Return the same for each of ``keys``, by one reading of the log; values are left out.

    A record that is no tombstone has an empty value. InvalidError where the log has more records of
    them than are kept, and for a key that is not bytes; CorruptError where it cannot be read.
    """
    _require_bytes((keys,) if isinstance(keys, str) else keys)
    now_ms = SystemClock().now_ms() if now_ms is None else now_ms
    return explain_many(
        PartitionRequest(log.partition, log.path, topic), CleanRequest((), rolls_idle=True),
        log.files, now_ms, keys, Workspace(MEMORY_BYTES_DEFAULT), lambda read_bytes: None,
    )  # fmt: skip


def _require_bytes(keys: Collection[object]) -> None:
    """Raise InvalidError for what no key of a record equals: it would be told as not there."""
    for each in keys:
        if not isinstance(each, bytes):
            raise InvalidError(
                'the keys of records are bytes; give b"...", or encode the text, as a collection '
                f"where there are several. given={type(each).__name__}"
            )
