"""Who is let in over HTTP: each way to say who one is, through the listener itself."""

import base64
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock

from coordinator.group.acls import Rules
from coordinator.group.quotas import Quotas, QuotaSet
from coordinator.http import login
from coordinator.http.connection import BODY_BYTES_MAX
from coordinator.http.entry import Entry
from coordinator.http.routes import Answer, HttpRequest, Refused, Route
from coordinator.http.viewer import Viewer
from coordinator.security.accounts import Account
from coordinator.server.attempts import ATTEMPTS, Attempts
from coordinator.server.authorization import Authorizer
from coordinator.server.throttles import Throttles
from tests.http.listener import Listener, Reply, get, listener
from tests.security.test_accounts import People, tokens

ALICE = "User:alice"
COOKIE = "group-coordinator-session"
SECURE_COOKIE = "__Host-group-coordinator-session"
SAME_SITE = ("Origin: http://localhost", "Content-Type: application/json")
LOG_IN = {"name": "alice", "password": "secret"}


async def _who_at_once(request: HttpRequest) -> Answer:
    viewer = request.viewer
    return Answer(body=(f"{viewer.principal} by {viewer.way}".encode(),))


async def _who(request: HttpRequest) -> Answer:
    await trio.lowlevel.checkpoint()
    return await _who_at_once(request)


async def _node(request: HttpRequest) -> Answer:
    await trio.lowlevel.checkpoint()
    request.need_cluster()
    return Answer()


async def _at_once(work: Callable[[], Account]) -> Account:
    await trio.lowlevel.checkpoint()
    return work()


class Site:
    """A listener that asks who somebody is.

    Attributes:
        people: Alice, who has a password, and a token.
        quotas: Hers, none so far.
        attempts: What failed, also by the native listener.
        is_ready: Whether users are loaded.
        works: What the handlers of ``/long…`` do.
    """

    def __init__(self, here: Listener, people: People, quotas: Quotas, attempts: Attempts) -> None:
        self.here = here
        self.people = people
        self.quotas = quotas
        self.attempts = attempts
        self.is_ready = True
        self.works: Callable[[], None] = lambda: None

    async def ask(self, *lines: str, path: str = "/who", method: str = "GET", **peer: Any) -> Reply:
        """Return the answer to one request."""
        (reply,) = await self.here.ask(get(path, *lines, method=method), method=method, **peer)
        return reply

    async def post(
        self,
        path: str,
        said: object,
        *lines: str,
        headers: Sequence[str] = SAME_SITE,
        is_tls: bool = True,
        **peer: Any,
    ) -> Reply:
        """Return the answer to a POST of *said*."""
        body = said if isinstance(said, bytes) else msgspec.json.encode(said)
        if is_tls:
            headers = [line.replace("http://", "https://") for line in headers]
        head = get(path, *headers, *lines, f"Content-Length: {len(body)}", method="POST")
        (reply,) = await self.here.ask(head + body, method="POST", is_tls=is_tls, **peer)
        return reply

    async def log_in(self, said: Mapping[str, str] = LOG_IN, **peer: Any) -> str:
        """Log in; return the line of the cookie."""
        reply = await self.post("/api/v1/login", said, **peer)
        assert 200 == reply.status, reply.body
        return "Cookie: " + reply.headers["set-cookie"].partition(";")[0]


@asynccontextmanager
async def site() -> AsyncIterator[Site]:
    """Run one as long as the block lasts."""
    people = People()
    places: list[Site] = []
    people.add("alice", "secret")
    people.tokens = tokens(("alice", "t0ken", ""))
    quotas, attempts = Quotas(), Attempts()

    def entry(here: Listener) -> Entry:
        return Entry(
            people.accounts,
            Authorizer(Rules(), is_on=True, is_registered=lambda _topic: False),
            now=here.environment.now,
            audit=here.audit,
            throttles=Throttles(
                quotas,
                lambda: here.environment.now().mono_ms,
                lambda _delay_ms, _owner, _act: None,
                here.environment.telemetry,
            ),
            attempts=attempts,
            is_ready=lambda: not places or places[0].is_ready,
            run_in_thread=_at_once,
        )

    def more(here: Listener) -> list[Route]:
        return [route for one in login.operations(here.entry) for route in one.routes()]

    open_route = Route("/open", _who, is_open=True)
    quick_route = Route("/quick", _who_at_once, is_quick=True)

    async def work_at_once(_request: HttpRequest) -> Answer:
        places[0].works()
        return Answer()

    async def work(request: HttpRequest) -> Answer:
        await trio.lowlevel.checkpoint()
        return await work_at_once(request)

    async def work_for_nothing(request: HttpRequest) -> Answer:
        await work(request)
        raise Refused(404, "there is nothing")

    long_routes = (
        Route("/long", work),
        Route("/long-quick", work_at_once, is_quick=True),
        Route("/long-nothing", work_for_nothing),
    )
    routes = (Route("/who", _who), Route("/node", _node), open_route, quick_route, *long_routes)
    async with listener(*routes, entry=entry, more=more) as here:
        places.append(Site(here, people, quotas, attempts))
        yield places[0]


def basic(name: str, password: str) -> str:
    """Return the header."""
    return "Authorization: Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


# --- each way ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "peer", "said"),
    [
        ("Authorization: Bearer t0ken", {}, b"User:alice by token"),
        ("authorization: bearer  t0ken", {}, b"User:alice by token"),
        (basic("alice", "secret"), {"is_tls": True}, b"User:alice by password"),
        ("X: y", {"is_tls": True, "principal": "User:bob"}, b"User:bob by certificate"),
        (
            "Authorization: Bearer t0ken",
            {"is_tls": True, "principal": "User:bob"},
            b"User:alice by token",
        ),
    ],
)
async def test_whoever_says_who_he_is_comes_in(
    line: str, peer: dict[str, Any], said: bytes, autojump_clock: MockClock
) -> None:
    """What a request says counts more than what its connection does."""
    async with site() as here:
        assert (200, said) == (await here.ask(line, **peer))[::2]


@pytest.mark.parametrize(
    ("lines", "peer"),
    [
        ((), {}),
        (("Authorization: Bearer other",), {}),
        (("Authorization: Bearer",), {}),
        (("Authorization: Negotiate t0ken",), {}),
        (("Authorization: Basic !!",), {"is_tls": True}),
        ((basic("alice", "Secret"),), {"is_tls": True}),
        ((basic("nobody", "secret"),), {"is_tls": True}),
        ((f"Cookie: {COOKIE}=guessed",), {}),
        # A wrong one is no better with a certificate beside it.
        (("Authorization: Bearer other",), {"is_tls": True, "principal": "User:bob"}),
    ],
)
async def test_nobody_else_does(
    lines: Sequence[str], peer: dict[str, Any], autojump_clock: MockClock
) -> None:
    """With a clear problem, and nothing for which a browser would open a dialog of its own."""
    async with site() as here:
        reply = await here.ask(*lines, **peer)

        assert (401, "application/problem+json") == (reply.status, reply.headers["content-type"])
        assert 'Bearer realm="group-coordinator"' == reply.headers["www-authenticate"]
        assert 401 == msgspec.json.decode(reply.body)["status"]


async def test_a_wrong_password_is_answered_like_that_of_nobody(autojump_clock: MockClock) -> None:
    """Else one could look up who is there."""
    async with site() as here:
        said = [
            (await here.ask(basic(name, "wrong"), is_tls=True)).body for name in ("alice", "bob")
        ]
        assert said[0] == said[1]


async def test_a_quick_answer_waits_for_a_password_that_takes_a_while(
    autojump_clock: MockClock,
) -> None:
    """Else whoever sends any password would be everybody."""
    async with site() as here:
        right, wrong = [
            await here.ask(basic("alice", secret), path="/quick", is_tls=True)
            for secret in ("secret", "wrong")
        ]

        assert b"User:alice by password" == right.body
        assert 401 == wrong.status


async def test_what_is_open_needs_nobody(autojump_clock: MockClock) -> None:
    """A probe of Kubernetes has no account, and a wrong one does no harm there."""
    async with site() as here:
        for line in ("X: y", "Authorization: Bearer other"):
            assert 200 == (await here.ask(line, path="/open")).status


async def test_a_password_is_taken_over_tls_only(autojump_clock: MockClock) -> None:
    """It would be read by everybody between, and is then good for everything."""
    async with site() as here:
        reply = await here.ask(basic("alice", "secret"))
        posted = await here.post("/api/v1/login", LOG_IN, is_tls=False)

        assert [403, 403] == [reply.status, posted.status]
        assert b"over TLS only" in reply.body
        assert [] == here.people.looked


async def test_who_guesses_is_stopped_before_anything_is_compared(
    autojump_clock: MockClock,
) -> None:
    """By whatever way; the right one isn't looked at either, so nothing can be learned."""
    async with site() as here:
        for _ in range(ATTEMPTS // 2):
            await here.ask(basic("alice", "wrong"), is_tls=True)
            await here.ask("Authorization: Bearer wrong")
        here.people.looked.clear()
        stopped = [
            await here.ask(basic("alice", "secret"), is_tls=True),
            await here.ask("Authorization: Bearer t0ken"),
            await here.post("/api/v1/login", LOG_IN),
        ]

        assert [429] * 3 == [reply.status for reply in stopped]
        assert "6" == stopped[0].headers["retry-after"]
        assert [] == here.people.looked
        assert 200 == (await here.ask("Authorization: Bearer t0ken", peer="192.0.2.2")).status
        await trio.sleep(6)
        assert 200 == (await here.ask("Authorization: Bearer t0ken")).status


async def test_the_audit_hears_why_and_nothing_secret(autojump_clock: MockClock) -> None:
    """Who looks after it has to know what the asker must not."""
    async with site() as here:
        await here.ask("Authorization: Bearer t0psecret")
        await here.ask(basic("alice", "t0psecret"), is_tls=True)
        await here.ask(f"Cookie: {COOKIE}=t0psecret")
        await here.log_in()

        events, told = [name for name, _ in here.here.audited], str(here.here.audited)
        assert ["login.refused"] * 3 + ["http.logged_in"] == events
        ways = [(one["principal"], one.get("mechanism")) for _, one in here.here.audited]
        nobody = "User:ANONYMOUS"
        assert [(nobody, "token"), (nobody, "password"), (nobody, "cookie"), (ALICE, None)] == ways
        assert "no known token" in told
        assert "t0psecret" not in told
        assert "secret" not in told.replace("t0psecret", "")


async def test_the_audit_hears_what_was_not_allowed(autojump_clock: MockClock) -> None:
    """As it does of clients; that something is of another site is no matter of rights."""
    async with site() as here:
        token = "Authorization: Bearer t0ken"
        assert 403 == (await here.ask(token, path="/node?group=a%2Fb")).status
        assert 403 == (await here.ask(token, "Sec-Fetch-Site: cross-site", path="/node")).status
        assert 404 == (await here.ask(token, path="/nowhere")).status

        assert here.here.audited == [
            (
                "access.refused",
                {
                    "peer": "192.0.2.1",
                    "principal": ALICE,
                    "api": "GET /node",
                    "what": "/node?group=a%2Fb",
                    "error": 31,
                    "why": "no right to it",
                },
            )
        ]


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ((), "log in, or send a bearer token"),
        (("Authorization: Negotiate t0ken",), "Authorization is neither Bearer nor Basic"),
    ],
)
async def test_the_audit_hears_of_who_does_not_say_who_he_is(
    lines: Sequence[str], why: str, autojump_clock: MockClock
) -> None:
    """He looks for what is open, and left no trace; a query may have what is secret."""
    async with site() as here:
        assert 401 == (await here.ask(*lines, path="/node?token=t0ken")).status

        ((event, told),) = here.here.audited
        assert "access.refused" == event
        assert told == {
            "peer": "192.0.2.1",
            "principal": "User:ANONYMOUS",
            "api": "GET /node",
            "what": "/node",
            "why": why,
        }


async def test_nobody_is_a_stranger_while_users_are_loaded(autojump_clock: MockClock) -> None:
    """A program that is told 401 gives up; it only came too early."""
    async with site() as here:
        here.is_ready = False
        said = [
            await here.ask("Authorization: Bearer t0ken"),
            await here.ask(basic("alice", "secret"), is_tls=True),
            await here.post("/api/v1/login", LOG_IN),
        ]
        assert [(503, "1")] * 3 == [(one.status, one.headers["retry-after"]) for one in said]
        here.is_ready = True
        assert 200 == (await here.ask("Authorization: Bearer t0ken")).status


async def test_a_log_in_outlives_another_load_of_users(autojump_clock: MockClock) -> None:
    """Nobody has a password then; a page that follows events would end its log-in by that."""
    async with site() as here:
        connection = here.here.connect(is_tls=True)
        lines = (await here.log_in(), basic("alice", "secret"))
        assert here.here.entry is not None
        viewers = []
        for name, _, value in (line.partition(": ") for line in lines):
            found = here.here.entry.viewer({name.lower(): value}, connection)
            viewers.append(found if isinstance(found, Viewer) else await found())
        users = dict(here.people.users)

        here.is_ready = False
        here.people.users.clear()
        assert [True, True] == [viewer.is_known() for viewer in viewers]
        assert not any(viewer.knows_rules for viewer in viewers)
        here.is_ready = True
        here.people.users.update(users)
        assert b"User:alice by cookie" == (await here.ask(lines[0], is_tls=True)).body
        here.people.users.clear()
        assert [False, False] == [viewer.is_known() for viewer in viewers]


async def test_a_certificate_that_has_ended_is_none(autojump_clock: MockClock) -> None:
    """A connection may live longer than what it was opened by."""
    async with site() as here:
        transport = here.here.connect(is_tls=True, principal="User:bob")
        transport.ends_wall_ms = here.here.environment.now().wall_ms + 1_000
        transport.put(get("/who"))
        await trio.testing.wait_all_tasks_blocked()
        assert b"User:bob by certificate" in transport.received
        transport.ends_wall_ms = here.here.environment.now().wall_ms
        transport.put(get("/who"))
        await trio.testing.wait_all_tasks_blocked()
        assert b"HTTP/1.1 401 " in transport.received


# --- the page's log-in ------------------------------------------------------------------


async def test_a_log_in_is_a_cookie_that_no_script_and_no_other_site_gets(
    autojump_clock: MockClock,
) -> None:
    """Over TLS it never leaves without; the name keeps other hosts from setting one."""
    async with site() as here:
        secure = await here.post("/api/v1/login", LOG_IN)
        plain = await here.post("/api/v1/login", {"token": "t0ken"}, is_tls=False)

        flags = "Path=/; HttpOnly; SameSite=Strict"
        value = r"=[A-Za-z0-9_-]{22}; "
        assert re.fullmatch(
            SECURE_COOKIE + value + flags + "; Secure", secure.headers["set-cookie"]
        )
        assert re.fullmatch(COOKIE + value + flags, plain.headers["set-cookie"])
        assert {"principal": ALICE, "by": "cookie"} == msgspec.json.decode(secure.body)
        assert "no-store" == secure.headers["cache-control"]


async def test_who_has_logged_in_comes_in_until_he_logs_out(autojump_clock: MockClock) -> None:
    """A copy of his cookie doesn't either, from then on."""
    async with site() as here:
        cookie = await here.log_in()
        assert b"User:alice by cookie" == (await here.ask(cookie, is_tls=True)).body
        shown = await here.ask(cookie, "X: y", path="/api/v1/session", is_tls=True)
        assert {"principal": ALICE, "by": "cookie"} == msgspec.json.decode(shown.body)

        out = await here.post("/api/v1/logout", b"", cookie)

        assert 200 == out.status
        assert out.headers["set-cookie"].startswith(f"{SECURE_COOKIE}=; ")
        assert out.headers["set-cookie"].endswith("; Max-Age=0")
        assert 401 == (await here.ask(cookie, is_tls=True)).status


async def test_a_log_in_ends_the_one_before_it(autojump_clock: MockClock) -> None:
    """A cookie that somebody else has put there must not become anybody's."""
    async with site() as here:
        before = await here.log_in()
        reply = await here.post("/api/v1/login", LOG_IN, before)

        assert 200 == reply.status
        assert before not in reply.headers["set-cookie"]
        assert 401 == (await here.ask(before, is_tls=True)).status


async def test_a_log_in_that_has_ended_takes_its_cookie_away(autojump_clock: MockClock) -> None:
    """By time or with the password; and a certificate is as good as it was."""
    async with site() as here:
        cookie = await here.log_in()
        here.people.add("alice", "another")

        certified = await here.ask(cookie, is_tls=True, principal="User:bob")
        assert b"User:bob by certificate" == certified.body
        reply = await here.ask(cookie, is_tls=True)

        assert 401 == reply.status
        assert reply.headers["set-cookie"].endswith("; Max-Age=0")


@pytest.mark.parametrize("path", ["/api/v1/login", "/api/v1/logout"])
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (("Content-Type: application/json",), 403),
        (("Origin: http://evil.example", "Content-Type: application/json"), 403),
        (("Origin: http://localhost:81", "Content-Type: application/json"), 403),
        (("Origin: null", "Content-Type: application/json"), 403),
        ((*SAME_SITE, "Sec-Fetch-Site: cross-site"), 403),
        ((*SAME_SITE, "Sec-Fetch-Site: same-site"), 403),
        (("Origin: http://localhost",), 415),
        (("Origin: http://localhost", "Content-Type: text/plain"), 415),
        (("Origin: http://localhost", "Content-Type: application/x-www-form-urlencoded"), 415),
        (("Sec-Fetch-Site: same-origin", "Content-Type: application/json; charset=utf-8"), 200),
    ],
)
async def test_another_site_neither_logs_anybody_in_nor_out(
    path: str, headers: Sequence[str], status: int, autojump_clock: MockClock
) -> None:
    """In somebody else's account one would tell him what one looks for."""
    async with site() as here:
        cookie = await here.log_in({"token": "t0ken"}, is_tls=False)

        reply = await here.post(path, {"token": "t0ken"}, cookie, headers=headers, is_tls=False)

        assert status == reply.status
        assert (status == 200) == ("set-cookie" in reply.headers)
        assert (status != 200) == ((await here.ask(cookie)).status == 200)


async def test_a_page_without_tls_posts_nothing_to_one_with(autojump_clock: MockClock) -> None:
    """Who can change what is not encrypted could write that page."""
    async with site() as here:
        head = get("/api/v1/login", *SAME_SITE, "Content-Length: 17", method="POST")
        (reply,) = await here.here.ask(head + b'{"token":"t0ken"}', method="POST", is_tls=True)
        assert 403 == reply.status


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"[]", b'{"name":1}', b'{"name":"\xff"}', b'"' + b"x" * 5_000 + b'"'),
        b'{"else":' + b"[" * 4_000,  # Deeper than Python reads.
    ],
)
async def test_a_body_that_is_no_log_in_is_refused(body: bytes, autojump_clock: MockClock) -> None:
    """Without a word of it: it may be a password."""
    async with site() as here:
        reply = await here.post("/api/v1/login", body)
        assert 400 == reply.status
        assert b"xxx" not in reply.body


@pytest.mark.parametrize(
    ("method", "path", "lines", "status"),
    [
        ("POST", "/who", ("Content-Length: 0",), 405),
        ("GET", "/api/v1/login", (), 405),
        ("HEAD", "/api/v1/logout", (), 405),
        ("PUT", "/api/v1/login", ("Content-Length: 0",), 405),
        ("GET", "/who", ("Content-Length: 1",), 413),
        ("POST", "/api/v1/login", (f"Content-Length: {BODY_BYTES_MAX + 1}",), 413),
        ("POST", "/api/v1/login", ("Transfer-Encoding: chunked",), 413),
    ],
)
async def test_nothing_else_can_be_sent(
    method: str, path: str, lines: Sequence[str], status: int, autojump_clock: MockClock
) -> None:
    """What is shown here can't be changed, and nobody fills the memory."""
    async with site() as here:
        reply = await here.ask(*lines, path=path, method=method)
        assert status == reply.status
        assert (status == 405) == ("allow" in reply.headers)


async def test_a_body_may_come_in_pieces_and_more_behind_it(autojump_clock: MockClock) -> None:
    """The network cuts where it likes."""
    async with site() as here:
        body = b'{"token":"t0ken"}'
        asked = get("/api/v1/login", *SAME_SITE, f"Content-Length: {len(body)}", method="POST")
        transport = here.here.connect()
        for byte in asked + body + get("/open"):
            transport.put(bytes([byte]))
            await trio.testing.wait_all_tasks_blocked()

        assert 2 == transport.received.count(b"HTTP/1.1 200 OK")


async def test_who_begins_a_body_and_stops_is_closed(autojump_clock: MockClock) -> None:
    """As with a head that never ends."""
    async with site() as here:
        transport = here.here.connect()
        transport.put(get("/api/v1/login", *SAME_SITE, "Content-Length: 9", method="POST") + b"{")
        await trio.sleep(12)

        assert transport.closed
        assert b"" == transport.received


async def test_who_asks_too_much_over_http_waits_under_the_quotas_of_clients(
    autojump_clock: MockClock,
) -> None:
    """The same buckets: else the quota would be another one for each way in."""
    async with site() as here:
        bearer = "Authorization: Bearer t0ken"
        here.quotas.replay(QuotaSet(ALICE, "request_rate", 2))
        statuses = [(await here.ask(bearer)).status for _ in range(3)]
        refused = await here.ask(bearer)
        by_password = await here.ask(basic("alice", "secret"), is_tls=True)
        assert [200, 200, 200, 429, 429] == [*statuses, refused.status, by_password.status]
        assert "1" == refused.headers["retry-after"]
        assert 200 == (await here.ask(path="/open")).status
        await trio.sleep(1)
        assert 200 == (await here.ask(bearer, path="/quick")).status

        here.quotas.replay(QuotaSet(ALICE, "request_rate", None))
        here.quotas.replay(QuotaSet(ALICE, "byte_rate", 10))
        assert [200, 429] == [(await here.ask(bearer)).status for _ in range(2)]
        assert here.here.environment.telemetry.throttled_by[ALICE][0] == 3


@pytest.mark.parametrize("path", ["/long", "/long-quick", "/long-nothing"])
async def test_the_time_of_a_handler_is_its_askers(path: str, autojump_clock: MockClock) -> None:
    """However short the answer is, and also if it is that there is none."""
    async with site() as here:
        here.quotas.replay(QuotaSet(ALICE, "request_percentage", 10))
        here.works = lambda: autojump_clock.jump(0.15)
        bearer = "Authorization: Bearer t0ken"
        first = await here.ask(bearer, path=path)
        refused = await here.ask(bearer, path=path)
        assert [429, "1"] == [refused.status, refused.headers["retry-after"]]
        await trio.sleep(0.6)

        assert first.status == (await here.ask(bearer, path=path)).status


async def test_failures_count_for_both_ways_in(autojump_clock: MockClock) -> None:
    """Else whoever guesses does it both ways, and has twice as many tries."""
    async with site() as here:
        now_ms = here.here.environment.now().mono_ms
        for _ in range(ATTEMPTS):
            assert here.attempts.delay_ms("192.0.2.1", now_ms)
        assert 429 == (await here.ask("Authorization: Bearer t0ken", peer="192.0.2.1")).status
        for _ in range(ATTEMPTS):
            await here.ask("Authorization: Bearer wrong", peer="192.0.2.2")
        assert here.attempts.are_too_many("192.0.2.2", here.here.environment.now().mono_ms)
        assert not here.attempts.are_too_many("192.0.2.3", here.here.environment.now().mono_ms)
