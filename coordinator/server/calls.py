"""A request of a session, until it is answered."""

from typing import TYPE_CHECKING

from coordinator.runtime.calls import Call
from protocol.connection import RequestEvent
from protocol.messages import Answer

if TYPE_CHECKING:
    from coordinator.server.session import Session


class SessionCall(Call):
    """A request of this session that has not been answered.

    It refers to the session and not to a callback made for it: that would be a cycle per
    request, which only the garbage collector ends.
    """

    __slots__ = ("event", "held_bytes", "is_open", "parks", "session")

    def __init__(self, session: "Session", event: RequestEvent, parks: bool) -> None:
        self.request = event.request
        self.session = session
        self.event = event
        self.held_bytes = 0  # Counted by the queue while it waits for its answer.
        self.parks = parks
        self.is_open = True

    def resolve(self, answer: Answer, leader_epoch: int) -> None:
        """Put the answer into the session's outbox."""
        self.session.answer(self, answer, leader_epoch)
