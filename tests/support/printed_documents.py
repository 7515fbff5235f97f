"""Every document that a command prints in this process, held against the schema of the reference.

With a folder to record into, documents are kept there instead, a line each: the command and what it
printed (``tools/make_schemas.py`` makes schemas of them).
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer.main

from keeplast.cli.frame import command
from keeplast.cli.show.output import print_document
from keeplast.service.document_text import document_text
from tools.reference.json_schemas import ERROR, KIND, is_error, path_of


def command_name() -> str:
    """Return the words of the command that is at work, empty where a test calls less than one."""
    context: Any = vars(typer.main)["get_current_context"](silent=True)
    return "" if context is None else str(context.command_path.partition(" ")[2])


@cache
def validator(name: str, kind: object) -> Any:
    """Return what judges the documents of a command, those of one kind of place where it has them.

    None where the schema has no such kind.
    """
    variants = json.loads(path_of(name).read_text("utf-8"))["anyOf"]
    by_kind = {each["properties"].get(KIND, {}).get("const"): each for each in variants}
    found = by_kind.get(kind, by_kind.get(None))
    return None if found is None else jsonschema.Draft202012Validator(found)


def faults(name: str, document: dict[str, Any]) -> list[str]:
    """Return where a document is not what the schema of its command says."""
    of = ERROR if is_error(document) else name
    if not path_of(of).is_file():
        return [f"no schema of keeplast {of}"]
    judge = validator(of, document.get(KIND))
    if judge is None:
        return [f"the schema of keeplast {name} has no kind {document.get(KIND)}"]
    return [
        f"keeplast {name}: {each.json_path}: {each.message[:300]}"
        for each in judge.iter_errors(document)
    ]


@contextlib.contextmanager
def held_documents(record: Path | None) -> Iterator[None]:
    """Hold what commands print against its schemas; AssertionError at the end for what differs."""
    printed = print_document
    found: list[str] = []

    def take(document: object) -> None:
        name, shown = command_name(), json.loads(document_text(document))
        if not name:
            pass  # A command that a test has made, of no group.
        elif record is None:
            found.extend(faults(name, shown))
        else:
            record.mkdir(parents=True, exist_ok=True)
            with (record / f"{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps([name, shown]) + "\n")
        printed(document)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "print_document", take)
        yield
    remedy = "print it with its schema: CONTRIBUTING.md, Documents of --json"
    assert [] == found, "\n".join([*found, remedy])
