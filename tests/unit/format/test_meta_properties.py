from __future__ import annotations

import pytest

from keeplast.errors import CorruptError
from keeplast.format.meta_properties import MetaProperties, decode, encode
from keeplast.format.properties import decode_properties

WRITTEN = b"""#
#Fri Nov 21 09:00:00 UTC 2025
cluster.id=5L6g3nShT-eMCtK--X86sw
directory.id=lZ6vvmajTWKDBUTV6SQAtQ
node.id=1
version=1
"""


def test_file_of_a_broker() -> None:
    expected = MetaProperties(1, "5L6g3nShT-eMCtK--X86sw", 1, "lZ6vvmajTWKDBUTV6SQAtQ")
    assert expected == decode(WRITTEN)


@pytest.mark.parametrize(
    "properties",
    [
        MetaProperties(1, "c", 1, "lZ6vvmajTWKDBUTV6SQAtQ"),
        MetaProperties(1, " a=b:c\\#!é\t", 7),
        MetaProperties(0, None, 3),
        MetaProperties(0, "c", None),
    ],
)
def test_properties_read_back(properties: MetaProperties) -> None:
    assert properties == decode(encode(properties))


def test_version_is_0_when_missing() -> None:
    assert MetaProperties(0, None, 5) == decode(b"broker.id=5\n")


@pytest.mark.parametrize(
    "data",
    [
        b"version=2\n",
        b"version=one\n",
        b"version=1\nnode.id=1\n",
        b"version=1\ncluster.id=c\n",
        b"version=1\ncluster.id=c\nnode.id=x\n",
        b"version=1\ncluster.id=c\nnode.id=99999999999\n",
        b"cluster.id=\\u12\n",
    ],
)
def test_anything_else_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptError) as caught:
        decode(data)
    assert caught.value.position is not None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", {"a": "b"}),
        ("  a : b ", {"a": "b "}),
        ("a b=c", {"a": "b=c"}),
        ("a", {"a": ""}),
        ("a\\ b=c\\\\", {"a b": "c\\"}),
        ("a=b\\\n   c\n! no\n# no\\\nd=e", {"a": "bc", "d": "e"}),
        ("a=\\u00e9\\t\\q", {"a": "é\tq"}),
        ("a=1\ra=2", {"a": "2"}),
        ("a=b\\", {"a": "b"}),
        ("=b", {"": "b"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("\\\n# no\na=b", {"a": "b"}),
        ("\\\n\na=b", {"a": "b"}),
        ("\\\n", {"": ""}),
    ],
)
def test_java_properties(text: str, expected: dict[str, str]) -> None:
    assert expected == decode_properties(text.encode("latin-1"))
