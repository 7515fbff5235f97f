"""The page of options that can widen what a command touches, and of what they cannot do.

The rule that a reader must not break: rows stand in ``tests/unit/cli/limits.toml``, where each
limit has its tests. The page has the limits and not the tests.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from tools.reference.tables import described
from tools.reference.text import NOTICE

ROWS = Path(__file__).resolve().parents[2] / "tests" / "unit" / "cli" / "limits.toml"
HEAD = f"""# Options and limits

{NOTICE}

The options that widen what a command touches, and the limits that they cannot pass.

A round ends at the first of these: the high watermark, an undecided transaction,
`min.compaction.lag.ms`, the active segment. A given value may only end it earlier. A value that
would lift a limit is refused with exit code 4, before anything is written:

```text
error: what was given lifts a limit of the log: --high-watermark 9 is above the high watermark, 8;
leave it out; to go past this: --despite log-bounds. path=data/orders-0
```

`plan` writes nothing. It shows the result and adds `clean refuses this: …`.

With `--despite log-bounds` (in Python `is_unsafe`) values count as given. The receipt then has
`"unsafe": true`, and the lifted limits under `lifts`. The cleaner checkpoint stays below records
that were not cleaned: a round that began above it leaves it where it is.

## Options

Options that choose partitions, resources or what is printed are not in this table.

"""
END = """
`undo` has no option that lifts a refusal.

In Python the same values are fields of `CleanRequest`, and arguments of `OpenLog.clean`, `plan`,
`expire` and `delete_records`. The same code refuses them.
"""


def page() -> str:
    """Return the page."""
    rows = tomllib.loads(ROWS.read_text("utf-8"))["row"]
    return "".join(
        [
            HEAD,
            described(
                ("option", "commands", "can", "cannot"),
                [
                    (
                        ", ".join(f"`{each}`" for each in row["options"]),
                        ", ".join(row["commands"]),
                        row["can"],
                        "; ".join(each["limit"] for each in row["cannot"]),
                    )
                    for row in rows
                ],
                lead="it also cannot ",
            ),
            END,
        ]
    )
