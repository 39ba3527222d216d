"""The generated parts of docs/wire-protocol.md: layouts, examples in hex, the error table.

``python -m tests.protocol.document`` writes them between their markers; a test compares.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Final, get_args, get_origin

import msgpack
import msgspec

from protocol.connection import DIALECTS, REQUEST_HEADER, RESPONSE_HEADER, encode_response
from protocol.errors import ERRORS
from protocol.fields import parts, since
from protocol.messages import APIS, Api, Message
from tests.protocol.frames import request_frame

PATH: Final = Path(__file__).parents[2] / "docs" / "wire-protocol.md"
_MARKED: Final = re.compile(
    r"(?s)(<!-- begin (?P<name>[\w -]+) -->\n)(?P<text>.*?)(<!-- end (?P=name) -->)"
)
_HEX_PER_LINE: Final = 16


def generated() -> dict[str, str]:
    """Return the text of every generated part."""
    made = {f"api {int(api.key)}": _api(api) for api in APIS.values()}
    made["errors"] = _errors()
    return made


def rendered(text: str) -> str:
    """Return *text* with every generated part as it should be."""
    made = generated()
    return _MARKED.sub(lambda found: found[1] + made[found["name"]] + found[4], text)


def marked(text: str) -> list[str]:
    """Return the names of the parts in *text*."""
    return [found["name"] for found in _MARKED.finditer(text)]


# --- layouts ----------------------------------------------------------------------------


def _api(api: Api) -> str:
    return f"\n{_layout('Request', api.request)}\n{_layout('Response', api.response)}\n{_hex(api)}"


def _layout(title: str, message: type[msgspec.Struct]) -> str:
    lines = [f"| {title} | type | |", "|---|---|---|"]
    lines += [f"| {name} | {kind} | {note} |" for name, kind, note in _rows(message, "")]
    return "\n".join(lines) + "\n"


def _rows(message: type[msgspec.Struct], indent: str) -> Iterator[tuple[str, str, str]]:
    for field in msgspec.structs.fields(message):
        version = since(field.type)
        kind, note = _kind(field.type)
        notes = [f"from version {version} on" if version else "", note]
        separator = " " if kind.startswith("array") else "; "
        yield f"{indent}`{field.name}`", kind, separator.join(filter(None, notes))
        for part in parts(field.type):
            yield from _rows(part, indent + "&nbsp;&nbsp;&nbsp;&nbsp;")


def _kind(annotation: Any) -> tuple[str, str]:
    """Return the type of a field and its limits, in words."""
    if NoneType in get_args(annotation):
        kind, note = _kind(get_args(annotation)[0])
        return f"{kind}?", note
    if get_origin(annotation) is not Annotated:
        return {bool: "bool", bytes: "bin"}[annotation], ""
    inner, *marks = get_args(annotation)
    limits = [mark for mark in marks if isinstance(mark, msgspec.Meta)]
    return _limited(inner, limits[0]) if limits else _kind(inner)


def _limited(kind: Any, limits: msgspec.Meta) -> tuple[str, str]:
    if kind is int:
        return "int", f"{_NUMBERS[limits.ge]} … {_NUMBERS[limits.le]}"
    longest = limits.max_length or 0
    if kind is str and limits.pattern:
        return "str", f"{limits.min_length or 0} … {longest} bytes, no control characters"
    if kind in {str, bytes}:
        size = f"{longest} bytes" if longest < 1_024 else f"{longest // 1_024} KiB"
        return {str: "str", bytes: "bin"}[kind], f"at most {size}"
    if any(parts(kind)):
        return "array", f"at most {longest:,} of"
    item, note = _kind(get_args(kind)[0])
    return "array", f"at most {longest:,} of {item} ({note})"


_NUMBERS: Final[dict[Any, str]] = {
    -1: "-1",
    0: "0",
    **{-(2**bits): f"-2{power}" for bits, power in ((15, "¹⁵"), (31, "³¹"), (63, "⁶³"))},
    **{2**bits - 1: f"2{power}-1" for bits, power in ((15, "¹⁵"), (31, "³¹"), (63, "⁶³"))},
}


# --- hex --------------------------------------------------------------------------------


def _hex(api: Api) -> str:
    example = api.example
    request = request_frame(example.request, example.version, example.number)
    dialect = DIALECTS[api.key, example.version]
    response = encode_response(dialect, example.number, example.response, example.leader_epoch)
    size, api_key, api_version, correlation_id = REQUEST_HEADER.unpack_from(request)
    asked = [
        (request[:4], f"size {size}"),
        (request[4:6], f"api_key {api_key}"),
        (request[6:8], f"api_version {api_version}"),
        (request[8:12], f"correlation_id {correlation_id}"),
        *_pieces(example.request, "body", ""),
    ]
    size, correlation_id, throttle_time_ms, leader_epoch = RESPONSE_HEADER.unpack_from(response)
    answered = [
        (response[:4], f"size {size}"),
        (response[4:8], f"correlation_id {correlation_id}"),
        (response[8:12], f"throttle_time_ms {throttle_time_ms}"),
        (response[12:16], f"leader_epoch {leader_epoch}"),
        *_pieces(example.response, "body", ""),
    ]
    return (
        f"Request: {example.title}\n\n```\n{_lines(asked, request)}```\n\n"
        f"Response\n\n```\n{_lines(answered, response)}```\n"
    )


def _pieces(value: Any, name: str, indent: str) -> Iterator[tuple[bytes, str]]:
    """Yield the bytes of *value* in the newest version, each piece with what it is."""
    if isinstance(value, Message):
        fields = [(field, getattr(value, field)) for field in value.__struct_fields__]
        yield _array_header(len(fields)), f"{indent}{name}, an array of {len(fields)}"
        for field, item in fields:
            yield from _pieces(item, field, indent + "  ")
    elif isinstance(value, tuple):
        yield _array_header(len(value)), f"{indent}{name}, an array of {len(value)}"
        for number, item in enumerate(value):
            yield from _pieces(item, f"{name}[{number}]", indent + "  ")
    else:
        yield msgpack.packb(value), f"{indent}{name} {_shown(value)}"


def _array_header(count: int) -> bytes:
    header: bytes = msgpack.Packer().pack_array_header(count)
    return header


def _shown(value: Any) -> str:
    if isinstance(value, bytes):
        return f"bin of {len(value)} bytes"
    if isinstance(value, str):
        return f'"{value}"'
    if value is None or isinstance(value, bool):
        return {None: "nil", True: "true", False: "false"}[value]
    return str(int(value))


def _lines(pieces: list[tuple[bytes, str]], frame: bytes) -> str:
    assert b"".join(data for data, _ in pieces) == frame
    lines = []
    for data, what in pieces:
        rows = [data[at : at + _HEX_PER_LINE] for at in range(0, len(data), _HEX_PER_LINE)]
        lines.append(f"{rows[0].hex(' '):<{3 * _HEX_PER_LINE}} {what}")
        lines += [row.hex(" ") for row in rows[1:]]
    return "\n".join(lines) + "\n"


# --- errors -----------------------------------------------------------------------------


def _errors() -> str:
    lines = ["", "| code | name | request | what to do | meaning |", "|---|---|---|---|---|"]
    lines += [
        f"| {int(code)} | {code.name} | {info.applied.value} | {info.remedy.value} "
        f"| {info.meaning} |"
        for code, info in ERRORS.items()
    ]
    return "\n".join([*lines, "", ""])


if __name__ == "__main__":
    PATH.write_text(rendered(PATH.read_text(encoding="utf-8")), encoding="utf-8")
