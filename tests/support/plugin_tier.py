"""What an attached tier has, kept by Aiven's plugin instead: copied segment by segment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from keeplast.cluster.layouts.aiven import LOG, AivenLayout
from keeplast.cluster.layouts.aiven_encryption import KeyRing
from keeplast.cluster.layouts.aiven_log import AivenLogWriter
from keeplast.cluster.layouts.layout import AuxiliaryFile
from keeplast.tier.objects.new_object import NewObject
from keeplast.tier.objects.stores import ObstoreObjects, open_tree
from tests.support.attached_tier import AttachedTier

Variant = tuple[bool, bool, int]
"""Whether it is compressed, whether encrypted, and the size of a chunk."""


def keep_as(
    tier: AttachedTier, root: Path, ring: KeyRing, variants: Sequence[Variant]
) -> AivenLayout:
    """Have the plugin keep what ``tier`` has, each segment in the next of ``variants``."""
    root.mkdir()
    layout = AivenLayout(f"file://{root}", "ts-", (), ring)
    move_to(tier, layout, open_tree(layout.url), variants)
    return layout


def move_to(
    tier: AttachedTier, layout: AivenLayout, objects: ObstoreObjects, variants: Sequence[Variant]
) -> None:
    """Have the plugin keep what ``tier`` has at ``layout``, whose store is ``objects``."""
    ring = layout.keys
    for number, segment in enumerate(tier.served()):
        is_compressed, is_sealed, chunk = variants[number % len(variants)]
        sealing, cipher = ring.new_segment(None) if is_sealed else (None, None)
        key = f"{layout._key(segment.id, segment.start_offset)}.{LOG}"
        target = NewObject(objects, key)
        writer = AivenLogWriter(target, chunk, sealing, cipher, is_compressed=is_compressed)
        writer.write(tier.log_of(segment))
        reader = tier.layout.open(segment)
        found = {kind: reader.read_auxiliary(kind) for kind in AuxiliaryFile}
        auxiliary = {kind: data for kind, data in found.items() if data is not None}
        layout.complete(segment, writer.close(), auxiliary, segment)
    tier.layout = layout  # type: ignore[assignment]
