"""What is known of one key in the logs of a data directory: the answer of ``keeplast explain``.

Each chosen log is read once, without the directory's lock; nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from keeplast.config.layers import ALL_PARTITIONS, PartitionChoice
from keeplast.config.selection import Selection
from keeplast.config.sources import read_partition_numbers
from keeplast.inspect.explain import AskedKey, explain_key, rankings_of
from keeplast.inspect.remains import SearchedKey, find_kept, find_remains, marked_of
from keeplast.log.data_directory import PartitionEntry
from keeplast.log.files import FilesRecipe, FileSystem, LocalRecipe
from keeplast.model.hold import GroupReader
from keeplast.model.partition import TopicPartition
from keeplast.rewrite.workspace import Workspace
from keeplast.service.erasure.erasing import (
    OUT_OF_SERVICE_WORDS,
    out_of_service,
    refused,
    uncompacted,
)
from keeplast.service.erasure.trace_bounds import TraceBounds
from keeplast.service.explained import (
    AskedLog,
    ExplainedPartition,
    KeyAnswer,
    OutOfService,
    found_parts,
)
from keeplast.service.search_tasks import Progressed, SearchRunner, ask_each, attempt
from keeplast.service.status import read_round_receipts
from keeplast.service.status_words import erased_sentence
from keeplast.survey.group_offsets import GroupOffsets, ReaderOffsets, ask_ahead
from keeplast.survey.request import MEMORY_BYTES_DEFAULT, CleanRequest, PartitionRequest

ON_DISK = LocalRecipe()
NOT_HERE_WORDS = (
    "it is not here, and by the metadata log it exists: ask its own directory, or broker, too"
)


def _explain(
    log: PartitionRequest,
    marked: tuple[PartitionEntry, ...],
    asked: AskedKey,
    now_ms: int,
    opened: Callable[[], FileSystem],
    groups: ReaderOffsets | None,
    *,
    workspace: Workspace,
    planned: Progressed,
    progressed: Progressed,
) -> SearchedKey:
    """Explain a key in a log, and find it in the files next to it, and in ``marked`` directories.

    ``opened`` gives the files, ``groups`` read the groups that tombstones wait for, None where the
    directory's own files do.
    """
    files = opened()
    found = explain_key(
        log, CleanRequest((), rolls_idle=True), files, now_ms, asked, workspace,
        progressed, groups=groups,
    )  # fmt: skip
    remains = find_kept(
        log.path, found.key, rankings_of(found.topic, asked.header), files, workspace,
        retention_ms=found.topic.undo_retention_ms, values_bytes_max=asked.values_bytes_max,
        planned=planned, progressed=progressed,
    )  # fmt: skip
    remains += find_remains(
        log.path, marked, found.key, files, values_bytes_max=asked.values_bytes_max,
        planned=planned, progressed=progressed,
    )  # fmt: skip
    return SearchedKey(found, remains, tuple(each.fault for each in remains if each.problem))


def answer_from_directory(
    selection: Selection,
    files: FileSystem,
    now_ms: int,
    asked: AskedKey,
    *,
    scope: PartitionChoice = ALL_PARTITIONS,
    receipt: Path | None = None,
    memory_bytes: int = MEMORY_BYTES_DEFAULT,
    planned: Callable[[int], None] = lambda _: None,
    progressed: Callable[[int], None] = lambda _: None,
    brokers: GroupReader | None = None,
    runner: SearchRunner | None = None,
    recipe: FilesRecipe = ON_DISK,
) -> KeyAnswer:
    """Explain a key in each chosen partition, and find it in the files next to their logs.

    ``scope`` is what ``selection`` was made by: directories out of service whose partition is not
    here are searched within it. ``receipt`` None are the receipts that a loop keeps in the
    directory. ``planned`` and ``progressed`` hear of the bytes that are read; what they raise ends
    the search, a StoppedError at the least. A partition that cannot be read is among the faults;
    where an offset was asked about, its error is raised. ``brokers`` read what consumer groups have
    committed, None where files do.

    With ``runner`` its tasks read the logs and the files next to them, each those of one partition;
    they open their files by ``recipe``. What is left of partitions without a log is read here.
    """
    faults = refused(selection)
    if asked.offset is not None and faults and not selection.partitions:
        raise faults[0][1]
    asked.require_one(len(selection.partitions))
    root = selection.directory.root
    receipts = read_round_receipts(files, root, receipt)
    bounds = TraceBounds(selection, files, now_ms, receipts, brokers)
    planned(sum(bounds.look.sizes[each.partition] for each in selection.partitions))
    groups = GroupOffsets(files, brokers)
    marked = [each for each in selection.directory.partitions if each.mark is not None]
    logs = [
        AskedLog(
            each.partition,
            partial(
                _explain, each, marked_of(marked, each.partition), asked, now_ms,
                (lambda: files) if runner is None else recipe.open,
                groups if runner is None else ask_ahead(brokers, each, files, now_ms),
            ),
        )
        for each in selection.partitions
    ]  # fmt: skip
    parts: list[ExplainedPartition] = []
    roots = (root,) if recipe.is_on_disk(root) else ()
    answers = ask_each(logs, AskedLog.ask, memory_bytes, planned, progressed, runner, roots)
    for answer in found_parts(answers, asked, faults):
        found, partition = answer.found, answer.found.partition
        erased = bounds.erased_by(partition)
        unseen = (*answer.unseen, *_unlisted(selection))
        parts.append(
            ExplainedPartition(
                found,
                bounds.last_trace(found, answer.remains, is_partly_unseen=bool(unseen)),
                "not known" if erased is None else erased_sentence(erased, now_ms),
                [receipt for receipt in receipts if receipt.partition == partition],
                answer.remains,
                unseen,
            )
        )
    left_out = uncompacted(selection)
    if asked.offset is None:
        left_out += _elsewhere(selection, files, scope)
    left: list[OutOfService] = []
    key = parts[0].found.key if asked.key is None and parts else asked.key
    for partition, entries in _out_of_service(selection, scope).items():
        if key is None:
            break  # No record was found at the offset: no key to look for.
        remains = attempt(
            partial(
                find_remains, None, entries, key, files, values_bytes_max=asked.values_bytes_max,
                planned=planned, progressed=progressed,
            )
        )  # fmt: skip
        if isinstance(remains, Exception):
            faults.append((partition, remains))
        elif remains:
            left.append(OutOfService(partition, remains, OUT_OF_SERVICE_WORDS))
    return KeyAnswer(
        asked.key, tuple(parts), tuple(faults), left_out, bounds.look.warnings, tuple(left)
    )


def _elsewhere(
    selection: Selection, files: FileSystem, scope: PartitionChoice
) -> tuple[tuple[TopicPartition, str], ...]:
    """Return the partitions of the topics that are searched, and that lie in another directory.

    As far as the metadata log in this one knows; none where partitions were chosen by number.
    """
    if scope.partitions or selection.directory.is_single:
        return ()
    here = {each.partition for each in selection.directory.partitions if each.mark is None}
    numbers = read_partition_numbers(selection.directory.root, files)
    return tuple(
        (TopicPartition(topic, number), NOT_HERE_WORDS)
        for topic in sorted({each.partition.topic for each in selection.partitions})
        for number in sorted(numbers.get(topic, frozenset()))
        if TopicPartition(topic, number) not in here
    )


def _unlisted(selection: Selection) -> tuple[str, ...]:
    """Say what is not seen of a partition that was named by its own directory."""
    if not selection.directory.is_single:
        return ()
    return (
        "directories next to this one that a broker disposes of, moves or has set aside: give the "
        "data directory",
    )


def _out_of_service(
    selection: Selection, scope: PartitionChoice
) -> dict[TopicPartition, list[PartitionEntry]]:
    """Return the directories out of service, within ``scope``, whose partition is not here."""
    if selection.directory.is_single:
        return {}
    found = out_of_service(selection.directory, frozenset(scope.topics) or None)
    return {partition: its for partition, its in found.items() if scope.includes(partition)}
