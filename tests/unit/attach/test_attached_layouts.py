"""A round on what Aiven's plugin keeps leaves what it leaves elsewhere, and nothing weaker."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from keeplast.attach.rounds.round import RoundWish, plan_attached
from keeplast.cluster.layouts.aiven_encryption import KeyRing
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN
from keeplast.run.local_runner import LocalRunner
from keeplast.tier.objects.stores import ObstoreObjects
from tests.support.attached_tier import PARTITION
from tests.support.plugin_tier import Variant, keep_as
from tests.unit.attach.test_attached_rounds import MERGING, World, by_key_law, check_servable

ZSTD, SEALED, PLAIN, BOTH = (True, False), (False, True), (False, False), (True, True)


def test_an_exact_plan_counts_what_a_round_removes_and_writes_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    wish = RoundWish(topic=MERGING, margin_bytes=8000, force=True, memory_bytes=MEMORY_BYTES_MIN)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with LocalRunner(1, clock=world.clock) as runner:
        planned, costs = plan_attached(
            world.tier.layout, PARTITION, world.tier.cache, wish, world.clock, log_start=0,
            cleaned_to=0, counting=lambda _: nullcontext(runner),
        )  # fmt: skip
    assert costs is not None
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    done = world.clean()
    assert planned.reasons is not None
    assert planned.stats is not None
    assert done.stats is not None
    assert planned.reasons == done.reasons
    written = planned.stats.messages_written, planned.stats.bytes_written
    assert written == (done.stats.messages_written, done.stats.bytes_written)
    assert planned.stats.bytes_written < planned.stats.bytes_read
    assert planned.end_offset == done.end_offset


@pytest.mark.parametrize("variant", [(*PLAIN, 500), (*BOTH, 1000)])
def test_a_plan_says_about_how_many_requests_a_round_takes(
    tmp_path: Path, ring: KeyRing, variant: Variant, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path / "world")
    layout = keep_as(world.tier, tmp_path / "plugin", ring, [variant])
    wish = RoundWish(topic=MERGING, margin_bytes=8000, force=True, memory_bytes=MEMORY_BYTES_MIN)
    _, costs = plan_attached(
        layout, PARTITION, world.tier.cache, wish, world.clock, log_start=0, cleaned_to=0
    )
    assert costs is not None
    sent: list[str] = []

    def counted(name: str) -> Callable[..., object]:
        method = getattr(ObstoreObjects, name)

        def call(objects: ObstoreObjects, *arguments: object) -> object:
            sent.append(name)
            return method(objects, *arguments)

        return call

    # As of a store that answers requests.
    monkeypatch.setattr(ObstoreObjects, "fill", lambda *_: False)
    for name in ("read_range", "stat", "put_new", "open_write", "delete"):
        monkeypatch.setattr(ObstoreObjects, name, counted(name))
    assert not world.clean().skipped
    assert 0.5 * costs.requests < len(sent) < 1.2 * costs.requests


@pytest.mark.rotates(4)
@pytest.mark.parametrize(
    ("variants", "expected"),
    [
        ([(*PLAIN, 500)], (*PLAIN, 500)),
        ([(*ZSTD, 700)], (*ZSTD, 700)),
        ([(*SEALED, 300)], (*SEALED, 300)),
        ([(*BOTH, 1000)], (*BOTH, 1000)),
        ([(*SEALED, 600), *[(*PLAIN, 500)] * 1000], (*SEALED, 600)),
        ([(*BOTH, 400), (*SEALED, 900), *[(*ZSTD, 500)] * 1000], (*SEALED, 900)),
    ],
)
@pytest.mark.parametrize("cores", [1, 2])
def test_outputs_are_kept_as_their_sources_and_never_weaker(
    tmp_path: Path, ring: KeyRing, variants: list[Variant], expected: Variant, cores: int
) -> None:
    world = World(tmp_path / "world")
    layout = keep_as(world.tier, tmp_path / "plugin", ring, variants)
    before, segments = world.tier.read().records(), world.tier.served()
    done = world.clean(cores=cores).end_offset or 0
    assert 0 < done
    assert by_key_law(before, done) == world.tier.read().records()
    check_servable(world, segments, done)
    outputs = [each for each in world.tier.served() if each.broker_id < 0]
    assert outputs
    for each in outputs:
        manifest = layout._read_manifest(layout._key(each.id, each.start_offset))
        assert expected == (
            manifest.is_compressed, manifest.sealing is not None,
            manifest.chunks.original_chunk_size,
        )  # fmt: skip
    world.publisher.collect()
    assert by_key_law(before, done) == world.tier.read().records()
    assert {each.id.segment_id for each in world.tier.served()} == world.tier.ids()
    own = (path for path in (tmp_path / "plugin" / "ts-.keeplast").rglob("*") if path.is_file())
    assert [] == list(own)
