"""Each planted bug is noticed by the test that must notice it."""

import pytest

from tests.planted.bugs import BUGS
from tests.planted.runner import is_caught


@pytest.mark.nightly
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_noticed(name: str) -> None:
    """A test that notices nothing any more promises nothing."""
    assert is_caught(name)
