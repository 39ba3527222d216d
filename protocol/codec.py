"""Bodies of requests and responses: bytes to messages and back, in every version.

Theory of operation
===================

msgspec decodes a body straight into the classes of `protocol.messages` and checks it on the way.
For that a class must have exactly the fields of a version, none of them optional. Where it
doesn't, `_layout` makes a class that has, and what was decoded is converted; so whoever handles
a message sees one class, whatever the version.

A refused request is one of two things. If its bytes are sound, only the content is wrong, and
the connection is kept. If not, nobody knows where the next value begins, and it is closed.
msgspec stops at the first thing that is wrong, so `_check_sound` looks at the rest. It
needs no memory: it skips values instead of making them.
"""

import struct
from collections.abc import Callable, Collection, Iterable
from itertools import accumulate, chain
from operator import attrgetter
from typing import Annotated, Any, Final, NamedTuple, TypeVar, get_args, get_origin

import msgspec

from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.fields import (
    TEXT_BYTES_MAX,
    TOPIC_BYTES_MAX,
    RequestArray,
    newest_version,
    parts,
    since,
    text_limit,
)
from protocol.messages import (
    APIS,
    Api,
    ApiKey,
    BareError,
    Message,
    OffsetColumns,
    PartitionOffset,
    Request,
    RequestPart,
    Response,
    ScannedOffset,
)

DEPTH_MAX: Final = 8
ITEMS_MAX: Final = 100_000

K = TypeVar("K")
V = TypeVar("V")


class Invalid(ValueError):
    """The bytes of a request are sound, its content does not fit: answered with 42."""


class Unreadable(RemoteProtocolError):
    """The bytes are not one sound msgpack value: answered with 42, then closed."""


# --- Layouts ----------------------------------------------------------------------------


def _layout(message: type[Message], version: int, *, closed: bool) -> type[Message]:
    """Return what has exactly the fields that *message* has in *version*.

    A *closed* one takes no elements after them.
    """
    fields: list[tuple[str, Any]] = []
    newer: dict[str, Any] = {}
    is_message = closed is issubclass(message, RequestPart)
    for field in msgspec.structs.fields(message):
        default = None if field.default is msgspec.NODEFAULT else field.default
        if since(field.type) > version:
            newer[field.name] = default
            continue
        fields.append((field.name, _annotation(field.type, version, closed=closed)))
        is_message &= field.default is msgspec.NODEFAULT and fields[-1][1] == field.type
    if is_message and not newer:
        return message
    layout: Any = msgspec.defstruct(
        message.__name__,
        fields,
        bases=(Message,),
        namespace=newer,  # Converted to *message*, it has these.
        forbid_unknown_fields=closed,
    )
    return layout  # type: ignore[no-any-return]  # Its bases say it is one.


def _annotation(annotation: Any, version: int, *, closed: bool) -> Any:
    """Return *annotation* with messages as they are in *version*."""
    if isinstance(annotation, type) and issubclass(annotation, Message):
        return _layout(annotation, version, closed=closed)
    if not any(parts(annotation)):
        return annotation
    inner, *others = get_args(annotation)
    inner = _annotation(inner, version, closed=closed)
    if get_origin(annotation) is Annotated:
        return Annotated[(inner, *others)]
    if get_origin(annotation) is tuple:
        return tuple[inner, ...]  # type: ignore[valid-type]  # Known only now.
    return inner | None


# --- Texts ------------------------------------------------------------------------------


# What gets the value of a field, how many bytes it has at most, and its name.
_Limit = tuple[Callable[[Any], Any], int, str]


class _Texts(NamedTuple):
    """Where messages have texts: their own fields with limits in bytes, and parts with fields.

    `arrays` are fields with several texts each.
    """

    limits: tuple[_Limit, ...]
    arrays: tuple[_Limit, ...]
    parts: tuple[tuple[Callable[[Any], Any], "_Texts"], ...]


def _texts(message: type[msgspec.Struct], longest: int) -> _Texts:
    """Return where *message* has texts whose limit is at most *longest* bytes."""
    limits: list[_Limit] = []
    arrays: list[_Limit] = []
    inner: list[tuple[Callable[[Any], Any], _Texts]] = []
    for field in msgspec.structs.fields(message):
        get = attrgetter(field.name)
        limit = text_limit(field.type)
        if limit is not None and limit <= longest:
            (arrays if _is_array(field.type) else limits).append((get, limit, field.name))
        for part in parts(field.type):
            texts = _texts(part, longest)
            if any(texts):
                inner.append((get, texts))
    return _Texts(tuple(limits), tuple(arrays), tuple(inner))


def _is_array(annotation: Any) -> bool:
    return get_origin(annotation) is tuple or any(map(_is_array, get_args(annotation)))


def _check_texts(messages: Collection[Message], texts: _Texts) -> None:
    """Raise `Invalid` if a text of *messages* has more bytes than characters are allowed.

    There may be 10,000 of them, and nobody else is heard meanwhile: so a field of all at once.
    """
    for get, limit, name in texts.limits:
        _check_limit(filter(None, map(get, messages)), limit, name)
    for get, limit, name in texts.arrays:
        _check_limit(chain.from_iterable(filter(None, map(get, messages))), limit, name)
    for get, inner in texts.parts:
        _check_texts(list(chain.from_iterable(filter(None, map(get, messages)))), inner)


def _check_limit(texts: Iterable[str], limit: int, name: str) -> None:
    for text in texts:
        if not text.isascii() and len(text.encode()) > limit:
            raise Invalid(f"{name} is over {limit} bytes")


# --- Sound bytes ------------------------------------------------------------------------

# Opcode -> how many bytes of length follow it, what to add to that length, and how many values each
# element of a container is. The length of anything else is in bytes.
_OPCODES: Final = [(0, 0, 0)] * 256
_OPCODES[0x80:0xC0] = [
    *[(0, count, 2) for count in range(16)],
    *[(0, count, 1) for count in range(16)],
    *[(0, count, 0) for count in range(32)],
]
_OPCODES[0xC4:0xE0] = [
    (1, 0, 0), (2, 0, 0), (4, 0, 0),  # bin
    (1, 1, 0), (2, 1, 0), (4, 1, 0),  # ext: a byte for the type
    (0, 4, 0), (0, 8, 0),  # float
    (0, 1, 0), (0, 2, 0), (0, 4, 0), (0, 8, 0),  # unsigned int
    (0, 1, 0), (0, 2, 0), (0, 4, 0), (0, 8, 0),  # int
    (0, 2, 0), (0, 3, 0), (0, 5, 0), (0, 9, 0), (0, 17, 0),  # ext of fixed lengths
    (1, 0, 0), (2, 0, 0), (4, 0, 0),  # str
    (2, 0, 1), (4, 0, 1), (2, 0, 2), (4, 0, 2),  # array, map
]  # fmt: skip
# What takes a fixed number of bytes, as nearly all does: how many; 0 for anything else. A large
# body has 100,000 values, and nobody else is heard while they are counted.
_SIZES: Final = [0 if width or children else 1 + length for width, length, children in _OPCODES]

_skip: Final = msgspec.msgpack.Decoder(msgspec.Raw).decode


def _check_sound(body: bytes) -> None:
    """Check that *body* is exactly one msgpack value of bounded depth and size.

    Raises:
        Invalid: It holds more than `ITEMS_MAX` values.
        Unreadable: It is cut off, goes on after its end, nests too deep, or has the opcode
            that msgpack never uses.
    """
    try:
        _skip(body)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise Unreadable(str(exc)) from exc
    at = 0
    left = 1  # How many values are still to come in the container that is open.
    outer: list[int] = []  # The same of those around it.
    for _ in range(ITEMS_MAX):
        opcode = body[at]
        size = _SIZES[opcode]
        if size:
            at += size
        else:
            width, length, children = _OPCODES[opcode]
            at += 1 + width
            if width:
                length += int.from_bytes(body[at - width : at])
            if not children:
                at += length
            elif length:
                if len(outer) == DEPTH_MAX:
                    raise Unreadable(f"the body nests deeper than {DEPTH_MAX}")
                outer.append(left - 1)
                left = children * length
                continue
        left -= 1
        while not left:
            if not outer:
                return
            left = outer.pop()
    raise Invalid(f"the body holds more than {ITEMS_MAX} values")


# --- Counted bytes ----------------------------------------------------------------------


class _Outline(NamedTuple):
    """What of a layout says how many values a body holds, without making them.

    Attributes:
        layout: The same fields, as they lie there but for arrays with arrays in their items.
        values: What a message holds without the items of its arrays.
        arrays: What gets an array whose items have none, and what each of them holds.
        parts: What gets another one.
    """

    layout: type[Message]
    values: int
    arrays: tuple[tuple[Callable[[Any], Any], int], ...]
    parts: tuple[tuple[Callable[[Any], Any], "_Outline"], ...]

    @property
    def is_flat(self) -> bool:
        """Whether no items of items have arrays: of those too many fit into a body."""
        return not any(inner.parts for _, inner in self.parts)


def _outline(message: type[msgspec.Struct]) -> _Outline:
    """Return what *message*, a closed layout, says of its bodies."""
    fields: list[tuple[str, Any]] = []
    arrays: list[tuple[Callable[[Any], Any], int]] = []
    inner: list[tuple[Callable[[Any], Any], _Outline]] = []
    for field in msgspec.structs.fields(message):
        get = attrgetter(field.name)
        annotation: Any = msgspec.Raw
        item = next((_outline(part) for part in parts(field.type)), None)
        if item is not None and (item.arrays or item.parts):
            annotation = RequestArray[item.layout] | None  # type: ignore[name-defined]  # Known only now.
            inner.append((get, item))
        elif _is_array(field.type):
            arrays.append((get, 1 if item is None else item.values))
        fields.append((field.name, annotation))
    layout: Any = msgspec.defstruct(message.__name__, fields, bases=(RequestPart,))
    return _Outline(layout, 1 + len(fields), tuple(arrays), tuple(inner))


def _values_in(messages: Collection[Message], outline: _Outline) -> int:
    """Return how many values *messages* of this layout hold, if all in them fits, too."""
    count = len(messages) * outline.values
    for get, values in outline.arrays:
        count += values * sum(map(_length, map(get, messages)))
    for get, inner in outline.parts:
        count += _values_in(list(chain.from_iterable(filter(None, map(get, messages)))), inner)
    return count


def _length(array: msgspec.Raw) -> int:
    """Return how many items *array* has; 0 if it is none."""
    head = bytes(memoryview(array)[:5])
    width, length, children = _OPCODES[head[0]]
    return length + int.from_bytes(head[1 : 1 + width]) if children else 0


# --- Codecs -----------------------------------------------------------------------------

_encoder: Final = msgspec.msgpack.Encoder()
# How many elements an array may have whose header takes one byte, or three.
_FIXED_ARRAY_MAX: Final = 15
_SHORT_ARRAY_MAX: Final = 0xFFFF
_LONG_HEADER_BYTES: Final = 5


def encode(value: Any) -> bytes:
    """Return *value*, a message or a tuple of plain values, as msgpack.

    Raises:
        LocalProtocolError: A value has no place in the protocol (such as a lone surrogate).
    """
    try:
        return _encoder.encode(value)
    except (TypeError, ValueError, OverflowError) as exc:
        raise LocalProtocolError(f"a message cannot be packed: {exc}") from exc


class PackedArray:
    """A long array, packed a few items at a time."""

    def __init__(self) -> None:
        self._count = 0
        self._packed = bytearray(_LONG_HEADER_BYTES)

    @property
    def size_bytes(self) -> int:
        """What it takes so far."""
        return len(self._packed)

    def extend(self, items: tuple[Any, ...]) -> None:
        """Add *items*; raises as `encode` does."""
        self._packed += encode(items)[_array_header_bytes(len(items)) :]
        self._count += len(items)

    def whole(self) -> Any:
        """Return it, to stand in a message in the place of a tuple; nothing is added after that."""
        self._packed[:_LONG_HEADER_BYTES] = b"\xdd" + self._count.to_bytes(4)
        return msgspec.Raw(self._packed)


def _array_header_bytes(count: int) -> int:
    if count <= _FIXED_ARRAY_MAX:
        return 1
    return 3 if count <= _SHORT_ARRAY_MAX else _LONG_HEADER_BYTES


class RequestCodec:
    """Reads and writes the bodies of one request in one version."""

    def __init__(self, message: type[Request], version: int) -> None:
        self._message = message
        self._layout = _layout(message, version, closed=True)
        self._is_message = self._layout is message
        # So long may a body be of which msgspec checks everything: no text has a smaller limit.
        self._checked_bytes = TOPIC_BYTES_MAX if self._is_message else -1
        self._is_older = version < newest_version(message)
        self._decode = msgspec.msgpack.Decoder(self._layout).decode
        self._outline = _outline(self._layout)
        self._decode_outline = msgspec.msgpack.Decoder(self._outline.layout).decode
        self._texts = _texts(message, TEXT_BYTES_MAX)
        # Without those that only a body over `TEXT_BYTES_MAX` can have too long.
        self._names = _texts(message, TEXT_BYTES_MAX - 1)

    def decode(self, body: bytes) -> Any:
        """Return the request in *body*.

        Raises:
            Invalid: The bytes are sound, the content does not fit.
            Unreadable: The bytes are not one sound msgpack value.
        """
        size = len(body)
        if size > ITEMS_MAX and self._may_hold_more(body):
            _check_sound(body)
        decode = self._decode
        try:
            request = decode(body)
        except Exception as exc:  # Not all are msgspec's own: UnicodeDecodeError.
            _check_sound(body)
            raise Invalid(str(exc)) from exc
        if size <= self._checked_bytes:
            return request  # Nearly always.
        if not self._is_message:
            request = msgspec.convert(request, self._message, from_attributes=True)
        _check_texts((request,), self._names if size <= TEXT_BYTES_MAX else self._texts)
        return request

    def _may_hold_more(self, body: bytes) -> bool:
        """Say whether a long *body* may hold more than `ITEMS_MAX` values.

        To look at each takes five times as long as to decode them all.
        """
        if not self._outline.is_flat:
            return True
        try:
            outline = self._decode_outline(body)
        except (msgspec.DecodeError, RecursionError):
            return True
        return _values_in((outline,), self._outline) > ITEMS_MAX

    def encode(self, request: Request) -> bytes:
        """Return the body of *request*, newer fields dropped."""
        return encode(_trim(request, self._layout) if self._is_older else request)


class ResponseCodec:
    """Reads and writes the bodies of one response in one version.

    Attributes:
        is_only_error: Whether it is an array of an error and nothing else.
        encode: Returns the body of a response, newer fields dropped. An exception is a bug.
    """

    def __init__(self, message: type[Response], version: int) -> None:
        self._message = message
        self._layout = _layout(message, version, closed=False)
        self._decode = msgspec.msgpack.Decoder(self._layout).decode
        is_older = version < newest_version(message)
        self.encode: Callable[[Response], bytes] = (
            self._encode_older if is_older else _encoder.encode
        )
        self.is_only_error = self._layout.__struct_fields__ == ("error",)

    def decode(self, body: bytes) -> Any:
        """Return the response in *body*; the server is trusted more, its frame is bounded anyway.

        Raises:
            RemoteProtocolError: The body is not what the protocol says.
        """
        try:
            response = self._decode(body)
        except Exception as exc:  # As in a request.
            raise RemoteProtocolError(f"the response cannot be read: {exc}") from exc
        if self._layout is not self._message:
            response = msgspec.convert(response, self._message, from_attributes=True)
        return response

    def _encode_older(self, response: Response) -> bytes:
        return encode(
            response if isinstance(response, BareError) else _trim(response, self._layout)
        )


def _trim(message: Message, layout: type[Message]) -> Message:
    """Return *message* without the fields that *layout* doesn't have.

    Raises:
        LocalProtocolError: A value is beyond its limits.
    """
    try:
        return msgspec.convert(message, layout, from_attributes=True)
    except msgspec.ValidationError as exc:
        raise LocalProtocolError(f"a message cannot be packed: {exc}") from exc


class Made(dict[K, V]):
    """Values that are made when they are first wanted.

    A codec takes about a millisecond to make, and most programs use few of them.
    """

    def __init__(self, make: Callable[[K], V]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: K) -> V:
        value = self[key] = self._make(key)
        return value


def _api(where: tuple[ApiKey, int]) -> Api:
    """Return the API of a key and a version; raises KeyError if it hasn't that version."""
    key, version = where
    if version not in range(APIS[key].max_version + 1):
        raise KeyError(where)
    return APIS[key]


REQUEST_CODECS: Final = Made[tuple[ApiKey, int], RequestCodec](
    lambda where: RequestCodec(_api(where).request, where[1])
)
RESPONSE_CODECS: Final = Made[tuple[ApiKey, int], ResponseCodec](
    lambda where: ResponseCodec(_api(where).response, where[1])
)
BARE_ERROR_CODEC: Final = ResponseCodec(BareError, 0)


# --- Pages of a scan --------------------------------------------------------------------

NO_EXPIRY: Final = -1


def scanned_offsets(page: OffsetColumns) -> list[ScannedOffset]:
    """Return the offsets of a page one by one.

    Raises:
        RemoteProtocolError: The page is not what the protocol says.
    """
    decode_row = msgspec.msgpack.Decoder(PartitionOffset).decode
    try:
        counts = struct.unpack(f">{len(page.topics)}I", page.counts)
        runs = zip(page.group_ids, page.topics, counts, strict=True)
        names = [(group, topic) for group, topic, count in runs for _ in range(count)]
        sizes = struct.unpack(f">{len(names)}H", page.sizes)
        committed_ms = struct.unpack(f">{len(names)}q", page.committed_ms)
        expire_ms: tuple[int, ...] = (NO_EXPIRY,) * len(names)
        if page.expire_ms:
            expire_ms = struct.unpack(f">{len(names)}q", page.expire_ms)
        if sum(sizes) != len(page.rows):
            raise RemoteProtocolError(f"{len(page.rows)} bytes of rows, {sum(sizes)} were told")
        rows = memoryview(page.rows)
        ends = accumulate(sizes)
        found = [decode_row(rows[e - size : e]) for e, size in zip(ends, sizes, strict=True)]
    except (ValueError, TypeError, struct.error, msgspec.MsgspecError) as exc:
        raise RemoteProtocolError(str(exc)) from exc
    return [
        ScannedOffset(
            *name, row.partition, row.offset, row.leader_epoch, row.metadata, committed, expires
        )
        for name, row, committed, expires in zip(names, found, committed_ms, expire_ms, strict=True)
    ]
