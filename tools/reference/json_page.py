"""The page of JSON documents: of each command its schema, and the fields at the top of a document.

The rule that a reader must not break: fields and types are those of the schema files.
"""

from __future__ import annotations

from collections.abc import Mapping

from keeplast.model.document import JSON_VERSION
from tools.reference.commands import all_commands
from tools.reference.json_schemas import ERROR, SUFFIX, Schema, read
from tools.reference.text import NOTICE

HEAD = f"""# JSON

{NOTICE}

The document that each command prints with `--json`, as a JSON Schema.

```console
$ keeplast status DATA_DIR --json
```

* A command prints one document on stdout, also when it fails. Everything else goes to stderr. An
  option that is unknown or cannot be read (exit code 2) is said on stderr alone.
* `version` is {JSON_VERSION}. It grows when a field goes or changes its meaning. New fields may
  come without that: ignore those that you do not know.
* `kind` names the kind of place: `directory`, `store` or `cluster`. Each kind has its own fields.
* A name that ends with `_ms` is milliseconds: since 1970 for a moment, or a length of time.
* A name that ends with `_bytes` is bytes. Offsets are Kafka's.
* Bytes, such as a key, are hexadecimal, unless a field says otherwise.
* A field that may be absent has a `?` below. The schema has all fields at every depth, and allows
  no others. It is made of the documents that the tests print: use it to read documents, and not to
  refuse those of a newer keeplast.

"""


def page() -> str:
    """Return the page."""
    parts = [HEAD, "## A command that fails\n\n"]
    parts += [
        "A command that ends before it has looked at a partition prints this.\n\n",
        *_entries(ERROR),
    ]
    for each in all_commands():
        parts += [f"\n## keeplast {each.name}\n\n", *_entries(each.name)]
    return "".join(parts)


def _entries(name: str) -> list[str]:
    variants = read(name)
    if not variants:
        return ["It prints no document.\n"]
    file = f"{name.replace(' ', '-')}{SUFFIX}"
    lines = [f"Schema: [`{file}`](json/{file}).\n\n"]
    for kind, schema in sorted(variants.items()):
        where = f"Of a {kind}" if kind else "Always" if len(variants) == 1 else "Without a place"
        lines.append(f"* {where}: {', '.join(_fields(schema))}.\n")
    return lines


def _fields(schema: Schema) -> list[str]:
    fields: Mapping[str, Schema] = schema["properties"]
    return [
        f"`{name}`{'' if name in schema['required'] else '?'} ({_type(each)})"
        for name, each in fields.items()
    ]


def _type(schema: Schema) -> str:
    types = schema.get("type", [])
    words = [
        f"list of {_plural(schema.get('items', {}))}" if each == "array" else each for each in types
    ]
    return " or ".join(words) or "any"


def _plural(schema: Schema) -> str:
    return " or ".join(f"{each}s" for each in schema.get("type", ["value"]))
