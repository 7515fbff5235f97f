"""The page of places: what each verb can do in each kind of place, and a place's properties.

The rule that a reader must not break: a cell says *no* only for what a command refuses. The
refusals are those of :mod:`keeplast.api.refusals`; of data directories in an object store they are
those of :data:`OBJECT_DIRECTORY`, and a test asks a command for each.
"""

from __future__ import annotations

from keeplast.api.refusals import REFUSALS
from keeplast.config.place_properties import PROPERTIES, PlaceKind, PlaceProperty
from tools.reference.commands import all_commands
from tools.reference.tables import described
from tools.reference.text import NOTICE, cell, code_words, kind_words

HEAD = f"""# Places

{NOTICE}

What each command can do in which kind of place, and the properties that a place has.

## Verb by place

*No* is refused, with exit code 4 or 2. An option that a kind of place refuses stands in its cell.
What to do instead is [below](#what-cannot-be-done).

A *data directory* lies on a disk. An *object-store directory* has an address that begins with
`s3://`, `gs://` or `az://`. A *store* is made by `keeplast copy --new`. A *live cluster* has an
address that begins with `kafka://`. The place of `copy` is its target.

"""
INSTEAD_HEAD = """
## What cannot be done

"""
PROPERTIES_HEAD = """
## Properties

A property stands in the `[place.NAME]` table of `keeplast.toml`. On the command line it is
`--with KEY=VALUE`, for which `--KEY VALUE` is short.

"""
TO_A_DISK = "bring it to a disk with keeplast clean PLACE --to DIR"
OBJECT_DIRECTORY = {
    "clean": ("an object store renames nothing, so no log is cleaned in place", "give --to"),
    "run": ("an object store renames nothing, so no log is cleaned in place", "use clean --to"),
    "hold add": ("holds are for what is cleaned in place", TO_A_DISK),
    "hold list": ("holds are for what is cleaned in place", TO_A_DISK),
    "hold release": ("holds are for what is cleaned in place", TO_A_DISK),
    "erase keys": ("erasure is for data directories on disks", "name the log's store"),
    "erase requests": ("erasure is for data directories on disks", "name the log's store"),
    "erase certify": ("erasure is for data directories on disks", "name the log's store"),
    "undo": ("undo is for data directories on disks", "keep the source of clean --to"),
    "configure": ("keeplast.toml is written on a disk", "write the file and give --config-file"),
    "copy DATA_DIR": ("a copy begins with a data directory on a disk of this host", TO_A_DISK),
    "delete-records": ("an object store renames nothing", TO_A_DISK),
}
"""What a data directory behind a URL refuses, why, and what to do instead; the rest is as on a
disk."""
OBJECT = "an object-store directory"
WITHOUT = {"clean": "only with `--to`"}


def page() -> str:
    """Return the page."""
    verbs = [
        each.name for each in all_commands()
        if any("PLACE" in argument.metavar for argument in each.arguments) or each.name == "copy"
        if each.name not in OWN_ADDRESS
    ]  # fmt: skip
    lines = [
        "| verb | data directory | object-store directory | store | live cluster |",
        "|---|---|---|---|---|",
        *(_row(verb) for verb in verbs),
    ]
    properties = [
        (f"`{each.name}`", _kinds(each), _written_as(each), each.about) for each in PROPERTIES
    ]
    return "".join(
        [
            HEAD, "\n".join(lines), "\n", INSTEAD_HEAD, *refusal_points(),
            PROPERTIES_HEAD, described(("property", "of", "written as", "meaning"), properties),
        ]
    )  # fmt: skip


OWN_ADDRESS = ("place add", "erase check")
"""Commands that name a place and do nothing with what lies there, or only next to a file."""


def _row(verb: str) -> str:
    cells = [
        _answer(verb, PlaceKind.DIRECTORY), _object_answer(verb),
        _answer(verb, PlaceKind.STORE), _answer(verb, PlaceKind.CLUSTER),
    ]  # fmt: skip
    return f"| [`{verb}`](commands/{verb.replace(' ', '-')}.md) | {' | '.join(cells)} |"


def _answer(verb: str, kind: PlaceKind) -> str:
    if (verb, kind) in REFUSALS:
        return "no"
    parts = [
        f"`{cell(each.removeprefix(f'{verb} '))}`" for each, of in REFUSALS
        if of is kind and each.startswith(f"{verb} ")
    ]  # fmt: skip
    return f"yes, without {', '.join(parts)}" if parts else "yes"


def _object_answer(verb: str) -> str:
    if verb in OBJECT_DIRECTORY:
        return WITHOUT.get(verb, "no")
    return _answer(verb, PlaceKind.DIRECTORY)


def refusal_points(command: str = "") -> list[str]:
    """Return a point for each refusal, of one command or of all; those that are alike share one."""
    kinds_of: dict[tuple[str, str, str], list[str]] = {}
    for (verb, kind), each in REFUSALS.items():
        why = each.why.replace(f"a {kind}", "such a place") if _is_shared(verb, kind) else each.why
        kinds_of.setdefault((verb, why, each.instead), []).append(f"a {kind_words(kind)}")
    for verb, (why, instead) in OBJECT_DIRECTORY.items():
        kinds_of.setdefault((verb, why, instead), []).append(OBJECT)
    verbs_of: dict[tuple[str, str, str], list[str]] = {}
    for (verb, why, instead), kinds in kinds_of.items():
        verbs_of.setdefault((" or ".join(kinds), why, instead), []).append(f"`{verb}`")
    order = {each.name: number for number, each in enumerate(all_commands())}
    if command:
        verbs_of = {
            said: [verb] for said, verbs in verbs_of.items() for verb in verbs
            if f"{verb.strip('`')} ".startswith(f"{command} ")
        }  # fmt: skip
    return [
        f"* {', '.join(verbs)} of {kinds}: {code_words(why)}. Instead: {code_words(instead)}.\n"
        for (kinds, why, instead), verbs in sorted(
            verbs_of.items(), key=lambda item: _place_of(item[1][0].strip("`"), order)
        )
    ]


def _place_of(verb: str, order: dict[str, int]) -> int:
    """Return where the command of a verb stands on the first screen."""
    return max(number for name, number in order.items() if f"{verb} ".startswith(f"{name} "))


def _is_shared(verb: str, kind: PlaceKind) -> bool:
    """Return whether another kind refuses the same in words that differ by the kind alone."""
    mine = REFUSALS[verb, kind].why.replace(f"a {kind}", "")
    return any(
        other is not kind and of == verb and each.why.replace(f"a {other}", "") == mine
        for (of, other), each in REFUSALS.items()
    )


def _kinds(found: PlaceProperty) -> str:
    kinds = [kind_words(each) for each in PlaceKind if each in found.kinds]
    return "every place" if len(kinds) == len(PlaceKind) else ", ".join(kinds)


def _written_as(found: PlaceProperty) -> str:
    return ", ".join(f"`{each}`" for each in found.choices) or str(found.type)
