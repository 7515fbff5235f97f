"""A broker's file given as a settings file, and the other way round, names the right option."""

from __future__ import annotations

from pathlib import Path

import pytest

from keeplast.config.layers import SettingSources
from keeplast.config.sources import read_settings
from keeplast.errors import InvalidError
from keeplast.log.files import LocalFiles

PROPERTIES = "# a broker's\nprocess.roles=broker\nnode.id=1\nlisteners=PLAINTEXT://:9092\n"
SETTINGS = "[cluster]\n'log.retention.ms' = 5\n"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("server.properties", PROPERTIES),
        ("server.properties", "log.retention.ms=5\n"),
        ("broker.conf", PROPERTIES),
        ("broker.conf", "log.dirs = /data/kafka\n"),
    ],
)
def test_a_brokers_file_as_settings_file_names_the_option_for_it(
    tmp_path: Path, name: str, text: str
) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(InvalidError, match="give it with --broker-config") as caught:
        read_settings(tmp_path, LocalFiles(), SettingSources(config_file=file, environment={}))
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    "text", [SETTINGS, "\n  [topic.\"a b\"]\n'retention.ms' = 5\n", "[topic.a]\r\n"]
)
def test_a_settings_file_as_brokers_file_names_the_option_for_it(tmp_path: Path, text: str) -> None:
    """As a broker's file it would say nothing, without a word of it."""
    file = tmp_path / "keeplast.toml"
    file.write_text(text)
    with pytest.raises(InvalidError, match="give it with --config-file"):
        read_settings(tmp_path, LocalFiles(), SettingSources(broker_config=file, environment={}))


def test_each_in_its_place_is_read(tmp_path: Path) -> None:
    properties, settings = tmp_path / "server.properties", tmp_path / "keeplast.toml"
    properties.write_text(PROPERTIES)
    settings.write_text(SETTINGS)
    read_settings(tmp_path, LocalFiles(), SettingSources(broker_config=properties, environment={}))
