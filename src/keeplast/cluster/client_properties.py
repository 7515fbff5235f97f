"""Kafka's client properties, as its own tools read them, said to the client that is used here.

The rule: **no value of a file is ever shown**. Errors name keys and lines alone. A word that is no
key of Kafka's kind is not shown either: in another file, given by mistake, it may be a password. A
key that means something and cannot be carried over is refused. A client that left out a security
setting would talk to the wrong party.

Answers to ``CommonClientConfigs``, ``SaslConfigs``, ``SslConfigs`` and the JAAS grammar of
``sasl.jaas.config``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from keeplast.errors import CorruptError, InvalidError
from keeplast.format.properties import read_properties
from keeplast.log.files import LocalFiles

FILE_BYTES_MAX = 1 << 20

_SAME = frozenset(
    {
        "client.id", "client.rack", "security.protocol", "sasl.kerberos.service.name",
        "ssl.key.password", "retry.backoff.ms", "ssl.cipher.suites",
        "retry.backoff.max.ms", "reconnect.backoff.ms", "reconnect.backoff.max.ms",
        "connections.max.idle.ms", "metadata.max.age.ms", "sasl.oauthbearer.token.endpoint.url",
        "client.dns.lookup",
    }
)  # fmt: skip
_RENAMED = {
    "sasl.mechanism": "sasl.mechanisms",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "request.timeout.ms": "socket.timeout.ms",
}
_WITHOUT_EFFECT = ("acks", "key.", "value.", "group.id", "auto.offset.reset", "enable.auto.commit",
                   "metric", "default.api.timeout.ms", "batch.size", "linger.ms", "compression.",
                   "max.poll.", "fetch.", "ssl.protocol", "ssl.enabled.protocols",
                   "include.jmx.reporter", "isolation.level")  # fmt: skip
"""Beginnings of keys of consumers and producers that say nothing about how to connect."""
_PLAIN_MODULES = ("PlainLoginModule", "ScramLoginModule")
_MODULE = re.compile(r"\s*([\w.$]+)\s+(?:required|requisite|sufficient|optional)\b(.*);\s*\Z", re.S)
_OPTION = re.compile(r"""\s*([\w.]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|(\S+))""")
_SHOWN_KEY = re.compile(r"(?=.{1,100}\Z)[A-Za-z][A-Za-z0-9]*(?:[._-][A-Za-z0-9]+)+\Z")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_PEM, _PKCS12 = "PEM", "PKCS12"
_Refusal = Callable[[str, str], InvalidError]
"""Makes the error for a key and why it cannot be used."""


def read_client_properties(path: Path | None, name: str) -> dict[str, str]:
    """Return the client's settings for a file, none without one.

    InvalidError when it cannot be used; ``name`` is the option that gave it.
    """
    if path is None:
        return {}
    path = path.expanduser().resolve()
    try:
        data = LocalFiles().read_bytes(path, FILE_BYTES_MAX)
    except FileNotFoundError as error:
        raise InvalidError(f"no such file. {name}={path}", code="K110") from error
    return decode_client_properties(data, str(path))


def decode_client_properties(data: bytes, path: str) -> dict[str, str]:
    """Return the client's settings for what a ``client.properties`` file says.

    InvalidError names the key and its line when one cannot be carried over.
    """
    lines: dict[str, int] = {}
    given: dict[str, str] = {}

    def refused(key: str, why: str) -> InvalidError:
        shown = key if _SHOWN_KEY.match(key) else "(not shown)"
        return InvalidError(f"{why}. key={shown} line={lines.get(key)} path={path}", code="K124")

    if data.startswith(_BYTE_ORDER_MARK):
        raise InvalidError(
            f"the file begins with a byte order mark; save it without. path={path}", code="K124"
        )
    try:
        for each in read_properties(data):
            lines[each.key], given[each.key] = each.line, each.value.strip()
            if "\0" in each.key + each.value:
                raise refused(each.key, "a character that ends every text for the client")
    except CorruptError as error:
        raise InvalidError(f"{error} path={path}", code="K124") from None
    found: dict[str, str] = {}
    for key, value in given.items():
        if key in _RENAMED:
            found[_RENAMED[key]] = value
        elif key in _SAME:
            found[key] = value
        elif key == "bootstrap.servers":
            continue
        elif key == "sasl.jaas.config":
            found.update(_login(value, refused))
        elif key == "ssl.endpoint.identification.algorithm":
            found[key] = value or "none"
        elif not key.startswith(("ssl.truststore.", "ssl.keystore.")) and not key.startswith(
            _WITHOUT_EFFECT
        ):
            raise refused(
                key, "a setting that this client does not know; leave it out, or say it otherwise"
            )
    found.update(_truststore(given, refused))
    found.update(_keystore(given, refused))
    return found


def _login(value: str, refused: _Refusal) -> dict[str, str]:
    key = "sasl.jaas.config"
    match = _MODULE.match(value)
    if match is None:
        raise refused(key, "not a login module with its options, ended by a semicolon")
    module = match[1].rpartition(".")[2]
    options = {
        name: re.sub(r"\\(.)", r"\1", double or single or bare)
        for name, double, single, bare in _OPTION.findall(match[2])
    }
    if module not in _PLAIN_MODULES:
        shown = " or ".join(_PLAIN_MODULES)
        raise refused(key, f"a login module that is not supported; use {shown}")
    if "username" not in options or "password" not in options:
        raise refused(key, "the login module has no username, or no password")
    return {"sasl.username": options["username"], "sasl.password": options["password"]}


def _truststore(given: Mapping[str, str], refused: _Refusal) -> dict[str, str]:
    if given.get("ssl.truststore.certificates"):
        return {"ssl.ca.pem": given["ssl.truststore.certificates"]}
    location = given.get("ssl.truststore.location")
    if not location:
        return {}
    if given.get("ssl.truststore.type", "JKS").upper() != _PEM:
        raise refused(
            "ssl.truststore.location",
            "only certificates in PEM are read; export them (keytool -exportcert -rfc) and set "
            "ssl.truststore.type=PEM",
        )
    return {"ssl.ca.location": location}


def _keystore(given: Mapping[str, str], refused: _Refusal) -> dict[str, str]:
    if given.get("ssl.keystore.certificate.chain") and given.get("ssl.keystore.key"):
        return {
            "ssl.certificate.pem": given["ssl.keystore.certificate.chain"],
            "ssl.key.pem": given["ssl.keystore.key"],
        }
    location = given.get("ssl.keystore.location")
    if not location:
        return {}
    kind = given.get("ssl.keystore.type", "JKS").upper()
    if kind == _PKCS12:
        password = given.get("ssl.keystore.password", "")
        return {"ssl.keystore.location": location, "ssl.keystore.password": password}
    if kind == _PEM:
        return {"ssl.certificate.location": location, "ssl.key.location": location}
    raise refused(
        "ssl.keystore.location",
        "only PKCS12 and PEM are read; convert it (keytool -importkeystore -deststoretype pkcs12) "
        "and set ssl.keystore.type=PKCS12",
    )
