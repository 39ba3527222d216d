"""Asks without a connection, and holds each answer to the OpenAPI document."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import jsonschema  # type: ignore[import-untyped]  # It has no types.
import msgspec
import trio
import trio.testing

from coordinator.http import health
from coordinator.http.api import Api, openapi_operation
from coordinator.http.ask import Asker
from coordinator.http.events import Hub
from coordinator.http.node_view import NodeView
from coordinator.http.openapi import Operation, document
from coordinator.http.overview import Overview
from coordinator.http.routes import Answer, HttpRequest, Pause, Refused, Streaming
from coordinator.http.viewer import EVERYBODY, Viewer
from tests.fakes.transport import MemoryTransport
from tests.server.world import World, world


class Asking:
    """Finds the operation of a path, as the router does its route, and asks it."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._operations = operations
        self._document = document(operations)

    async def answer(
        self,
        target: str,
        headers: Mapping[str, str] | None = None,
        viewer: Viewer = EVERYBODY,
    ) -> Any:
        """Return the answer to a GET of *target*."""
        url = urlsplit(target)
        routes = [(one, route) for one in self._operations for route in one.routes()]
        for operation, route in routes:
            names = _names(route.template, url.path)
            if names is not None:
                asked = request(
                    url.path,
                    names=names,
                    query=parse_qs(url.query, keep_blank_values=True),
                    headers=headers or {},
                    viewer=viewer,
                )
                answer = await route.handler(asked)
                if isinstance(answer, Answer) and answer.body:
                    self._check(operation, body(answer))
                return answer
        raise AssertionError(f"no route for {target}")

    def _check(self, operation: Operation, said: Any) -> None:
        """Hold what was *said* to the document, which knows no field that isn't named in it."""
        assert operation.answer is not None
        schemas = self._document["components"]["schemas"]
        for schema in schemas.values():
            schema.setdefault("additionalProperties", False)
        schema = {"$ref": f"#/components/schemas/{operation.answer.__name__}"}
        jsonschema.Draft202012Validator(
            {**schema, "components": {"schemas": schemas}},
            format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER,
        ).validate(said)

    async def get(self, target: str, viewer: Viewer = EVERYBODY) -> Any:
        """Return what the answer's body says."""
        answer = await self.answer(target, viewer=viewer)
        assert isinstance(answer, Answer)
        return body(answer)

    async def refused(self, target: str, viewer: Viewer = EVERYBODY) -> Refused:
        """Return why *target* is refused."""
        try:
            await self.answer(target, viewer=viewer)
        except Refused as refused:
            return refused
        raise AssertionError(f"{target} was answered")

    async def stream(
        self,
        target: str,
        headers: Mapping[str, str] | None = None,
        viewer: Viewer = EVERYBODY,
    ) -> Streaming:
        """Return the answer that goes on."""
        answer = await self.answer(target, headers, viewer)
        assert isinstance(answer, Streaming)
        return answer


def request(
    path: str,
    *,
    names: Mapping[str, str] = MappingProxyType({}),
    query: Mapping[str, Sequence[str]] = MappingProxyType({}),
    headers: Mapping[str, str] = MappingProxyType({}),
    viewer: Viewer = EVERYBODY,
) -> HttpRequest:
    """Return a request, by a connection that says nothing of its peer."""
    return HttpRequest(
        path=path,
        names=names,
        query=query,
        headers=headers,
        viewer=viewer,
        connection=MemoryTransport(),
    )


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


class Site(Asking):
    """A daemon in memory with everything that it answers by HTTP.

    Attributes:
        w: The daemon.
        pauses: How often somebody gave others a turn.
    """

    def __init__(self, w: World, pause: Pause) -> None:
        self.w = w
        self.pauses = 0

        async def counted() -> None:
            self.pauses += 1
            await pause()

        clock_s = trio.current_time
        self.overview = Overview(w.node, clock_s, counted)
        coordination = w.server.coordination
        self.node_view = NodeView(w.node, w.environment, w.settings, coordination, lambda: 7)
        w.tee.add(self.overview.heard)
        w.tee.add(self.node_view.heard)
        asker = Asker(w.node, coordination, counted)
        self.api = Api(w.node, self.overview, self.node_view, asker, counted)
        telemetry = w.environment.telemetry
        times: Any = {"now": w.node.now, "clock_s": clock_s}
        self.hub = Hub(self.api, self.overview, telemetry, pause=counted, **times)
        operations = [*health.operations(w.node), *self.api.operations(), *self.hub.operations()]
        super().__init__([*operations, openapi_operation(operations)])


@asynccontextmanager
async def site(
    *settings: str, load: bool = True, pause: Pause = trio.lowlevel.checkpoint
) -> AsyncIterator[Site]:
    """Run a daemon, and what follows it for the streams, as long as the block lasts."""
    async with world(*settings, load=load) as w, trio.open_nursery() as nursery:
        here = Site(w, pause)
        nursery.start_soon(here.hub.run)
        nursery.start_soon(here.node_view.history.run)
        await trio.testing.wait_all_tasks_blocked()
        yield here
        nursery.cancel_scope.cancel()
