"""Peers that are slow, many, odd, or gone."""

import errno
from collections import Counter
from collections.abc import Callable

import pytest
import trio
import trio.testing

from coordinator.http.routes import Answer, EventStream, HttpRequest, Refused, Route, Streaming
from coordinator.http.server import UNDER_WAY_MAX, WAITING_MAX
from tests.fakes.transport import MemoryTransport
from tests.http.listener import Listener, get, listener, replies, text

LONG = b"x" * 1_000_000
# Connections of one address: number n comes from `address.format(n)`.
HOSTS = pytest.mark.parametrize("address", ["192.0.2.1", "2001:db8::{}"])


async def settle() -> None:
    """Let everybody who can do something do it."""
    await trio.testing.wait_all_tasks_blocked()


async def test_a_request_may_come_byte_by_byte(autojump_clock: object) -> None:
    """The network cuts where it likes."""
    async with listener(text("/x", b"whole")) as here:
        peer = here.connect()
        for byte in get("/x") * 2:
            peer.put(bytes([byte]))
            await settle()

        assert [b"whole", b"whole"] == [reply.body for reply in replies(peer)]


async def test_a_head_gets_the_headers_of_a_get_alone(autojump_clock: object) -> None:
    """The length, too: a monitor may ask for nothing else."""
    async with listener(text("/x", b"body")) as here:
        [reply] = await here.ask(get("/x", method="HEAD"), method="HEAD")

    assert (200, b"", "4") == (reply.status, reply.body, reply.headers["content-length"])


async def test_what_the_peer_has_is_not_sent_and_the_connection_goes_on(
    autojump_clock: object,
) -> None:
    """A page that asks every second gets a few bytes."""
    async with listener(text("/x", b"body", etag='"v1"')) as here:
        known, changed = await here.ask(
            get("/x", 'If-None-Match: "v1"'), get("/x", 'If-None-Match: "v0"')
        )

    assert (304, b"", '"v1"') == (known.status, known.body, known.headers["etag"])
    assert "content-length" not in known.headers
    assert (200, b"body") == (changed.status, changed.body)


@pytest.mark.parametrize(
    "request_bytes", [get("/x", version="1.0"), get("/x", "Connection: close")]
)
async def test_the_connection_closes_when_the_peer_wants_it(
    autojump_clock: object, request_bytes: bytes
) -> None:
    """HTTP/1.0 does always."""
    async with listener(text("/x", b"body")) as here:
        peer = here.connect()
        peer.put(request_bytes)
        await settle()

        assert peer.closed
        assert b"body" == replies(peer)[0].body


async def test_a_peer_that_sends_no_more_still_gets_its_answer(autojump_clock: object) -> None:
    """`printf … | nc` ends its side at once."""
    async with listener(text("/x", b"body")) as here:
        peer = here.connect()
        peer.put(get("/x"))
        peer.end()
        await settle()

        assert peer.closed
        assert b"body" == replies(peer)[0].body


async def test_an_offer_to_speak_http_2_is_passed_over(autojump_clock: object) -> None:
    """Curl makes it, and goes on in HTTP/1.1 if nobody takes it."""
    upgrade = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")
    async with listener(text("/x", b"body")) as here:
        first, second = await here.ask(get("/x", *upgrade), get("/x"))

    assert (b"body", b"body") == (first.body, second.body)


@pytest.mark.parametrize(
    ("sent", "after_s", "reason"),
    [
        (b"", 10, None),
        (b"GET / HTTP/1.1\r\nHost: loc", 10, "it stopped in the middle of a request"),
        (get("/x"), 600, None),
    ],
)
async def test_a_silent_peer_is_closed_after_its_time(
    autojump_clock: object, sent: bytes, after_s: float, reason: str | None
) -> None:
    """By the settings of the native listener; who has only nothing to ask is no warning worth."""
    async with listener(text("/x", b"body")) as here:
        peer = here.connect()
        peer.put(sent)
        await trio.sleep(after_s - 1)
        assert not peer.closed
        await trio.sleep(3)

        assert peer.closed
        assert ([("connection.closed", reason)] if reason else []) == here.warned


async def test_dripping_a_head_wins_no_time(autojump_clock: object) -> None:
    """A slow loris holds its connection for ten seconds, and no longer."""
    async with listener(text("/x", b"body")) as here:
        peer = here.connect()
        for byte in get("/x", "X: " + "x" * 100):
            peer.put(bytes([byte]))
            await trio.sleep(1)
            if peer.closed:
                break

        assert 10 <= trio.current_time() <= 13
        assert [("connection.closed", "it stopped in the middle of a request")] == here.warned


async def test_a_long_answer_leaves_as_the_peer_takes_it(autojump_clock: object) -> None:
    """Its parts are sent in their order, and nothing twice."""
    parts = [bytes([n]) * 70_000 for n in range(10)]
    async with listener(text("/x", *parts)) as here:
        peer = here.connect()
        peer.give_room(1)
        peer.put(get("/x") + get("/nothing"))
        await settle()
        for room in (7, 100_000, 65_536, 1, 65_535, 300_000):
            peer.give_room(room)
            await settle()
        assert len(peer.received) == 1 + 7 + 100_000 + 65_536 + 1 + 65_535 + 300_000
        peer.give_room(None)
        await settle()
        whole, missing = replies(peer)

    assert b"".join(parts) == whole.body
    assert 404 == missing.status


async def test_a_peer_that_takes_nothing_is_cut_off(autojump_clock: object) -> None:
    """It holds an answer in memory as long as it stays."""
    async with listener(text("/x", LONG)) as here:
        peer = here.connect()
        peer.give_room(1000)
        peer.put(get("/x"))
        await trio.sleep(8)
        assert not peer.closed
        await trio.sleep(4)

        assert peer.closed
        assert [("connection.closed", "it takes no answers")] == here.warned


async def test_a_peer_that_takes_next_to_nothing_is_cut_off(autojump_clock: object) -> None:
    """A byte every second would hold the answer for days."""
    async with listener(text("/x", LONG)) as here:
        peer = here.connect()
        peer.give_room(1000)
        peer.put(get("/x"))
        while not peer.closed:
            await trio.sleep(1)
            peer.give_room(1)

        assert 10 + 1_000_000 / 65_536 - 1 <= trio.current_time() <= 10 + 1_000_000 / 65_536 + 3
        assert [("connection.closed", "it takes its answer too slowly")] == here.warned


async def test_who_holds_an_answer_longest_makes_room(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many that never read must not fill the memory, nor keep Prometheus from its scrape."""
    monkeypatch.setattr("coordinator.http.server.UNSENT_BYTES_MAX", 3_500_000)
    async with listener(text("/x", LONG)) as here:
        readers = [here.connect() for _ in range(5)]
        for peer in readers:
            peer.give_room(1000)
            peer.put(get("/x"))
            await settle()

        assert [True, True, False, False, False] == [peer.closed for peer in readers]
        readers[4].give_room(None)
        await settle()
        assert LONG == replies(readers[4])[0].body


@HOSTS
async def test_the_address_that_holds_the_most_makes_room(
    address: str, autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else whoever never reads has those closed who read slowly."""
    monkeypatch.setattr("coordinator.http.server.UNSENT_BYTES_MAX", 3_500_000)
    async with listener(text("/x", LONG)) as here:
        slow = here.connect(peer="192.0.2.99")
        greedy = [here.connect(peer=address.format(n)) for n in range(4)]
        for peer in (slow, *greedy):
            peer.give_room(1000)
            peer.put(get("/x"))
            await settle()

        assert not slow.closed
        assert [True, True, False, False] == [peer.closed for peer in greedy]


async def test_a_peer_that_breaks_off_is_forgotten(autojump_clock: object) -> None:
    """Before, in the middle of, and behind a request."""
    async with listener(text("/x", LONG)) as here:
        peers = [here.connect() for _ in range(4)]
        peers[1].put(get("/x")[:20])
        peers[2].put(get("/x"))
        peers[3].give_room(100)
        peers[3].put(get("/x"))
        await settle()
        for peer in peers:
            peer.reset()
        await settle()

        assert all(peer.closed for peer in peers)
        assert [] == list(here.sessions)
        assert 0 == here.environment.metrics["http_connections"]()


async def test_one_connection_too_many_is_closed_at_once(autojump_clock: object) -> None:
    """A thousand fit, and each is answered."""
    async with listener(text("/x", b"body"), settings=["http.max.connections=1000"]) as here:
        peers: list[MemoryTransport] = []
        for n in range(1000):
            peers.append(here.connect(peer=f"192.0.2.{n % 2}"))
            await settle()
        extra = here.connect()
        await settle()
        assert extra.closed
        assert [("connection.refused", "http.max.connections")] == here.warned
        for peer in peers:
            peer.put(get("/x"))
            await settle()

        assert {b"body"} == {replies(peer)[0].body for peer in peers}


async def test_connections_that_are_not_taken_are_counted(autojump_clock: object) -> None:
    """A scrape that is refused tells nobody of it; the next one can."""
    async with listener(settings=["http.max.connections=4"]) as here:
        for peer in (1, 1, 1, 1, 2, 3):
            here.connect(peer=f"192.0.2.{peer}")
        here.door.arrive(OSError(errno.EMFILE, "too many open files"))
        here.door.arrive(OSError(errno.ECONNRESET, "reset"))
        await settle()
        await trio.sleep(1)

        refused = here.telemetry.http_connections_refused
        assert {"max_connections_per_ip": 1, "max_connections": 1, "descriptors": 1} == refused
        assert not +Counter(here.telemetry.http_connections_closed)


def _says_nothing(_peer: MemoryTransport) -> None:
    pass


def _stops_inside(peer: MemoryTransport) -> None:
    peer.put(get("/x")[:20])


def _asks_once(peer: MemoryTransport) -> None:
    peer.put(get("/x", "Connection: close"))


def _takes_nothing(peer: MemoryTransport) -> None:
    peer.give_room(0)
    peer.put(get("/x"))


def _speaks_something_else(peer: MemoryTransport) -> None:
    peer.put(b"nonsense\r\n\r\n")


def _leaves_after_a_refusal(peer: MemoryTransport) -> None:
    peer.put(get("/x", method="PUT"))
    peer.end()


def _speaks_tls(peer: MemoryTransport) -> None:
    peer.put(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc")


@pytest.mark.parametrize(
    ("what", "why"),
    [
        (_says_nothing, "idle"),
        (_stops_inside, "unfinished_request"),
        (_asks_once, "peer"),
        (MemoryTransport.reset, "peer"),
        (_takes_nothing, "slow_reader"),
        (_speaks_something_else, "malformed"),
        (_leaves_after_a_refusal, "malformed"),
        (_speaks_tls, "malformed"),
    ],
)
async def test_connections_are_counted_by_why_they_end(
    autojump_clock: object, what: Callable[[MemoryTransport], None], why: str
) -> None:
    """Once each; who alerts on slow readers must not be woken by idle ones."""
    async with listener(text("/x", b"body")) as here:
        what(here.connect())
        await settle()
        await trio.sleep(30)

        assert {why: 1} == +Counter(here.telemetry.http_connections_closed)


async def test_streams_are_counted_by_why_they_end(autojump_clock: object) -> None:
    """A restart, and a log-in that ends, look like browsers that leave otherwise."""
    streams = Streams()
    async with listener(streams.route) as here:
        left, over, slow, _ = [await follow(here) for _ in range(4)]
        left.end()
        streams.open[1].end("the log-in behind it has ended")
        slow.give_room(0)
        streams.open[2].send(b"x" * 300_000)
        await settle()
        assert over.closed

    closed = +Counter(here.telemetry.http_connections_closed)
    assert {"peer": 1, "unauthenticated": 1, "slow_reader": 1, "shutdown": 1} == closed


async def test_the_rest_of_a_refused_body_is_dropped(autojump_clock: object) -> None:
    """Closing at once would have the system throw away the answer that says why."""
    async with listener(text("/x", b"never")) as here:
        peer = here.connect()
        peer.put(get("/x", "Content-Length: 100000"))
        await settle()
        assert 413 == replies(peer)[0].status
        peer.put(b"b" * 100_000)
        await settle()
        assert (0, False, b"") == (peer.unread_bytes, peer.closed, bytes(peer.received))
        peer.end()
        await settle()

        assert peer.closed


async def test_what_is_no_request_behind_a_request_is_refused_once(autojump_clock: object) -> None:
    """Part of it was read with the request, and the rest comes as that is answered."""
    events: dict[str, trio.Event] = {}
    async with listener(waiting(events)) as here:
        peer = here.connect()
        peer.put(get("/wait/x") + b"nonsense")
        await settle()
        peer.put(b" and more\r\n\r\n")
        await settle()
        events["x"].set()
        await settle()

        assert [200, 400] == [reply.status for reply in replies(peer)]
        assert not peer.closed  # The peer may not have read yet why.
        peer.end()
        await settle()
        assert peer.closed


async def test_a_refused_peer_that_goes_on_is_closed(autojump_clock: object) -> None:
    """Neither time nor bytes without end."""
    async with listener() as here:
        silent, endless = here.connect(), here.connect()
        for peer in (silent, endless):
            peer.put(b"nonsense\r\n\r\n")
        await settle()
        endless.put(b"b" * 2_000_000)
        await settle()
        assert endless.closed
        await trio.sleep(4)

        assert silent.closed


# --- handlers -------------------------------------------------------------------------------


def waiting(here: dict[str, trio.Event]) -> Route:
    """Return a route that answers a name when its event is set."""

    async def handler(request: HttpRequest) -> Answer:
        name = request.names["name"]
        await here.setdefault(name, trio.Event()).wait()
        return Answer(body=(name.encode(),))

    return Route("/wait/{name}", handler)


async def test_only_so_many_are_under_way_and_so_many_wait(autojump_clock: object) -> None:
    """What is too much is told so at once, and health goes beside them."""
    events: dict[str, trio.Event] = {}
    async with listener(waiting(events), text("/livez", b"ok", quick=True)) as here:
        peers: list[MemoryTransport] = []
        for n in range(UNDER_WAY_MAX + WAITING_MAX):
            peers.append(here.connect(peer=f"192.0.2.{n % 2}"))
            peers[n].put(get(f"/wait/{n}"))
            await settle()
        [shed] = await here.ask(get("/wait/more"))
        [alive] = await here.ask(get("/livez"))
        peers[UNDER_WAY_MAX].reset()  # It waits no more, and makes room.
        await settle()
        late = here.connect(peer="192.0.2.0")
        late.put(get("/wait/late"))
        await settle()
        assert UNDER_WAY_MAX == len(events)

        assert (503, "1") == (shed.status, shed.headers["retry-after"])
        assert b"ok" == alive.body
        assert b"" == late.received
        events["3"].set()
        await settle()
        assert b"3" == replies(peers[3])[0].body
        assert UNDER_WAY_MAX + 1 == len(events)
        assert str(UNDER_WAY_MAX + 2) in events  # The next one of that address.


@HOSTS
async def test_one_address_neither_waits_for_all_nor_before_all(
    address: str, autojump_clock: object
) -> None:
    """Whoever asks without end would else keep Prometheus from its scrape."""
    events: dict[str, trio.Event] = {}
    async with listener(waiting(events)) as here:
        peers = map(address.format, range(UNDER_WAY_MAX + WAITING_MAX))
        greedy = [here.connect(peer=peer) for peer in peers]
        for n, peer in enumerate(greedy):
            peer.put(get(f"/wait/{n}"))
            await settle()
        other = here.connect(peer="192.0.2.99")
        other.put(get("/wait/other"))
        await settle()
        shed = sum(peer.received.startswith(b"HTTP/1.1 503") for peer in greedy)
        assert WAITING_MAX // 2 == shed
        assert "other" not in events

        for n in range(2):
            events[str(n)].set()
            await settle()
        assert [*map(str, range(UNDER_WAY_MAX + 1)), "other"] == list(events)


@HOSTS
async def test_one_address_leaves_a_quarter_of_the_connections(
    address: str, autojump_clock: object
) -> None:
    """And has as many again when some of its own have ended."""
    async with listener(text("/x", b"body"), settings=["http.max.connections=8"]) as here:
        greedy = [here.connect(peer=address.format(n)) for n in range(7)]
        others = [here.connect(peer="192.0.2.99") for _ in range(2)]
        await settle()
        assert [False] * 6 + [True] == [peer.closed for peer in greedy]
        assert not any(peer.closed for peer in others)

        greedy[0].reset()
        await settle()
        again = here.connect(peer=address.format(7))
        again.put(get("/x"))
        await settle()
        assert b"body" == replies(again)[0].body


@HOSTS
async def test_one_address_leaves_a_quarter_of_the_streams(
    address: str, autojump_clock: object
) -> None:
    """The pages of others are told what changes."""
    streams = Streams()
    async with listener(streams.route, settings=["http.max.event.streams=4"]) as here:
        for n in range(3):
            await follow(here, address.format(n))
        [reply] = replies(await follow(here, address.format(3)))
        assert 503 == reply.status
        other = here.connect(peer="192.0.2.99")
        other.put(get("/events"))
        await settle()

        assert 4 == len(streams.open)


async def test_those_who_waited_for_the_same_are_answered_one_after_the_other(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scrape is the same for all, and to send it to sixteen in one go took 13 ms."""
    is_made = trio.Event()
    answered: list[int] = []

    async def handler(_request: HttpRequest) -> Answer:
        await is_made.wait()
        return Answer(body=(LONG,))

    async with listener(Route("/x", handler)) as here:
        peers = [here.connect() for _ in range(UNDER_WAY_MAX)]
        for peer in peers:
            peer.put(get("/x"))
        await settle()
        pause = here.pace.pause

        async def noted() -> None:
            answered.append(sum(bool(peer.received) for peer in peers))
            await pause()

        monkeypatch.setattr(here.pace, "pause", noted)
        is_made.set()
        await settle()

        assert all(len(peer.received) > len(LONG) for peer in peers)
    assert set(range(UNDER_WAY_MAX)) <= set(answered)


async def test_a_bug_in_a_handler_is_logged_and_not_told(
    autojump_clock: object, capsys: pytest.CaptureFixture[str]
) -> None:
    """What an exception says may be anything; its number finds it in the log."""

    async def broken(_request: HttpRequest) -> Answer:
        raise RuntimeError("the secret")

    async def unsendable(_request: HttpRequest) -> Answer:
        return Answer(headers={"x": "a\r\nb"})

    async with listener(Route("/x", broken), Route("/y", unsendable), text("/z", b"well")) as here:
        failed, well = await here.ask(get("/x"), get("/z"))
        peer = here.connect()
        peer.put(get("/y"))
        await settle()

    assert 500 == failed.status
    assert b"secret" not in failed.body
    assert b"error 1 in the daemon's log" in failed.body
    assert b"well" == well.body
    assert peer.closed
    assert "the secret" in capsys.readouterr().out


async def test_a_quick_handler_that_waits_is_a_bug(
    autojump_clock: object, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is run within a round, where nobody may; what it refuses or breaks is told as usual."""

    async def waits(_request: HttpRequest) -> Answer:
        await trio.lowlevel.checkpoint()
        return Answer()

    async def refuses(_request: HttpRequest) -> Answer:
        raise Refused(503, "not now")

    async def breaks(_request: HttpRequest) -> Answer:
        raise RuntimeError

    routes = {"/a": waits, "/b": refuses, "/c": breaks}
    async with listener(*(Route(t, h, is_quick=True) for t, h in routes.items())) as here:
        replies = await here.ask(get("/a"), get("/b"), get("/c"))

    assert [500, 503, 500] == [reply.status for reply in replies]
    assert "the handler of a quick route waits" in capsys.readouterr().out


async def test_a_refusal_of_a_handler_is_a_problem(autojump_clock: object) -> None:
    """With when to come again, where that is known."""

    async def loading(_request: HttpRequest) -> Answer:
        raise Refused(503, "it is loaded just now", retry_after_s=1)

    async with listener(Route("/x", loading)) as here:
        [reply] = await here.ask(get("/x"))

    assert (503, "1") == (reply.status, reply.headers["retry-after"])
    assert (
        b'{"type":"about:blank","title":"Service Unavailable","status":503,'
        b'"detail":"it is loaded just now"}'
    ) == reply.body


# --- event streams ----------------------------------------------------------------------------


class Streams:
    """A route whose streams the test feeds."""

    def __init__(self) -> None:
        self.open: list[EventStream] = []
        self.ended: list[EventStream] = []
        self.route = Route("/events", self._handle)

    async def _handle(self, _request: HttpRequest) -> Streaming:
        return Streaming(self.open.append, self.ended.append)


async def follow(here: Listener, address: str = "192.0.2.1") -> MemoryTransport:
    """Open a stream."""
    peer = here.connect(peer=address)
    peer.put(get("/events", "Accept: text/event-stream"))
    await settle()
    return peer


async def test_events_reach_whoever_follows(autojump_clock: object) -> None:
    """As the bytes that they are, without frames around them."""
    streams = Streams()
    async with listener(streams.route) as here:
        peer = await follow(here)
        head, _, rest = bytes(peer.received).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"content-type: text/event-stream" in head
        assert b"cache-control: no-store" in head
        assert b"x-content-type-options: nosniff" in head
        assert b"" == rest
        streams.open[0].send(b"data: 1\n\n")
        streams.open[0].send(b"data: 2\n\n")

        assert bytes(peer.received).endswith(b"\r\n\r\ndata: 1\n\ndata: 2\n\n")
        peer.put(get("/events"))  # What it says meanwhile is passed over.
        await trio.sleep(1000)
        assert (False, 1) == (peer.closed, len(streams.open))
        peer.end()
        await settle()

        assert streams.open == streams.ended
        assert (True, False) == (peer.closed, streams.open[0].is_open)
        streams.open[0].send(b"data: 3\n\n")  # Nobody is there; nothing happens.


async def test_a_follower_that_does_not_keep_up_is_cut_off(autojump_clock: object) -> None:
    """256 KiB wait for it, and nobody waits for it."""
    streams = Streams()
    async with listener(streams.route) as here:
        peer = await follow(here)
        peer.give_room(0)
        frame = b"x" * 1024
        for _ in range(256):
            streams.open[0].send(frame)
        assert not peer.closed
        streams.open[0].send(frame)

        assert peer.closed
        assert streams.open == streams.ended
        assert [("connection.closed", "too many events wait behind a slow read")] == here.warned


async def test_a_follower_that_takes_nothing_is_cut_off(autojump_clock: object) -> None:
    """After the time that an answer would have."""
    streams = Streams()
    async with listener(streams.route) as here:
        peer = await follow(here)
        peer.give_room(0)
        streams.open[0].send(b"data: 1\n\n")
        await trio.sleep(13)

        assert peer.closed
        assert streams.open == streams.ended


async def test_one_follower_too_many_comes_again_later(autojump_clock: object) -> None:
    """A browser does by itself."""
    streams = Streams()
    async with listener(streams.route, settings=["http.max.event.streams=2"]) as here:
        first = await follow(here)
        await follow(here)
        [reply] = replies(await follow(here))
        assert (503, "10") == (reply.status, reply.headers["retry-after"])
        assert 2 == here.environment.metrics["http_event_streams"]()
        first.reset()
        await settle()
        await follow(here)

        assert 3 == len(streams.open)


async def test_asking_for_the_head_of_a_stream_opens_none(autojump_clock: object) -> None:
    """Nobody would ever end it."""
    streams = Streams()
    async with listener(streams.route) as here:
        peer = here.connect()
        peer.put(get("/events", method="HEAD"))
        await settle()

        assert peer.closed
        assert peer.received.startswith(b"HTTP/1.1 200 OK\r\n")
        assert [] == streams.open


async def test_all_streams_end_with_the_listener(autojump_clock: object) -> None:
    """A daemon that stops leaves nobody waiting."""
    streams = Streams()
    async with listener(streams.route) as here:
        peers = [await follow(here) for _ in range(3)]

    assert all(peer.closed for peer in peers)
    assert streams.open == streams.ended


async def test_a_peer_that_speaks_tls_here_is_closed_with_a_hint(autojump_clock: object) -> None:
    """What it would be answered is nothing that it can read."""
    async with listener(text("/x", b"body")) as here:
        peer = here.connect()
        peer.put(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc")
        await settle()

        assert peer.closed
        assert peer.received == b""
        assert [
            ("connection.closed", "it speaks TLS to a listener without (http.listeners)")
        ] == here.warned
