"""The worked example of two services that share topics, as a reader runs it by its page."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[3] / "examples/two-services/restore.py"


def test_both_services_go_back_to_a_checkpoint_that_a_hold_has_kept(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLE), str(tmp_path / "try")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stdout + done.stderr
    assert "restored 5 items" in done.stdout
    assert "as of the checkpoint checkpoints-0@0" in done.stdout
    assert not (tmp_path / "try/data/keeplast-holds").exists()


def test_without_the_hold_the_checkpoint_is_refused(tmp_path: Path) -> None:
    text = EXAMPLE.read_text("utf-8")
    hold = [line for line in text.splitlines() if 'keeplast("hold", "add"' in line]
    assert 1 == len(hold)
    other = tmp_path / "restore.py"
    other.write_text(text.replace(hold[0], "    pass"))
    done = subprocess.run(
        [sys.executable, str(other), str(tmp_path / "try")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert 0 != done.returncode
    assert "cleaned_to=" in done.stderr
