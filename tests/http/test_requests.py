"""Requests and answers of the HTTP listener, over connections in memory."""

import pytest

from coordinator.http.guard import SECURITY_HEADERS
from coordinator.http.router import OTHER
from tests.http.listener import get, listener, text


async def test_a_request_is_answered(autojump_clock: object) -> None:
    """With a length, a date, and the headers that keep other sites out."""
    async with listener(text("/x", b"one, ", b"two")) as here:
        [reply] = await here.ask(get("/x"))

    assert (200, b"one, two") == (reply.status, reply.body)
    assert "8" == reply.headers["content-length"]
    assert "Tue, 14 Nov 2023 22:13:20 GMT" == reply.headers["date"]
    assert SECURITY_HEADERS.items() <= reply.headers.items()
    assert {("/x", 200): 1} == here.telemetry.http


async def test_requests_sent_in_one_go_are_answered_in_their_order(autojump_clock: object) -> None:
    """Pipelining is rare, but nothing may be lost, or be answered to another request."""
    async with listener(text("/a", b"a"), text("/b", b"b")) as here:
        replies = await here.ask(get("/a"), get("/b"), get("/nothing"), get("/a"))

    assert [b"a", b"b", b"a"] == [reply.body for reply in replies if reply.status == 200]
    assert [200, 200, 404, 200] == [reply.status for reply in replies]
    assert {("/a", 200): 2, ("/b", 200): 1, ("other", 404): 1} == here.telemetry.http


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (get("/x", method="POST"), 405),
        (get("/x", method="OPTIONS"), 405),
        (get("/x", "Content-Length: 3") + b"abc", 413),
        (get("/x", "Transfer-Encoding: chunked"), 413),
        (get("/x", "Cookie: " + "c" * 17_000), 431),
        (get("/x", "Host: localhost:1:2"), 400),
        (b"nonsense\r\n\r\n", 400),
        (b"GET /x HTTP/1.1\r\n\r\n", 400),
        (b"GET /x HTTP/2.0\r\n\r\n", 505),
        (b"GET /x HTTP/0.9\r\n\r\n", 505),
        (get("x"), 400),
        (get("/%ff"), 400),
        (get("/x?q=%ff"), 400),
        (get("/x?" + "&".join("a=1" for _ in range(65))), 400),
        (get("/y"), 404),
        (get("/x/"), 404),
    ],
)
async def test_what_cannot_be_answered_is_refused_in_json(
    autojump_clock: object, request_bytes: bytes, status: int
) -> None:
    """A program reads the reason where a person does."""
    async with listener(text("/x", b"never")) as here:
        [reply] = await here.ask(request_bytes)

    assert status == reply.status
    assert "application/problem+json" == reply.headers["content-type"]
    assert [status] == [counted for route, counted in here.telemetry.http if route in {"/x", OTHER}]


@pytest.mark.parametrize(
    ("target", "lines", "status"),
    [
        ("://localhost/x?a=1", (), 200),
        ("://localhost:9311/x", (), 200),
        ("://listed.example/x", ("Host: evil.example",), 200),
        ("://listed.example/x", ("Origin: {}://listed.example",), 200),
        ("://evil.example/x", ("Host: localhost",), 421),
        ("://listed.example/x", ("Host: evil.example", "Origin: {}://evil.example"), 403),
        ("://localhost@evil.example/x", (), 400),
        ("://evil.example#localhost/x", (), 400),
        (":///x", (), 400),
    ],
)
async def test_the_host_of_a_whole_url_is_the_one_that_is_asked_for(
    autojump_clock: object, target: str, lines: tuple[str, ...], status: int
) -> None:
    """Whatever the Host header says beside it (RFC 9112, 3.2.2), over TLS as without."""
    async with listener(text("/x", b"body")) as here:
        for scheme, is_tls in (("http", False), ("https", True)):
            asked = get(scheme + target, *(line.format(scheme) for line in lines))
            [reply] = await here.ask(asked, is_tls=is_tls)
            assert status == reply.status, scheme
            [other] = await here.ask(asked, is_tls=not is_tls)
            assert 421 == other.status, scheme
