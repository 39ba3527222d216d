"""What tests of the package for Spark share."""

import pytest


@pytest.fixture(autouse=True)
def spark_shows_tracebacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo what an error tells Spark in its own process: here it would hold for all later tests."""
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")
