"""What the daemon logs can be read by programs, and can't be forged by clients."""

import io
import json
from collections.abc import Iterator

import pytest
import structlog

from coordinator.server.terminal import configure_logging, escaped


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """Log into memory; the configuration is put back afterwards."""
    stream = io.StringIO()
    configure_logging(stream)
    yield stream
    structlog.reset_defaults()


def test_an_event_is_one_json_line(lines: io.StringIO) -> None:
    """Scripts and collectors read them line by line."""
    structlog.get_logger().info("group.generation", group="g", generation=4)
    (line,) = lines.getvalue().splitlines()
    event = json.loads(line)

    assert (event["event"], event["group"], event["generation"]) == ("group.generation", "g", 4)
    assert event["level"] == "info"
    assert event["timestamp"].endswith("Z")


def test_names_from_clients_cannot_forge_a_line(lines: io.StringIO) -> None:
    """Control characters are escaped, lengths bounded."""
    structlog.get_logger().info("x", client_id='a\n{"event": "ready"}\x1b[2J', reason="y" * 100_000)
    (line,) = lines.getvalue().splitlines()
    event = json.loads(line)

    assert "\n" not in event["client_id"]
    assert "\x1b" not in event["client_id"]
    assert len(line) < 2_000


def test_an_exception_is_one_line_too(lines: io.StringIO) -> None:
    """A traceback of many lines would be many events to a collector."""
    structlog.get_logger().error("request.failed", exc_info=ZeroDivisionError("planted"))
    (line,) = lines.getvalue().splitlines()

    assert "ZeroDivisionError: planted" in json.loads(line)["exception"]


@pytest.mark.parametrize(
    ("text", "escapedd"),
    [("plain", "plain"), ("группа", "группа"), ("a\nb", "a\\nb"), ("\0", "\\x00")],
)
def test_printable_text_stays_as_it_is(text: str, escapedd: str) -> None:
    """Escaping everything would make other alphabets unreadable."""
    assert escaped(text) == escapedd
