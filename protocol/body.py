"""The body of a message: one msgpack array, packed and unpacked with a bounded appetite.

Theory of operation
===================

msgpack's own limits are per header, so nested arrays that each claim thousands of elements
multiply: a frame of 64 KiB can ask for 80 MB. `scan` walks the opcodes first and refuses
claims that the bytes cannot keep. It costs about 4 µs for a small commit, as much as all
the rest of decoding, so a body that is too small or has too few long-array headers to do harm
goes straight to msgpack; when that or the layout refuses it, `scan` says whether the
bytes were sound (the request is refused, the connection kept) or not (it is closed).

The pure-Python fallback of msgpack behaves differently on bad input, and versions before
1.2.1 crash on it (GHSA-6v7p-g79w-8964): importing this module refuses both.
"""

import struct
from typing import Any, Final

import msgpack

from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.schema import ARRAY_ITEMS_MAX, Check, Invalid

DEPTH_MAX: Final = 8
ITEMS_MAX: Final = 100_000
# An array has no more elements than its body has bytes: 170 headers x 512 x 8 bytes.
_TINY_BODY_BYTES: Final = 512
_SMALL_BODY_BYTES: Final = 64 * 1024
# 16 headers x 10,000 claimed elements x 8 bytes: at most 1.3 MB before msgpack notices.
_LONG_ARRAYS_MAX: Final = 16


def check_msgpack(version: tuple[int, ...], unpacker_module: str) -> None:
    """Raise ImportError unless msgpack is new enough and compiled."""
    if version < (1, 2, 1):
        found = ".".join(map(str, version))
        raise ImportError(f"msgpack {found} is unsafe on bad input; install msgpack >= 1.2.1")
    if unpacker_module != "msgpack._cmsgpack":
        raise ImportError(
            "msgpack runs without its C extension (MSGPACK_PUREPYTHON, or no wheel for this "
            "platform); its pure-Python fallback is not supported"
        )


check_msgpack(msgpack.version, msgpack.Unpacker.__module__)

_SHORT_HEADERS: Final = [bytes((0x90 | count,)) for count in range(16)]

_unpackb: Final = msgpack.unpackb
_packer: Final = msgpack.Packer(use_bin_type=True, autoreset=True)


class Unreadable(RemoteProtocolError):
    """The bytes are not one sound msgpack value: answered with 42, then closed."""


def pack(value: tuple[Any, ...]) -> bytes:
    """Return *value* as msgpack.

    Raises:
        LocalProtocolError: A value has no place in the protocol (such as a lone surrogate).
    """
    try:
        packed: bytes = _packer.pack(value)
    except (TypeError, ValueError, OverflowError) as exc:
        _packer.reset()
        raise LocalProtocolError(f"a message cannot be packed: {exc}") from exc
    return packed


def array_header(count: int) -> bytes:
    """Return what stands before the *count* elements of a packed array."""
    if count < len(_SHORT_HEADERS):
        return _SHORT_HEADERS[count]
    return b"\xdc" + count.to_bytes(2) if count < 1 << 16 else b"\xdd" + count.to_bytes(4)


def unpack_request(body: bytes, check: Check) -> Any:
    """Return the request in *body*, checked by its layout.

    Raises:
        Invalid: The bytes are sound, the content does not fit.
        Unreadable: The bytes are not one sound msgpack value.
    """
    size = len(body)
    if size > _TINY_BODY_BYTES and (
        size > _SMALL_BODY_BYTES or body.count(b"\xdc") + body.count(b"\xdd") > _LONG_ARRAYS_MAX
    ):
        scan(body)
    return _unpack_within(body, check)


def unpack_packed(body: bytes, check: Check) -> Any:
    """Return the request in *body*, which `pack` has made, so that its claims are honest.

    Raises what `unpack_request` does.
    """
    if len(body) > ITEMS_MAX:  # Else it can't hold so many values.
        scan(body)
    return _unpack_within(body, check)


def _unpack_within(body: bytes, check: Check) -> Any:
    longest = min(len(body), ARRAY_ITEMS_MAX)
    try:
        value = _unpackb(body, use_list=False, max_array_len=longest, max_map_len=0, max_ext_len=0)
        return check(value)
    except Invalid:
        scan(body)
        raise
    except Exception as exc:  # msgpack raises several unrelated classes on bad input.
        scan(body)
        raise Invalid(f"the body does not fit: {type(exc).__name__}") from exc


def unpack_response(body: bytes, check: Check) -> Any:
    """Return the response in *body*; the server is trusted more, its frame is bounded anyway.

    Raises:
        RemoteProtocolError: The body is not what the protocol says.
    """
    try:
        return check(msgpack.unpackb(body, use_list=False, max_map_len=0, max_ext_len=0))
    except Exception as exc:  # As above.
        raise RemoteProtocolError(f"the response cannot be read: {exc}") from exc


# Opcode -> (bytes of the length field, fixed bytes after it). Strings, bins and exts skip
# what their length says; ints and floats are only fixed bytes.
_LENGTHS: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_EXT_LENGTHS: Final = {0xC7: 1, 0xC8: 2, 0xC9: 4}
_FIXED: Final = {
    0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8,
    0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8, 0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17,
}  # fmt: skip
_CONTAINERS: Final = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
_UNSIGNED: Final = {1: struct.Struct(">B"), 2: struct.Struct(">H"), 4: struct.Struct(">I")}


def scan(body: bytes) -> None:
    """Check that *body* is exactly one msgpack value of bounded depth and honest claims.

    Raises:
        Invalid: It holds more than `ITEMS_MAX` values.
        Unreadable: It is cut off, goes on after its end, nests too deep, claims more
            elements than it has bytes, or has the opcode that msgpack never uses.
    """
    end = len(body)
    at = 0
    items = 0
    open_counts = [1]  # How many values are still due, per open container.
    while open_counts:
        if open_counts[-1] == 0:
            open_counts.pop()
            continue
        open_counts[-1] -= 1
        items += 1
        if at >= end:
            raise Unreadable("the body ends inside a value")
        if items > ITEMS_MAX:
            raise Invalid(f"the body holds more than {ITEMS_MAX} values")
        at, claimed = _skip(body, at)
        if claimed:
            if claimed > end - at:
                raise Unreadable("a container claims more elements than there are bytes")
            if len(open_counts) > DEPTH_MAX:
                raise Unreadable(f"the body nests deeper than {DEPTH_MAX}")
            open_counts.append(claimed)
    if at != end:
        raise Unreadable(f"{end - at} bytes follow the body" if at < end else "the body is cut off")


def _skip(body: bytes, at: int) -> tuple[int, int]:
    """Return where the value's own bytes end, and how many values it contains."""
    op = body[at]
    at += 1
    if op <= 0x7F or op >= 0xE0:
        return at, 0
    if op <= 0x8F:
        return at, 2 * (op & 0x0F)
    if op <= 0x9F:
        return at, op & 0x0F
    if op <= 0xBF:
        return at + (op & 0x1F), 0
    fixed = _FIXED.get(op)
    if fixed is not None:
        return at + fixed, 0
    if op in _LENGTHS:
        width = _LENGTHS[op]
        return at + width + _unsigned(body, at, width), 0
    if op in _CONTAINERS:
        width, per_element = _CONTAINERS[op]
        return at + width, per_element * _unsigned(body, at, width)
    if op in _EXT_LENGTHS:
        width = _EXT_LENGTHS[op]
        return at + width + 1 + _unsigned(body, at, width), 0
    raise Unreadable("the body uses the reserved opcode 0xc1")


def _unsigned(body: bytes, at: int, width: int) -> int:
    if at + width > len(body):
        raise Unreadable("the body ends inside a length")
    number: int = _UNSIGNED[width].unpack_from(body, at)[0]
    return number
