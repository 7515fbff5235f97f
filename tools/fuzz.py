"""Damages data directories at random for as long as asked, and prints what came of it.

    python tools/fuzz.py --seconds 600
    python tools/fuzz.py --case 4711      run one case again, with the traceback

Ends with 1 at the first case that does what it must not (tests/support/directory_fuzz.py says
what that is). Give it another ``--first`` than last time, or it repeats itself.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.directory_fuzz import (  # noqa: E402 - after the path is set
    FuzzFailure,
    Tally,
    fuzz,
    run_case,
    write_data_directory,
)


def show(tally: Tally) -> None:
    """Print a tally on one line each."""
    print(
        f"{tally.cases} cases, slowest {tally.slowest_seconds:.2f} s, "
        f"memory grew by {tally.grown_bytes >> 20} MiB",
        flush=True,
    )


def main() -> int:
    """Run cases and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--first", type=int, default=1_000_000)
    parser.add_argument("--case", type=int, default=None)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        if arguments.case is not None:
            tally = Tally()
            template = write_data_directory(Path(scratch) / "template")
            run_case(template, Path(scratch) / "case", arguments.case, tally)
        else:
            try:
                end = time.monotonic() + arguments.seconds
                numbers = itertools.takewhile(
                    lambda _: time.monotonic() < end, itertools.count(arguments.first)
                )
                tally = fuzz(Path(scratch), numbers, progressed=show)
            except FuzzFailure as failure:
                print(failure)
                return 1
    show(tally)
    for outcome, count in sorted(tally.outcomes.items()):
        print(f"  {outcome:24} {count}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
