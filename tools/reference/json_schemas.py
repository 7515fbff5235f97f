"""JSON Schema of the documents of ``--json``, made of documents that commands have printed.

    pytest tests/unit/cli --all --record-json DIR     keeps what the tests' commands print
    python tools/make_schemas.py DIR                  takes it into docs/reference/json

Documents are encoded from many classes, so what a schema says is what was printed: a field that
every document had is required, and no other field may come. Tests hold every document that a
command prints in them against its schema.

The rule that a reader must not break: a schema only grows by documents. One that lacks what a new
field's test prints is recorded again, and what it says no more is removed by hand, with
``JSON_VERSION``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from keeplast.config.place_properties import PlaceKind
from keeplast.model.document import JSON_VERSION

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "reference" / "json"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
SUFFIX = ".schema.json"
ERROR = "error"
KIND = "kind"
"""The field by which a document says what kind of place it is about; each has its own variant."""
MAPS = frozenset(
    {
        "assumed", "config", "ending_offsets", "magics", "metadata_offsets", "offsets",
        "packages",
        "ranked_by", "rounds_by", "settings", "states", "vector", "versions",
    }
)  # fmt: skip
"""Fields whose object has keys of the user's: topics, settings, partitions."""
FIELD = re.compile(r"[a-z][a-z0-9_]*")
Schema = dict[str, Any]


def is_error(document: Mapping[str, Any]) -> bool:
    """Return whether a command printed nothing but its error."""
    return set(document) == {"version", "partitions", "error"} and not document["partitions"]


def infer(value: object, name: str = "") -> Schema:
    """Return the schema of one value; ``name`` is the field that it stands in."""
    if isinstance(value, Mapping):
        if name in MAPS or not all(FIELD.fullmatch(key) for key in value):
            return {"type": ["object"], "additionalProperties": unite(map(infer, value.values()))}
        fields = {key: infer(each, key) for key, each in value.items()}
        return {
            "type": ["object"], "properties": fields, "required": sorted(fields),
            "additionalProperties": False,
        }  # fmt: skip
    if isinstance(value, list):
        return {"type": ["array"], "items": unite(infer(each, name) for each in value)}
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}
    return {"type": [kinds[type(value)]]}


def unite(schemas: Iterable[Schema]) -> Schema:
    """Return the schema of what one of several takes; of none the one that takes anything."""
    found: Schema = {}
    for each in schemas:
        found = _both(found, each) if found else each
    return found


def _both(one: Schema, other: Schema) -> Schema:
    if not one or not other:
        return one or other
    types = sorted({*one["type"], *other["type"]})
    if "number" in types:
        types = [each for each in types if each != "integer"]
    found: Schema = {"type": types}
    if "items" in one or "items" in other:
        found["items"] = _both(one.get("items", {}), other.get("items", {}))
    if "object" not in types:
        return found
    objects = [each for each in (one, other) if "object" in each["type"]]
    maps = [each for each in objects if each["additionalProperties"] is not False]
    if maps:
        values = [
            value for each in objects
            for value in (each["properties"].values() if each not in maps else
                          [each["additionalProperties"]])
        ]  # fmt: skip
        return {**found, "additionalProperties": unite(each for each in values if each)}
    names = {name: None for each in objects for name in each["properties"]}
    found["properties"] = {
        name: unite(each["properties"][name] for each in objects if name in each["properties"])
        for name in names
    }
    found["required"] = sorted(set.intersection(*(set(each["required"]) for each in objects)))
    found["additionalProperties"] = False
    return found


def path_of(command: str) -> Path:
    """Return where the schema of a command is kept; a group's are joined by a dash."""
    return FOLDER / f"{command.replace(' ', '-')}{SUFFIX}"


def read(command: str) -> dict[str, Schema]:
    """Return what a command's documents are said to be, by kind of place; empty where none is kept.

    The kind is empty where a document names none.
    """
    path = path_of(command)
    if not path.is_file():
        return {}
    found: dict[str, Schema] = {}
    for each in json.loads(path.read_text("utf-8"))["anyOf"]:
        del each["properties"]["version"]
        each["required"].remove("version")
        # Elsewhere a field of that name is one like any other.
        kind = each["properties"].get(KIND, {}).get("const", "")
        if kind:
            del each["properties"][KIND]
            each["required"].remove(KIND)
        found[kind] = each
    return found


def text_of(command: str, variants: Mapping[str, Schema]) -> str:
    """Return a schema's file, the version of documents and the kind of place among its fields."""
    title = "a command that ended with its error" if command == ERROR else f"keeplast {command}"
    whole = [
        {
            **schema,
            "properties": {
                "version": {"const": JSON_VERSION},
                **({KIND: {"const": kind}} if kind else {}),
                **schema["properties"],
            },
            "required": sorted(["version", *([KIND] if kind else []), *schema["required"]]),
        }
        for kind, schema in sorted(variants.items())
    ]
    head = {"$schema": DIALECT, "title": f"What {title} prints with --json"}
    return json.dumps({**head, "anyOf": whole}, indent=1) + "\n"


def grown(recorded: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, dict[str, Schema]]:
    """Return the schemas with recorded documents taken in, by command and kind of place."""
    found: dict[str, dict[str, Schema]] = {}
    for command, document in recorded:
        name = ERROR if is_error(document) else command
        variants = found.setdefault(name, read(name))
        kind = document.get(KIND)
        kind = kind if kind in set(PlaceKind) else ""
        left_out = {"version", KIND} if kind else {"version"}
        body = {key: each for key, each in document.items() if key not in left_out}
        variants[kind] = _both(variants.get(kind, {}), infer(body))
    return found
