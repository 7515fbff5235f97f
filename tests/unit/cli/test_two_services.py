"""The worked example of two services that share topics, as a reader runs it by its page."""

from __future__ import annotations

from pathlib import Path

from tests.support.page_steps import ROOT, Done, PageShell, keeplast_program

EXAMPLE = ROOT / "examples/two-services/restore.py"
RUN = """\
import runpy, sys
sys.executable = "python-of-the-example"
sys.argv = sys.argv[1:]
sys.exit(runpy.run_path(sys.argv[0], run_name="__main__") is None)
"""
"""Runs an example; what it starts as a module of Python is the program that pages start."""


def run_example(example: Path, root: Path) -> Done:
    return PageShell(
        root,
        programs={
            "run-example": keeplast_program(RUN),
            # It is called with -m keeplast in front.
            "python-of-the-example": '#!/usr/bin/env bash\nshift 2\nexec keeplast "$@"\n',
        },
    ).run(f"run-example {example} try")


def test_both_services_go_back_to_a_checkpoint_that_a_hold_has_kept(tmp_path: Path) -> None:
    done = run_example(EXAMPLE, tmp_path)
    assert 0 == done.code, done.out + done.err
    assert "restored 5 items" in done.out
    assert "as of the checkpoint checkpoints-0@0" in done.out
    assert not (tmp_path / "try/data/keeplast-holds").exists()


def test_without_the_hold_the_checkpoint_is_refused(tmp_path: Path) -> None:
    text = EXAMPLE.read_text("utf-8")
    (hold,) = [line for line in text.splitlines() if 'keeplast("hold", "add"' in line]
    other = tmp_path / "restore.py"
    other.write_text(text.replace(hold, "    pass"))
    done = run_example(other, tmp_path)
    assert 0 != done.code
    assert "cleaned_to=" in done.err
