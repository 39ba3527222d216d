"""What a node needs of the process around it: time, threads, the disk's thread, and who listens.

It is handed in once, at the node's construction. The daemon brings the real things, a simulation
virtual ones; nothing in this package looks for another way out.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import outcome
import trio

from coordinator.group.core import Now
from coordinator.runtime.poller import Poller
from coordinator.runtime.telemetry import Telemetry

Work = Callable[[], None]
RunBlocking = Callable[[Work], Awaitable[None]]
# Called in the event loop with how the work ended.
Done = Callable[[outcome.Outcome[None]], None]
Submit = Callable[[Work, Done], None]
EmitEvent = Callable[[str, dict[str, Any]], None]


def wall_clock_ms() -> int:
    """Return the time of day, since the epoch."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The surroundings of one node.

    Attributes:
        poller: In whose rounds requests are handled, and answers leave.
        wall_clock_ms: The time of day, since the epoch.
        new_uuid: Makes member ids.
        emit_event: Logs an event by its name and fields.
        run_blocking: Runs what writes to the log elsewhere, and returns when it is done.
        run_reading: The same for what only reads.
        submit: Has a flush written elsewhere, and then calls back in the event loop.
        after_load: Called when what was loaded is there to stay.
        metrics: Name -> what to call for the value of the moment. Whoever counts something
            declares it here. Names end in their unit; what only grows ends in ``_total``.
        telemetry: What is counted as it goes.
        clock_s: How time passes, as finely as is known: for how long something took.
    """

    poller: Poller
    wall_clock_ms: Callable[[], int]
    new_uuid: Callable[[], str]
    emit_event: EmitEvent
    run_blocking: RunBlocking
    run_reading: RunBlocking
    submit: Submit
    after_load: Callable[[], None] = lambda: None
    metrics: dict[str, Callable[[], float]] = field(default_factory=dict)
    telemetry: Telemetry = field(default_factory=Telemetry)
    clock_s: Callable[[], float] = trio.current_time

    def now(self) -> Now:
        """Return the time."""
        return Now(int(trio.current_time() * 1000), self.wall_clock_ms())
