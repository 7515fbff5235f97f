"""``keeplast`` as a process that dies, or stops, at a named step of an attached partition.

Run as a module with the arguments of the command line; the environment names the step and the act.
The steps are those of a round and of a collection, in their order.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import pytest

from keeplast.attach.held.publication import Publisher
from keeplast.cli.main import main
from keeplast.cluster.layouts.local_storage import LocalStorage
from keeplast.tier.metadata.decisions import DecisionLog

STEP = "ATTACH_STEP"
"""``step act``: the process gets the signal of the act when it comes to the step first."""


class Act(StrEnum):
    """What happens to the process."""

    KILL = "kill"
    FREEZE = "freeze"


class Step(StrEnum):
    """Where it happens: what has been done by then."""

    CLAIMED = "claimed"
    """The decision log says so, the owner object not yet."""
    LOG_WRITTEN = "log-written"
    """An output's log is there, what stands next to it is not."""
    COMPLETE = "complete"
    """Outputs are there; no broker has heard of them."""
    REGISTERED = "registered"
    NOTED = "noted"
    """The decision log knows what will be announced."""
    ANNOUNCED = "announced"
    DECIDED = "decided"
    PUBLISHED = "published"
    """The batch is on the cluster; the decision log does not say so."""
    SETTLED = "settled"
    COLLECTING = "collecting"
    DELETED_ONE = "deleted-one"
    """Of the first source no object is left."""
    DELETED = "deleted"
    """Of no source; brokers have not heard of it."""
    COLLECTED = "collected"


ROUND_STEPS = tuple(Step)[: tuple(Step).index(Step.COLLECTING)]
COLLECTION_STEPS = tuple(Step)[len(ROUND_STEPS) :]
_SIGNALS = {Act.KILL: signal.SIGKILL, Act.FREEZE: signal.SIGSTOP}
_BEFORE, _BEHIND = True, False
_PLACES: dict[Step, tuple[type, str, bool]] = {
    Step.CLAIMED: (DecisionLog, "claim", _BEHIND),
    Step.LOG_WRITTEN: (LocalStorage, "complete", _BEFORE),
    Step.COMPLETE: (DecisionLog, "register", _BEFORE),
    Step.REGISTERED: (DecisionLog, "register", _BEHIND),
    Step.NOTED: (DecisionLog, "note_announced", _BEHIND),
    Step.ANNOUNCED: (DecisionLog, "decide", _BEFORE),
    Step.DECIDED: (DecisionLog, "decide", _BEHIND),
    Step.PUBLISHED: (DecisionLog, "mark_published", _BEFORE),
    Step.SETTLED: (DecisionLog, "mark_published", _BEHIND),
    Step.COLLECTING: (DecisionLog, "mark_collecting", _BEHIND),
    Step.DELETED_ONE: (LocalStorage, "delete", _BEHIND),
    Step.DELETED: (Publisher, "send", _BEFORE),
    Step.COLLECTED: (DecisionLog, "mark_collected", _BEFORE),
}


def environment(step: Step, act: Act) -> dict[str, str]:
    """Return the variables of a process that meets ``act`` at ``step``."""
    return {**os.environ, STEP: f"{step} {act}"}


def _meeting(original: Callable[..., Any], act: Act, is_before: bool) -> Callable[..., Any]:
    met: list[Act] = []

    def meet() -> None:
        if not met:
            met.append(act)
            os.kill(os.getpid(), _SIGNALS[act])

    def call(*arguments: Any, **named: Any) -> Any:
        if is_before:
            meet()
        found = original(*arguments, **named)
        if not is_before:
            meet()
        return found

    return call


def run() -> None:
    """Run the command line with what the environment names."""
    step, act = os.environ[STEP].split(" ")
    holder, name, is_before = _PLACES[Step(step)]
    with pytest.MonkeyPatch.context() as patch:
        if "--master" in sys.argv:
            # Spark is imported where it is used.
            from tests.support.cluster_driver import inject_from_environment

            inject_from_environment(patch)
        patch.setattr(holder, name, _meeting(getattr(holder, name), Act(act), is_before))
        main()


if __name__ == "__main__":
    run()
