"""Redis' protocol: a hash a group, a field a topic and partition, the offset in digits."""

import socket
from collections.abc import Sequence
from typing import Final

from bench.dialects import (
    COMMIT,
    FETCH,
    FIRST_OFFSET,
    TOPIC,
    DialectError,
    Exchange,
    Load,
    Reader,
    TextExchange,
    first_offset,
    group_of,
)
from bench.frames import OrderedReader

_SET_AGAIN: Final = b":0\r\n"  # HSET answers how many fields are new.


def _command(*words: bytes) -> bytes:
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        parts += [b"$%d\r\n" % len(word), word, b"\r\n"]
    return b"".join(parts)


def _field(partition: int) -> bytes:
    return f"{TOPIC}:{partition}".encode()


def set_command(group: str, offsets: Sequence[int]) -> tuple[bytes, int]:
    """Return the HSET of partitions 0, 1, …, and where the first offset's digits stand."""
    pairs = [
        word
        for partition, offset in enumerate(offsets)
        for word in (_field(partition), b"%d" % offset)
    ]
    frame = _command(b"HSET", group.encode(), *pairs)
    return frame, frame.index(b"%d" % offsets[0])


def get_command(group: str, partitions: int) -> bytes:
    """Return the HMGET of the first partitions."""
    return _command(b"HMGET", group.encode(), *(_field(p) for p in range(partitions)))


def get_answer(offsets: Sequence[int]) -> bytes:
    """Return what an HMGET is answered with that finds these offsets."""
    return b"*%d\r\n" % len(offsets) + b"".join(
        b"$%d\r\n%d\r\n" % (len(str(offset)), offset) for offset in offsets
    )


def _ask(sock: socket.socket, commands: Sequence[bytes], answers: Sequence[bytes]) -> list[bytes]:
    """Send all, and read as many bytes as the expected answers have; return them answer by answer.

    Raises:
        ConnectionError: The server closed the connection.
    """
    sock.sendall(b"".join(commands))
    wanted = sum(map(len, answers))
    data = b""
    while len(data) < wanted:
        read = sock.recv(1 << 16)
        if not read:
            raise ConnectionError("Redis closed the connection before it had answered")
        data += read
        if data.startswith(b"-"):
            raise DialectError(f"Redis refused what the load asks for: {data[:200]!r}")
    found, at = [], 0
    for answer in answers:
        found.append(data[at : at + len(answer)])
        at += len(answer)
    return found


class RedisDialect:
    """A consumer that stores its offsets in Redis."""

    def __init__(self, load: Load) -> None:
        if load.workload not in {COMMIT, FETCH}:
            raise DialectError(f"no load of {load.workload} for Redis")
        self._load = load

    def prepare(self, sock: socket.socket, connection: int) -> list[Exchange]:
        """Store every slot's offsets once; what a fetch finds must be these.

        Raises:
            DialectError: The server refuses something.
        """
        load, count = self._load, self._load.partitions
        groups = [group_of(load, connection, slot) for slot in range(load.window)]
        offsets = [first_offset(partition) for partition in range(count)]
        sets = [set_command(group, offsets) for group in groups]
        for answer in (b":%d\r\n" % count, _SET_AGAIN):
            expected = [answer] * len(sets)
            _same(_ask(sock, [frame for frame, _ in sets], expected), expected)
        if load.workload == COMMIT:
            return [
                TextExchange(frame, answer=_SET_AGAIN, offset=FIRST_OFFSET, offset_at=at)
                for frame, at in sets
            ]
        gets = [get_command(group, count) for group in groups]
        expected = [get_answer(offsets)] * len(gets)
        _same(_ask(sock, gets, expected), expected)
        return [
            Exchange(frame, answer=answer) for frame, answer in zip(gets, expected, strict=True)
        ]

    def reader(self, exchanges: Sequence[Exchange]) -> Reader:
        """Return a reader that counts: Redis answers in order and says not to what."""
        return OrderedReader([exchange.answer for exchange in exchanges])

    def differences(
        self, sock: socket.socket, connection: int, exchanges: Sequence[Exchange]
    ) -> int:
        """Return how many groups do not hold the offset that was acknowledged last."""
        if self._load.workload != COMMIT:
            return 0
        commands = [
            get_command(group_of(self._load, connection, slot), 1) for slot in range(len(exchanges))
        ]
        expected = [get_answer([exchange.offset]) for exchange in exchanges]
        answers = _ask(sock, commands, expected)
        return sum(answer != wanted for answer, wanted in zip(answers, expected, strict=True))


def _same(answers: Sequence[bytes], expected: Sequence[bytes]) -> None:
    for answer, wanted in zip(answers, expected, strict=True):
        if answer != wanted:
            raise DialectError(f"Redis answered {answer[:200]!r} instead of {wanted[:200]!r}")
