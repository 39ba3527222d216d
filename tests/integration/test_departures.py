"""Clients that go while a long answer is on its way to them, over real sockets."""

from pathlib import Path

import pytest

from tests import departures

pytestmark = pytest.mark.integration


def test_clients_that_go_in_a_long_answer_end_nothing_and_leave_nothing(tmp_path: Path) -> None:
    """The short version of `python -m tests.departures`: consumers are killed all the time."""
    assert "nothing held" in departures.run(tmp_path, connections=600)
