"""What goes over an HTTP connection, and what must come back.

A connection is tame or wild for its whole life. What a tame one asks is sound, so each request
gets one answer, in order. A wild one sends anything, and must be answered in HTTP or closed.
"""

import re
from collections import deque
from collections.abc import Sequence
from random import Random
from typing import Final
from urllib.parse import quote

from tests.fuzz.frames import Broken
from tests.fuzz.grammar import GROUPS, ODD_GROUPS, PATTERNS, TOPICS

_NAMES: Final = (*GROUPS[:3], *ODD_GROUPS, *TOPICS, "%", "\u00e9", "..", "a/b")
_PATHS: Final = (
    "/",
    "/livez",
    "/readyz",
    "/metrics",
    "/api/v1/node",
    "/api/v1/groups",
    "/api/v1/groups",
    "/api/v1/group?group={}",
    "/api/v1/group/partitions?group={}",
    "/api/v1/groups/{}",
    "/api/v1/groups/{}/rebalances",
    "/api/v1/topics",
    "/api/v1/topic?topic={}",
    "/api/v1/topics/{}",
    "/api/v1/openapi.json",
    "/nowhere",
)
_EVENTS: Final = "/api/v1/events"
_PARAMETERS: Final = ("pattern", "state", "limit", "cursor", "sort", "group", "topic", "nonsense")
_LINES: Final = (
    "Accept: application/json",
    "Accept-Encoding: gzip",
    "If-None-Match: *",
    'If-None-Match: "x"',
    "Connection: keep-alive",
    "X-Long: " + "x" * 2_000,
    "Origin: http://localhost",
    "Origin: http://evil.example",
    "Sec-Fetch-Site: cross-site",
)
# What a wild one is made of besides sound requests.
_WORDS: Final = (
    *("GET", " HEAD", " POST", " /", " /x", " *", " HTTP/1.1", " HTTP/1.0", " HTTP/2", "http://h/"),
    *("\r\n", "\n", "\r", ":", "\0", "?a=%", "\xff", "%00", "%", "#", " ", "\r\n\r\n"),
    *("Host: localhost", "Host:", "Host: evil.example", "Expect: 100-continue"),
    *("Content-Length: 5", "Content-Length: 99999999", "Transfer-Encoding: chunked"),
    *("Connection: close", "Connection: upgrade", "Upgrade: x", "5\r\nhello\r\n0\r\n\r\n"),
)

_STATUS: Final = re.compile(rb"HTTP/1\.1 (\d{3}) [^\r]*\r\n")
_LENGTH: Final = re.compile(rb"\r\ncontent-length: (\d+)\r\n")


class Asked:
    """What one HTTP connection was asked, and what came."""

    def __init__(self, rng: Random, headers: Sequence[str] = (), *, is_wild: bool) -> None:
        """*headers* say who somebody is, each something else."""
        self._rng = rng
        self._headers = headers
        self._is_wild = is_wild
        self._methods: deque[str] = deque()
        self._received = bytearray()
        self._is_stream = False
        self.answers = 0

    def next_bytes(self) -> bytes:
        """Return what to send next: one request, or anything if it is wild."""
        rng = self._rng
        if not self._is_wild:
            method = rng.choice(("GET", "GET", "GET", "HEAD"))
            self._methods.append(method)
            if rng.random() < 0.02:
                self._is_stream = True  # Nothing is answered behind it.
                return self._request(method, _EVENTS)
            return self._request(method, _target(rng))
        pieces = [
            self._request(rng.choice(("GET", "POST", "\xff")), _target(rng))
            if rng.random() < 0.3
            else rng.choice(_WORDS).encode("latin-1")
            for _ in range(rng.randint(1, 12))
        ]
        data = bytearray(b"".join(pieces))
        for _ in range(rng.randint(0, 3)):
            at = rng.randrange(len(data) + 1)
            data[at : at + 1] = rng.randbytes(1)
        return bytes(data)

    def long_bytes(self) -> bytes:
        """Return a request whose answer is several TLS records long."""
        if not self._is_wild:
            self._methods.append("GET")
        return self._request("GET", "/api/v1/openapi.json")

    def _request(self, method: str, target: str) -> bytes:
        rng = self._rng
        lines = [f"{method} {target} HTTP/1.1", "Host: localhost"]
        lines += rng.sample(_LINES, rng.choice((0, 0, 1, 2)))
        if self._headers:
            lines.append(rng.choice(self._headers))
        return "".join(f"{line}\r\n" for line in [*lines, ""]).encode("latin-1")

    def received(self, data: bytes) -> None:
        """Note what came.

        Raises:
            Broken: It is no HTTP, tells of a bug, or answers what nobody asked.
        """
        self._received += data
        if self._is_wild:
            if self._received and not b"HTTP/1.1 ".startswith(self._received[:9]):
                raise Broken(f"no HTTP: {bytes(self._received[:80])!r}")
            if b"HTTP/1.1 500 " in self._received:
                raise Broken("a bug was answered with 500")
            self.answers += self._received.count(b"HTTP/1.1 ") - self.answers
            return
        while self._methods and self._take_answer():
            pass
        if self._received and not self._methods and not self._is_stream:
            raise Broken(f"nobody asked for {bytes(self._received[:80])!r}")

    def _take_answer(self) -> bool:
        head_end = self._received.find(b"\r\n\r\n")
        if head_end < 0:
            return False
        head = bytes(self._received[: head_end + 2])
        status = _STATUS.match(head)
        if status is None or int(status[1]) == 500:
            raise Broken(f"not an answer: {head!r}")
        if b"text/event-stream" in head:
            if not self._is_stream:
                raise Broken(f"nobody asked for a stream: {head!r}")
            self.answers += 1
            self._methods.clear()
            return False
        length = _LENGTH.search(head)
        is_empty = self._methods[0] == "HEAD" or status[1] == b"304"
        end = head_end + 4 + (0 if is_empty or length is None else int(length[1]))
        if len(self._received) < end:
            return False
        del self._received[:end]
        self._methods.popleft()
        self.answers += 1
        return True

    def unanswered(self) -> list[str]:
        """Return what must be answered by now, unless the connection is closed."""
        return [] if self._is_wild or self._is_stream else list(self._methods)


def _target(rng: Random) -> str:
    target = rng.choice(_PATHS).replace("{}", quote(rng.choice(_NAMES), safe=""))
    if rng.random() < 0.4:
        values = (*PATTERNS, *_NAMES, "0", "1", "10", "-1", "99999999999999999999")
        pairs = [
            f"{rng.choice(_PARAMETERS)}={quote(rng.choice(values), safe='')}"
            for _ in range(rng.randint(1, 3))
        ]
        target += ("&" if "?" in target else "?") + "&".join(pairs)
    return target
