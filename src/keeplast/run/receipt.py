"""A line of JSON for every wave of a round: what was decided, on what, and what becomes of it.

Appended and made durable before the wave is put in place, in a directory as in a store. Nothing is
done that cannot be written down, and nothing is in place that no line describes. So a line is an
intent. A crash after it leaves all of its groups in place, none, or the first of them. The files (a
store's metadata) show which: :mod:`keeplast.inspect.receipt_proof`. The first line of a round has
all that the round found and decided; the others, with the same ``attempt`` and the next ``wave``,
what they add. ``is_last`` says that no wave follows. ``clean_to`` is the cleaner checkpoint, or
what counts for it, that the round found; it moves after the last wave. The hash key of the round is
not in it: it is secret. Checksums are CRC-32C of whole ``.log`` files: of what the second pass read
and of what the check read again; null where nothing was read. ``unsafe`` says that given values
were taken as they are, and ``lifts`` which limits that moved. ``holds`` are those that were in
force. ``readers`` are the groups that tombstones waited for and up to where each had read, null for
none. ``producers`` are (id, last data offset or -1, epoch) of those whose last batch had to stay.
Source: architecture, rule 7.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path

from msgspec.structs import replace

from keeplast.errors import InvalidError
from keeplast.log.files import FileSystem, reading
from keeplast.log.lock import appended
from keeplast.model.document import JudgedBy, Verdict, encode
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import TopicConfig
from keeplast.model.undo import KeptGroup
from keeplast.run.round_state import Round, group_reports, round_report
from keeplast.survey.notes import Lift
from keeplast.survey.receipt_book import BYTES_MAX, last_line
from keeplast.survey.receipt_chain import chained, next_link
from keeplast.survey.report import ExpiryReport
from keeplast.survey.wording import lift_words

RECEIPT_VERSION = 2
ROUNDS_MAX = 1000
"""Rounds that a verdict names; a line has an end."""
_version = cache(version)
"""Of a package, read once: to find it takes as long as to write the receipt."""
Receipt = Callable[[bytes], bytes | None]
"""Takes a line and returns it as it was written, None where it is not chained; what it raises says
that the line is not durable."""


def append_receipt(files: FileSystem, path: Path, line: bytes) -> bytes:
    """Append ``line`` durably, chained to the one before it; returns it as it was written.

    It replaces a last line that a crash cut off: nothing of that line was put in place. Left where
    it is, that line would run into this one and make the file unreadable. Processes that append to
    one file wait for each other, so that no two lines follow the same one.
    """
    with appended(path):
        if files.exists(path) and not _ends_whole(files, path):
            data = files.read_bytes(path, BYTES_MAX)
            files.write_durable(path, data[: data.rfind(b"\n") + 1])
        written = chained(line, next_link(_last_line(files, path), secrets.token_hex(16)))
        files.append_durable(path, written)
    return written


def _last_line(files: FileSystem, path: Path) -> bytes | None:
    """Return the newest line, of the file that was put aside where this one has none yet."""
    for each in (path, previous_receipts(path)):
        if files.exists(each):
            try:
                found = last_line(files, each)
            except ValueError as error:
                raise InvalidError(
                    "the last line of the file is too long for a receipt; name another file. "
                    f"path={each}",
                    code="K159",
                ) from error
            if found is not None:
                return found
    return None


def previous_receipts(path: Path) -> Path:
    """Return where a full receipt file is put aside."""
    return path.with_name(f"{path.name}.1")


def action_line(partition: TopicPartition | None, *, name: str, by: str, now_ms: int) -> bytes:
    """Return the line of a request to a loop; no partition is all of them."""
    document = {
        "version": RECEIPT_VERSION,
        "topic": None if partition is None else partition.topic,
        "partition": None if partition is None else partition.partition,
        "now_ms": now_ms,
        "keeplast": _version("keeplast"),
        "action": {"name": name, "by": by},
    }
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def verdict_line(
    partition: TopicPartition,
    *,
    now_ms: int,
    verdict: Verdict,
    rounds: Sequence[str],
    broken: Sequence[str],
    unjudged: Sequence[str],
    judged_by: JudgedBy | None = None,
) -> bytes:
    """Return the line of what ``verify`` said, newline included.

    ``rounds`` are the names of the rounds that were judged, oldest first; the line has the newest
    :data:`ROUNDS_MAX`. ``broken`` and ``unjudged`` are the names of checks. ``now_ms`` is the wall
    clock of the judge; ``judged_by`` is of a log that has an owner.
    """
    owned = (
        {}
        if judged_by is None
        else {"by": judged_by.by, "epoch": judged_by.epoch, "clean_to": judged_by.clean_to}
    )
    document = {
        "version": RECEIPT_VERSION,
        "topic": partition.topic,
        "partition": partition.partition,
        "now_ms": now_ms,
        "versions": {"keeplast": _version("keeplast")},
        "verdict": {
            "verdict": verdict.value,
            "rounds": list(rounds[-ROUNDS_MAX:]),
            "broken": list(broken),
            "unjudged": list(unjudged),
            **owned,
        },
    }
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def withdraw_receipt(files: FileSystem, path: Path, line: bytes) -> None:
    """Take ``line`` back, if it is the last one: what it describes did not happen.

    It is as :func:`append_receipt` wrote it.
    """
    with appended(path):
        data = files.read_bytes(path, BYTES_MAX)
        if data == line:
            files.unlink(path)
        elif data.endswith(line):
            files.write_durable(path, data[: -len(line)])


def _ends_whole(files: FileSystem, path: Path) -> bool:
    with reading(files, path) as handle:
        last = bytearray(b"\n")
        handle.pread_into(memoryview(last), max(handle.size_bytes - 1, 0))
        return last == b"\n"


def receipt_line(round_: Round, *, clean_to: int, is_unsafe: bool = False) -> bytes:
    """Return the line of the newest wave of a round, newline included; counts are of all so far."""
    plan, results, last = round_.plan, round_.results, round_.results[-1]
    is_first = len(results) == 1
    read, written = last.source_crcs, last.output_crcs
    added = {base for group in last.staged for base in group.sources}
    document = {
        "version": RECEIPT_VERSION,
        "topic": plan.partition.topic,
        "partition": plan.partition.partition,
        "now_ms": plan.now_ms,
        "attempt": round_.site.attempt,
        "wave": len(results),
        "is_last": last.carry is None,
        "clean_to": clean_to,
        "unsafe": is_unsafe,
        "lifts": [lift_words(each) for each in round_.survey.lifts] if is_unsafe else [],
        "holds": [
            {"name": each.name, "offset": each.offset, "until_ms": each.until_ms}
            for each in round_.survey.holds
        ],
        "readers": None if plan.readers is None else encode(plan.readers),
        "versions": {
            name: _version(name) for name in ("keeplast", "cramjam", "zstandard", "numpy")
        },
        "config": {
            "compaction.strategy": plan.topic.strategy,
            "compaction.strategy.header": plan.topic.strategy_header,
            "keep.versioned.tombstones": plan.topic.keep_versioned_tombstones,
            "delete.retention.ms": plan.topic.delete_retention_ms,
            "tombstones.wait.for.groups": list(plan.topic.tombstones_wait_for_groups),
            "tombstones.wait.max.ms": plan.topic.tombstones_wait_max_ms,
            "min.compaction.lag.ms": plan.topic.min_compaction_lag_ms,
            "segment.bytes": plan.topic.segment_bytes,
            "segment.index.bytes": plan.topic.segment_index_bytes,
            "index.interval.bytes": plan.topic.index_interval_bytes,
        },
        "key_capacity": plan.key_capacity,
        "inputs": [
            {
                "base": s.base_offset,
                "bytes": s.size_bytes,
                "mtime_ms": s.mtime_ms,
                "crc32c": read.get(s.base_offset),
            }
            for s in plan.segments
            if is_first or s.base_offset in added
        ],
        "outputs": [
            {
                "base": group.base_offset,
                "sources": list(group.sources),
                "bytes": group.size_bytes,
                "batches": group.batches,
                "left_alone": not group.files,
                "crc32c": (written if group.files else read).get(group.base_offset),
            }
            for group in last.staged
        ],
        "round": encode(
            replace(round_report(round_), groups=group_reports(last.groups), filters=None)
        ),
    }
    if is_first:
        document["producers"] = plan.last_records.tolist()
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def removal_line(partition: TopicPartition, now_ms: int, removal: Mapping[str, object]) -> bytes:
    """Return the line of what a user took out of a store, newline included."""
    document = {
        "version": RECEIPT_VERSION,
        "topic": partition.topic,
        "partition": partition.partition,
        "now_ms": now_ms,
        "versions": {"keeplast": _version("keeplast")},
        "removal": dict(removal),
    }
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def collection_line(
    partition: TopicPartition, now_ms: int, collection: Mapping[str, object]
) -> bytes:
    """Return the line of replaced segments whose objects go, newline included.

    No record goes with them: their replacement is served, and the round's own line described it.
    ``start`` and ``end``, exclusive, are the offsets that they covered.
    """
    document = {
        "version": RECEIPT_VERSION,
        "topic": partition.topic,
        "partition": partition.partition,
        "now_ms": now_ms,
        "versions": {"keeplast": _version("keeplast")},
        "collection": dict(collection),
    }
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def undo_line(
    partition: TopicPartition,
    now_ms: int,
    *,
    attempt: str,
    groups: Sequence[KeptGroup],
    checkpoint: int | None,
    more: Sequence[str] = (),
) -> bytes:
    """Return the line of a round that is about to be undone, newline included.

    ``groups`` are those that go, ``checkpoint`` the line of the cleaner checkpoint that comes back,
    None for none. As with a round, a crash leaves some of it in place, the highest groups first.
    ``more`` are the names of the chunks of the round after its first one.
    """
    replaced = [segment for group in groups for segment in group.outputs]
    restored = [segment for group in groups for segment in group.sources]
    document = {
        "version": RECEIPT_VERSION,
        "topic": partition.topic,
        "partition": partition.partition,
        "now_ms": now_ms,
        "versions": {"keeplast": _version("keeplast")},
        "undo": {
            "attempt": attempt,
            **({"more": list(more)} if more else {}),
            "checkpoint": checkpoint,
            **{
                name: [
                    {"base": each.base_offset, "bytes": each.size_bytes, "crc32c": each.crc32c}
                    for each in segments
                ]
                for name, segments in (("replaced", replaced), ("restored", restored))
            },
        },
    }
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def expiry_line(
    partition: TopicPartition,
    topic: TopicConfig,
    now_ms: int,
    report: ExpiryReport,
    *,
    is_unsafe: bool = False,
    lifts: Sequence[Lift] = (),
) -> bytes:
    """Return the line of an expiry, newline included.

    Appended when the log start has moved and no file has: what a crash leaves goes the next time.
    """
    document = {
        "version": RECEIPT_VERSION,
        "topic": partition.topic,
        "partition": partition.partition,
        "now_ms": now_ms,
        "unsafe": is_unsafe,
        "lifts": [lift_words(each) for each in lifts],
        "versions": {"keeplast": _version("keeplast")},
        "config": {
            "cleanup.policy": ",".join(sorted(topic.cleanup_policy)),
            "retention.ms": topic.retention_ms,
            "retention.bytes": topic.retention_bytes,
        },
        "expiry": encode(report),
    }
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"
