"""What is tried of a data directory before a round, and what old probes leave."""

from __future__ import annotations

import os
from pathlib import Path

from keeplast.errors import UnavailableError
from keeplast.log.files import LocalFiles
from keeplast.run.foresight import PROBE, PROBE_MS_MAX, unready_roots
from keeplast.tier.objects.object_files import ObjectFiles
from keeplast.tier.objects.stores import open_tree
from tests.support.partition_maker import NOW_MS
from tests.support.refusing_s3 import refusing_s3

BUCKET = Path("/s3:/bucket")


def test_a_directory_in_a_store_that_deletes_nothing_is_not_ready_and_one_probe_stays() -> None:
    with refusing_s3() as s3:
        files = ObjectFiles(open_tree(s3.url, s3.options), BUCKET)
        root = BUCKET / "data"
        s3.denied = {"s3:DeleteObject"}
        for _ in range(3):
            problem = unready_roots(files, [root], NOW_MS)[root]
            assert isinstance(problem, UnavailableError)
            assert "s3:DeleteObject" in str(problem)
            assert [f"data/{PROBE}"] == [*s3.objects]
        s3.denied = {"s3:PutObject"}
        assert "s3:PutObject" in str(unready_roots(files, [root], NOW_MS)[root])
        s3.denied = set()
        assert {} == unready_roots(files, [root], NOW_MS)
        assert {} == s3.objects


def test_an_old_probe_of_executors_goes_with_a_round_and_one_in_use_stays(tmp_path: Path) -> None:
    old, young = tmp_path / f"{PROBE}-0badcafe", tmp_path / f"{PROBE}-1badcafe"
    for path, age_ms in ((old, PROBE_MS_MAX + 1), (young, PROBE_MS_MAX)):
        path.write_text("token")
        written_ns = (NOW_MS - age_ms) * 1_000_000
        os.utime(path, ns=(written_ns, written_ns))
    assert {} == unready_roots(LocalFiles(), [tmp_path], NOW_MS)
    assert [young] == [*tmp_path.iterdir()]
