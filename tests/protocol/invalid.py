"""Requests that break the protocol, and how a server must answer each."""

from typing import Any, Final, NamedTuple

import msgpack

from protocol.connection import REQUEST_HEADER
from protocol.messages import ApiKey
from tests.protocol.frames import frame_of

KEEP_42: Final = "[42], connection kept"
CLOSE_42: Final = "[42], connection closed"
KEEP_35: Final = "[35], connection kept"
CLOSE: Final = "closed without an answer"


class InvalidRequest(NamedTuple):
    """A frame and the verdict on it."""

    name: str
    frame: bytes
    verdict: str


def _packed(api: ApiKey, *body: Any, version: int = 0) -> bytes:
    packed: bytes = msgpack.packb(body)
    return frame_of(api, version, packed)


def _beat(*body: Any) -> bytes:
    return _packed(ApiKey.HEARTBEAT, *body)


def _raw(body: bytes) -> bytes:
    return frame_of(ApiKey.HEARTBEAT, 0, body)


def _join(version: int = 0, **changes: Any) -> bytes:
    fields = {
        "group_id": "g",
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
        "member_id": "",
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [["range", b""]],
        "reason": None,
    }
    return _packed(ApiKey.JOIN_GROUP, *(fields | changes).values(), version=version)


def _commit(*partition: Any, topic: Any = "t", version: int = 0) -> bytes:
    body = ("g", -1, "", None, [[topic, [list(partition)]]])
    return _packed(ApiKey.OFFSET_COMMIT, *body, version=version)


def _register(*topic: Any) -> bytes:
    return _packed(ApiKey.REGISTER_TOPICS, [topic])


_GOOD_BEAT: Final = ("g", 1, "m", None)
_GOOD: Final[bytes] = msgpack.packb(_GOOD_BEAT)

_CONTENT: Final = {
    "an element too few": _beat("g", 1, "m"),
    "an element too many": _beat("g", 1, "m", None, None),
    "an empty array": _beat(),
    "no array but a map": _raw(msgpack.packb({})),
    "no array but nil": _raw(b"\xc0"),
    "no array but an int": _raw(b"\x01"),
    "nil where a str must be": _beat(None, 1, "m", None),
    "bin where a str must be": _beat(b"g", 1, "m", None),
    "an int where a str must be": _beat(1, 1, "m", None),
    "a bool where an int must be": _beat("g", True, "m", None),
    "nil where an int must be": _beat("g", None, "m", None),
    "a float where an int must be": _beat("g", 1.0, "m", None),
    "a float that is not a number": _beat("g", float("nan"), "m", None),
    "a str where an int must be": _beat("g", "1", "m", None),
    "an int below the 32-bit range": _beat("g", -(2**31) - 1, "m", None),
    "an int above the 32-bit range": _beat("g", 2**31, "m", None),
    "an int above the 64-bit range": _beat("g", 2**64 - 1, "m", None),
    "a generation below -1": _beat("g", -2, "m", None),
    "a map as an element": _beat("g", 1, "m", {}),
    "a map with an entry": _beat("g", 1, "m", {"a": 1}),
    "an ext type": _beat("g", 1, "m", msgpack.ExtType(5, b"x")),
    "a timestamp": _beat("g", 1, "m", msgpack.Timestamp(1)),
    "an empty instance id": _beat("g", 1, "m", ""),
    "an instance id of 256 bytes": _beat("g", 1, "m", "i" * 256),
    "a member id of 301 bytes": _beat("g", 1, "m" * 301, None),
    "a member id with a control character": _beat("g", 1, "m\n", None),
    "a group id over 32 KiB": _beat("g" * 32_769, 1, "m", None),
    "UTF-8 that is cut off": _raw(_GOOD.replace(b"\xa1m", b"\xa1\xc3")),
    "UTF-8 of a surrogate": _raw(_GOOD.replace(b"\xa1m", b"\xa3\xed\xa0\x80")),
    "an empty client id": _packed(ApiKey.API_VERSIONS, "", "s", "1"),
    "a client id with NUL": _packed(ApiKey.API_VERSIONS, "a\0", "s", "1"),
    "0 where false must be": _packed(ApiKey.OFFSET_FETCH, [["g", None]], 0),
    "nil where an array must be": _packed(ApiKey.DESCRIBE_GROUPS, None),
    "an array of 10,001": _packed(ApiKey.DESCRIBE_GROUPS, ["g"] * 10_001),
    "more than 100,000 values": _raw(b"\xdd\x00\x01\x86\xa1" + b"\xa0" * 100_001),
    "a rebalance timeout below 0": _join(rebalance_timeout_ms=-1),
    "a subscription over 256 KiB": _join(protocols=[["range", bytes(256 * 1024 + 1)]]),
    "str where a subscription must be": _join(protocols=[["range", ""]]),
    "an assignor without a name": _join(protocols=[["", b""]]),
    "an assignor of three elements": _join(protocols=[["range", b"", 1]]),
    "a negative partition": _commit(-1, 1, -1, ""),
    "a negative offset": _commit(0, -1, -1, ""),
    "an offset above the 64-bit range": _commit(0, 2**63, -1, ""),
    "a leader epoch below -1": _commit(0, 1, -2, ""),
    "an empty topic": _commit(0, 1, -1, "", topic=""),
    "a topic of 250 bytes": _commit(0, 1, -1, "", topic="t" * 250),
    "an expected offset in version 0": _commit(0, 1, -1, "", None),
    "no expected offset in version 1": _commit(0, 1, -1, "", version=1),
    "an expected offset below -1": _commit(0, 1, -1, "", -2, version=1),
    "a pattern of topics in version 0": _join(topic_pattern=None),
    "no pattern of topics in version 1": _join(version=1),
    "an empty pattern of topics": _join(version=1, topic_pattern=""),
    "a pattern of topics over 4 KiB": _join(version=1, topic_pattern="." * 4_097),
    "a topic's hosts by a negative partition": _register("t", 1, [[-1, []]]),
    "a partition with 17 hosts": _register("t", 1, [[0, ["h"] * 17]]),
    "a negative number of partitions": _register("t", -1, None),
    "an end offset below 0": _packed(ApiKey.REPORT_END_OFFSETS, [["t", [[0, -1]]]]),
    "a cursor over 1 KiB": _packed(ApiKey.SCAN_OFFSETS, 0, bytes(1_025), 1),
    "a position below 0": _packed(ApiKey.READ_OFFSET_CHANGES, 0, -1, 1),
    "4 KiB and a byte of a log-in": _packed(ApiKey.SASL_AUTHENTICATE, bytes(4_097)),
    "a retention below -1": _packed(ApiKey.ALTER_GROUP_RETENTION, "g", -2),
}

_BYTES: Final = {
    "no body": _raw(b""),
    "a body that ends inside": _raw(_GOOD[:-1]),
    "a str that ends inside": _raw(b"\x94\xa5g"),
    "a length that ends inside": _raw(b"\x94\xda\x00"),
    "a byte after the body": _raw(_GOOD + b"\x00"),
    "two bodies": _raw(_GOOD + _GOOD),
    "the opcode that msgpack never uses": _raw(_GOOD.replace(b"\xc0", b"\xc1")),
    "an array that claims more than there is": _raw(b"\xdd\xff\xff\xff\xff" + _GOOD),
    "a map that claims more than there is": _raw(b"\xdf\xff\xff\xff\xff" + _GOOD),
    "a nest of nine arrays": _raw(b"\x91" * 9 + b"\xc0"),
    "a nest of claims": _raw(b"\xdd\x00\x00\x08\x00" * 700),
    "half of a float": _raw(b"\x91\xcb\x00\x00"),
    "an ext without its bytes": _raw(b"\x91\xc7\x05\x01"),
}

_VERSIONS: Final = {
    "an api that nobody knows": frame_of(9_999, 0, b"\x90"),
    "a negative api": frame_of(-1, 0, b"\x90"),
    "a version too new": frame_of(ApiKey.HEARTBEAT, 2, _GOOD),
    "a negative version": frame_of(ApiKey.HEARTBEAT, -1, _GOOD),
    "an unknown version of bytes that are no msgpack": frame_of(ApiKey.OFFSET_COMMIT, 3, b"\xc1"),
}

_FRAMES: Final = {
    "a size of 0": bytes(4),
    "a size below the header's": b"\x00\x00\x00\x07" + bytes(7),
    "a size over 1 MiB": REQUEST_HEADER.pack(1024 * 1024 + 1, ApiKey.HEARTBEAT, 0, 7),
    "a SyncGroup over 8 MiB": REQUEST_HEADER.pack(8 * 1024 * 1024 + 1, ApiKey.SYNC_GROUP, 0, 7),
    "the start of TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "the start of HTTP": b"GET / HTTP/1.1\r\n\r\n",
}

INVALID_REQUESTS: Final = tuple(
    InvalidRequest(name, frame, verdict)
    for verdict, frames in (
        (KEEP_42, _CONTENT),
        (CLOSE_42, _BYTES),
        (KEEP_35, _VERSIONS),
        (CLOSE, _FRAMES),
    )
    for name, frame in frames.items()
)
