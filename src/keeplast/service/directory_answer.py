"""What is known of one key in the logs of a data directory: the answer of ``keeplast explain``.

Each chosen log is read once, without the directory's lock; nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from keeplast.config.selection import Selection
from keeplast.errors import CompactionError, StoppedError
from keeplast.inspect.explain import AskedKey, explain_key, rankings_of
from keeplast.inspect.undo_copies import find_undo_copies
from keeplast.log.files import FileSystem
from keeplast.model.partition import TopicPartition
from keeplast.model.reader_wait import GroupReader
from keeplast.rewrite.workspace import Workspace
from keeplast.service.explained import ExplainedPartition, KeyAnswer
from keeplast.service.status import read_round_receipts
from keeplast.service.status_words import erased_sentence
from keeplast.service.trace_bounds import TraceBounds
from keeplast.survey.group_offsets import GroupOffsets
from keeplast.survey.request import MEMORY_BYTES_DEFAULT, CleanRequest


def answer_from_directory(
    selection: Selection,
    files: FileSystem,
    now_ms: int,
    asked: AskedKey,
    *,
    receipt: Path | None = None,
    memory_bytes: int = MEMORY_BYTES_DEFAULT,
    planned: Callable[[int], None] = lambda _: None,
    progressed: Callable[[int], None] = lambda _: None,
    brokers: GroupReader | None = None,
) -> KeyAnswer:
    """Explain a key in each chosen partition.

    ``receipt`` None are the receipts that a loop keeps in the directory. ``planned`` and
    ``progressed`` hear of the bytes that are read; what they raise ends the search, a StoppedError
    at the least. A partition that cannot be read is among the faults; where an offset was asked
    about, its error is raised. ``brokers`` tell what consumer groups have committed, None where
    files do.
    """
    asked.require_one(len(selection.partitions))
    root = selection.directory.root
    receipts = read_round_receipts(files, root, receipt)
    bounds = TraceBounds(selection, files, now_ms, receipts, brokers)
    planned(sum(bounds.look.sizes[each.partition] for each in selection.partitions))
    request, workspace = CleanRequest((), rolls_idle=True), Workspace(memory_bytes)
    groups = GroupOffsets(files, brokers)
    parts: list[ExplainedPartition] = []
    faults: list[tuple[TopicPartition, Exception]] = []
    for each in selection.partitions:
        try:
            found = explain_key(
                each, request, files, now_ms, asked, workspace, progressed, groups=groups
            )
            kept = find_undo_copies(
                each.path, found.key, rankings_of(found.topic, asked.header), files, workspace,
                retention_ms=found.topic.undo_retention_ms,
                values_bytes_max=asked.values_bytes_max, planned=planned, progressed=progressed,
            )  # fmt: skip
        except StoppedError:
            raise
        except (CompactionError, OSError) as error:
            if asked.offset is not None:
                raise
            faults.append((each.partition, error))
            continue
        erased = bounds.erased_by(each.partition)
        parts.append(
            ExplainedPartition(
                found,
                bounds.last_trace(found, kept.found),
                "nobody knows" if erased is None else erased_sentence(erased, now_ms),
                [receipt for receipt in receipts if receipt.partition == each.partition],
                kept=kept.found,
                unseen=kept.unseen,
            )
        )
    left_out = tuple(
        (TopicPartition(each.topic, each.partition), each.rounds[-1].reason or f"see {root}")
        for each in selection.decided
    )
    return KeyAnswer(asked.key, tuple(parts), tuple(faults), left_out, bounds.look.warnings)
