"""The client hello: the first message of a TLS handshake, gathered until it is whole.

OpenSSL takes 42 KB for each connection, and up to 190 KB more as soon as a hello says that it will
be long. So OpenSSL sees nothing of a hello before its last byte is there, and no hello is longer
than `HELLO_BYTES_MAX`. Only the length is judged here: a first message of another kind is OpenSSL's
to refuse.
"""

from typing import Final

HANDSHAKE_RECORD: Final = 0x16
# Bytes of a hello with the headers of its records. Those of clients have 0.2 to 2 KB, with key
# shares against quantum computers, too; tickets, which could make them longer, aren't given out.
HELLO_BYTES_MAX: Final = 16 * 1024

_RECORD_HEADER_BYTES: Final = 5
_MESSAGE_HEADER_BYTES: Final = 4
_CLIENT_HELLO: Final = 1
_MAJOR_VERSION: Final = 3  # Of all versions of TLS.


class BadHello(Exception):
    """Why a client hello is refused, for the log."""


class ClientHello:
    """The bytes that a client has sent before its hello is whole.

    Attributes:
        data: These bytes, as they came.
    """

    def __init__(self) -> None:
        self.data = bytearray()
        self._record_at = 0  # Where the next record begins.
        self._header = b""  # The message's kind and length, as far as they have come.
        self._message_bytes = 0  # Bytes of the message that have come.

    def add(self, data: bytes) -> bool:
        """Add what has come; return whether it has a whole message, for OpenSSL to read.

        Raises:
            BadHello: It is too long, or something else comes before its end.
        """
        self.data += data
        while len(self.data) >= (start := self._record_at + _RECORD_HEADER_BYTES):
            kind, major_version = self.data[self._record_at : self._record_at + 2]
            end = start + int.from_bytes(self.data[start - 2 : start])
            if major_version != _MAJOR_VERSION:
                raise BadHello("wrong version number")
            if kind != HANDSHAKE_RECORD or end == start:
                raise BadHello("its client hello is damaged")
            if end > HELLO_BYTES_MAX:
                raise BadHello(f"its client hello is longer than {HELLO_BYTES_MAX // 1024} KiB")
            if len(self.data) < end:
                return False
            self._header = (self._header + self.data[start:end])[:_MESSAGE_HEADER_BYTES]
            self._message_bytes += end - start
            self._record_at = end
            if self._header[0] != _CLIENT_HELLO or self._is_whole():
                return True
        return False

    def _is_whole(self) -> bool:
        rest_bytes = int.from_bytes(self._header[1:])
        return self._message_bytes >= _MESSAGE_HEADER_BYTES + rest_bytes
