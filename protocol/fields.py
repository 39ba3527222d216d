"""The types of the messages' fields, with their limits.

msgspec checks these limits as it decodes. It counts a str in characters where the protocol counts
bytes of UTF-8; `protocol.codec` looks at the bytes of those that are not ASCII.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Final, NamedTuple, TypeVar, get_args, get_origin

from msgspec import Meta, Struct, structs

from protocol.group_ids import NAME_BYTES_MAX, NO_CONTROL_CHARACTERS
from protocol.partition import INT32_MAX, INT64_MAX

REQUEST_BYTES_MAX: Final = 1024 * 1024
SYNC_REQUEST_BYTES_MAX: Final = 8 * 1024 * 1024
RESPONSE_BYTES_MAX: Final = 16 * 1024 * 1024
REQUEST_ITEMS_MAX: Final = 10_000
# An answer lists every offset of a group (at most 100,000) or every group of a node.
RESPONSE_ITEMS_MAX: Final = 1_000_000
# What a commit, an OffsetDelete or a ReportEndOffsets may name, all topics together.
REQUEST_PARTITIONS_MAX: Final = 10_000
TEXT_BYTES_MAX: Final = 32 * 1024
TOPIC_BYTES_MAX: Final = 249
MEMBER_ID_BYTES_MAX: Final = 300
# Long lists of names fit into a pattern of topics.
PATTERN_BYTES_MAX: Final = 4_096
# One subscription or assignment: 256 KiB hold about 10,000 topics or 60,000 partitions.
MEMBER_BYTES_MAX: Final = 256 * 1024
# A cursor names a group, a topic and a partition.
CURSOR_BYTES_MAX: Final = 1_024
HOSTS_MAX: Final = 16
# "User:" and a name; those of certificates are long.
PRINCIPAL_BYTES_MAX: Final = 512
# A salt, or a key made of a password.
KEY_BYTES_MAX: Final = 64
# One message of a log-in. It is read of somebody who has not said yet who he is.
AUTH_BYTES_MAX: Final = 4_096


class Since(NamedTuple):
    """Marks a field that an API's *version* brought; older messages have its default, or None."""

    version: int


T = TypeVar("T")
RequestArray = Annotated[tuple[T, ...], Meta(max_length=REQUEST_ITEMS_MAX)]
ResponseArray = Annotated[tuple[T, ...], Meta(max_length=RESPONSE_ITEMS_MAX)]

I32 = Annotated[int, Meta(ge=-(2**31), le=INT32_MAX)]
I64 = Annotated[int, Meta(ge=-(2**63), le=INT64_MAX)]
Code = Annotated[int, Meta(ge=-(2**15), le=2**15 - 1)]
Epoch = Annotated[int, Meta(ge=-1, le=INT32_MAX)]
Count = Annotated[int, Meta(ge=0, le=INT32_MAX)]
Offset = Annotated[int, Meta(ge=0, le=INT64_MAX)]
OffsetOrNone = Annotated[int, Meta(ge=-1, le=INT64_MAX)]
RetentionMs = Annotated[int, Meta(ge=-1, le=INT64_MAX)]  # -1 is for ever.

Text = Annotated[str, Meta(max_length=TEXT_BYTES_MAX)]
GroupId = Text  # Its rules have an error code of their own (24), checked per group.
Name = Annotated[str, Meta(min_length=1, max_length=NAME_BYTES_MAX, pattern=NO_CONTROL_CHARACTERS)]
TopicName = Annotated[
    str, Meta(min_length=1, max_length=TOPIC_BYTES_MAX, pattern=NO_CONTROL_CHARACTERS)
]
TopicPattern = Annotated[
    str, Meta(min_length=1, max_length=PATTERN_BYTES_MAX, pattern=NO_CONTROL_CHARACTERS)
]
MemberId = Annotated[str, Meta(max_length=MEMBER_ID_BYTES_MAX, pattern=NO_CONTROL_CHARACTERS)]
# An empty one has an error code of its own (23).
ProtocolType = Annotated[str, Meta(max_length=NAME_BYTES_MAX, pattern=NO_CONTROL_CHARACTERS)]

Principal = Annotated[
    str, Meta(min_length=1, max_length=PRINCIPAL_BYTES_MAX, pattern=NO_CONTROL_CHARACTERS)
]

KeyBytes = Annotated[bytes, Meta(max_length=KEY_BYTES_MAX)]
MemberBytes = Annotated[bytes, Meta(max_length=MEMBER_BYTES_MAX)]
Cursor = Annotated[bytes, Meta(max_length=CURSOR_BYTES_MAX)]
AuthBytes = Annotated[bytes, Meta(max_length=AUTH_BYTES_MAX)]
Hosts = Annotated[tuple[Name, ...], Meta(max_length=HOSTS_MAX)]


def since(annotation: Any) -> int:
    """Return the version that brought the field with this *annotation*."""
    marks = getattr(annotation, "__metadata__", ())
    return max((mark.version for mark in marks if isinstance(mark, Since)), default=0)


def nothing(annotation: Any) -> Any:
    """Return what stands for "nothing" in a field with this *annotation*."""
    if get_origin(annotation) is Annotated:
        return nothing(get_args(annotation)[0])
    if type(None) in get_args(annotation):
        return None
    return -1 if annotation is int else (get_origin(annotation) or annotation)()


def parts(annotation: Any) -> Iterator[type[Struct]]:
    """Return the messages in an *annotation*: none, or the one that an array is of."""
    if isinstance(annotation, type) and issubclass(annotation, Struct):
        yield annotation
    elif get_origin(annotation) is not None:
        for inner in get_args(annotation):
            yield from parts(inner)


def text_limit(annotation: Any) -> int | None:
    """Return how many bytes a str in a field with this *annotation* has at most, None without."""
    inner, *marks = get_args(annotation) or (annotation,)
    if inner is not str:
        return text_limit(inner) if marks else None
    lengths = [mark.max_length for mark in marks if isinstance(mark, Meta)]
    return lengths[0] if lengths else None


def newest_version(message: type[Struct]) -> int:
    """Return the newest version that a field of *message* asks for, at any depth."""
    return max(
        (
            version
            for field in structs.fields(message)
            for version in (since(field.type), *map(newest_version, parts(field.type)))
        ),
        default=0,
    )
