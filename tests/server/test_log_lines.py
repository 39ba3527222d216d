"""What the daemon logs can be read by programs, and can't be forged by clients."""

import io
import json
import os
import select
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import structlog

from coordinator.server.terminal import WAITING_CHARS_MAX, LogOutput, escaped, log_event


@pytest.fixture
def lines() -> io.StringIO:
    """Log into memory."""
    stream = io.StringIO()
    LogOutput(stream).configure()
    return stream


class Screen(io.StringIO):
    """A terminal, as far as anybody looks."""

    def isatty(self) -> bool:
        """Say that it is one."""
        return True


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    """Leave the next test a log of its own."""
    yield
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


def test_what_is_below_the_level_is_not_written() -> None:
    """Who collects warnings only pays for them only."""
    stream = io.StringIO()
    LogOutput(stream).configure(level="warning")
    log_event("ready", {"entries": 1, "load_ms": 1})
    log_event("stalled", {"late_ms": 5_000})
    structlog.get_logger().critical("refused", reason="no")

    assert [json.loads(line)["level"] for line in stream.getvalue().splitlines()] == [
        "warning",
        "critical",
    ]


@pytest.mark.parametrize(
    ("form", "terminal", "is_json"),
    [
        ("auto", False, True),
        ("auto", True, False),
        ("json", True, True),
        ("text", False, False),
    ],
)
def test_the_form_is_what_was_asked_for(form: str, terminal: bool, is_json: bool) -> None:
    """A collector may read a terminal, and a person a file."""
    stream = Screen() if terminal else io.StringIO()
    LogOutput(stream).configure(form=form)
    log_event("stalled", {"late_ms": 5_000})
    text = stream.getvalue()

    assert text.startswith("{") == is_json
    assert ("\x1b[" in text) == (terminal and not is_json)  # Colours are for terminals.


def test_a_file_is_written_instead_and_opened_anew(tmp_path: Path) -> None:
    """Whoever rotates logs moves the file away and wants the next lines in a new one."""
    stream = io.StringIO()
    output, path = LogOutput(stream), tmp_path / "daemon.log"
    output.configure(path=str(path))
    log_event("stalled", {"late_ms": 1})
    path.rename(tmp_path / "old")
    log_event("stalled", {"late_ms": 2})
    output.configure(path=str(path))
    log_event("stalled", {"late_ms": 3})

    assert stream.getvalue() == ""
    late = [
        [json.loads(line)["late_ms"] for line in file.read_text(encoding="utf-8").splitlines()]
        for file in (tmp_path / "old", path)
    ]
    assert late == [[1, 2], [3]]

    output.configure()
    log_event("stalled", {"late_ms": 4})
    assert json.loads(stream.getvalue())["late_ms"] == 4


def test_a_file_that_cannot_be_opened_leaves_the_log_where_it_is(tmp_path: Path) -> None:
    """A mistake in the settings must not cost the lines that tell of it."""
    output, path = LogOutput(io.StringIO()), tmp_path / "daemon.log"
    output.configure(path=str(path))

    with pytest.raises(OSError, match="No such"):
        output.configure(path=str(tmp_path / "no" / "daemon.log"))
    log_event("stalled", {"late_ms": 1})
    output.close()
    log_event("stalled", {"late_ms": 2})  # Lost, and nothing else.
    assert json.loads(path.read_text(encoding="utf-8"))["late_ms"] == 1


def test_a_pipe_that_nobody_reads_cannot_be_opened(tmp_path: Path) -> None:
    """To wait for a reader would hold up the event loop, and whoever is served."""
    output, path = LogOutput(io.StringIO()), tmp_path / "pipe"
    os.mkfifo(path)

    with pytest.raises(OSError, match="No such device"):
        output.configure(path=str(path))
    reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    output.configure(path=str(path))
    log_event("stalled", {"late_ms": 1})
    assert json.loads(os.read(reading, 1_000))["late_ms"] == 1
    os.close(reading)
    output.close()


@contextmanager
def unread_pipe(*, blocking: bool = True) -> Iterator[tuple[int, LogOutput]]:
    """Log into a pipe that nobody reads yet."""
    reading, writing = os.pipe()
    os.set_blocking(writing, blocking)
    with open(writing, "w", encoding="utf-8") as stream:  # noqa: PTH123 - a descriptor
        output = LogOutput(stream)
        output.configure()
        output.printer.start()
        yield reading, output
        os.close(reading)  # Whoever is stuck there goes on.
        output.printer.finish(10)


def read_lines(reading: int, output: LogOutput) -> list[dict[str, object]]:
    """Return what is printed until all of it is."""
    text = b""
    is_printed = os.eventfd(0)
    output.printer.run(lambda: os.eventfd_write(is_printed, 1))
    while reading in (ready := select.select([reading, is_printed], [], [], 10)[0]):
        text += os.read(reading, 65_536)
    assert ready == [is_printed]
    os.close(is_printed)
    return [json.loads(line) for line in text.decode().splitlines()]


@pytest.mark.parametrize("blocking", [True, False])
def test_a_reader_that_stops_reading_holds_up_nobody(*, blocking: bool) -> None:
    """The event loop would stand still with its first line that doesn't fit a pipe any more."""
    told = 3 * WAITING_CHARS_MAX // 500
    with unread_pipe(blocking=blocking) as (reading, output):
        for number in range(told):
            log_event("settings.refused", {"reason": f"{number:06} " + "x" * 500})

        dropped = output.printer.dropped
        assert 0 < dropped < told
        before = read_lines(reading, output)
        assert len(before) == told - dropped
        assert [str(line["reason"])[:6] for line in before] == [
            f"{number:06}" for number in range(told - dropped)
        ]

        log_event("stalled", {"late_ms": 6})  # What comes now would seem to be the next one.
        output.printer.tell()
        log_event("stalled", {"late_ms": 7})
        output.printer.tell()
        lost, after = read_lines(reading, output)
        assert (lost["event"], lost["level"]) == ("lines.dropped", "warning")
        assert (lost["count"], after["late_ms"]) == (dropped + 1, 7)
        assert output.printer.dropped == dropped + 1


def test_nothing_is_taken_again_before_there_is_some_room() -> None:
    """A reader that is just too slow would have a line about dropped ones behind each line."""
    with unread_pipe() as (reading, output):
        while not output.printer.dropped:
            log_event("settings.refused", {"reason": "x" * 500})
        os.read(reading, 65_536)
        for _ in range(10):
            output.printer.tell()
            log_event("settings.refused", {"reason": "y" * 500})

        assert output.printer.dropped == 11


def test_a_file_that_was_replaced_has_what_was_logged_before(tmp_path: Path) -> None:
    """It is closed behind the lines that wait for it."""
    with unread_pipe() as (_, output):
        output.configure(path=str(tmp_path / "one"))
        for number in range(100):
            log_event("stalled", {"late_ms": number})
        output.configure(path=str(tmp_path / "two"))
        log_event("stalled", {"late_ms": 100})
        output.printer.finish(10)
        lines = [(tmp_path / name).read_text("utf-8").splitlines() for name in ("one", "two")]

        assert [len(each) for each in lines] == [100, 1]
        output.configure()
