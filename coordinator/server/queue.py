"""What the requests of all connections together may hold: row 29 of the table of limits."""

from typing import Protocol


class Waiting(Protocol):
    """A session that reads no more until there is room."""

    def resume(self) -> None:
        """Look again."""


class RequestQueue:
    """Bytes of requests that are not answered yet or half read, and parked requests.

    A frame that was begun has its announced size reserved and is read to its end, so that
    sessions can't wait for one another for ever; the last one may go over the limit. Parked
    requests count by number and not by bytes: what ends their wait must always be read.
    """

    def __init__(self, *, max_bytes: int, max_parked: int) -> None:
        self._max_bytes = max_bytes
        self._max_parked = max_parked
        self._waiting: dict[Waiting, None] = {}
        self.bytes = 0
        self.parked = 0
        self.is_full = False

    def add(self, size_bytes: int) -> None:
        """Count bytes that are held from here on, or no longer, if there are less than none.

        Wakes who waits once there is room.
        """
        self.bytes += size_bytes
        self.is_full = self.bytes >= self._max_bytes
        if self._waiting and not self.is_full:
            waiting, self._waiting = self._waiting, {}
            for session in waiting:
                session.resume()

    def wait(self, session: Waiting) -> None:
        """Wake *session* when there is room."""
        self._waiting[session] = None

    def leave(self, session: Waiting) -> None:
        """Forget *session*, which has ended."""
        self._waiting.pop(session, None)

    def park(self, *, is_join: bool) -> bool:
        """Count a request that waits for other members; say whether it may.

        Only joins are refused: a SyncGroup belongs to a member that is counted already.
        """
        self.parked += 1
        return not is_join or self.parked <= self._max_parked

    def unpark(self) -> None:
        """Count one less."""
        self.parked -= 1
