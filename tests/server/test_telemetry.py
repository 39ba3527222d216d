"""What becomes of the daemon when nobody takes its log lines."""

import os
from contextlib import suppress

import structlog

from coordinator.server.terminal import LogOutput


def test_a_log_reader_that_goes_away_ends_nothing() -> None:
    """A broken pipe, or a full disk behind stdout, must not reach who logs."""
    reader, writer = os.pipe()
    os.close(reader)
    stream = os.fdopen(writer, "w")
    try:
        LogOutput(stream).configure()
        structlog.get_logger().info("group.stable")
    finally:
        structlog.reset_defaults()
        with suppress(BrokenPipeError):
            stream.close()
