"""Takes documents that commands printed into the schemas of ``docs/reference/json``.

    pytest tests/unit/cli --all --record-json DIR
    python tools/make_schemas.py DIR

The rule that a reader must not break: nothing is removed here. A field that no document has any
more is taken out of its schema by hand, and ``JSON_VERSION`` grows.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
USAGE = "python tools/make_schemas.py DIR"


def main(arguments: list[str]) -> int:
    """Read what was recorded below the directory that is named, and write the schemas."""
    from tools.reference.json_schemas import grown, path_of, text_of

    files = sorted(Path(arguments[0]).glob("*.jsonl")) if len(arguments) == 1 else []
    if not files:
        print(f"name the directory with what pytest recorded: {USAGE}", file=sys.stderr)
        return 2
    lines = [line for file in files for line in file.read_text("utf-8").splitlines()]
    found = grown(json.loads(line) for line in lines)
    for command, variants in found.items():
        path_of(command).parent.mkdir(parents=True, exist_ok=True)
        path_of(command).write_text(text_of(command, variants), encoding="utf-8")
    print(f"{len(lines)} documents of {len(found)} commands")
    return 0


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT)]
    sys.exit(main(sys.argv[1:]))
