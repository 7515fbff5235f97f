"""The same small topic in a data directory, and in a store that took it in."""

from __future__ import annotations

from pathlib import Path

import keeplast
from tests.support.small_log import write_log

ANNA, BEN, FILLER = b"anna-4711", b"ben-4712", b"filler"
HASH_KEY = b"%064d" % 7
"""That of the operator's file, without its newline."""


def write_directory(root: Path) -> Path:
    """Write two partitions of ``t``: anna is overwritten and deleted, ben has a value."""
    root.mkdir(parents=True)
    (root / "keeplast.toml").write_text(
        '[topic."t"]\ncleanup.policy = "compact"\ndelete.retention.ms = 0\n'
    )
    write_log(root, "t-0", {0: [(ANNA, b"1"), (BEN, b"2")], 2: [(ANNA, None), (FILLER, b"3")]})
    write_log(root, "t-1", {0: [(FILLER, b"1")], 1: [(FILLER, b"2")]})
    return root


def make_store(root: Path) -> str:
    """Make a store without partitions below ``root``; returns its URL."""
    url = f"sqlite:///{root / 'meta.db'}"
    with keeplast.open_store(
        url, f"file://{root / 'objects'}", owner="me", topic_of=keeplast.topic_config
    ):
        return url


def take_in(data: Path, root: Path) -> str:
    """Import both partitions of ``data`` into a new store below ``root``; returns its URL."""
    url = make_store(root)
    settings = {"cleanup.policy": "compact", "delete.retention.ms": "0"}
    with keeplast.open_store(url, owner="me", topic_of=keeplast.topic_config) as store:
        for number in (0, 1):
            partition = keeplast.TopicPartition("t", number)
            store.import_directory(partition, data / str(partition), settings)
    return url
