"""Places in object stores keep their meaning through everything that is done to paths."""

from __future__ import annotations

from pathlib import Path

import pytest

from keeplast.errors import InvalidError
from keeplast.log.paths import is_object_path, mount_of, place_path, shown, url_of


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("s3://bucket/data/t-0", "/s3:/bucket/data/t-0"),
        ("s3a://bucket/data", "/s3:/bucket/data"),
        ("gs://bucket", "/gs:/bucket"),
        ("az://container/x/", "/az:/container/x"),
        ("s3:/bucket/x", "/s3:/bucket/x"),
        ("file:///data/logs", "/data/logs"),
        ("/data/logs", "/data/logs"),
        ("c3:/odd", "c3:/odd"),
    ],
)
def test_a_url_is_a_path(text: str, path: str) -> None:
    assert Path(path) == place_path(text)


@pytest.mark.parametrize("text", ["s3://", "s3:///x", "ftp://host/x", "s3://bucket/../other"])
def test_a_path_of_no_place_is_refused(text: str) -> None:
    with pytest.raises(InvalidError):
        place_path(text)


def test_an_object_path_stays_one() -> None:
    path = place_path("s3://bucket/data")
    for each in (path, path.absolute(), path.resolve(), (path / "t-0").parent):
        assert is_object_path(each)
        assert "s3://bucket/data" == url_of(each)
    assert Path("/s3:/bucket") == mount_of(path / "t-0" / "x.log")
    assert not is_object_path(Path("/data/s3:/bucket"))
    assert not is_object_path(Path("s3:/bucket"))


def test_people_see_urls() -> None:
    text = 'a segment. path=/s3:/bucket/t-0 at "/gs:/b/x", not /data/s3:/x or s3://b'
    expected = 'a segment. path=s3://bucket/t-0 at "gs://b/x", not /data/s3:/x or s3://b'
    assert expected == shown(text)
