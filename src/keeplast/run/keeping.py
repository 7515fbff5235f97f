"""What a round in place keeps of what it replaces, and when that goes.

Kept before anything is replaced, and durably, so that what is in place can be undone however the
round ends; a round that never came so far has kept what is still the log. What is kept goes when
its time is over, when the log start passes it, and with the partition. Who calls holds the lock.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path

from keeplast.format.filename import CLEANER_CHECKPOINT, LOG
from keeplast.log.checkpoints import read_checkpoint
from keeplast.log.cleaned_for import cleaned_for
from keeplast.log.files import FileSystem
from keeplast.log.partition_log import PartitionFiles, list_partition
from keeplast.log.undo_files import (
    drop_rounds,
    drop_unnamed,
    keep_wave,
    read_kept,
    replace_list,
)
from keeplast.model.undo import KeptGroup, KeptSegment, KeptWave, above_log_start
from keeplast.rewrite.task import StagedGroup, TaskResult
from keeplast.run.round_state import Round
from keeplast.survey.log_bounds import actual_log_start, load_checkpoints
from keeplast.survey.request import PartitionRequest

ROUNDS_MAX = 256
"""Of so many rounds a partition keeps something at most: each look reads all of their lists."""


def keep_sources(
    files: FileSystem, round_: Round, result: TaskResult, now_ms: int
) -> KeptWave | None:
    """Keep what the newest wave of a round is about to replace; None where nothing is kept.

    RefusedError or OSError, and nothing is kept.
    """
    if not round_.site.keeps_sources:
        return None
    retention_ms = round_.plan.topic.undo_retention_ms
    path = round_.site.path
    kept = read_kept(files, path)
    numbers = [each.number for each in kept.files if each.kind is None]
    oldest = [waves[0].attempt for waves in kept.rounds()[: 1 - ROUNDS_MAX]]
    if oldest:
        drop_rounds(files, path, oldest)
    checkpoint = read_checkpoint(files, path.parent, CLEANER_CHECKPOINT)
    is_last = result.carry is None
    after = None
    if is_last and not round_.plan.is_expired_round:
        after = round_.survey.checkpoint_after(result.end_offset)
    wave = KeptWave(
        number=max(numbers, default=-1) + 1,
        attempt=round_.site.attempt,
        wave=len(round_.results),
        is_last=is_last,
        kept_at_ms=now_ms,
        until_ms=now_ms + retention_ms,
        checkpoint_before=checkpoint.get(round_.plan.partition),
        checkpoint_after=after,
        groups=_groups(files, path, round_.survey.listing, result),
        cleaned_for=None if round_.committed else cleaned_for(round_.survey.listing, files),
    )
    keep_wave(files, path, wave)
    return wave


def _groups(
    files: FileSystem, path: Path, listing: PartitionFiles, result: TaskResult
) -> tuple[KeptGroup, ...]:
    found = {each.base_offset: each for each in listing.segments}
    bases = sorted(found)
    following = dict(itertools.pairwise(bases))
    staged: list[list[StagedGroup]] = []
    for each in result.staged:
        # Of a group's outputs only the first has sources.
        if each.sources or not staged:
            staged.append([])
        staged[-1].append(each)
    groups = []
    for outputs in staged:
        sources = tuple(
            KeptSegment(
                base, found[base].size_bytes, result.source_crcs.get(base), found[base].inode
            )
            for base in outputs[0].sources
        )
        is_left_alone = not outputs[0].files
        groups.append(
            KeptGroup(
                end_offset=following[outputs[0].sources[-1]],
                sources=sources,
                outputs=sources
                if is_left_alone
                else tuple(_output(files, path, each, result.output_crcs) for each in outputs),
                is_left_alone=is_left_alone,
            )
        )
    return tuple(groups)


def _output(
    files: FileSystem, path: Path, output: StagedGroup, crcs: Mapping[int, int]
) -> KeptSegment:
    name = next(file.name for file in output.files if file.kind == LOG)
    inode = files.stat(path / name).inode
    return KeptSegment(output.base_offset, output.size_bytes, crcs.get(output.base_offset), inode)


def sweep_kept(files: FileSystem, partition: PartitionRequest, now_ms: int | None) -> int:
    """Remove what is no longer to be kept of a partition; returns how many files went.

    What its time is over for goes, what the log start has passed, and what no list names; without
    ``now_ms`` all but the first.
    """
    path = partition.path
    kept = read_kept(files, path)
    if not kept.files:
        return 0
    log_start = actual_log_start(
        partition.partition,
        load_checkpoints(files, path.parent),
        list_partition(path, files, if_empty=0),
    )
    over: set[str] = set()
    for wave in kept.waves:
        left = above_log_start(wave, log_start)
        retention_ms = partition.topic.undo_retention_ms
        if left is None or (now_ms is not None and wave.is_over(now_ms, retention_ms)):
            over.add(wave.attempt)
        elif left is not wave:
            replace_list(files, path, left)
    # What was undone or cut off in between has no groups left, and waits for its time alone.
    return drop_rounds(files, path, over) if over else drop_unnamed(files, path)
