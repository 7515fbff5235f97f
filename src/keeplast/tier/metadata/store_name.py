"""The name of a store: an id that its metadata has drawn once, written on the place of its objects.

What a reader must not break: **a place has one name, and a store one**. Of two stores in one place
each would collect the other's objects as garbage; and whatever is said of a store elsewhere, as in
a certificate, is bound to it by this name, which a copy of its metadata has too.
"""

from __future__ import annotations

import secrets

from keeplast.errors import RefusedError
from keeplast.tier.metadata.metadata_store import MetadataStore
from keeplast.tier.metadata.stored_logs import OBJECTS
from keeplast.tier.objects.object_store import ID_CHARS, STORE_NAME, ObjectPlace

NAME = "name"
IGNORES_CONDITIONS = (
    "this object store ignores the condition that an object is written only where there is none "
    "(If-None-Match), so that two stores could take one place; use one that heeds it"
)


def find_name(store: MetadataStore) -> str | None:
    """Return the store's name, None for one of an early version to which nothing was written since.

    Reads only.
    """
    return store.find_fact(NAME)


def write_name(store: MetadataStore, objects: ObjectPlace, url: str) -> None:
    """Write the store's name on the place of its objects; RefusedError when another's is there, or
    when the place keeps no name, because it writes over an object that is there.

    The name is drawn the first time.
    """
    name = store.fact(NAME, lambda: secrets.token_hex(ID_CHARS // 2)).encode()
    # A place that heeds no condition must not lose the name that it has.
    if _is_named(objects) and _read_name(objects) != name:
        raise _explain_other(url)
    # Who looked first and wrote then would take a place from another who does the same.
    objects.put_new(STORE_NAME, name)
    if _read_name(objects) != name:
        raise _explain_other(url)
    if objects.put_new(STORE_NAME, name):
        raise RefusedError(f"{IGNORES_CONDITIONS}. objects={url}")


def check_name(store: MetadataStore, objects: ObjectPlace, url: str) -> None:
    """Raise RefusedError where the place has another store's name; writes nothing."""
    if _is_named(objects) and _read_name(objects).decode("ascii", "replace") != find_name(store):
        raise _explain_other(url)


def name_older(store: MetadataStore, objects: ObjectPlace) -> None:
    """Draw the name of a store that was made before places had names; nothing for one that has one.

    RefusedError, and no name is drawn, where another store has the place by now.
    """
    if find_name(store) is not None:
        return
    url = store.find_fact(OBJECTS) or ""
    # Another host may have drawn ours, and written it there, between the two looks.
    if _is_named(objects) and find_name(store) is None:
        raise _explain_other(url)
    write_name(store, objects, url)


def take_name(store: MetadataStore, objects: ObjectPlace) -> None:
    """Take the place's name for a store without one: of metadata that is let count from here on.

    It went back to before the name was drawn, or the place's other metadata is gone.
    """
    if find_name(store) is None and _is_named(objects):
        found = _read_name(objects).decode("ascii", "replace")
        store.fact(NAME, lambda: found)


def _is_named(objects: ObjectPlace) -> bool:
    try:
        objects.stat(STORE_NAME)
    except FileNotFoundError:
        return False
    return True


def _read_name(objects: ObjectPlace) -> bytes:
    return bytes(objects.read_range(STORE_NAME, 0, ID_CHARS))


def _explain_other(url: str) -> RefusedError:
    return RefusedError(
        "the objects there belong to another store, and would be collected as garbage; choose "
        "another place, or, when that store is no more and nothing of it is needed, remove the "
        f"object {STORE_NAME} first. objects={url}"
    )
