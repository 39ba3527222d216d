"""What the client's log says of an outage: one line when it begins, one when it is over."""

import errno
import logging
import socket

import pytest
import trio
from hypothesis import given, strategies as st
from trio.testing import MockClock

from client import (
    CoordinatorUnavailable,
    ErrorCode,
    OutcomeUnknown,
    RetrySettings,
    TopicPartition,
    connect,
)
from client.outages import CHARS_MAX, Outages, in_words, one_line, refusals_of
from protocol import messages as m
from tests.client.conftest import World
from tests.fakes.scripted_server import Drop, Hang

T0 = TopicPartition("t", 0)


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Return level and text of what the client logged."""
    return [
        (record.levelname, record.getMessage())
        for record in caplog.records
        if record.name == "client.connection"
    ]


@pytest.fixture(autouse=True)
def _at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "client")


async def test_an_outage_makes_two_lines_however_long_it_lasts(
    autojump_clock: MockClock, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Forty attempts are no forty lines."""
    async with world.connect(request_timeout_ms=120_000) as client:
        await client.commit("g", {T0: 1})
        assert lines(caplog) == []

        world.server.script(m.OffsetCommitRequest, Drop(applied=False))
        world.server.unreachable = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.commit, "g", {T0: 2})
            await trio.sleep(1)  # Whoever sends while it closes may notice it in other words.
            nursery.start_soon(client.fetch_offsets, "h")
            await trio.sleep(59)
            world.server.unreachable = False

    (first, began), (second, ended) = lines(caplog)
    assert (first, second) == ("WARNING", "INFO")
    assert began == "node1:9310: the server closed the connection; trying again"
    assert ended.startswith("node1:9310 answers again, after 6")


async def test_answers_about_other_groups_dont_end_a_load(
    autojump_clock: MockClock, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise each retry would make two lines while another group is served."""
    async with world.connect() as client:
        world.server.script(m.OffsetCommitRequest, *[14] * 20)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.commit, "loading", {T0: 2})
            await trio.testing.wait_all_tasks_blocked()
            for _ in range(10):
                await client.fetch_offsets("served")
                await trio.sleep(1)

    (first, began), (second, _) = lines(caplog)
    assert (first, second) == ("WARNING", "INFO")
    assert began.startswith("node1:9310 answered COORDINATOR_LOAD_IN_PROGRESS (14)")


async def test_callers_that_give_up_one_after_the_other_find_one_outage(
    autojump_clock: MockClock, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Each has its exception; the log has the outage."""
    async with world.connect(request_timeout_ms=500) as client:
        world.server.unreachable = True
        for stream in world.server.streams:
            await stream.aclose()
        for _ in range(5):
            with pytest.raises(CoordinatorUnavailable):
                await client.fetch_offsets("g")
        world.server.unreachable = False
        await client.fetch_offsets("g")

    assert [level for level, _ in lines(caplog)] == ["WARNING", "INFO"]


async def test_each_address_has_its_own_line(
    autojump_clock: MockClock, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Also one that is down while another one serves: nobody would notice otherwise."""
    world.server.unreachable = True
    async with world.connect(["node1:9310", "node2:9310"]) as client:
        world.other.coordinator = world.other.address
        await client.commit("g", {T0: 1})

    ((level, text),) = lines(caplog)
    assert level == "WARNING"
    assert text.startswith("node1:9310 could not be connected")


async def test_closing_a_client_is_no_outage(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The caller did that."""
    async with world.connect() as client, client.join("g", ["t"], {"t": 1}) as member:
        await member.assignment()

    assert lines(caplog) == []


async def test_nobody_listens_there_is_one_line_with_the_systems_words(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A real socket's refusal, in the log and in the exception, which has nothing chained to it."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(CoordinatorUnavailable) as caught:
            # It gives up after the first attempt: the pause would take longer than there is time.
            async with connect(
                address, request_timeout_ms=5_000, retry=RetrySettings(20_000, 20_000)
            ):
                pass

    what = f"{address} could not be connected: Connection refused"
    assert str(caught.value) == f"no coordinator answers: {what}"
    assert isinstance(caught.value.cause, ConnectionRefusedError)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert lines(caplog) == [("WARNING", f"{what}; trying again")]


async def test_a_call_that_gives_up_has_nothing_chained_to_it(
    autojump_clock: MockClock, world: World
) -> None:
    """One traceback, one line."""
    async with world.connect(request_timeout_ms=500) as client:
        world.server.unreachable = True
        world.server.script(m.OffsetFetchRequest, Drop())
        with pytest.raises(CoordinatorUnavailable) as caught:
            await client.fetch_offsets("g" * 200)

    assert caught.value.__context__ is None
    assert "\n" not in str(caught.value)


async def test_a_single_attempt_is_no_attempts(autojump_clock: MockClock, world: World) -> None:
    """Which is what a hanging coordinator comes to."""
    async with world.connect(request_timeout_ms=500) as client:
        world.server.script(m.OffsetFetchRequest, Hang())
        with pytest.raises(CoordinatorUnavailable, match="gave up after 1 attempt;"):
            await client.fetch_offsets("g")


async def test_the_cause_is_the_last_attempts(
    autojump_clock: MockClock, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit keeps it, too, whose outcome is unknown; a refusal of before is no cause."""

    async def refuse(*_: object) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        raise ConnectionRefusedError(errno.ECONNREFUSED, "refused")

    async with world.connect(request_timeout_ms=5_000) as client:
        await client.list_groups()
        world.server.script(m.OffsetCommitRequest, Drop())
        monkeypatch.setattr(client._router, "_open_stream", refuse)
        with pytest.raises(OutcomeUnknown, match="Connection refused") as caught:
            await client.commit("g", {T0: 1})
        assert isinstance(caught.value.cause, ConnectionRefusedError)

        async def come_back() -> None:
            await trio.sleep(2)
            monkeypatch.undo()

        world.server.script(m.OffsetFetchRequest, *[ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 99)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(come_back)
            with pytest.raises(CoordinatorUnavailable, match="LOAD") as loading:
                await client.fetch_offsets("g")

    assert loading.value.cause is None


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a:1", "b:2"]),
            st.integers(0, 3),
            st.sampled_from(["failed", "answered", "gone"]),
        )
    )
)
def test_lines_alternate_whatever_happens(events: list[tuple[str, int, str]]) -> None:
    """No line for a retry, none for an address that was never away, and none left out."""
    told: dict[str, list[str]] = {"a:1": [], "b:2": []}

    class Told(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = record.getMessage()
            told[text.split()[0].rstrip(":")].append(record.levelname)

    logger, handler = logging.getLogger("client.connection"), Told()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    outages = Outages()
    troubled: dict[str, set[int]] = {"a:1": set(), "b:2": set()}
    away: set[str] = set()
    try:
        for at, (address, caller, event) in enumerate(events):
            if event == "failed":
                outages.failed(address, f"{address}: why", caller, at)
                troubled[address].add(caller)
                away.add(address)
                continue
            for callers in troubled.values():
                callers.discard(caller)
            if event == "gone":
                outages.gone(caller)
                continue
            outages.answered(address, caller, at)
            if not troubled[address]:
                away.discard(address)
    finally:
        logger.removeHandler(handler)

    for address, levels in told.items():
        expected = ["WARNING", "INFO"] * len(levels)
        assert levels == expected[: len(levels)]
        assert (len(levels) % 2 == 1) == (address in away)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb\x1b[31m", "a\\nb\\x1b[31m"),
        ("x" * 10_000, "x" * (CHARS_MAX - 1) + "…"),
        ("größe", "größe"),
    ],
)
def test_a_hostile_name_stays_one_short_line(text: str, shown: str) -> None:
    """Addresses and answers are other people's words."""
    assert one_line(text) == shown


def test_reasons_are_said_once_each() -> None:
    """A name may stand for ten addresses that all refuse."""
    refused = [ConnectionRefusedError(111, "no"), ConnectionRefusedError(111, "no")]
    error = OSError("all attempts failed")
    error.__cause__ = ExceptionGroup("", [*refused, TimeoutError(110, "slow")])

    assert in_words(refusals_of(error)) == "Connection refused; Connection timed out"
    unknown = socket.gaierror(-2, "Name or service not known")
    assert in_words(refusals_of(unknown)) == "Name or service not known"
    assert refusals_of(ValueError("other")) == []
