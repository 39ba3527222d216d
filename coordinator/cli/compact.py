"""``group-coordinator compact``: let a running coordinator compact its log."""

from functools import partial
from typing import Final

import click

from coordinator.cli.asking import Coordinator
from coordinator.cli.options import asks
from protocol import messages as m

# The answer comes when it is done, which for a large log takes a while.
TIMEOUT_MS: Final = 600_000


@click.command()
@partial(asks, timeout_ms=TIMEOUT_MS)
def compact(coordinator: Coordinator) -> None:
    """Compact the offsets log now. It goes on while groups are served."""
    done: m.CompactLogResponse = coordinator.ask(m.CompactLogRequest())
    click.echo(
        f"removed {done.removed_bytes} bytes in {done.duration_ms} ms; the log has "
        f"{done.log_bytes} bytes, of which about {done.live_bytes} are live"
    )
