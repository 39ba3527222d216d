"""Peers in a few lines each, which speak just enough of their protocols."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from struct import Struct, pack, unpack_from
from threading import Thread

Answer = Callable[[bytes], bytes]
_SIZE = Struct(">I")


@contextmanager
def speaking(serve: Callable[[socket.socket], None]) -> Iterator[socket.socket]:
    """A blocking socket with *serve* at its other end."""
    ours, theirs = socket.socketpair()
    ours.settimeout(60)
    thread = Thread(target=until_closed, args=(serve, theirs))
    thread.start()
    try:
        yield ours
    finally:
        ours.close()
        thread.join(60)


def until_closed(serve: Callable[[socket.socket], None], sock: socket.socket) -> None:
    """Serve, then close."""
    with sock, suppress(ConnectionError):  # The other end may go before it has been answered.
        serve(sock)


def frames_of(sock: socket.socket) -> Iterator[bytes]:
    """Length-prefixed frames, without the prefix, until the other end closes."""
    data = b""
    while True:
        while len(data) >= 4 and len(data) - 4 >= _SIZE.unpack_from(data)[0]:
            end = 4 + _SIZE.unpack_from(data)[0]
            yield data[4:end]
            data = data[end:]
        read = sock.recv(1 << 16)
        if not read:
            return
        data += read


class Bytes:
    """Reads big-endian fields one after another."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, layout: str) -> int:
        """Return one number of *layout*."""
        (value,) = unpack_from(f">{layout}", self._data, self._at)
        self._at += Struct(f">{layout}").size
        assert isinstance(value, int)
        return value

    def bytes(self, length: int) -> bytes:
        """Return so many bytes, none for a length below zero."""
        found = self._data[self._at : self._at + max(length, 0)]
        self._at += len(found)
        return found

    def string(self) -> str:
        """Return a string as Kafka has it: a short and the bytes."""
        return self.bytes(self.take("h")).decode()

    @property
    def done(self) -> bool:
        """Whether nothing is left."""
        return self._at == len(self._data)


class FakeKafka:
    """Commits and fetches of one topic; not ready for the first *not_yet* requests.

    Attributes:
        offsets: By group and partition.
        commit_error: What every partition of a commit is answered with.
    """

    def __init__(self, *, commit_error: int = 0, not_yet: int = 0) -> None:
        self.offsets: dict[tuple[str, int], int] = {}
        self.commit_error = commit_error
        self.not_yet = not_yet
        self.members: set[tuple[int, str]] = set()
        self.created: list[tuple[str, int]] = []

    def serve(self, sock: socket.socket) -> None:
        """Answer until the other end closes."""
        for frame in frames_of(sock):
            request = Bytes(frame)
            api = (request.take("h"), request.take("h"))
            correlation_id = request.take("i")
            assert request.string() == "bench"
            answer = {
                (8, 7): self._commit,
                (9, 5): self._fetch,
                (10, 2): self._find,
                (19, 4): self._create,
            }[api](request)
            assert request.done
            body = pack(">i", correlation_id) + answer
            sock.sendall(_SIZE.pack(len(body)) + body)

    def _delayed(self, error: int) -> int:
        if self.not_yet:
            self.not_yet -= 1
            return 15
        return error

    def _commit(self, request: Bytes) -> bytes:
        group = request.string()
        self.members.add((request.take("i"), request.string()))
        assert request.take("h") == -1  # No group instance id.
        assert request.take("i") == 1
        topic = request.string()
        answers = b""
        count = request.take("i")
        for _ in range(count):
            partition, offset, _ = request.take("i"), request.take("q"), request.take("i")
            request.string()
            self.offsets[group, partition] = offset
            answers += pack(">ih", partition, self._delayed(self.commit_error))
        name = topic.encode()
        return pack(">iih", 0, 1, len(name)) + name + pack(">i", count) + answers

    def _fetch(self, request: Bytes) -> bytes:
        group = request.string()
        assert request.take("i") == 1
        topic = request.string()
        count = request.take("i")
        if error := self._delayed(0):
            return pack(">iih", 0, 0, error)
        answers = b""
        for _ in range(count):
            partition = request.take("i")
            offset = self.offsets.get((group, partition), -1)
            answers += pack(">iqihh", partition, offset, -1, 0, 0)
        name = topic.encode()
        return pack(">iih", 0, 1, len(name)) + name + pack(">i", count) + answers + pack(">h", 0)

    def _find(self, request: Bytes) -> bytes:
        request.string()
        assert request.take("b") == 0
        return pack(">ihhih", 0, self._delayed(0), -1, 1, 0) + pack(">i", 9092)

    def _create(self, request: Bytes) -> bytes:
        assert request.take("i") == 1
        topic = request.string()
        self.created.append((topic, request.take("i")))
        assert (request.take("h"), request.take("i"), request.take("i")) == (1, 0, 0)
        request.take("i")
        assert request.take("b") == 0
        name = topic.encode()
        return pack(">iih", 0, 1, len(name)) + name + pack(">hh", 0, -1)


class FakeZooKeeper:
    """Nodes and their data.

    Attributes:
        nodes: By path: data, and how often it was set.
        error: What every setData is answered with.
    """

    def __init__(self, *, error: int = 0) -> None:
        self.nodes: dict[str, tuple[bytes, int]] = {"": (b"", 0)}
        self.error = error
        self._zxid = 0

    def serve(self, sock: socket.socket) -> None:
        """Answer until the other end closes."""
        frames = frames_of(sock)
        next(frames)
        hello = pack(">iiqi16s?", 0, 40_000, 1, 16, bytes(16), False)
        sock.sendall(_SIZE.pack(len(hello)) + hello)
        for frame in frames:
            request = Bytes(frame)
            xid, operation = request.take("i"), request.take("i")
            path = request.bytes(request.take("i")).decode()
            error, body = {1: self._create, 4: self._get, 5: self._set}[operation](path, request)
            answer = pack(">iqi", xid, self._zxid, error) + body
            sock.sendall(_SIZE.pack(len(answer)) + answer)

    def _create(self, path: str, request: Bytes) -> tuple[int, bytes]:
        data = request.bytes(request.take("i"))
        if path.rpartition("/")[0] not in self.nodes:
            return -101, b""
        if path in self.nodes:
            return -110, b""
        self._zxid += 1
        self.nodes[path] = (data, 0)
        return 0, pack(">i", len(path)) + path.encode()

    def _stat(self, path: str) -> bytes:
        data, version = self.nodes[path]
        changed = self._zxid if version else 7
        return pack(">qqqqiiiqiiq", 7, changed, 0, changed, version, 0, 0, 0, len(data), 0, 7)

    def _set(self, path: str, request: Bytes) -> tuple[int, bytes]:
        data = request.bytes(request.take("i"))
        assert request.take("i") == -1
        assert request.done
        if self.error:
            return self.error, b""
        self._zxid += 1
        self.nodes[path] = (data, self.nodes[path][1] + 1)
        return 0, self._stat(path)

    def _get(self, path: str, request: Bytes) -> tuple[int, bytes]:
        assert request.take("b") == 0
        assert request.done
        if path not in self.nodes:
            return -101, b""
        data, _ = self.nodes[path]
        return 0, pack(">i", len(data)) + data + self._stat(path)


class FakeRedis:
    """Hashes.

    Attributes:
        hashes: By key and field.
        refuses: Every command is answered with an error.
    """

    def __init__(self, *, refuses: bool = False) -> None:
        self.hashes: dict[bytes, dict[bytes, bytes]] = {}
        self.refuses = refuses

    def serve(self, sock: socket.socket) -> None:
        """Answer until the other end closes."""
        file = sock.makefile("rb")
        while line := file.readline():
            words = []
            for _ in range(int(line[1:])):
                length = int(file.readline()[1:])
                words.append(file.read(length + 2)[:-2])
            sock.sendall(self._answer(words))

    def _answer(self, words: list[bytes]) -> bytes:
        command, key, *rest = words
        found = self.hashes.setdefault(key, {})
        if self.refuses:
            return b"-MISCONF no\r\n"
        if command == b"HSET":
            pairs = dict(zip(rest[::2], rest[1::2], strict=True))
            new = len(pairs.keys() - found.keys())
            found.update(pairs)
            return b":%d\r\n" % new
        assert command == b"HMGET"
        values = [found[field] for field in rest]
        return b"*%d\r\n" % len(values) + b"".join(b"$%d\r\n%s\r\n" % (len(v), v) for v in values)
