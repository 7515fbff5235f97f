"""The reference pages are what the code says."""

from __future__ import annotations

import pytest

from tools.make_reference import main


def test_the_reference_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert (0, "") == (main(["--check"]), capsys.readouterr().err)
