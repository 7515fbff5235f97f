"""A model partition that was compacted once, in the place of what commands connect to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from keeplast.api.attached_logs import AttachedLogs
from keeplast.api.open_log import OpenLog
from keeplast.attach.answers.shown_logs import decision_log_at
from keeplast.log.files import LocalFiles
from keeplast.run.receipt import append_receipt
from tests.support.verified_world import VerifiedWorld
from tests.unit.attach.test_attached_rounds import LINEAGE, MERGING, write_history


@contextmanager
def commanded_world(root: Path, patch: pytest.MonkeyPatch) -> Iterator[VerifiedWorld]:
    """Yield the world that commands connect to, whatever address and storage they are given.

    The receipt of its round lies in ``receipts.jsonl``.
    """
    made = VerifiedWorld(root, write_history(root / "logs", count=150), LINEAGE)
    receipt = partial(append_receipt, LocalFiles(), root / "receipts.jsonl")
    made.clean(MERGING, margin=4000, receipt=receipt)
    let_commands_open(made, patch)
    yield made
    made.close()


def let_commands_open(made: VerifiedWorld, patch: pytest.MonkeyPatch) -> None:
    """Let commands connect to a world, whatever address and storage they are given."""

    patch.setattr(AttachedLogs, "connect", lambda _: made.consumers)
    patch.setattr(
        "keeplast.api.attached_logs.decision_log_at",
        lambda store, clock, **more: decision_log_at(store, made.world.clock, **more),
    )
    patch.setattr("keeplast.api.attached_logs.open_layout", lambda *_: made.tier.layout)


@contextmanager
def asked_world(
    root: Path, module: object, layouts: object | None = None
) -> Iterator[VerifiedWorld]:
    """Yield the world that ``module`` finds, whatever cluster and storage it is given.

    ``layouts`` is where it takes storages from, None for ``module`` itself.
    """
    with pytest.MonkeyPatch.context() as patch, commanded_world(root, patch) as made:
        patch.setattr(module, "ClusterClient", lambda *_: made.consumers)
        patch.setattr(layouts or module, "open_layout", lambda *_: made.tier.layout)
        yield made


def end_of(world: VerifiedWorld) -> int:
    """Return up to where brokers have copied the log, exclusive."""
    return world.tier.served()[-1].end_offset + 1


def state_up_to(world: VerifiedWorld, end: int) -> dict[bytes, bytes | None]:
    """Return the state that there must be as of an offset, by the log from before the round."""
    found = OpenLog(world.directory).state(MERGING, end_offset=end)
    return {key: each.value for key, each in found.items()}
