"""What the daemon logged in a test, held to the catalogue of events."""

from collections.abc import Mapping, MutableMapping
from typing import Any, Final

from coordinator.events import problem_of

# What only a bug of the daemon makes it log.
BUGS: Final = frozenset({"connection.failed", "request.failed", "http.failed"})
# Each thing that was wrong, once; tests/conftest.py looks after each test.
PROBLEMS: Final[dict[str, None]] = {}


def note(line: Mapping[str, Any], level: str | None = None) -> None:
    """Look at one line."""
    problem = problem_of(line, level)
    if problem is not None:
        PROBLEMS[problem] = None


def noting(
    _logger: object, method: str, line: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Look at a line that structlog processes."""
    note(line, method)
    return line
