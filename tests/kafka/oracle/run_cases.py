"""``python -m tests.kafka.oracle.run_cases DIRECTORY...``: stored cases through the command line.

Every directory below DIRECTORY that holds a ``case.json`` is cleaned with ``keeplast clean`` (or
what ``KEEPLAST`` names) and compared with what Kafka's cleaner left. Exit 1 when any differs.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support.cases import load_case
from tests.support.cleanings import by_command
from tests.support.expected import expected_of_ours
from tests.support.replay import replay


def main() -> int:
    """Run the cases; see ``--help``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directories", nargs="+", type=Path)
    parser.add_argument("--runner", default="local", choices=("local", "spark"))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    arguments = parser.parse_args()
    command = shlex.split(os.environ.get("KEEPLAST", f"{shlex.quote(sys.executable)} -m keeplast"))
    cleaning = by_command(command, runner=arguments.runner)
    found = [path.parent for top in arguments.directories for path in top.rglob("case.json")]
    chosen = sorted(path for path in found if arguments.only in path.name)

    def differences(directory: Path) -> list[str]:
        case = load_case(directory)
        with tempfile.TemporaryDirectory() as work:
            try:
                expected = expected_of_ours(case.name)
                return replay(case, Path(work), cleaning, expected=expected)
            except AssertionError as error:
                return [str(error)]

    different = 0
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for directory, found_differences in zip(chosen, pool.map(differences, chosen), strict=True):
            if found_differences:
                different += 1
                print(f"{directory.name} | {'; '.join(found_differences)}")
    print(f"{len(chosen)} cases, {different} differ")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
