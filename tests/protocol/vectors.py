"""The vectors, docs/vectors/wire-v0.json, from which code in another language can check itself.

``python -m tests.protocol.vectors`` writes the file anew; a test compares it with this code.
Bytes stand as ``{"bin": "<hex>"}``, arrays by position, as on the wire. Large frames of
one repeated byte stand shortened, as ``{"hex": ..., "fill": ..., "times": ..., "then": ...}``.
"""

import json
import re
from pathlib import Path
from typing import Any, Final

import msgpack

from protocol.codec import REQUEST_CODECS, RESPONSE_CODECS
from protocol.connection import DIALECTS, encode_error, encode_response
from protocol.consumer import Assignment, Subscription, encode_assignment, encode_subscription
from protocol.errors import ErrorCode
from protocol.group_ids import java_string_hash, offsets_partition
from protocol.messages import APIS, ApiKey, Example, Request, Response, api_of, error_response
from protocol.partition import TopicPartition
from tests.protocol.examples import EXAMPLES
from tests.protocol.frames import request_frame
from tests.protocol.invalid import INVALID_REQUESTS

PATH: Final = Path(__file__).parents[2] / "docs" / "vectors" / "wire-v0.json"
_SHORT_BYTES: Final = 400

SUBSCRIPTIONS: Final = (
    (0, Subscription(("flights", "weather"), b"\x01\x02")),
    (0, Subscription((), None)),
    (1, Subscription(("flights",), None, (TopicPartition("flights", 0),))),
    (2, Subscription(("flights",), b"", (TopicPartition("flights", 7),), 5)),
    (3, Subscription(("flights",), None, (), -1, "rack-a")),
    (3, Subscription(("flights",), None)),
)
ASSIGNMENTS: Final = (
    (0, Assignment((), None)),
    (1, Assignment((TopicPartition("flights", 0), TopicPartition("flights", 1)), b"")),
    (2, Assignment((TopicPartition("flights", 2), TopicPartition("weather", 0)), b"\xff")),
    (3, Assignment((TopicPartition("flights", 2_147_483_647),), None)),
)
UNREADABLE: Final = ("00", "ffff", "0000", "00000000000100", "0000ffffffff", "0000000000010001c3")
GROUP_IDS: Final = (
    "",
    "a",
    "group-id",
    "my-group",
    "test",
    "polygenelubricants",
    "Aa",
    "BB",
    "группа",
    "grp-😀",
)


def jsonable(value: Any) -> Any:
    """Return *value* with tuples as arrays and bytes marked."""
    if isinstance(value, tuple):
        return [jsonable(item) for item in value]
    return {"bin": value.hex()} if isinstance(value, bytes) else value


def request_content(request: Request, version: int) -> Any:
    """Return the array that *request* is in *version*, as msgpack reads it."""
    body = REQUEST_CODECS[api_of(request), version].encode(request)
    return jsonable(msgpack.unpackb(body, use_list=False))


def response_content(response: Response, key: ApiKey, version: int) -> Any:
    """Return the array that *response* is in *version*, as msgpack reads it."""
    body = RESPONSE_CODECS[key, version].encode(response)
    return jsonable(msgpack.unpackb(body, use_list=False))


def document() -> dict[str, Any]:
    """Return everything that the file holds."""
    return {
        "protocol": "group-coordinator wire protocol, version 0",
        "bin": 'bytes of msgpack\'s bin type stand as {"bin": "<hex>"}',
        "requests": [_request(example) for example in EXAMPLES],
        "responses": [_response(example) for example in EXAMPLES],
        "errors_in_full_shape": [_failed(example) for example in _one_per_version()],
        "errors_that_stand_alone": [
            {"correlation_id": 7, "content": [int(code)], "frame": encode_error(7, code).hex()}
            for code in (
                ErrorCode.INVALID_REQUEST,
                ErrorCode.UNSUPPORTED_VERSION,
                ErrorCode.UNKNOWN_SERVER_ERROR,
                ErrorCode.RESPONSE_TOO_LARGE,
            )
        ],
        "invalid_requests": [
            {"name": bad.name, "frame": _shortened(bad.frame), "answer": bad.verdict}
            for bad in INVALID_REQUESTS
        ],
        "consumer_protocol": {
            "subscriptions": [
                {"version": v, "content": jsonable(s), "bytes": encode_subscription(s, v).hex()}
                for v, s in SUBSCRIPTIONS
            ],
            "assignments": [
                {"version": v, "content": jsonable(a), "bytes": encode_assignment(a, v).hex()}
                for v, a in ASSIGNMENTS
            ],
            "unreadable": list(UNREADABLE),
        },
        "offsets_partitions": [
            {
                "group_id": group_id,
                "java_hash": java_string_hash(group_id),
                "of_50": offsets_partition(group_id, 50),
                "of_8": offsets_partition(group_id, 8),
            }
            for group_id in GROUP_IDS
        ],
    }


def _request(example: Example) -> dict[str, Any]:
    key = api_of(example.request)
    return {
        "name": example.title,
        "api": key.name,
        "api_key": int(key),
        "api_version": example.version,
        "correlation_id": example.number,
        "content": request_content(example.request, example.version),
        "frame": request_frame(example.request, example.version, example.number).hex(),
    }


def _response(example: Example) -> dict[str, Any]:
    key = api_of(example.request)
    dialect = DIALECTS[key, example.version]
    frame = encode_response(dialect, example.number, example.response, example.leader_epoch)
    return {
        "name": example.title,
        "api": key.name,
        "api_key": int(key),
        "api_version": example.version,
        "correlation_id": example.number,
        "throttle_time_ms": 0,
        "leader_epoch": example.leader_epoch,
        "content": response_content(example.response, key, example.version),
        "frame": frame.hex(),
    }


def _failed(example: Example) -> dict[str, Any]:
    key = api_of(example.request)
    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    response = error_response(example.request, code)
    frame = encode_response(DIALECTS[key, example.version], 7, response)
    return {
        "api": key.name,
        "api_version": example.version,
        "request": request_content(example.request, example.version),
        "error": int(code),
        "content": response_content(response, key, example.version),
        "frame": frame.hex(),
    }


def _one_per_version() -> list[Example]:
    """Return the last example of each API and version."""
    last = {(api_of(example.request), example.version): example for example in EXAMPLES}
    # The file has them in the order in which they came, CompactLog before DescribeNode.
    keys = sorted(APIS, key=lambda key: key - 2 * (key is ApiKey.COMPACT_LOG))
    return [last[key, v] for key in keys for v in range(APIS[key].max_version + 1)]


def _shortened(frame: bytes) -> Any:
    """Return hex, with the longest repetition written once and counted."""
    if len(frame) <= _SHORT_BYTES:
        return frame.hex()
    runs = re.finditer(rb"(?s)(.{1,5}?)\1{50,}", frame)
    run = max(runs, key=lambda found: len(found[0]))
    return {
        "hex": frame[: run.start()].hex(),
        "fill": run[1].hex(),
        "times": len(run[0]) // len(run[1]),
        "then": frame[run.end() :].hex(),
    }


def frame_from(written: Any) -> bytes:
    """Return the bytes of a frame that may be shortened."""
    if isinstance(written, str):
        return bytes.fromhex(written)
    return bytes.fromhex(written["hex"] + written["fill"] * written["times"] + written["then"])


def rendered() -> str:
    """Return the text of the file."""
    return json.dumps(document(), indent=1, ensure_ascii=True) + "\n"


if __name__ == "__main__":
    PATH.parent.mkdir(exist_ok=True)
    PATH.write_text(rendered(), encoding="ascii")
