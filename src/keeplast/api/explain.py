"""``keeplast.explain``: what there is of keys in a log, or of one in all, and what becomes of each.

One log is explained by the settings that the caller has; a place has settings of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from keeplast.api.open_log import OpenLog
from keeplast.api.open_place import placed
from keeplast.api.place import AskedPlace, SearchTerms, named
from keeplast.clock import SystemClock
from keeplast.config.layers import PartitionChoice
from keeplast.errors import InvalidError
from keeplast.inspect.explain import AskedKey, KeyExplanation, explain_key
from keeplast.inspect.explain import explain_keys as explain_many
from keeplast.model.hold import GroupReader
from keeplast.model.topic_config import TopicConfig
from keeplast.rewrite.workspace import Workspace
from keeplast.service.explained import KeyAnswer
from keeplast.service.search_tasks import SearchRunner
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

    The settings in ``topic`` decide what becomes of each, as of ``now_ms`` (None: now). ``header``
    names the header that the strategy ``header`` is tried with where the topic has none. The log is
    read once; nothing is locked or written. InvalidError unless a key or an offset is given, for a
    key that is not bytes, and when no record with a key is there. CorruptError where the log cannot
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


def explain_place(
    place: AskedPlace | str | Path,
    *,
    key: bytes | None = None,
    offset: int | None = None,
    topics: Collection[str] = (),
    partitions: Collection[int] = (),
    header: str | None = None,
    now_ms: int | None = None,
    receipt: Path | None = None,
    brokers: GroupReader | None = None,
    runner: SearchRunner | None = None,
    planned: Callable[[int], None] = lambda _: None,
    progressed: Callable[[int], None] = lambda _: None,
) -> KeyAnswer:
    """Return every record of ``key`` in a place, or of the key that the record at ``offset`` has.

    All partitions of ``topics`` are searched, or those with numbers in ``partitions``: an offset is
    one partition's. ``header`` and ``now_ms`` are as for :func:`explain`; attached topics are
    explained as of now. ``receipt`` is where rounds wrote theirs, None what a directory keeps.
    ``brokers`` (:func:`ask_brokers`) read what groups have committed; of attached topics the
    cluster does. ``runner``, a Spark one, searches with its tasks, one a partition. ``planned`` and
    ``progressed`` hear of bytes; what they raise ends the search.

    A partition that cannot be read is among the answer's ``faults``, one that is not searched in
    ``left_out``. Where a store's cannot be read, or an offset was asked about, its error is raised.
    InvalidError for what is not there, and unless a key or an offset is given.
    """
    _require_bytes(() if key is None else (key,))
    terms = SearchTerms(
        now_ms=now_ms, runner=runner, receipt=receipt, brokers=brokers, planned=planned,
        progressed=progressed,
    )  # fmt: skip
    scope = PartitionChoice(topics=named(topics), partitions=tuple(partitions))
    return placed(place).explain(AskedKey(key, offset, header), scope, terms)


def _require_bytes(keys: Collection[object]) -> None:
    """Raise InvalidError for what no key of a record equals: it would be reported as not there."""
    for each in keys:
        if not isinstance(each, bytes):
            raise InvalidError(
                'the keys of records are bytes; give b"...", or encode the text, as a collection '
                f"where there are several. given={type(each).__name__}",
                code="K109",
            )
