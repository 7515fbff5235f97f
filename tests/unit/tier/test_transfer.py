"""Copies of segments in object storage, read back before anybody says that they are there."""

from __future__ import annotations

import pytest

from keeplast.errors import UnavailableError
from keeplast.tier.objects.stores import open_objects
from keeplast.tier.objects.transfer import put_small
from tests.support.heard_calls import hear

KEY = "t-0/" + "0" * 32 + "/" + "1" * 32 + "/00000000000000000000.epochs"


def test_a_copy_that_a_newer_leader_has_removed_before_it_was_read_back_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A leader that slept behind its upload: without a row it is garbage to the next one."""
    objects = open_objects("memory://", {})
    hear(monkeypatch, type(objects), "stat", lambda store, key: objects.delete([key]))
    with pytest.raises(UnavailableError, match=f"is not there.*{KEY}"):
        put_small(objects, KEY, b"0\n0\n")
