"""``python -m keeplast``, and the script that ``spark-submit`` starts."""

import sys
from pathlib import Path

if not __package__ and sys.path and Path(sys.path[0]) == Path(__file__).parent:
    # Started as a script: modules of ours must not pass for others of the same name.
    del sys.path[0]

from keeplast.cli.main import main

main()
