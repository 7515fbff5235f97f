"""Kafka's client.properties, said to the client that is used here."""

from __future__ import annotations

import re

import pytest

from keeplast.cluster.client_properties import decode_client_properties
from keeplast.errors import InvalidError


def decoded(*lines: str) -> dict[str, str]:
    return decode_client_properties("\n".join(lines).encode(), "/etc/client.properties")


def test_scram_over_tls() -> None:
    found = decoded(
        "# how our tools connect",
        "bootstrap.servers=other:9092",
        "security.protocol=SASL_SSL",
        "sasl.mechanism=SCRAM-SHA-512",
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\",
        '    username="look" password="it\\\\"s; secret";',
        "ssl.truststore.type=PEM",
        "ssl.truststore.location=/etc/ca.pem",
        "ssl.endpoint.identification.algorithm=",
        "request.timeout.ms=20000",
        "max.poll.records=10",
    )
    assert found == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": "SCRAM-SHA-512",
        "sasl.username": "look",
        "sasl.password": 'it"s; secret',
        "ssl.ca.location": "/etc/ca.pem",
        "ssl.endpoint.identification.algorithm": "none",
        "socket.timeout.ms": "20000",
    }


def test_a_client_certificate() -> None:
    assert decoded(
        "security.protocol=SSL",
        "ssl.keystore.type=PKCS12",
        "ssl.keystore.location=/etc/me.p12",
        "ssl.keystore.password=hunter2",
    ) == {
        "security.protocol": "SSL",
        "ssl.keystore.location": "/etc/me.p12",
        "ssl.keystore.password": "hunter2",
    }


def test_a_file_of_another_system_is_read_alike() -> None:
    assert {"security.protocol": "SASL_SSL", "sasl.username": "u", "sasl.password": "p w"} == (
        decode_client_properties(
            b"# how\r\nsecurity.protocol=SASL_SSL\r\n\r\nsasl.jaas.config=a.PlainLoginModule "
            b'required \\\r\n  username="u" \\\r\n  password="p w";\r\n',
            "x",
        )
    )


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"hunter2", "key=(not shown) line=1"),
        (b"acks=1\n" + b"hunter2" * 100_000, "key=(not shown) line=2"),
        (b"\xff\xfeh\0u\0n\0t\0e\0r\0002\0", "ends every text"),
        (b"ssl.key.password=hunter2\0", "key=ssl.key.password line=1"),
        (b"sasl.jaas.config=\\u12 hunter2", "malformed escape"),
        (b"\xef\xbb\xbfssl.key.password=hunter2\r\n", "byte order mark"),
    ],
)
def test_a_file_that_was_meant_for_something_else_is_not_shown(data: bytes, words: str) -> None:
    with pytest.raises(InvalidError, match=re.escape(words)) as caught:
        decode_client_properties(data, "/etc/client.properties")
    assert "hunter2" not in str(caught.value)
    assert "path=/etc/client.properties" in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("lines", "key"),
    [
        (("sasl.jaas.config=nonsense password=hunter2",), "sasl.jaas.config"),
        (("sasl.jaas.config=a.PlainLoginModule required username=u;",), "sasl.jaas.config"),
        (("sasl.jaas.config=a.Krb5LoginModule required x=hunter2;",), "sasl.jaas.config"),
        (("ssl.truststore.location=/etc/ca.jks",), "ssl.truststore.location"),
        (("ssl.keystore.location=/etc/me.jks",), "ssl.keystore.location"),
        (("sasl.login.callback.handler.class=hunter2",), "sasl.login.callback.handler.class"),
        (("security.protocl=hunter2",), "security.protocl"),
    ],
)
def test_a_property_that_cannot_be_carried_over_is_refused_by_name_alone(
    lines: tuple[str, ...], key: str
) -> None:
    with pytest.raises(
        InvalidError, match=re.escape(f"key={key} line=2 path=/etc/client.properties")
    ) as caught:
        decoded("# first", *lines)
    assert "hunter2" not in str(caught.value)
