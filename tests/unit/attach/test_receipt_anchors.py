"""The decision log keeps the head of receipts, by the transaction that a line names."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from keeplast.attach.held.publication import Publisher
from keeplast.attach.upkeep.replaced_segments import collect
from keeplast.errors import ConflictError, StoppedError
from keeplast.log.files import LocalFiles
from keeplast.run.receipt import append_receipt
from keeplast.survey.kept_heads import kept_chains
from keeplast.survey.receipt_chain import ChainHead, head_of
from tests.support.attached_world import AttachedWorld
from tests.support.existing import existing

GRACE_MS = 1000


class Receipts:
    """A receipt file, and what the decision log keeps of it."""

    def __init__(self, world: AttachedWorld, path: Path) -> None:
        self._log = world.log()
        self._path = path

    def append(self, line: bytes) -> bytes:
        """Append a line as a round does."""
        return append_receipt(LocalFiles(), self._path, line)

    def kept(self) -> list[tuple[ChainHead | None, str | None]]:
        return [(each.head, each.host) for each in kept_chains(self._log.facts)]


@pytest.fixture
def world(tmp_path: Path) -> AttachedWorld:
    return AttachedWorld(tmp_path)


@pytest.fixture
def receipts(world: AttachedWorld, tmp_path: Path) -> Receipts:
    return Receipts(world, tmp_path / "receipts")


def anchored(publisher: Publisher, receipts: Receipts, text: str) -> ChainHead:
    """Write a line and let the publisher's next change keep it; returns its head."""
    line = receipts.append(b'{"text":"%s"}\n' % text.encode())
    publisher.anchor(line)
    head = existing(head_of(line))
    return head


def test_a_decision_keeps_its_line_of_the_receipt(
    publisher: Publisher, world: AttachedWorld, receipts: Receipts
) -> None:
    head = anchored(publisher, receipts, "round")
    host = publisher.log.holder.host
    assert [(None, host)] == receipts.kept()
    publisher.decide_and_publish(world.swap(publisher))
    assert [(head, host)] == receipts.kept()


def test_a_decision_that_is_not_made_keeps_nothing(
    world: AttachedWorld, receipts: Receipts
) -> None:
    publisher, swap = world.prepared()
    anchored(publisher, receipts, "round")
    publisher.log.set_paused(publisher.held, is_paused=True)
    with pytest.raises(StoppedError):
        publisher.decide_and_publish(swap)
    assert [None] == [head for head, _ in receipts.kept()]


def test_a_decision_that_is_refused_after_the_anchor_keeps_nothing(
    world: AttachedWorld, receipts: Receipts, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher, swap = world.prepared()
    anchored(publisher, receipts, "round")

    monkeypatch.setattr(
        "keeplast.tier.metadata.decisions.require_row_unheld",
        Mock(side_effect=ConflictError("a hold lies in front of it")),
    )
    with pytest.raises(ConflictError, match="a hold"):
        publisher.decide_and_publish(swap)
    assert [None] == [head for head, _ in receipts.kept()]


def test_how_far_a_partition_is_clean_is_kept_with_its_line(
    publisher: Publisher, receipts: Receipts
) -> None:
    head = anchored(publisher, receipts, "round")
    publisher.advance(0)
    assert [head] == [each for each, _ in receipts.kept()]


def test_a_collection_keeps_its_line_when_the_objects_are_gone(
    publisher: Publisher, world: AttachedWorld, receipts: Receipts
) -> None:
    first = anchored(publisher, receipts, "round")
    publisher.decide_and_publish(world.swap(publisher))
    world.clock.advance(GRACE_MS)
    lines: list[bytes] = []

    def receipt(line: bytes) -> bytes:
        lines.append(receipts.append(line))
        # What a crash leaves here is a line behind the head.
        assert [first] == [each for each, _ in receipts.kept()]
        return lines[-1]

    assert 1 == collect(publisher, GRACE_MS, receipt=receipt).decisions
    assert [head_of(lines[-1])] == [each for each, _ in receipts.kept()]


def test_without_receipts_nothing_is_kept(
    publisher: Publisher, world: AttachedWorld, receipts: Receipts
) -> None:
    publisher.anchor(None)
    publisher.decide_and_publish(world.swap(publisher))
    publisher.anchor(b'{"text":"not chained"}\n')
    publisher.advance(0)
    assert [] == receipts.kept()
