"""The generated parts of docs/wire-protocol.md: layouts, examples in hex, the error table.

``python -m tests.protocol.document`` writes them between their markers; a test compares.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgpack

from protocol.apis import APIS, ApiKey, api_of
from protocol.connection import encode_response
from protocol.errors import ERRORS
from protocol.frames import REQUEST_HEADER, RESPONSE_HEADER
from protocol.messages import Request, Response
from protocol.schema import ArrayOf, Check, Invalid, Struct
from tests.protocol.example import Example
from tests.protocol.examples import EXAMPLES
from tests.protocol.frames import request_frame

PATH: Final = Path(__file__).parents[2] / "docs" / "wire-protocol.md"
_MARKED: Final = re.compile(
    r"(?s)(<!-- begin (?P<name>[\w -]+) -->\n)(?P<text>.*?)(<!-- end (?P=name) -->)"
)
_HEX_PER_LINE: Final = 16
_SECTIONS: Final = (
    ApiKey.API_VERSIONS,
    ApiKey.FIND_COORDINATOR,
    ApiKey.JOIN_GROUP,
    ApiKey.SYNC_GROUP,
    ApiKey.HEARTBEAT,
    ApiKey.LEAVE_GROUP,
    ApiKey.OFFSET_COMMIT,
    ApiKey.OFFSET_FETCH,
    ApiKey.DESCRIBE_GROUPS,
    ApiKey.LIST_GROUPS,
    ApiKey.DELETE_GROUPS,
    ApiKey.OFFSET_DELETE,
    ApiKey.DRAIN_MEMBER,
    ApiKey.REGISTER_TOPICS,
    ApiKey.DELETE_TOPICS,
    ApiKey.DESCRIBE_TOPICS,
    ApiKey.REPORT_END_OFFSETS,
    ApiKey.DESCRIBE_REBALANCES,
    ApiKey.SCAN_OFFSETS,
    ApiKey.READ_OFFSET_CHANGES,
    ApiKey.DESCRIBE_LAG,
    ApiKey.ALTER_GROUP_RETENTION,
    ApiKey.DESCRIBE_NODE,
    ApiKey.COMPACT_LOG,
    ApiKey.RELOAD_PARTITION,
)


def generated() -> dict[str, str]:
    """Return the text of every generated part."""
    parts = {f"api {int(key)}": _api(key) for key in _SECTIONS}
    parts["errors"] = _errors()
    return parts


def rendered(text: str) -> str:
    """Return *text* with every generated part as it should be."""
    parts = generated()
    return _MARKED.sub(lambda found: found[1] + parts[found["name"]] + found[4], text)


def marked(text: str) -> list[str]:
    """Return the names of the parts in *text*."""
    return [found["name"] for found in _MARKED.finditer(text)]


# --- layouts ----------------------------------------------------------------------------


def _api(key: ApiKey) -> str:
    api = APIS[key]
    example = [e for e in EXAMPLES if api_of(e.request) is key and e.response[0] in {0, 27}]
    example = example or [e for e in EXAMPLES if api_of(e.request) is key]
    shown = max(example, key=lambda e: e.version)
    return (
        f"\n{_layout('Request', api.request)}\n{_layout('Response', api.response)}\n"
        f"{_hex_example(key, shown)}"
    )


def _layout(title: str, struct: Struct) -> str:
    lines = [f"| {title} | type | |", "|---|---|---|"]
    lines += [f"| {name} | {kind} | {note} |" for name, kind, note in _rows(struct, "")]
    return "\n".join(lines) + "\n"


def _rows(struct: Struct, indent: str) -> Iterator[tuple[str, str, str]]:
    for field in struct.fields:
        since = f"from version {field.since} on" if field.since else ""
        name = f"{indent}`{field.name}`"
        if isinstance(field.check, ArrayOf):
            empty = "array?" if field.check.optional else "array"
            most = f"at most {field.check.max_items:,} of"
            yield name, empty, " ".join(filter(None, [since, most]))
            yield from _rows(field.check.struct, indent + "&nbsp;&nbsp;&nbsp;&nbsp;")
        else:
            kind, note = _kind(field.check)
            yield name, kind, "; ".join(filter(None, [since, note]))


def _takes(check: Check, value: Any) -> bool:
    try:
        check(value)
    except Invalid:
        return False
    return True


def _kind(check: Check) -> tuple[str, str]:
    """Return the type and the bounds of a check, found out by trying it."""
    null = "?" if _takes(check, None) else ""
    if _takes(check, True):
        return "bool" + null, ""
    if _takes(check, "a"):
        return "str" + null, _text_bounds(check)
    if _takes(check, b""):
        return "bin" + null, _binary_bounds(check)
    if _takes(check, 1):
        return _int_kind(check, null)
    inner = "int" if _takes(check, (1,)) else "str"
    bounds = _text_bounds(lambda v: check((v,))) if inner == "str" else "0 … 2³¹-1"
    return f"array of {inner}", bounds


def _text_bounds(check: Check) -> str:
    if _takes(check, "\n"):
        return "at most 32 KiB"
    longest = max(n for n in (249, 255, 300, 4_096) if _takes(check, "a" * n))
    assert not _takes(check, "a" * (longest + 1))
    least = 0 if _takes(check, "") else 1
    return f"{least} … {longest} bytes, no control characters"


def _binary_bounds(check: Check) -> str:
    for size, text in ((1_024, "1 KiB"), (256 * 1_024, "256 KiB")):
        if not _takes(check, bytes(size + 1)):
            return f"at most {text}"
    return ""


_LOW: Final = ((-(2**63), "-2⁶³"), (-(2**31), "-2³¹"), (-(2**15), "-2¹⁵"), (-1, "-1"), (0, "0"))
_HIGH: Final = ((2**63 - 1, "2⁶³-1"), (2**31 - 1, "2³¹-1"), (2**15 - 1, "2¹⁵-1"))


def _int_kind(check: Check, null: str) -> tuple[str, str]:
    low, low_text = next(pair for pair in _LOW if _takes(check, pair[0]))
    high, high_text = next(pair for pair in _HIGH if _takes(check, pair[0]))
    assert not _takes(check, low - 1)
    assert not _takes(check, high + 1)
    return "int" + null, f"{low_text} … {high_text}"


# --- hex --------------------------------------------------------------------------------


def _hex_example(key: ApiKey, example: Example) -> str:
    number = EXAMPLES.index(example)
    request = request_frame(example.request, example.version, number)
    response = encode_response(
        number,
        example.response,
        api_key=key,
        api_version=example.version,
        leader_epoch=example.leader_epoch,
    )
    api = APIS[key]
    return (
        f"Request: {example.title}\n\n```\n"
        + _annotated_request(request, api.request, example.request, example.version)
        + "```\n\nResponse\n\n```\n"
        + _annotated_response(response, api.response, example.response)
        + "```\n"
    )


def _annotated_request(frame: bytes, struct: Struct, request: Request, version: int) -> str:
    size, api_key, api_version, correlation_id = REQUEST_HEADER.unpack_from(frame)
    pieces = [
        (frame[:4], f"size {size}"),
        (frame[4:6], f"api_key {api_key}"),
        (frame[6:8], f"api_version {api_version}"),
        (frame[8:12], f"correlation_id {correlation_id}"),
        *_pieces(struct, struct.trim(request, version), version, "body", ""),
    ]
    return _lines(pieces, frame)


def _annotated_response(frame: bytes, struct: Struct, response: Response) -> str:
    size, correlation_id, throttle_time_ms, leader_epoch = RESPONSE_HEADER.unpack_from(frame)
    pieces = [
        (frame[:4], f"size {size}"),
        (frame[4:8], f"correlation_id {correlation_id}"),
        (frame[8:12], f"throttle_time_ms {throttle_time_ms}"),
        (frame[12:16], f"leader_epoch {leader_epoch}"),
        *_pieces(struct, response, struct.max_version, "body", ""),
    ]
    return _lines(pieces, frame)


def _pieces(
    struct: Struct, value: tuple[Any, ...], version: int, name: str, indent: str
) -> Iterator[tuple[bytes, str]]:
    yield _array_header(value), f"{indent}{name}, an array of {len(value)}"
    fields = [field for field in struct.fields if field.since <= version]
    deeper = indent + "  "
    for field, item in zip(fields, value, strict=True):
        if isinstance(field.check, ArrayOf) and item is not None:
            yield _array_header(item), f"{deeper}{field.name}, an array of {len(item)}"
            for number, one in enumerate(item):
                label = f"{field.name}[{number}]"
                yield from _pieces(field.check.struct, one, version, label, deeper + "  ")
        elif isinstance(item, tuple):
            yield _array_header(item), f"{deeper}{field.name}, an array of {len(item)}"
            for number, one in enumerate(item):
                yield msgpack.packb(one), f"{deeper}  {field.name}[{number}] {_shown(one)}"
        else:
            yield msgpack.packb(item), f"{deeper}{field.name} {_shown(item)}"


def _array_header(value: tuple[Any, ...]) -> bytes:
    header: bytes = msgpack.Packer().pack_array_header(len(value))
    return header


def _shown(value: Any) -> str:
    if isinstance(value, bytes):
        return f"bin of {len(value)} bytes"
    if isinstance(value, str):
        return f'"{value}"'
    return (
        {None: "nil", True: "true", False: "false"}.get(value, "")
        if (value is None or isinstance(value, bool))
        else str(int(value))
    )


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
