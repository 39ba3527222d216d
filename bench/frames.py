"""Finding answers in what arrives: length-prefixed frames, over any split of the reads."""

import socket
from collections.abc import Sequence
from struct import Struct

_SIZE = Struct(">I")
_SLOT = Struct(">i")


class AnswerReader:
    """Splits a byte stream into frames ``u32 size | …`` and checks each against what is expected.

    A benchmark must not get faster by being answered wrongly, and decoding every answer would
    make the load generator the bottleneck. So the tail of each frame (what follows the header)
    is compared byte for byte with an answer that was decoded and judged before the load began.

    Args:
        slot_at: Where in the frame the i32 stands that says which request is answered.
        answer_from: Where in the frame the compared bytes begin.
        answer_until: Where they end, if not with the frame.
        answers: What is expected, by slot. A live sequence: its items may change under way.

    Attributes:
        wrong: How many answers were not the expected ones.
        wrong_example: The first of them.
    """

    __slots__ = (
        "_answer_from",
        "_answer_until",
        "_answers",
        "_minimum",
        "_rest",
        "_slot_at",
        "wrong",
        "wrong_example",
    )

    def __init__(
        self,
        *,
        slot_at: int,
        answer_from: int,
        answers: Sequence[bytes | bytearray],
        answer_until: int | None = None,
    ) -> None:
        self._slot_at = slot_at
        self._answer_from = answer_from
        self._answer_until = answer_until
        self._answers = answers
        self._minimum = slot_at + _SLOT.size
        self._rest = b""
        self.wrong = 0
        self.wrong_example = b""

    def feed(self, data: bytes) -> list[int]:
        """Take what was read; return the slots that were answered, in the order of arrival.

        Raises:
            ValueError: A frame is too short to say what it answers, or answers nothing we asked.
        """
        if self._rest:
            data = self._rest + data
        slots: list[int] = []
        at, end = 0, len(data)
        while end - at >= 4:
            frame_end = at + 4 + _SIZE.unpack_from(data, at)[0]
            if frame_end - at < self._minimum:
                raise ValueError(f"an answer of only {frame_end - at} bytes")
            if frame_end > end:
                break
            slot = _SLOT.unpack_from(data, at + self._slot_at)[0]
            if not 0 <= slot < len(self._answers):
                raise ValueError(f"an answer to request {slot}, which was not sent")
            until = frame_end if self._answer_until is None else at + self._answer_until
            if data[at + self._answer_from : until] != self._answers[slot]:
                self.wrong += 1
                self.wrong_example = self.wrong_example or data[at:frame_end]
            slots.append(slot)
            at = frame_end
        self._rest = data[at:]
        return slots


def split_frames(data: bytes) -> tuple[list[bytes], bytes]:
    """Cut complete frames off the front; return them and the incomplete rest."""
    frames: list[bytes] = []
    at = 0
    while len(data) - at >= 4:
        frame_end = at + 4 + _SIZE.unpack_from(data, at)[0]
        if frame_end > len(data):
            break
        frames.append(data[at:frame_end])
        at = frame_end
    return frames, data[at:]


class Talk:
    """Blocking questions and answers on a socket, before and after the load: frames in order."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._rest = b""

    def send(self, requests: Sequence[bytes]) -> None:
        """Send all of them."""
        self._sock.sendall(b"".join(requests))

    def read(self, count: int) -> list[bytes]:
        """Return the next answers.

        Raises:
            ConnectionError: The server closed the connection.
        """
        frames, self._rest = split_frames(self._rest)
        while len(frames) < count:
            data = self._sock.recv(1 << 16)
            if not data:
                raise ConnectionError("the server closed the connection before it had answered")
            more, self._rest = split_frames(self._rest + data)
            frames += more
        self._rest = b"".join(frames[count:]) + self._rest
        return frames[:count]

    def ask(self, requests: Sequence[bytes]) -> list[bytes]:
        """Send all, then read an answer for each.

        Raises:
            ConnectionError: The server closed the connection.
        """
        self.send(requests)
        return self.read(len(requests))
