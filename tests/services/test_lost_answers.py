"""ST-8: the connection to PostgreSQL is really cut at a COMMIT, before it or before its answer."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest
from msgspec.structs import replace

from keeplast.errors import CommitUnknownError, ConflictError
from tests.support.cut_wire import CutWire
from tests.support.host_process import Member, Stop
from tests.support.rival_hosts import Rivals, place_of

pytestmark = pytest.mark.services


class CuttingStop(Stop):
    """Cuts the wire at the COMMIT of the ``nth`` change of a name."""

    def __init__(self, wire: CutWire, name: str, nth: int, *, is_delivered: bool) -> None:
        super().__init__()
        self.is_armed = False
        self._wire = wire
        self._name = f"before {name}"
        self._nth = nth
        self._is_delivered = is_delivered

    def reach(self, step: str) -> None:
        if self.is_armed and step == self._name:
            self._nth -= 1
            if self._nth == 0:
                self._wire.cut_commit(1, is_delivered=self._is_delivered)


@pytest.mark.parametrize("is_delivered", [True, False], ids=["done", "not done"])
@pytest.mark.parametrize(
    ("method", "name", "nth"),
    [
        ("copy", "commit_copy", 2), ("clean", "commit_swap", 2), ("clean", "publish", 1),
        ("expire", "commit_expiry", 1), ("collect", "start_delete", 1),
        ("collect", "finish_delete", 1),
    ],
)  # fmt: skip
def test_st_8_a_commit_without_an_answer_is_looked_up_and_never_repeated(
    database: str, tmp_path: Path, method: str, name: str, nth: int, is_delivered: bool
) -> None:
    place = place_of(database, f"file://{tmp_path / 'objects'}", tmp_path, "t", {})
    rivals = Rivals(place)
    url = urlsplit(database)
    with CutWire(url.port or 0) as wire:
        stop = CuttingStop(wire, name, nth, is_delivered=is_delivered)
        cut = url._replace(netloc=f"{url.username}@127.0.0.1:{wire.port}").geturl()
        a = Member(replace(place, database=cut), "a", stop)
        a.lead(0)
        for earlier in {"copy": [], "collect": ["copy", "clean"]}.get(method, ["copy"]):
            getattr(a, earlier)()
        stop.is_armed = True
        found = None
        try:
            getattr(a, method)()
        except (CommitUnknownError, ConflictError) as error:
            found = type(error)
        assert wire.cuts == 1
        if method == "collect":  # Has no id, and can be done twice.
            assert found is CommitUnknownError
        else:
            assert found is (None if is_delivered else ConflictError)
        rivals.check_sound(a)
        rivals.check_read(a)
        getattr(a, method)()
        rivals.check_sound(a)
        rivals.check_read(a)
        a.close()
    rivals.finish_as_b()
    rivals.b.close()
