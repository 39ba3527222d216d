"""The surroundings of a node in a test: virtual time, and no threads."""

from collections.abc import Callable
from typing import Any

import outcome
import trio

from coordinator.runtime.environment import Done, Environment, RunBlocking, Submit, Work
from coordinator.runtime.poller import Poller
from coordinator.runtime.telemetry import KEY_BITS, Tee, Telemetry
from tests import logged


def in_tasks(run_blocking: RunBlocking, nursery: Callable[[], trio.Nursery]) -> Submit:
    """Return what has each flush written by a task of its own in *nursery*."""

    async def run(work: Work, done: Done) -> None:
        try:
            await run_blocking(work)
        except Exception as exc:  # noqa: BLE001 - told to whom it concerns
            done(outcome.Error(exc))
        else:
            done(outcome.Value(None))

    return lambda work, done: nursery().start_soon(run, work, done)


def answered_alike(
    telemetry: Telemetry, api_key: int, error: int, seconds: float, times: int = 1
) -> None:
    """Have *telemetry* count a round of answers that are alike."""
    telemetry.round_answered(seconds, [(0.0, error << KEY_BITS | api_key)] * times)


async def _at_once(work: Work) -> None:
    work()


def environment(
    *,
    submit: Submit,
    run_blocking: RunBlocking = _at_once,
    run_reading: RunBlocking = _at_once,
    new_uuid: Callable[[], str] = lambda: "0" * 32,
    wall_clock_ms: Callable[[], int] = lambda: 0,
    emit_event: Callable[[str, dict[str, Any]], None] = lambda _name, _fields: None,
) -> Environment:
    """Return surroundings with a poller of their own; what events tell of is counted."""
    telemetry = Telemetry()

    def noted(name: str, fields: dict[str, Any]) -> None:
        logged.note({"event": name, **fields})
        emit_event(name, fields)

    return Environment(
        poller=Poller(),
        submit=submit,
        run_blocking=run_blocking,
        run_reading=run_reading,
        new_uuid=new_uuid,
        wall_clock_ms=wall_clock_ms,
        emit_event=Tee(noted, telemetry.event),
        telemetry=telemetry,
    )
