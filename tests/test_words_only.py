"""The proof that a change is one of words alone."""

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

CODE_OF: Final[Callable[[str], Any]] = runpy.run_path(
    str(Path(__file__).parents[1] / "tools/words_only.py")
)["code_of"]

OLD: Final = '''"""A module."""

import os  # noqa: F401 - why

LIMIT = 3  # Tries.


def f(x: int) -> int:
    """Return it."""
    return x  # type: ignore[misc]


class Empty:
    """Only words."""
'''


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"""A module."""', '"""Another\n\ntext."""'),
        ('    """Return it."""\n', ""),
        ('    """Return it."""\n', "    # Why.\n"),
        ("# Tries.", "# Attempts, at most."),
        ("- why", "- another reason"),
        ('    """Only words."""', "    ..."),
    ],
)
def test_words_may_change(old: str, new: str) -> None:
    """Docstrings and comments are for people."""
    assert CODE_OF(OLD) == CODE_OF(OLD.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("LIMIT = 3", "LIMIT = 4"),
        ("    return x", '    return "x"'),
        ("  # noqa: F401 - why", ""),
        ("noqa: F401", "noqa: F811"),
        ("  # type: ignore[misc]", ""),
        ("x: int", "y: int"),
    ],
)
def test_nothing_else_may_change(old: str, new: str) -> None:
    """What a tool reads is code, also in a comment."""
    assert CODE_OF(OLD) != CODE_OF(OLD.replace(old, new))
