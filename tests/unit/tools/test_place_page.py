"""What the page of places says of data directories in an object store is what commands do there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import called
from tests.support.google_store import GoogleStore, own_google_store
from tools.reference.place_page import OBJECT_DIRECTORY, WITHOUT, page

SAMPLE = Path(__file__).resolve().parents[3] / "src" / "keeplast" / "samples" / "broker-4.3.0"
URL = "gs://bucket/data"
REFUSED = (2, 4)
OF = ("--topic", "orders")


@pytest.fixture(scope="module")
def google() -> Iterator[GoogleStore]:
    """A store with the sample's files."""
    with own_google_store("bucket") as store:
        for path in sorted(SAMPLE.rglob("*")):
            if path.is_file():
                store.put("bucket", f"data/{path.relative_to(SAMPLE)}", path.read_bytes())
        yield store


def write_keys(root: Path) -> Path:
    """Write the key, and what hashes and signs; returns the folder."""
    for name in ("hash", "sign"):
        (root / name).write_bytes(b"x" * 40)
        (root / name).chmod(0o600)
    (root / "keys").write_text("order-041\n")
    return root


def calls(root: Path) -> dict[str, tuple[object, ...]]:
    """Return what is asked of each verb, after its place."""
    keys = ("--hash-key", root / "hash", "--keys", root / "keys")
    return {
        "status": (), "plan": OF, "clean": OF, "clean --to": ("--to", root / "out", *OF),
        "run": ("--once",), "verify": (SAMPLE, *OF), "explain": ("order-041", *OF),
        "hold add": ("h", *OF, "--at", "now", "--max-age", "1d"), "hold list": (),
        "hold release": ("h",), "erase keys": (*keys, *OF), "erase requests": (),
        "erase certify": ("--hash-key", root / "hash", "--sign-key", root / "sign", "--out",
                          root / "certificate"),
        "undo": ("--list",), "export": ("--to", root / "export", *OF), "place check": (),
        "config": (*OF, "--effective"), "configure": ("segment.bytes=1048576", *OF),
        "copy DATA_DIR": (f"sqlite:///{root / 'm.db'}", "--new", "--objects", f"file://{root}/o"),
        "delete-records": (*OF, "--partition", 0, "--before-offset", 1, "--dry-run"),
    }  # fmt: skip


def answers() -> dict[str, str]:
    """Return the column of the page, by verb."""
    rows = [line.split(" | ") for line in page().splitlines() if line.startswith("| [`")]
    return {row[0].split("`")[1]: row[2] for row in rows}


def asked(google: GoogleStore, verb: str, root: Path) -> tuple[int, str]:
    """Return the exit code of a verb, and what it said."""
    options = [f"--object-option={name}={value}" for name, value in google.options.items()]
    words = verb.replace(" DATA_DIR", "").replace(" --to", "").split(" ")
    done = called.run(*words, URL, *calls(root)[verb], *options)
    return done.exit_code, done.stderr


def test_every_verb_of_the_page_is_asked_for() -> None:
    # Refused of every data directory, which other tests ask for.
    by_place = {"collect", "repair", "pause", "detach", "copy"}
    assert {"no"} == {answers()[each] for each in by_place}
    browsed = {"console"}
    assert answers().keys() - by_place - browsed == {
        each.replace(" --to", "") for each in calls(Path()) if each != "copy DATA_DIR"
    }


@pytest.mark.rotates(4)
@pytest.mark.parametrize("verb", OBJECT_DIRECTORY)
def test_what_the_page_says_no_to_is_refused(
    google: GoogleStore, verb: str, tmp_path: Path
) -> None:
    code, said = asked(google, verb, write_keys(tmp_path))
    assert code in REFUSED
    assert re.search(r"on disks|on a disk|in an object store", said), said
    assert answers()[verb.replace(" DATA_DIR", "")] == WITHOUT.get(verb, "no")


@pytest.mark.rotates(4)
@pytest.mark.parametrize("verb", [each for each in calls(Path()) if each not in OBJECT_DIRECTORY])
def test_what_the_page_says_yes_to_is_done(google: GoogleStore, verb: str, tmp_path: Path) -> None:
    assert answers()[verb.replace(" --to", "")].startswith(("yes", "only with"))
    code, said = asked(google, verb, write_keys(tmp_path))
    assert code in (0, 1), said
