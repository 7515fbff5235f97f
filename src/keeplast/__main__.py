"""The command line's start: the script ``keeplast``, ``python -m keeplast``, and ``spark-submit``.

Nothing has begun while modules are loaded: who interrupts there ends the process at once, without
a trace of what was being imported.
"""

import signal
import sys
from pathlib import Path

if not __package__ and sys.path and Path(sys.path[0]) == Path(__file__).parent:
    # Started as a script: modules of ours must not pass for others of the same name.
    del sys.path[0]

_IS_DEFAULT = signal.getsignal(signal.SIGINT) is signal.default_int_handler
if _IS_DEFAULT:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
from keeplast.cli.main import main  # noqa: E402

if _IS_DEFAULT:
    signal.signal(signal.SIGINT, signal.default_int_handler)

__all__ = ["main"]

if __name__ == "__main__":
    main()
