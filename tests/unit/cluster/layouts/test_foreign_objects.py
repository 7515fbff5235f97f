"""What a plugin would not name so is listed, and its own objects and other topics' are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from keeplast.clock import SystemClock
from keeplast.cluster.layouts.aiven import AivenLayout
from keeplast.cluster.layouts.layout import RemoteLayout
from keeplast.cluster.layouts.local_storage import LocalStorage
from keeplast.cluster.layouts.paced import PacedLayout, PaceLimits, RequestPace
from keeplast.tier.objects import stores

ID = "A" * 22
NAME = f"{0:020d}-{ID}"
AIVEN = {
    f"orders-{ID}/0/{NAME}.log": False,
    f"orders-{ID}/0/{NAME}.rsm-manifest": False,
    f"orders-{ID}/0/{NAME}.log.bak": True,
    f"orders-{ID}/x/{NAME}.log": True,
    f"orders/0/{NAME}.log": True,
    "lost+found/1": True,
    "1": True,
    ".keeplast/owners/a": False,
    ".keeplast/.hidden": True,
}
LOCAL = {
    f"kafka-tiered-storage/orders-0-{ID}/{NAME}.log": False,
    f"kafka-tiered-storage/orders-0-{ID}/{NAME}.leader_epoch_checkpoint": False,
    f"kafka-tiered-storage/orders-0-{ID}/{NAME}.log.bak": True,
    f"kafka-tiered-storage/orders/{NAME}.log": True,
    f"kafka-tiered-storage/{NAME}.log": True,
    f".keeplast/.logs/orders-0-{ID}/{NAME}.log": False,
    ".keeplast/owners/a": False,
    "lost+found/#1": True,
    "kafka-tiered-storage": False,
}


def put(root: Path, names: dict[str, bool]) -> None:
    for name in names:
        path = root / name
        if not path.is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(name.encode())


def read(layout: RemoteLayout) -> dict[str, str]:
    found = {}
    for each in layout.foreign():
        handle = each.open()
        data = bytearray(each.size_bytes)
        handle.pread_into(memoryview(data), 0)
        handle.close()
        found[each.name] = data.decode()
    return found


@pytest.mark.parametrize("prefix", ["", "tier/", "tier/a-"])
@pytest.mark.parametrize("is_listed", [True, False])
def test_aivens_plugin(
    tmp_path: Path, prefix: str, is_listed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, {f"{prefix}{name}": is_foreign for name, is_foreign in AIVEN.items()})
    if prefix:
        put(tmp_path, {"others": False, "tiers/x": False})
    if is_listed:  # as a bucket is
        monkeypatch.setattr(stores.ObstoreObjects, "directory", None)
    found = read(AivenLayout(f"file://{tmp_path}", prefix))
    assert {f"{prefix}{name}" for name, is_foreign in AIVEN.items() if is_foreign} == set(
        found.values()
    )
    assert all(text.endswith(name) for name, text in found.items())


def test_kafkas_local_storage_at_a_pace(tmp_path: Path) -> None:
    put(tmp_path, LOCAL)
    limits = PaceLimits(requests_per_second=1000, bytes_per_second=1 << 20, pause_ms=1)
    pace = RequestPace(limits, SystemClock())
    found = read(PacedLayout(LocalStorage(tmp_path), pace))
    names = {name for name, is_foreign in LOCAL.items() if is_foreign}
    assert {name: name for name in names} == found
    assert 1 + len(names) == pace.requests
