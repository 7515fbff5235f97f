"""Runs the commands that a page shows and pastes what they really print.

    python tools/fill_readme.py            fill the pages that have marks
    python tools/fill_readme.py --check    run the commands and say whether the pages would change
    python tools/fill_readme.py --files    only paste files, and run nothing; with --check as well

A page marks a place with two comments; what stands between them is replaced:

    <!-- run: keeplast inspect DIR -->
    <!-- end -->

`<!-- file: PATH -->` pastes a file as it is. Commands run in the repository's root, in order, with
the environment's commands first on the PATH; `build/try` is removed before each page. A command
that fails ends the script. Commands are not part of the checks: times and sizes differ from run to
run. The pasted files are, by a test.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = (
    "README.md",
    "benchmarks/README.md",
    "docs/tutorials/clean-a-copy.md",
    "docs/contributing/design/layouts.md",
    "docs/contributing/design/spark.md",
    "docs/how-to/choose-a-strategy.md",
    "docs/how-to/erase-a-person.md",
    "docs/how-to/explain-a-key.md",
    "docs/how-to/first-clean.md",
    "docs/how-to/guarantee-a-deadline.md",
    "docs/how-to/keep-a-window.md",
    "docs/how-to/restore-as-of.md",
    "docs/how-to/run-as-a-service.md",
    "docs/how-to/take-back-a-mistake.md",
    "docs/how-to/topic-policy.md",
    "docs/how-to/verify-a-clean.md",
    "docs/how-to/why-not-compacted.md",
    "docs/how-to/export-to-parquet.md",
    "docs/tutorials/object-storage.md",
    "examples/devices/README.md",
    "examples/restore-store/README.md",
)
TRY = ROOT / "build" / "try"
MARKED = re.compile(r"<!-- (run|file): (.+?) -->\n.*?<!-- end -->", re.DOTALL)
COLUMNS = 100


def run(command: str) -> str:
    """Return what `command` prints to stdout, as a fenced block with its prompt."""
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": str(COLUMNS),
        "NO_COLOR": "1",
    }
    done = subprocess.run(
        ["bash", "-euc", command],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"{command}\nended with {done.returncode}\n{done.stdout}{done.stderr}")
    lines = [line.rstrip() for line in done.stdout.replace(f"{ROOT}/", "").splitlines()]
    return "\n".join(["```console", f"$ {command}", *lines, "```"])


def pasted(path: Path) -> str:
    """Return the text of a file that is shown as it is."""
    if not path.is_file():
        raise SystemExit(f"{path.relative_to(ROOT)} is missing; run what makes it first")
    return path.read_text("utf-8").rstrip()


def filled(page: str, *, only_files: bool = False) -> str:
    """Return the text of a page with every marked place renewed, or those with files alone."""

    def renewed(match: re.Match[str]) -> str:
        kind, what = match[1], match[2]
        if only_files and kind == "run":
            return match[0]
        print(f"{kind}: {what}", file=sys.stderr)
        content = run(what) if kind == "run" else pasted(ROOT / what)
        return f"<!-- {kind}: {what} -->\n{content}\n<!-- end -->"

    if not only_files:
        shutil.rmtree(TRY, ignore_errors=True)
        TRY.mkdir(parents=True)
    return MARKED.sub(renewed, (ROOT / page).read_text("utf-8"))


def main() -> None:
    """Fill the pages, or say which would change."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--files", action="store_true", help="only paste files")
    arguments = parser.parse_args()
    changed = []
    for page in PAGES:
        path = ROOT / page
        text = filled(page, only_files=arguments.files)
        if text != path.read_text("utf-8"):
            changed.append(page)
            if not arguments.check:
                path.write_text(text, "utf-8")
    print("\n".join(changed) or "nothing would change")
    if arguments.check and changed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
