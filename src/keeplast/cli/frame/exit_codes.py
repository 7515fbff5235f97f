"""What the shell is told, by what the caller should do about it.

=====  ==========================================================
code   meaning
=====  ==========================================================
0      done; skipped partitions included
1      a check failed
2      usage: fix an argument or a setting
3      corrupt input; other partitions went on
4      refused: understood, and not safe to do
5      failed: disk, runner, or a defect of keeplast
130    stopped by SIGINT
143    stopped by SIGTERM
=====  ==========================================================

Of several partitions the greatest code counts.
"""

from __future__ import annotations

from keeplast.errors import CorruptError, InvalidError, RefusedError

DONE = 0
CHECK_FAILED = 1
USAGE = 2
CORRUPT = 3
REFUSED = 4
FAILED = 5
INTERRUPTED = 130
TERMINATED = 143


def error_exit_code(error: BaseException) -> int:
    """Return the code for an exception that ended a command."""
    if isinstance(error, InvalidError):
        return USAGE
    if isinstance(error, CorruptError):
        return CORRUPT
    if isinstance(error, RefusedError):
        return REFUSED
    return FAILED
