"""A hundred thousand hostile frames and requests; `python -m tests.fuzz` sends ten millions.

A failure names its seed: `python -m tests.fuzz --seed 17 --episodes 1` sends the same again.
"""

from typing import Final

import pytest

from tests.fuzz.episode import CALL_S, FRAMES, STALL_MAX_S, run_episode

EPISODES: Final = 25


@pytest.mark.parametrize("seed", range(1, EPISODES + 1))
def test_whatever_comes_is_answered_or_closed_and_nothing_is_left(seed: int) -> None:
    """Hostile clients of both listeners cost nobody an answer, and nothing stays of them."""
    report = run_episode(seed)

    assert report.frames >= FRAMES
    assert report.answers > FRAMES / 4, "most were never looked at"
    assert report.members > 2, "no deep state was reached"
    assert report.commits > 10
    assert report.longest_step * CALL_S < STALL_MAX_S


def test_an_episode_can_be_repeated() -> None:
    """A failure that can't be repeated can't be understood."""
    assert run_episode(1, 1_000) == run_episode(1, 1_000)
