"""Plants one bug in a run of pytest: `PLANTED_BUG=torn_tail pytest -p tests.planted.plugin …`."""

import os

import pytest

from tests.planted.bugs import BUGS


def pytest_configure() -> None:
    """Plant it, for as long as the process lives."""
    BUGS[os.environ["PLANTED_BUG"]].plant(pytest.MonkeyPatch())
