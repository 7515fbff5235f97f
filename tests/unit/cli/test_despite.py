"""Each limit that a caller may go past: the refusal ends with the words that go past it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from keeplast.cli.main import app
from keeplast.config.mapping import topic_config
from keeplast.errors import Despite, RefusedError
from keeplast.model.topic_config import TopicConfig
from keeplast.store.migration import Migration
from tests.support.small_log import write_log
from tests.unit.cli.conftest import Command
from tests.unit.cli.test_command import commands

POLICY = ("--config", "cleanup.policy=compact", "--config", "min.cleanable.dirty.ratio=1.0")
ASKED: dict[Despite, tuple[str, ...]] = {
    Despite.DIRTY_RATIO: ("clean", "data", *POLICY),
    Despite.LOG_BOUNDS: ("clean", "data", *POLICY, "--high-watermark", "9"),
    Despite.EXISTING_TARGET: ("clean", "data", *POLICY, "--to", "full"),
}
"""Of each limit a call that meets it; a store's settings and exports have tests of their own."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory with a log, and with a directory that is not empty."""
    monkeypatch.chdir(tmp_path)
    write_log(tmp_path / "data", "t-0", {0: [(b"a", b"1")], 1: [(b"a", b"2")], 2: []})
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "ours").write_text("ours")


@pytest.mark.parametrize("limit", list(ASKED))
def test_what_meets_a_limit_says_which_words_go_past_it(keeplast: Command, limit: Despite) -> None:
    def ask(*more: str) -> tuple[int, bool]:
        run = keeplast(*ASKED[limit], "--runner", "local", "--json", *more)
        words = rf"to go past this: (clean )?--despite {limit}\b"
        return run.code, re.search(words, run.out) is not None

    # A log that is not dirty enough is skipped, and that is no failure.
    assert (0 if limit is Despite.DIRTY_RATIO else 4, True) == ask()
    assert (0, False) == ask("--despite", str(limit))


def test_records_without_a_key_go_past_their_limit_by_its_words() -> None:
    found = Migration({}, topic_config({"cleanup.policy": "delete"}), TopicConfig(), 2, 20, 1, 10)
    with pytest.raises(RefusedError, match=f"; {Despite.KEYLESS_RECORDS.remedy}\\. "):
        found.check(drops_keyless=False)
    found.check(drops_keyless=True)


def test_each_limit_has_a_refusal_and_each_command_names_its_own(keeplast: Command) -> None:
    assert set(Despite) == ASKED.keys() | {Despite.KEYLESS_RECORDS, Despite.PARTIAL_TOPICS}
    named = set()
    for name, found in commands(typer.main.get_command(app)):
        for each in found.params:
            if each.name == "despite":
                named |= {limit for limit in Despite if f"{limit}: " in each.help}
                refused = keeplast(*name, "data", "--despite", "nothing")
                assert (2, True) == (refused.code, "not a limit of this command" in refused.err)
    assert set(Despite) == named
