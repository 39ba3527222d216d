"""Break the machines on purpose: a model that doesn't notice proves nothing."""

from typing import Final

import pytest

from coordinator.log.errors import LogError
from tests.cluster.bugs import BUGS, SET_BACK_BUGS
from tests.cluster.model import History, Violation

# Several times as many as each of the bugs takes.
SEEDS_MAX: Final = 300


@pytest.mark.parametrize("bug", sorted({**BUGS, **SET_BACK_BUGS}))
def test_the_model_notices(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each mistake breaks a promise within a few histories, and not by an accident of its own."""
    {**BUGS, **SET_BACK_BUGS}[bug](monkeypatch)
    for seed in range(SEEDS_MAX):
        try:
            History(seed, is_set_back=bug in SET_BACK_BUGS).run()
        except (Violation, LogError):
            return
    pytest.fail(f"{SEEDS_MAX} histories did not notice")
