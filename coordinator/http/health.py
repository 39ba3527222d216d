"""`/livez` and `/readyz`: for whoever restarts the daemon, or sends it traffic."""

from collections.abc import Sequence
from typing import Final

import msgspec

from coordinator.http import views
from coordinator.http.openapi import Operation, Parameter, Query
from coordinator.http.routes import Answer, HttpRequest
from coordinator.runtime.health import PARTS, Check, status_of
from coordinator.runtime.node import Node

# A probe must see what is, and not what a proxy has kept.
_HEADERS: Final = {"Cache-Control": "no-store"}
_EXCLUDE: Final = Parameter(
    "exclude", "leaves this part out of the verdict, not out of the list", choices=PARTS, many=True
)


def shown(checks: Sequence[Check]) -> list[views.Check]:
    """Return *checks* as they are shown."""
    return [
        views.Check(
            check.part,
            check.ok,
            check.reason,
            views.time_of(check.since_ms),
            msgspec.UNSET if check.done is None else round(check.done, 4),
        )
        for check in checks
    ]


def operations(node: Node) -> tuple[Operation, ...]:
    """Return what is asked of the health of *node*."""

    async def livez(_request: HttpRequest, _query: Query) -> Answer:
        # That this is answered is what is asked. A write that fails ends the process by itself.
        return Answer(body=(views.encode(views.Alive("alive")),), headers=_HEADERS)

    async def readyz(_request: HttpRequest, query: Query) -> Answer:
        excluded = frozenset(query.many("exclude"))
        checks = node.checks.look()
        judged = tuple(check for check in checks if check.part not in excluded)
        health = views.Health(status_of(judged), shown(checks))
        status = 200 if all(check.ok for check in judged) else 503
        return Answer(status=status, body=(views.encode(health),), headers=_HEADERS)

    return (
        # Whatever a prober puts behind the path, the answer must not be that it is to be restarted.
        Operation(
            "/livez", "Whether it is alive", livez, views.Alive, None, is_quick=True, is_open=True
        ),
        Operation(
            "/readyz",
            "Whether it can be sent requests, and why not",
            readyz,
            views.Health,
            (_EXCLUDE,),
            is_quick=True,
            is_open=True,
            also=(503,),
        ),
    )
