"""Which layout ``--storage`` names: the plugin, a colon, and where its objects are.

========================  ====================================================================
``local:PATH``            Kafka's LocalTieredStorage; PATH is its setting ``dir``
``aiven:URL``             Aiven's plugin; URL is a bucket (``s3://``, ``gs://``, ``az://``) or the
                          file system backend's ``root`` (``file://``)
========================  ====================================================================

What is not listed is refused by name: another plugin's objects look like damage, not like objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from keeplast.cluster.layouts.layout import RemoteLayout
from keeplast.cluster.layouts.local_storage import SEGMENTS, LocalStorage
from keeplast.errors import InvalidError, UnavailableError
from keeplast.model.redaction import shown_url

LOCAL, AIVEN = "local", "aiven"


def open_layout(storage: str, options: Mapping[str, str] | None = None) -> RemoteLayout:
    """Return the layout that ``storage`` names; ``options`` are its store's and its plugin's.

    InvalidError for a layout or an option that is not known, UnavailableError for a directory that
    is not there.
    """
    plugin, separator, place = storage.partition(":")
    if not separator or not place or plugin not in (LOCAL, AIVEN):
        raise InvalidError(
            "not a storage plugin that is known; give local:PATH for Kafka's LocalTieredStorage or "
            f"aiven:URL for Aiven's plugin. storage={shown_url(storage)}"
        )
    given = dict(options or {})
    if plugin == LOCAL:
        return _open_local(place, given)
    raise InvalidError(f"this layout is not there yet. storage={shown_url(storage)}")


def _open_local(place: str, options: Mapping[str, str]) -> LocalStorage:
    if options:
        raise InvalidError(
            "a directory has no options; leave them out. "
            f"option={next(iter(options))} storage={LOCAL}:{place}"
        )
    path = Path(place).absolute()
    if path.name == SEGMENTS:
        path = path.parent
    if not (path / SEGMENTS).is_dir():
        raise UnavailableError(
            f"there is no folder {SEGMENTS} in it; name the directory that the plugin's setting "
            f"dir has, and see that its volume is mounted. path={path}"
        )
    return LocalStorage(path)
