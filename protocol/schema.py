"""How a value lies in msgpack: strict checks on the way in, trimming on the way out.

Theory of operation
===================

A layout is built once, at import, out of the small functions below; decoding a body is
then one call that returns the typed value or raises `Invalid`. Every field checks its
exact type (``type(x) is int``: a bool is an int to isinstance, and a peer must not send
one), its range and its length. msgpack is asked for tuples, so a record is made by
one call of its NamedTuple.

Nearly all values fit, so there are two ways through. The quick one only says whether everything
fits: written out in one function per record (`_CONDITIONS`), and for arrays by column, in a
handful of calls for any number of elements (`_COLUMNS`). Where it says no, the careful one goes
from field to field and raises what is wrong. It takes 2.4 µs instead of 4.4 to check a commit of
one partition, 20 instead of 75 for one of 100.

Versions: a record's layout names its fields in order, with the version that brought each
(they are only ever appended). A request has exactly the fields of its version; a response
may have more, which an older client drops.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, NoReturn

from protocol.groups import NAME_BYTES_MAX, name_error
from protocol.types import INT32_MAX, INT64_MAX

Check = Callable[[Any], Any]

ARRAY_ITEMS_MAX: Final = 10_000
STRING_BYTES_MAX: Final = 32 * 1024


class Invalid(ValueError):
    """A value that was read but does not fit the layout."""


class ArrayOf(NamedTuple):
    """An array of records, at most *max_items* long; *optional* lets nil stand for it.

    The records of a *plain* one stay tuples without names: giving names to 100 takes 16 µs.
    """

    struct: "Struct"
    max_items: int = ARRAY_ITEMS_MAX
    optional: bool = False
    plain: bool = False


class Field(NamedTuple):
    """One element of a record's array, and the version from which on it is there."""

    name: str
    check: Check | ArrayOf
    since: int = 0


def refuse(what: str, value: object) -> NoReturn:
    """Raise `Invalid`, naming the type only: a value may be large or secret."""
    raise Invalid(f"expected {what}, got {type(value).__name__}")


# Checks of a single value, as a condition in Python on the variable {0}; and as a test of many
# values at once, at least one. What these don't let through may yet fit, and is looked at again.
_CONDITIONS: Final[dict[Check, str]] = {}
_COLUMNS: Final[dict[Check, Callable[[Sequence[Any]], bool]]] = {}

# What checks of more than one value are made of, for `of_single_elements`.
_ELEMENTS: Final[dict[Check, Check]] = {}
_RECORDS: Final[dict[Check, tuple[type | None, Sequence[Check], Sequence[Any]]]] = {}

_INTS: Final = {int}
_STRS: Final = {str}
_TUPLES: Final = {tuple}


def integer(low: int, high: int) -> Check:
    """Return a check for an int in ``low … high``."""

    def check(value: Any) -> int:
        if type(value) is int and low <= value <= high:
            return value
        if type(value) is int:
            raise Invalid(f"{value} is not in {low} … {high}")
        refuse("an int", value)

    def column(values: Sequence[Any]) -> bool:
        return set(map(type, values)) == _INTS and low <= min(values) and max(values) <= high

    _CONDITIONS[check] = f"type({{0}}) is int and {low} <= {{0}} <= {high}"
    _COLUMNS[check] = column
    return check


def boolean(value: Any) -> bool:
    """Check for a bool; 0 is not false."""
    if type(value) is bool:
        return value
    refuse("a bool", value)


def text(value: Any) -> str:
    """Check for a str of any characters, at most `STRING_BYTES_MAX` bytes."""
    if type(value) is str:
        if len(value) * 4 > STRING_BYTES_MAX and len(value.encode()) > STRING_BYTES_MAX:
            raise Invalid(f"a str is over {STRING_BYTES_MAX} bytes")
        return value
    refuse("a str", value)


def _are_short_texts(values: Sequence[Any]) -> bool:
    return set(map(type, values)) == _STRS and max(map(len, values)) <= STRING_BYTES_MAX // 4


_CONDITIONS[boolean] = "type({0}) is bool"
_CONDITIONS[text] = f"type({{0}}) is str and len({{0}}) <= {STRING_BYTES_MAX // 4}"
_COLUMNS[text] = _are_short_texts


def name(max_bytes: int = NAME_BYTES_MAX, *, allow_empty: bool = False) -> Check:
    """Return a check for a name: UTF-8, no control characters, 1 … *max_bytes* bytes."""

    def check(value: Any) -> str:
        if type(value) is str:
            if value.isascii() and value.isprintable() and 0 < len(value) <= max_bytes:
                return value
            if not value and allow_empty:
                return value
            reason = name_error(value, max_bytes)
            if reason is None:
                return value
            raise Invalid(f"a name is not legal: {reason}")
        refuse("a str", value)

    _CONDITIONS[check] = (
        f"type({{0}}) is str and {0 if allow_empty else 1} <= len({{0}}) <= {max_bytes}"
        " and {0}.isascii() and {0}.isprintable()"
    )
    return check


def binary(max_bytes: int) -> Check:
    """Return a check for bin of at most *max_bytes*."""

    def check(value: Any) -> bytes:
        if type(value) is bytes:
            if len(value) > max_bytes:
                raise Invalid(f"{len(value)} bytes of bin are over {max_bytes}")
            return value
        refuse("bin", value)

    _CONDITIONS[check] = f"type({{0}}) is bytes and len({{0}}) <= {max_bytes}"
    return check


def nullable(inner: Check) -> Check:
    """Return a check that lets nil through."""

    def check(value: Any) -> Any:
        return None if value is None else inner(value)

    if inner in _CONDITIONS:
        _CONDITIONS[check] = f"({{0}} is None or {_CONDITIONS[inner]})"
    if inner in _COLUMNS:
        inner_column = _COLUMNS[inner]

        def column(values: Sequence[Any]) -> bool:
            missing = values.count(None)
            if missing == len(values):
                return True
            return inner_column([v for v in values if v is not None] if missing else values)

        _COLUMNS[check] = column
    if inner in _ELEMENTS:
        _ELEMENTS[check] = _ELEMENTS[inner]
    return check


def array(inner: Check, max_items: int = ARRAY_ITEMS_MAX) -> Check:
    """Return a check for an array whose every element fits *inner*."""
    column = _COLUMNS.get(inner)

    def check(value: Any) -> tuple[Any, ...]:
        if type(value) is tuple:
            if len(value) > max_items:
                raise Invalid(f"an array of {len(value)} elements is over {max_items}")
            if len(value) == 1:  # Most commits name one topic and one partition.
                return (inner(value[0]),)
            if column is not None and value and column(value):
                return value
            return tuple([inner(item) for item in value])
        refuse("an array", value)

    _ELEMENTS[check] = inner
    return check


def record(
    make: type | None, checks: Sequence[Check], absent: Sequence[Any], *, open_end: bool
) -> Check:
    """Return a check for one record; *open_end* allows elements after the known ones.

    It makes a *make* of it, or a plain tuple.

    *absent* are the values of the fields that this version doesn't have yet.

    The function is written out for its fields, as `collections.namedtuple` does: with a loop
    over the checks, reading a one-partition commit took 9.9 µs instead of 6.2.
    """
    wanted = len(checks)
    variables = "".join(f"v{i}, " for i in range(wanted))
    conditions = [
        _CONDITIONS[check].format(f"v{i}") for i, check in enumerate(checks) if check in _CONDITIONS
    ]
    quick = "".join(
        f"v{i}, " if c in _CONDITIONS else f"c{i}(v{i}), " for i, c in enumerate(checks)
    )
    careful = "".join(f"c{i}(v[{i}]), " for i in range(wanted))
    rest = "".join(f"a{i}, " for i in range(len(absent)))
    too_few_or_many = f"len(v) < {wanted}" if open_end else f"len(v) != {wanted}"
    made = "({})" if make is None else "new(make, ({}))"
    source = (
        "def check(v):\n"
        f"    if type(v) is tuple and len(v) == {wanted}:\n"
        f"        ({variables}) = v\n"
        f"        if {' and '.join(conditions) or True}:\n"
        f"            return {made.format(quick + rest)}\n"
        f"    if type(v) is not tuple or {too_few_or_many}:\n"
        "        wrong_shape(v)\n"
        f"    return {made.format(careful + rest)}\n"
    )
    namespace: dict[str, Any] = {f"c{i}": check for i, check in enumerate(checks)}
    namespace |= {f"a{i}": value for i, value in enumerate(absent)}
    namespace |= {"new": tuple.__new__, "make": make, "wrong_shape": partial(_wrong_shape, wanted)}
    exec(source, namespace)  # noqa: S102 - the source is made of the layout's numbers only
    check: Check = namespace["check"]
    _RECORDS[check] = make, checks, absent
    return check


def of_single_elements(check: Check) -> Check:
    """Return *check*, quicker where every array has one element, at any depth.

    The checks of all records in it are written out in one function: 1.1 µs instead of 1.4 for a
    commit of one partition. Where anything is otherwise, *check* decides.
    """
    lines: list[str] = []
    namespace: dict[str, Any] = {"new": tuple.__new__, "check": check}
    made = _write_out(check, "v", lines, namespace)
    tests = "".join(f"    {line}\n" for line in lines)
    source = f"def check_single(v):\n{tests}    return {made}\n"
    exec(source, namespace)  # noqa: S102 - as in `record`
    quick: Check = namespace["check_single"]
    return quick


def _write_out(check: Check, v: str, lines: list[str], namespace: dict[str, Any]) -> str:
    """Add to *lines* what tests the variable *v*; return the expression of what is made of it."""

    def expect(condition: str) -> None:
        lines.append(f"if not ({condition}): return check(v)")

    if check in _CONDITIONS:
        expect(_CONDITIONS[check].format(v))
        return v
    if check in _ELEMENTS:
        expect(f"type({v}) is tuple and len({v}) == 1")
        lines.append(f"{v}_ = {v}[0]")
        made = _write_out(_ELEMENTS[check], f"{v}_", lines, namespace)
        return v if made == f"{v}_" else f"({made},)"
    make, checks, absent = _RECORDS[check]
    expect(f"type({v}) is tuple and len({v}) == {len(checks)}")
    names = [f"{v}{n}" for n in range(len(checks))]
    lines.append(f"{', '.join(names)}, = {v}")
    values = [_write_out(c, n, lines, namespace) for c, n in zip(checks, names, strict=True)]
    if make is None and not absent:
        return v
    defaults = {f"{v}a{n}": value for n, value in enumerate(absent)}
    namespace |= defaults | {f"{v}make": make}
    fields = ", ".join([*values, *defaults])
    return f"({fields},)" if make is None else f"new({v}make, ({fields},))"


def _plain_rows(checks: Sequence[Check]) -> Callable[[Sequence[Any]], bool]:
    """Return a test whether many tuples fit *checks*, one for each of their elements."""
    columns = [_COLUMNS[check] for check in checks]

    def fit(rows: Sequence[Any]) -> bool:
        if set(map(type, rows)) != _TUPLES:
            return False
        try:
            by_column = tuple(zip(*rows, strict=True))
        except ValueError:  # Not all of the same length.
            return False
        return len(by_column) == len(columns) and all(
            column(values) for column, values in zip(columns, by_column, strict=True)
        )

    return fit


def _wrong_shape(wanted: int, value: object) -> NoReturn:
    if type(value) is not tuple:
        refuse("an array", value)
    raise Invalid(f"expected {wanted} elements, got {len(value)}")


class Struct:
    """A record's layout in all its versions."""

    def __init__(self, make: type, *fields: Field) -> None:
        self.make = make
        self.fields = fields
        nested = [f.check.struct.max_version for f in fields if isinstance(f.check, ArrayOf)]
        self.max_version: int = max([f.since for f in fields] + nested, default=0)

    def check(self, version: int, *, open_end: bool, plain: bool = False) -> Check:
        """Return the check for this record in *version*."""
        checks = [
            _resolve(field.check, version, open_end=open_end)
            for field in self.fields
            if field.since <= version
        ]
        defaults: dict[str, Any] = getattr(self.make, "_field_defaults", {})
        absent = [defaults[field.name] for field in self.fields if field.since > version]
        check = record(None if plain else self.make, checks, absent, open_end=open_end)
        if plain and not absent and not open_end:
            _COLUMNS[check] = _plain_rows(checks)
        return check

    def trim(self, value: Any, version: int) -> tuple[Any, ...]:
        """Return *value* as the array of *version*, later fields dropped at every depth."""
        return tuple(
            _trim(field.check, item, version)
            for field, item in zip(self.fields, value, strict=True)
            if field.since <= version
        )


def _resolve(check: Check | ArrayOf, version: int, *, open_end: bool) -> Check:
    if not isinstance(check, ArrayOf):
        return check
    item = check.struct.check(version, open_end=open_end, plain=check.plain)
    inner = array(item, check.max_items)
    return nullable(inner) if check.optional else inner


def _trim(check: Check | ArrayOf, value: Any, version: int) -> Any:
    if isinstance(check, ArrayOf) and value is not None:
        return tuple(check.struct.trim(item, version) for item in value)
    return value


I32: Final = integer(-(2**31), INT32_MAX)
I64: Final = integer(-(2**63), INT64_MAX)
CODE: Final = integer(-(2**15), 2**15 - 1)
EPOCH: Final = integer(-1, INT32_MAX)
COUNT: Final = integer(0, INT32_MAX)
OFFSET: Final = integer(0, INT64_MAX)
OFFSET_OR_NONE: Final = integer(-1, INT64_MAX)
