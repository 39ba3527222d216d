"""What holds for all tests: how much the property tests search, and what may be logged."""

import os
from collections.abc import Iterator
from typing import Final

import pytest
import structlog
from hypothesis import HealthCheck, settings

from tests import logged

# The nightly run multiplies every property test's number of examples.
EXAMPLES_FACTOR: Final = int(os.environ.get("EXAMPLES_FACTOR", "1"))

# No test depends on how fast the machine is at the moment. Before the property tests are read,
# because their settings begin with these.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

# Hypothesis keeps a test's settings here, and lets nobody decorate a test twice.
_SETTINGS: Final = "_hypothesis_internal_use_settings"


def searching_longer(once: settings, factor: int) -> settings:
    """Return the settings *once* with *factor* times the examples."""
    return settings(once, max_examples=once.max_examples * factor)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have the property tests search longer where that is asked for."""
    if EXAMPLES_FACTOR == 1:
        return
    seen: set[object] = set()
    for item in items:
        test = getattr(item, "obj", None)
        machine = getattr(item, "cls", None)
        owner, name = (
            (machine, "settings")
            if isinstance(getattr(machine, "settings", None), settings)
            else (getattr(test, "__func__", test), _SETTINGS)
        )
        once = getattr(owner, name, None)
        # The parameter sets of one test share one object.
        if isinstance(once, settings) and owner not in seen:
            seen.add(owner)
            setattr(owner, name, searching_longer(once, EXAMPLES_FACTOR))


@pytest.fixture(autouse=True)
def catalogued() -> Iterator[None]:
    """Whatever a daemon logs, in memory or as a process, is in the catalogue as it was logged."""
    structlog.configure(processors=[logged.noting, *structlog.get_config()["processors"]])
    yield
    structlog.reset_defaults()
    problems = list(logged.PROBLEMS)
    logged.PROBLEMS.clear()
    assert problems == []
