"""Asks routes without a connection, and holds each answer to the OpenAPI document."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from coordinator.http.routes import Answer, HttpRequest, Refused, Route, Streaming


async def no_pause() -> None:
    """Go on at once."""


class Asking:
    """Finds the route of a path, as the router does, and asks it."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes = routes

    async def answer(self, target: str, headers: Mapping[str, str] | None = None) -> Any:
        """Return the answer to a GET of *target*."""
        url = urlsplit(target)
        for route in self._routes:
            names = _names(route.template, url.path)
            if names is not None:
                query = parse_qs(url.query, keep_blank_values=True)
                return await route.handler(
                    HttpRequest(
                        path=url.path,
                        names=names,
                        query=query,
                        headers=headers or {},
                        peer="192.0.2.1",
                    )
                )
        raise AssertionError(f"no route for {target}")

    async def get(self, target: str) -> Any:
        """Return what the answer's body says."""
        answer = await self.answer(target)
        assert isinstance(answer, Answer)
        return body(answer)

    async def refused(self, target: str) -> Refused:
        """Return why *target* is refused."""
        try:
            await self.answer(target)
        except Refused as refused:
            return refused
        raise AssertionError(f"{target} was answered")

    async def stream(self, target: str, headers: Mapping[str, str] | None = None) -> Streaming:
        """Return the answer that goes on."""
        answer = await self.answer(target, headers)
        assert isinstance(answer, Streaming)
        return answer


def body(answer: Answer) -> Any:
    """Return what an answer's body says."""
    return msgspec.json.decode(b"".join(answer.body))


def _names(template: str, path: str) -> dict[str, str] | None:
    wanted, given = template.split("/"), path.split("/")
    if len(wanted) != len(given):
        return None
    names = {}
    for want, have in zip(wanted, given, strict=True):
        if want.startswith("{"):
            names[want[1:-1]] = unquote(have)
        elif want != have:
            return None
    return names
