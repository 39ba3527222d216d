"""Every API: its key, its versions, and how its request and response lie on the wire."""

from collections.abc import Mapping
from typing import Any, Final

from protocol import messages as m
from protocol.admin_apis import (
    API_VERSIONS,
    COMPACT_LOG,
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    FIND_COORDINATOR,
    LIST_GROUPS,
)
from protocol.body import array_header
from protocol.insight_apis import (
    ALTER_GROUP_RETENTION,
    DESCRIBE_LAG,
    DESCRIBE_REBALANCES,
    READ_OFFSET_CHANGES,
    SCAN_OFFSETS,
)
from protocol.layout import (
    MEMBER_BYTES_MAX,
    MEMBER_ID_BYTES_MAX,
    REQUEST_BYTES_MAX,
    RESPONSE_BYTES_MAX,
    RESPONSE_ITEMS_MAX,
    SYNC_REQUEST_BYTES_MAX,
    Api,
    ApiKey,
)
from protocol.membership_apis import DRAIN_MEMBER, HEARTBEAT, JOIN_GROUP, LEAVE_GROUP, SYNC_GROUP
from protocol.node_apis import DESCRIBE_NODE, RELOAD_PARTITION
from protocol.offset_apis import OFFSET_COMMIT, OFFSET_DELETE, OFFSET_FETCH
from protocol.schema import Check, of_single_elements
from protocol.topic_apis import DELETE_TOPICS, DESCRIBE_TOPICS, REGISTER_TOPICS, REPORT_END_OFFSETS

__all__ = [
    "APIS",
    "MEMBER_BYTES_MAX",
    "MEMBER_ID_BYTES_MAX",
    "REQUEST_BYTES_MAX",
    "REQUEST_CHECKS",
    "RESPONSE_BYTES_MAX",
    "RESPONSE_CHECKS",
    "RESPONSE_ITEMS_MAX",
    "SYNC_REQUEST_BYTES_MAX",
    "Api",
    "ApiKey",
    "api_of",
    "join_fields",
    "latest_version",
    "request_body",
    "response_body",
]

APIS: Final[Mapping[ApiKey, Api]] = {
    api.key: api
    for api in (
        OFFSET_COMMIT,
        OFFSET_FETCH,
        FIND_COORDINATOR,
        JOIN_GROUP,
        HEARTBEAT,
        LEAVE_GROUP,
        SYNC_GROUP,
        DESCRIBE_GROUPS,
        LIST_GROUPS,
        API_VERSIONS,
        DELETE_GROUPS,
        OFFSET_DELETE,
        DRAIN_MEMBER,
        REGISTER_TOPICS,
        DELETE_TOPICS,
        DESCRIBE_TOPICS,
        REPORT_END_OFFSETS,
        DESCRIBE_REBALANCES,
        SCAN_OFFSETS,
        READ_OFFSET_CHANGES,
        DESCRIBE_LAG,
        ALTER_GROUP_RETENTION,
        COMPACT_LOG,
        DESCRIBE_NODE,
        RELOAD_PARTITION,
    )
}

_KEY_OF_REQUEST: Final[Mapping[type, ApiKey]] = {a.request.make: a.key for a in APIS.values()}


def api_of(request: m.Request) -> ApiKey:
    """Return the API of *request*."""
    return _KEY_OF_REQUEST[type(request)]


def latest_version(key: ApiKey) -> int:
    """Return the newest version of an API that this code speaks."""
    return APIS[key].max_version


# Most of them name one group, one topic and one partition.
_OF_SINGLE_ELEMENTS: Final = frozenset({ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH})


def _checks(*, requests: bool) -> dict[tuple[int, int], tuple[ApiKey, Check]]:
    checks: dict[tuple[int, int], tuple[ApiKey, Check]] = {}
    for api in APIS.values():
        for version in range(api.max_version + 1):
            struct = api.request if requests else api.response
            check = struct.check(version, open_end=not requests)
            if requests and api.key in _OF_SINGLE_ELEMENTS:
                check = of_single_elements(check)
            checks[api.key, version] = api.key, check
    return checks


# (api_key, api_version) -> its key as an enum, and what turns an unpacked body into its message.
REQUEST_CHECKS: Final = _checks(requests=True)
RESPONSE_CHECKS: Final = _checks(requests=False)


def request_body(request: m.Request, version: int) -> tuple[Any, ...]:
    """Return *request* as the array of *version*, newer fields dropped."""
    struct = APIS[api_of(request)].request
    return request if version >= struct.max_version else struct.trim(request, version)


def response_body(response: m.Response, key: ApiKey, version: int) -> tuple[Any, ...]:
    """Return *response* as the array of *version*, newer fields dropped."""
    struct = APIS[key].response
    if version >= struct.max_version or type(response) is m.BareError:
        return response
    return struct.trim(response, version)


# (api_key, api_version) -> what stands before the fields of the response, and their number.
_RESPONSE_STARTS: Final = {
    (api.key, version): (array_header(count), count)
    for api in APIS.values()
    for version in range(api.max_version + 1)
    for count in [sum(field.since <= version for field in api.response.fields)]
}


def join_fields(response: m.PackedResponse, key: ApiKey, version: int) -> bytes:
    """Return the body of *version*, newer fields dropped."""
    start, count = _RESPONSE_STARTS[key, version]
    return start + b"".join(response.fields[:count])
