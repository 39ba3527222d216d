"""The child process that makes snapshots, without the process: over an ensemble in memory."""

import trio

from coordinator.cluster import znodes
from coordinator.cluster.engine import Snapshot
from coordinator.cluster.snapshots import make_snapshot
from coordinator.log.errors import LogCorrupt, LogFailed
from coordinator.runtime.children import CompactionFailed
from tests.sim.ensemble import Ensemble


class MemoryChild:
    """Does the work in steps, each with a pause before it.

    Attributes:
        pause_s: How long.
        deaths: Why the next ones end without a result.
        jobs: The journals of which snapshots were asked for.
    """

    def __init__(self, ensemble: Ensemble, pause_s: float = 0.002) -> None:
        self.pause_s = pause_s
        self.deaths: list[CompactionFailed] = []
        self.jobs: list[int] = []
        self._ensemble = ensemble

    async def run(self, journal: int, name: str) -> Snapshot:
        """Make one, in a session of its own."""
        self.jobs.append(journal)
        session = self._ensemble.connect()
        asking = make_snapshot(journal, name)
        try:
            request = next(asking)
            while True:
                await trio.sleep(self.pause_s)
                result = self._ensemble.do(session, znodes.operation(request), None)
                self._ensemble.catch_up(session, self._ensemble.transactions)
                request = asking.send(znodes.reply(request, result))
        except StopIteration as end:
            if self.deaths:
                raise self.deaths.pop(0) from None
            snapshot: Snapshot = end.value
            return snapshot
        except LogCorrupt as exc:
            raise CompactionFailed(str(exc), is_damage=True) from exc
        except LogFailed as exc:
            raise CompactionFailed(str(exc)) from exc
