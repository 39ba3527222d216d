"""The quick ways through a check let the same values through as the careful one."""

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from protocol import schema
from protocol.apis import APIS, REQUEST_CHECKS, RESPONSE_CHECKS, api_of, request_body, response_body
from protocol.messages import (
    GroupFetch,
    OffsetCommitRequest,
    OffsetFetchRequest,
    PartitionCommit,
    Request,
    TopicCommit,
    TopicPartitions,
)
from protocol.schema import Check, Invalid
from protocol.types import INT32_MAX, INT64_MAX
from tests.protocol.examples import EXAMPLES

EDGES = [
    *(-1, 0, 1, 127, 2**15, INT32_MAX, INT32_MAX + 1, INT64_MAX, INT64_MAX + 1, -2, -(2**63)),
    *(True, False, None, 0.0, -1.0, b"", b"x", "", "x", "a\nb", "a\x85b", "\xa0", "é" * 128),
    *("x" * 249, "x" * 250, "x" * 255, "x" * 256, "x" * 300, "x" * 301, "x" * 32_768, "x" * 32_769),
    *("😀" * 8_192, "😀" * 8_193, (), (1,), ((),), (None,), ("t", (0,))),
]


def careful_checks(*, requests: bool) -> dict[tuple[int, int], Check]:
    """Return all checks without the quick ways."""
    patch = pytest.MonkeyPatch()
    patch.setattr(schema, "_CONDITIONS", {})
    patch.setattr(schema, "_COLUMNS", dict.fromkeys(schema._COLUMNS, lambda _: False))
    checks: dict[tuple[int, int], Check] = {
        (key, version): (api.request if requests else api.response).check(
            version, open_end=not requests
        )
        for key, api in APIS.items()
        for version in range(api.max_version + 1)
    }
    patch.undo()
    return checks


CAREFUL_REQUESTS = careful_checks(requests=True)
CAREFUL_RESPONSES = careful_checks(requests=False)


def outcome(check: Check, value: Any) -> object:
    """Return what *check* makes of *value*, or what it says is wrong."""
    try:
        return check(value)
    except Invalid as exc:
        return str(exc)


def changed(data: st.DataObject, value: Any) -> Any:
    """Return *value* with something else in one place, at any depth."""
    if not isinstance(value, tuple) or not value or data.draw(st.integers(0, 5)) == 0:
        return data.draw(st.sampled_from(EDGES))
    how = data.draw(st.integers(0, 9))
    if how == 0:
        return value[:-1]
    if how == 1:
        return (*value, data.draw(st.sampled_from(EDGES)))
    if how == 2:
        return value * data.draw(st.integers(2, 20))
    at = data.draw(st.integers(0, len(value) - 1))
    return (*value[:at], changed(data, value[at]), *value[at + 1 :])


def plain(value: Any) -> Any:
    """Return *value* as msgpack hands it over."""
    return tuple(map(plain, value)) if isinstance(value, tuple) else value


@settings(max_examples=600)
@given(st.data(), st.sampled_from(EXAMPLES), st.integers(0, 3))
def test_a_value_fits_or_not_whichever_way_it_goes(
    data: st.DataObject, example: Any, changes: int
) -> None:
    """With the same words, too: they tell a client's author what is wrong."""
    key = api_of(example.request)
    place = key, example.version
    request = plain(request_body(example.request, example.version))
    response = plain(response_body(example.response, key, example.version))
    for _ in range(changes):
        request, response = changed(data, request), changed(data, response)

    assert outcome(REQUEST_CHECKS[place][1], request) == outcome(CAREFUL_REQUESTS[place], request)
    assert outcome(RESPONSE_CHECKS[place][1], response) == outcome(
        CAREFUL_RESPONSES[place], response
    )


@pytest.mark.parametrize(
    "request_",
    [
        OffsetCommitRequest(
            "g", 1, "m", None, (TopicCommit("t", (PartitionCommit(0, 5, -1, "", None),)),)
        ),
        OffsetFetchRequest((GroupFetch("g", (TopicPartitions("t", (0,)),)),), False),
    ],
    ids=["commit", "fetch"],
)
def test_requests_for_one_partition_take_the_quickest_way(request_: Request) -> None:
    """A mistake in it would cost nothing but time, and so nobody would notice."""
    key = api_of(request_)
    whole = APIS[key].request.check(APIS[key].max_version, open_end=False)
    careful: list[object] = []

    def check(value: Any) -> Any:
        careful.append(value)
        return whole(value)

    schema._RECORDS[check] = schema._RECORDS[whole]
    quick = schema.of_single_elements(check)
    value = plain(request_)

    assert (quick(value), careful) == (request_, [])
    with pytest.raises(Invalid):
        quick(value[:-1])
    assert careful == [value[:-1]]
