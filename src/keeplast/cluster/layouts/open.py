"""Which layout ``--storage`` names: the plugin, a colon, and where its objects are.

==============  ===========================================================================
``local:PATH``  Kafka's LocalTieredStorage; PATH is its setting ``dir``.
``aiven:URL``   Aiven's plugin; URL is a bucket (``s3://``, ``gs://``, ``az://``). The rest
                of it is the plugin's ``key.prefix`` as it stands. Or URL is ``file://``
                and the file system backend's ``root``.
==============  ===========================================================================

Options with a dot are the plugin's own settings (:data:`AIVEN_SETTINGS`), the others its store's.
What is not listed is refused by name: another plugin's objects look like damage, not like objects.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from keeplast.cluster.layouts.aiven import AivenLayout
from keeplast.cluster.layouts.aiven_encryption import KeyPair, KeyRing
from keeplast.cluster.layouts.layout import RemoteLayout
from keeplast.cluster.layouts.local_storage import SEGMENTS, LocalStorage
from keeplast.errors import InvalidError, RefusedError, UnavailableError
from keeplast.log.paths import SCHEMES
from keeplast.model.text import may_be_secret, shown_url
from keeplast.tier.objects.object_store import is_reference
from keeplast.tier.objects.stores import FILE, check_directory, check_place, lasting_url

LOCAL, AIVEN = "local", "aiven"
KEY_PREFIX = "key.prefix"
SEGMENT_FORMAT = "segment.format"
ENCRYPTION = "encryption.enabled"
ACTIVE_KEY = "encryption.key.pair.id"
KEY_IDS = "encryption.key.pairs"
AIVEN_SETTINGS = (KEY_PREFIX, SEGMENT_FORMAT, ENCRYPTION, ACTIVE_KEY, KEY_IDS)
_KEY_FILE = re.compile(re.escape(KEY_IDS) + r"\.(.+)\.(public|private)\.key\.file\Z")
_PREFIX = re.compile(r"(?:(?!\.{1,2}/)[A-Za-z0-9._=+,@:-]+/)*[A-Za-z0-9._=+,@:-]*\Z")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_URL = re.compile(r"([a-z][a-z0-9]*)://([^/]+)(?:/(.*))?\Z", re.DOTALL)


def open_layout(storage: str, options: Mapping[str, str] | None = None) -> RemoteLayout:
    """Return the layout that ``storage`` names; ``options`` are its store's and its plugin's.

    Values of options are as people give them: ``@FILE`` and ``env:NAME`` are read by each process
    where it needs them. A secret may be given in no other way. InvalidError for a layout or an
    option that is not known, RefusedError for what is known and cannot be worked with.
    UnavailableError for a directory that is not there.
    """
    plugin, separator, place = storage.partition(":")
    if not separator or not place or plugin not in (LOCAL, AIVEN):
        raise InvalidError(
            "not a storage plugin that is known; give local:PATH for Kafka's LocalTieredStorage or "
            f"aiven:URL for Aiven's plugin. storage={shown_url(storage)}",
            code="K441",
        )
    given = dict(options or {})
    if plugin == LOCAL:
        return _open_local(place, given)
    return _open_aiven(place, given)


def _open_local(place: str, options: Mapping[str, str]) -> LocalStorage:
    if options:
        raise InvalidError(
            "a directory has no options; leave them out. "
            f"option={next(iter(options))} storage={LOCAL}:{shown_url(place)}",
            code="K103",
        )
    if _SCHEME.match(place):
        raise InvalidError(
            f"{LOCAL} takes the path of a directory and no URL; give {LOCAL}:PATH, or {AIVEN}:URL "
            f"for objects of Aiven's plugin. storage={LOCAL}:{shown_url(place)}",
            code="K302",
        )
    path = Path(place).absolute()
    if path.name == SEGMENTS:
        path = path.parent
    if not (path / SEGMENTS).is_dir():
        # Not made absolute: what was meant to be an address may carry a password.
        shown = path if place.startswith(("/", ".", "~")) else shown_url(place)
        raise UnavailableError(
            f"there is no folder {SEGMENTS} in it; name the directory that the plugin's setting "
            f"dir has, and see that its volume is mounted. path={shown}",
            code="K304",
        )
    return LocalStorage(path)


def _open_aiven(url: str, options: Mapping[str, str]) -> AivenLayout:
    settings = {name: value for name, value in options.items() if "." in name}
    format_ = settings.get(SEGMENT_FORMAT, "kafka")
    if format_ != "kafka":
        raise RefusedError(
            "segments in this format are tables and no logs; topics in it cannot be compacted. "
            f"{SEGMENT_FORMAT}={format_}",
            code="K438",
        )
    root, prefix = _place(url, settings)
    for name, value in options.items():
        if may_be_secret(name) and name not in settings and not is_reference(value):
            raise InvalidError(
                "an option of a store may be a secret, and is sent about; give it as "
                f"{name}=@FILE or {name}=env:NAME, or leave it to the environment. option={name}",
                code="K119",
            )
    keys = _key_ring(settings)
    store = tuple(sorted((name, text) for name, text in options.items() if name not in settings))
    return AivenLayout(root, prefix, store, keys, _flag(settings, ENCRYPTION))


def _place(url: str, settings: Mapping[str, str]) -> tuple[str, str]:
    """Return the URL of bucket or root, and the prefix of all keys in it."""
    prefix = settings.get(KEY_PREFIX, "")
    if url.startswith(FILE) or "://" not in url:
        root = lasting_url(url)
        check_directory(root)
    else:
        check_place(url)
        match = _URL.match(url)
        if match is None or match[1] not in SCHEMES or ":" in match[2]:
            raise InvalidError(
                "objects of Aiven's plugin are in a bucket; give s3://BUCKET, gs://BUCKET, "
                f"az://CONTAINER or file:///ROOT. url={shown_url(url)}",
                code="K302",
            )
        root = f"{SCHEMES[match[1]]}://{match[2]}"
        if match[3] and prefix:
            raise InvalidError(
                f"the prefix is given twice; say it in the URL or as {KEY_PREFIX}. "
                f"url={shown_url(url)} {KEY_PREFIX}={prefix}",
                code="K101",
            )
        prefix = match[3] or prefix
    if _PREFIX.match(prefix) is None:
        raise InvalidError(
            "a prefix of keys is put in front of them as it stands; it begins with no slash, and "
            f"has letters, digits and any of . _ - = + , @ : in it. {KEY_PREFIX}={prefix!r}",
            code="K303",
        )
    return root, prefix


def _key_ring(settings: Mapping[str, str]) -> KeyRing:
    named = [each.strip() for each in settings.get(KEY_IDS, "").split(",") if each.strip()]
    files: dict[tuple[str, str], Path] = {}
    for name, value in settings.items():
        match = _KEY_FILE.match(name)
        if match is not None and match[1] in named:
            files[match[1], match[2]] = Path(value).expanduser().absolute()
        elif match is not None:
            raise InvalidError(
                f"files of a key pair that {KEY_IDS} does not name. option={name} "
                f"{KEY_IDS}={','.join(named)}",
                code="K439",
            )
        elif name not in AIVEN_SETTINGS:
            raise InvalidError(
                "not a setting of Aiven's plugin that is used here; leave it out. "
                f"option={name} known={', '.join(AIVEN_SETTINGS)}, {KEY_IDS}.ID.public.key.file, "
                f"{KEY_IDS}.ID.private.key.file",
                code="K303",
            )
    pairs = tuple(
        KeyPair(each, files.get((each, "public")), files.get((each, "private"))) for each in named
    )
    for pair in pairs:
        if pair.private_file is None or ":" in pair.key_id:
            raise InvalidError(
                "a key pair needs a private key to read with, and an id without a colon; name its "
                f"file ({KEY_IDS}.{pair.key_id}.private.key.file)",
                code="K439",
            )
    active = settings.get(ACTIVE_KEY)
    if active is not None and active not in named:
        raise InvalidError(
            f"the key pair for writing is not in the key ring. {ACTIVE_KEY}={active} "
            f"{KEY_IDS}={','.join(named)}",
            code="K439",
        )
    if active is None and _flag(settings, ENCRYPTION):
        raise InvalidError(f"name the key pair to encrypt with. option={ACTIVE_KEY}", code="K439")
    ring = KeyRing(pairs, active)
    ring.check()
    return ring


def _flag(settings: Mapping[str, str], name: str) -> bool:
    text = settings.get(name, "false").lower()
    if text not in ("true", "false"):
        raise InvalidError(f"give true or false. {name}={text}", code="K104")
    return text == "true"
