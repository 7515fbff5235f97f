"""From options to a report: what ``plan`` and ``clean`` have in common.

Settings and partitions are decided before a runner is started, so that a mistake in an argument
costs no Spark session. Partitions that were refused or skipped then appear in the report like the
others.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from keeplast.cli.frame.ahead import compiled_ahead
from keeplast.cli.frame.options import RunnerOptions
from keeplast.cli.frame.wiring import RunnerName
from keeplast.cli.show.output import say
from keeplast.config.assumed import assumed_defaults, assumed_sentence
from keeplast.config.selection import Selection
from keeplast.model.size import parse_size

LARGE_BYTES = 64 << 30
"""From here on one host works for minutes, and a cluster is worth naming."""


def kernels_ahead(workers: RunnerOptions, *, is_wanted: bool) -> AbstractContextManager[None]:
    """Return a context in which kernels are compiled beside the command, if it may call them all.

    Spark's tasks have kernels of their own.
    """
    if is_wanted and workers.chosen_runner is RunnerName.LOCAL:
        return compiled_ahead(workers.cores)
    return nullcontext()


def say_assumed(selection: Selection, *, is_forced: bool, expires: bool) -> dict[str, str]:
    """Say which defaults the call rests on because no source says them, and return them."""
    topics = {request.partition.topic: request.topic for request in selection.partitions}
    assumed = assumed_defaults(selection.settings, topics, is_forced=is_forced, expires=expires)
    if assumed:
        say(assumed_sentence(assumed), kind="note")
    return assumed


def key_map_size(text: str | None) -> int | None:
    """Return the bound of the key map in bytes; InvalidError when the text is no size."""
    return None if text is None else parse_size(text, "--key-map-bytes")
