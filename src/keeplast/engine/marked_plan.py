"""Replaces what a plan says of aborted transactions by what the log's markers say.

A survey does not read a log, so its plan has what the transaction indexes say, and those may lag
the log where a host was killed, or be gone or another's: a round that believed them would take an
aborted record for its key's last. So whoever begins a round reads the headers of the log once more,
beside the worker's two passes, where indexes have nobody that vouches for them. They lie in the
page cache then, for the pass that follows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from keeplast.engine.kernel_cache import load_kernels
from keeplast.engine.task import PartitionTask
from keeplast.log.files import FileSystem
from keeplast.log.partition_log import find_tail, list_partition
from keeplast.log.transactions import aborted_by_segment
from keeplast.log.windows import WindowBuffers

WINDOW_BYTES = 1 << 20


def with_marked_aborted(
    task: PartitionTask, files: FileSystem, progressed: Callable[[int], None]
) -> PartitionTask:
    """Return the first task of a round with the aborted transactions of the log as it is.

    Unchanged for a later wave, and where ``task.trusts_indexes``. ``progressed`` hears that work
    goes on. CorruptError where a batch or a marker cannot be read.
    """
    if task.carry is not None or task.trusts_indexes:
        return task
    load_kernels()
    listing = list_partition(task.path, files)
    aborted = []
    buffers = WindowBuffers(WINDOW_BYTES)
    # What lies behind the round is looked at as far as it decides what lies in it, and no further.
    for segment, entries in aborted_by_segment(
        listing, find_tail(listing, files), files, buffers, deciding=task.plan.bound
    ):
        aborted.append((segment.base_offset, entries))
        progressed(0)
    plan = replace(task.plan, aborted=tuple(aborted), indexed=task.plan.aborted)
    return replace(task, plan=plan)
