"""``make demo-cdc``: the tables of a real PostgreSQL as compacted topics, under load.

Starts a server of the system's (package ``postgresql``) on loopback, runs
``examples/postgres-cdc/demo.py`` on it, and ends the server.

    python tools/demo_cdc.py DIRECTORY
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.postgresql_server import own_postgresql  # noqa: E402 - after the path is set

DEMO = ROOT / "examples" / "postgres-cdc" / "demo.py"


def main() -> None:
    """Run the demo; ends as it ends."""
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    with own_postgresql() as url:
        done = subprocess.run([sys.executable, str(DEMO), url, sys.argv[1]], check=False)
    raise SystemExit(done.returncode)


if __name__ == "__main__":
    main()
