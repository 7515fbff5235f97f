"""A certificate about attached topics is issued exactly when no object has one of the keys.

Random logs in a remote tier, rounds, collections, log starts that move, and leaders that upload
over the end. The keys are looked for byte by byte in every object, batches decompressed.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from hypothesis import given, settings
from hypothesis import strategies as st

from keeplast.cluster.layouts.layout import FoundSegment, RemoteLayout
from keeplast.cluster.layouts.local_storage import SEGMENTS
from keeplast.cluster.live_cluster import LiveCluster
from keeplast.cluster.metadata_log import fold_metadata
from keeplast.config.layers import Layer
from keeplast.config.settings import Settings
from keeplast.errors import RefusedError
from keeplast.format.compression import Codec, decompress
from keeplast.format.message_set import read_batches
from keeplast.format.remote_log_metadata import TopicIdPartition
from keeplast.log.append import NewRecord
from keeplast.log.files import LocalFiles
from keeplast.model.keyed_hash import KeyHasher
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN
from keeplast.service.cluster_answer import AskedCluster
from keeplast.service.erasure.attached_certificate import attached_place
from keeplast.service.erasure.attached_erasing import find_attached_traces
from keeplast.service.erasure.certificate import ReceiptStanding, make_certificate
from keeplast.service.erasure.certificate_check import read_certificate
from keeplast.service.erasure.erasure_answer import ErasureAnswer, ErasureKeys
from keeplast.service.erasure.erasure_book import (
    FileShelf,
    add_request,
    keys_of_file,
    keys_of_requests,
)
from keeplast.service.search_tasks import SearchRunner
from keeplast.signing import SignatureCheck, Signer
from tests.support.attached_world import PARTITION
from tests.support.key_pair import write_operator_files
from tests.support.log_builder import LogBuilder
from tests.support.travelling import Travelling
from tests.support.turns import examples
from tests.support.verified_world import VerifiedWorld
from tests.unit.attach.test_attached_rounds import LINEAGE, TOPIC

NAMES = {number: b"<key%02d>" % number for number in range(1, 13)}
HASHER = KeyHasher(b"h" * 32)
MARGIN = 3000
SMALL = replace(TOPIC, segment_bytes=1500)
MERGED = replace(TOPIC, segment_bytes=4000)
KEPT = Settings(
    [
        Layer(
            "a test",
            topics={PARTITION.topic: {"cleanup.policy": "compact", "segment.bytes": "1500"}},
        )
    ]
)


def write_history(root: Path, dice: random.Random) -> Path:
    """Write batches of every codec; some keys are only in the first ones, or in aborted ones."""
    log = LogBuilder(root / "t-0", SMALL)
    sending = log.producer(7)
    for number in range(70):
        log.leader_epoch = max(e.epoch for e in LINEAGE if e.start_offset <= log.log_end)
        log.now_ms += 1000
        first, last = (1, 4) if number < 10 else (4, 10)
        is_aborted = number >= 10 and dice.random() < 0.3
        if is_aborted:
            first, last = 8, 13
        records = [
            NewRecord(
                NAMES[dice.randrange(first, last)],
                None if dice.random() < 0.2 else b"v" * dice.randrange(60), log.now_ms,
            )
            for _ in range(dice.randrange(1, 4))
        ]  # fmt: skip
        if is_aborted:
            sending.send_records(*records, codec=dice.choice(list(Codec)))
            sending.abort()
        else:
            log.append(*records, codec=dice.choice(list(Codec)))
    log.roll()
    log.close()
    return log.directory


def there(world: VerifiedWorld) -> set[int]:
    """Return the keys that stand in any object, compressed batches decompressed."""
    found: set[int] = set()
    for path in (world.tier.root / SEGMENTS).rglob("*.log"):
        for batch in read_batches(path.read_bytes()):
            data = bytes(decompress(batch.codec, bytes(batch.payload())))  # type: ignore[union-attr]
            found |= {number for number, name in NAMES.items() if name in data}
    return found


def ask(
    world: VerifiedWorld, keys: ErasureKeys, runner: SearchRunner | None = None,
    layout: RemoteLayout | None = None,
) -> ErasureAnswer:  # fmt: skip
    facts = world.cluster.read_facts([PARTITION.topic])
    known = fold_metadata(cast(LiveCluster, world.cluster), world.cluster.metadata_topic, [0])
    return find_attached_traces(
        cast(AskedCluster, world.cluster), facts, known.cache, world.world.log(),
        world.tier.layout if layout is None else layout, KEPT, world.world.clock, keys,
        grace_ms=1000,
        memory_bytes=MEMORY_BYTES_MIN, runner=runner,
    )  # fmt: skip


def test_a_task_elsewhere_finds_what_this_process_finds(tmp_path: Path) -> None:
    world = VerifiedWorld(tmp_path, write_history(tmp_path / "logs", random.Random(5)), LINEAGE)
    try:
        world.clean(MERGED, margin=MARGIN)
        for keys in (
            keys_of_file(NAMES, HASHER, [PARTITION.topic]),
            replace(keys_of_file(NAMES, HASHER, [PARTITION.topic]), plain=None),
        ):
            travelling = Travelling()
            here, there_ = ask(world, keys), ask(world, keys, travelling)
            assert (1, here.document()) == (travelling.items, there_.document())
            assert here.searches[0].sums == there_.searches[0].sums
    finally:
        world.close()


def act(world: VerifiedWorld, what: str) -> None:
    """Let something happen in the world."""
    served = world.tier.served()
    if what == "clean":
        world.clean(MERGED, margin=MARGIN)
    elif what == "collect":
        world.collect()
    elif what == "cut":
        world.cluster.log = replace(world.cluster.log, start=served[0].end_offset)
    elif what == "expire" and len(served) > 2:
        world.world.expire(served[0])
        world.tier.cache = world.cluster.cache()
    elif what == "overlay" and len(served) > 2:
        *_, last, newest = served
        batches = list(read_batches(world.tier.log_of(last)))
        if last.broker_id >= 0 and newest.broker_id >= 0:
            first = batches[len(batches) // 2].base_offset
            world.tier.copy_over(world.directory, first, newest.end_offset)


def test_a_round_that_swaps_during_the_search_keeps_no_certificate_back(tmp_path: Path) -> None:
    world = VerifiedWorld(tmp_path, write_history(tmp_path / "logs", random.Random(5)), LINEAGE)
    rounds: list[str] = []

    class Swapping:
        """The layout of a tier in which a round is done before the objects are listed."""

        def __getattr__(self, name: str) -> object:
            return getattr(world.tier.layout, name)

        def list(self, partition: TopicIdPartition) -> Iterator[FoundSegment]:
            if not rounds:
                rounds.append("done")
                world.clean(MERGED, margin=MARGIN)
            return world.tier.layout.list(partition)

    keys = keys_of_file({1: b"nobody", 2: NAMES[1]}, HASHER, [PARTITION.topic])
    try:
        answer = ask(world, keys, layout=cast(RemoteLayout, Swapping()))
        assert (["done"], (), ()) == (rounds, answer.faults, answer.problems)
        after = ask(world, keys)
        assert {each.line for each in after.there} == {each.line for each in answer.there}
        assert answer.searched_beside, "what the round wrote was not searched"
    finally:
        world.close()


@settings(max_examples=examples(10, long=300))
@given(
    seed=st.integers(0, 1 << 32),
    steps=st.lists(
        st.sampled_from(["clean", "clean", "collect", "cut", "expire", "overlay"]), max_size=5
    ),
)
def test_a_certificate_is_issued_exactly_when_no_object_has_a_key(
    seed: int, steps: Sequence[str]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        operator = write_operator_files(root / "apart")
        signer, check = Signer(operator.sign_key), SignatureCheck(operator.public_key)
        world = VerifiedWorld(root, write_history(root / "logs", random.Random(seed)), LINEAGE)
        shelf = FileShelf(LocalFiles(), root / "requests")
        try:
            for what in ("", *steps, "clean", "collect", "expire", "expire"):
                act(world, what)
                expected = there(world)
                keys = keys_of_file(NAMES, HASHER, [PARTITION.topic])
                answer = ask(world, keys)
                assert not answer.faults
                assert not answer.problems
                assert expected == {each.line for each in answer.there}, what
                gone = {number: name for number, name in NAMES.items() if number not in expected}
                for chosen in (gone, {**gone, min(NAMES): NAMES[min(NAMES)]}):
                    if not chosen:
                        continue
                    wanted = keys_of_file(chosen, HASHER, [PARTITION.topic])
                    request = add_request(shelf, wanted, [PARTITION.topic], answer)
                    answer = ask(world, keys_of_requests([request], HASHER))
                    facts = world.cluster.read_facts([PARTITION.topic])
                    folded = fold_metadata(
                        cast(LiveCluster, world.cluster), world.cluster.metadata_topic, [0]
                    )
                    place = attached_place(facts, folded, world.world.log())
                    try:
                        data = make_certificate(
                            request, answer, place, ReceiptStanding(None), signer, nonce="00" * 16
                        )
                    except RefusedError:
                        assert chosen.keys() & expected
                    else:
                        assert not chosen.keys() & expected
                        (part,) = read_certificate(data, check)["partitions"]
                        assert part["searched_to"] == world.tier.served()[-1].end_offset + 1
        finally:
            world.close()
