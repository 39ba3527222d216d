"""Any message that the protocol allows, made from the annotations of its fields."""

from types import NoneType
from typing import Annotated, Any, get_args, get_origin

import msgspec
from hypothesis import strategies as st

from protocol.errors import ErrorCode
from protocol.fields import Code
from protocol.messages import Message

CODES = st.sampled_from([int(code) for code in ErrorCode])


def names(min_bytes: int, max_bytes: int) -> st.SearchStrategy[str]:
    """Return names of *min_bytes* to *max_bytes* bytes of UTF-8 without control characters."""
    legal = st.characters(exclude_categories=("Cc", "Cs"))
    edges = ["n" * max_bytes, "\u00e9" * (max_bytes // 2), "\u00a0", "a b", "\U0001f600", "\u2028"]
    return st.text(legal, min_size=min_bytes, max_size=6) | st.sampled_from(edges)


def messages(message: type[Message]) -> st.SearchStrategy[Any]:
    """Return instances of *message*."""
    return st.builds(message, *[values(field.type) for field in msgspec.structs.fields(message)])


def values(annotation: Any) -> st.SearchStrategy[Any]:
    """Return what a field with this *annotation* may hold."""
    if isinstance(annotation, type) and issubclass(annotation, Message):
        return messages(annotation)
    if get_origin(annotation) is Annotated:
        inner, *marks = get_args(annotation)
        limits = [mark for mark in marks if isinstance(mark, msgspec.Meta)]
        found = limited(inner, limits[0]) if limits else values(inner)
        return found | CODES if annotation == Code else found
    if NoneType in get_args(annotation):
        return st.none() | values(get_args(annotation)[0])
    return {bool: st.booleans(), bytes: st.binary(max_size=8)}[annotation]


def limited(kind: Any, limits: msgspec.Meta) -> st.SearchStrategy[Any]:
    """Return what is of this *kind* and within *limits*."""
    if kind is int:
        return st.integers(limits.ge, limits.le)  # type: ignore[arg-type]  # All are of int here.
    if kind is str and limits.pattern is not None:
        return names(limits.min_length or 0, limits.max_length or 0)
    if kind is str:
        return st.text(max_size=8)
    if kind is bytes:
        return st.binary(max_size=8)
    return st.lists(values(get_args(kind)[0]), max_size=3).map(tuple)
