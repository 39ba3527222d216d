"""The answers of one session on their way to the peer."""

from collections import deque

from coordinator.server.transport import Transport


class Outbox:
    """Frames in the order in which they leave, sent together as far as the peer takes them.

    Attributes:
        frames: What has not left; the first one may have left in part.
        unsent_bytes: Their size.
        is_blocked: The peer takes no more; go on with `send_rest` when it does again.
    """

    __slots__ = ("_transport", "frames", "is_blocked", "unsent_bytes")

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.frames: deque[bytes] = deque()
        self.unsent_bytes = 0
        self.is_blocked = False

    def add(self, frame: bytes) -> None:
        """Put *frame* behind the others."""
        self.frames.append(frame)
        self.unsent_bytes += len(frame)

    def send(self) -> None:
        """Send everything at once. Raises an error of the network."""
        frames = self.frames
        data = frames[0] if len(frames) == 1 else b"".join(frames)
        sent = self._transport.send_now(data)
        if sent == len(data):
            frames.clear()
            self.unsent_bytes = 0
        else:
            self._forget(sent)
            self.is_blocked = True

    def send_rest(self) -> bool:
        """Send frame by frame what the peer takes; say whether it took anything.

        Raises an error of the network.
        """
        took = False
        frames = self.frames
        while frames:
            size = len(frames[0])
            sent = self._transport.send_now(frames[0])
            took = took or sent > 0
            self._forget(sent)
            if sent < size:
                return took
        self.is_blocked = False
        return took

    def clear(self) -> None:
        """Forget everything: the connection is over."""
        self.frames.clear()
        self.unsent_bytes = 0
        self.is_blocked = False

    def _forget(self, sent: int) -> None:
        """Take *sent* bytes off the front; a frame cut in two stays whole behind."""
        self.unsent_bytes -= sent
        frames = self.frames
        while sent and sent >= len(frames[0]):
            sent -= len(frames.popleft())
        if sent:
            frames[0] = frames[0][sent:]
