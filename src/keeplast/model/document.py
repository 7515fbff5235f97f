"""The one encoder of the JSON that commands print and receipts keep.

A ``Struct`` is an object of its fields, by their names and in their order. A tuple is a list, an
enum its value, a path its text, bytes are hexadecimal. A class whose fields are not what a document
shows says so in ``as_document``, whose values are encoded in turn. Who composes a document puts
values into it and leaves their encoding to this module.

It also has what a check answers: shared by the judgement of a log and its report from a receipt.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, StrEnum
from typing import Any, Protocol, cast, runtime_checkable

from msgspec import Struct
from msgspec.structs import asdict

JSON_VERSION = 1
"""Of every document; it grows when a field goes or changes its meaning."""


@runtime_checkable
class Documented(Protocol):
    """What a document shows in another way than field by field."""

    def as_document(self) -> object:
        """Return what is shown; values in it need not be encoded."""


@runtime_checkable
class PathText(Protocol):
    """A path of any library: what has ``__fspath__``; it is written as text."""

    def __fspath__(self) -> str: ...


_PLAIN = frozenset({type(None), bool, int, float, str})


def document_of(value: object) -> dict[str, Any]:
    """Return the whole document of a command: the version, and what ``value`` is encoded to."""
    return {"version": JSON_VERSION, **encode(value)}


def encode(value: object) -> Any:
    """Return ``value`` as objects, lists, texts, numbers, booleans and None.

    TypeError for what no document shows.
    """
    # What most of a document is made of comes first: to ask for a protocol takes microseconds.
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is dict:
        return {str(key): encode(each) for key, each in cast("dict[Any, Any]", value).items()}
    if kind is list or kind is tuple:
        return [encode(each) for each in cast("list[Any]", value)]
    if isinstance(value, bool | int | float | str):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, Documented):
        return encode(value.as_document())
    if isinstance(value, Mapping):
        return {str(key): encode(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [encode(each) for each in value]
    if isinstance(value, Struct):
        return {name: encode(each) for name, each in shown_fields(value).items()}
    if isinstance(value, PathText):
        return value.__fspath__()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Enum):
        return encode(value.value)
    raise TypeError(f"no document shows this. type={type(value).__name__}")


def shown_fields(value: Struct, *left_out: str) -> dict[str, object]:
    """Return the fields of a value as they are, by name, without those left out."""
    return {name: each for name, each in asdict(value).items() if name not in left_out}


class Verdict(StrEnum):
    """The answer of one check."""

    HOLDS = "holds"
    BROKEN = "broken"
    UNJUDGED = "cannot be judged"


class JudgedBy(Struct, frozen=True):
    """What judged a log that has an owner, and as of what: the owner's epoch, and how far the log
    was clean. ``clean_to`` is the first offset that was not. Earlier versions named a command.
    """

    by: str
    epoch: int
    clean_to: int

    @property
    def words(self) -> str:
        """Return all of it, as every list shows it."""
        return f"{self.by}, epoch {self.epoch}, clean to {self.clean_to}"
