"""Calls that wait for a task, and whose turn it is."""

import trio
import trio.testing

from coordinator.runtime.calls import Call, CallQueue
from protocol.messages import ListGroupsRequest


class Client(Call, eq=False):
    """Whoever asks."""

    is_slow: bool

    @property
    def takes_answers(self) -> bool:
        """Whether he does, at the moment."""
        return not self.is_slow


class Asked(Call, eq=False):
    """What a client has asked."""

    client: Client

    @property
    def asker(self) -> Client:
        """Whose it is."""
        return self.client


async def test_who_takes_no_answers_holds_up_himself_alone(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """He would else be closed, for answers that were made although nobody took those before."""
    queue: CallQueue[int] = CallQueue()
    request = ListGroupsRequest((), ())
    slow, quick = Client(request, is_slow=True), Client(request, is_slow=False)
    for number, client in enumerate((slow, slow, quick)):
        queue.put(Asked(request, client), number)

    assert (await queue.take())[1] == 2
    with trio.move_on_after(60) as waiting:
        await queue.take()
    assert waiting.cancelled_caught
    slow.is_slow = False
    assert [(await queue.take())[1] for _ in range(2)] == [0, 1]
