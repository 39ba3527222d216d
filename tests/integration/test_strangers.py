"""The short version of `python -m tests.strangers`."""

from pathlib import Path

import pytest

from tests import strangers

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("addresses", [1, 8])
def test_strangers_take_all_connections_and_nobody_notices(addresses: int, tmp_path: Path) -> None:
    """Strangers took the descriptors of the log and of compactions, and ended the daemon."""
    said = strangers.run(
        tmp_path / "here", limit=256, connections=1_500, addresses=addresses, within_s=60
    )

    assert "compactions" in said


def test_it_would_be_noticed_if_a_client_was_disconnected() -> None:
    """A check that can't fail proves nothing."""

    def ask() -> None:
        raise ConnectionResetError

    insider = strangers.Insider("a member", ask, 0)
    with pytest.raises(strangers.Violation, match="a member noticed something"):
        insider.end()
