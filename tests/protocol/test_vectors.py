"""The vectors say what this code does, and this code does what the vectors say."""

import json
from pathlib import Path
from typing import Any

import pytest

from protocol.connection import (
    DIALECTS,
    RESPONSE_HEADER,
    BadRequest,
    ClientConnection,
    FrameTooLarge,
    RequestEvent,
    ServerConnection,
    encode_error,
    encode_response,
)
from protocol.consumer import (
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from protocol.errors import ErrorCode
from protocol.group_ids import java_string_hash, offsets_partition
from protocol.messages import APIS, ApiKey, HeartbeatRequest
from protocol.partition import TopicPartition
from tests.protocol import document, vectors
from tests.protocol.examples import EXAMPLES
from tests.protocol.frames import received, request_frame
from tests.protocol.invalid import CLOSE, CLOSE_42, INVALID_REQUESTS, KEEP_35, KEEP_42

PREVIOUS = Path(__file__).parents[1] / "fixtures" / "previous_release" / "wire-v0.json"
FILE: dict[str, Any] = json.loads(vectors.PATH.read_text(encoding="ascii"))


def test_the_file_is_what_the_code_makes() -> None:
    """Somebody's client is checked with the file; a change of the bytes must not go unseen."""
    assert FILE == json.loads(vectors.rendered())


def test_the_vectors_of_the_previous_release_are_unchanged() -> None:
    """Whoever wrote a client for it is not asked to change it; new vectors come behind."""
    previous = json.loads(PREVIOUS.read_text(encoding="ascii"))

    for part in ("requests", "responses", "errors_in_full_shape", "invalid_requests"):
        # Key 17 was kept for log-ins, which are there now.
        kept = [v for v in previous[part] if v.get("name") != "an api that is kept for later"]
        assert all(vector in FILE[part] for vector in kept)
    assert all(FILE[part] == vectors for part, vectors in previous.items() if part not in FILE)


def test_the_reference_is_current() -> None:
    """A specification that lags behind is worse than none; `document` writes it anew."""
    text = document.PATH.read_text(encoding="utf-8")

    assert text == document.rendered(text)
    wanted = {f"api {int(key)}" for key in APIS} | {"errors"}
    assert sorted(document.marked(text)) == sorted(wanted)


def test_every_api_and_version_has_a_vector() -> None:
    """A layout without a vector could change without anybody noticing."""
    wanted = {(key, v) for key, api in APIS.items() for v in range(api.max_version + 1)}

    assert {(v["api_key"], v["api_version"]) for v in FILE["requests"]} == wanted
    assert {(v["api_key"], v["api_version"]) for v in FILE["responses"]} == wanted
    failed = [(ApiKey[v["api"]], v["api_version"]) for v in FILE["errors_in_full_shape"]]
    assert set(failed) == wanted


@pytest.mark.parametrize("vector", FILE["requests"], ids=lambda v: v["name"])
def test_request_vectors_are_read_and_written(vector: dict[str, Any]) -> None:
    """Both directions, byte for byte."""
    frame = bytes.fromhex(vector["frame"])
    event = received(frame)

    version = event.dialect.api_version
    assert event.dialect.api_key.name == vector["api"]
    assert event.correlation_id == vector["correlation_id"]
    assert version == vector["api_version"]
    assert vectors.request_content(event.request, version) == vector["content"]
    assert request_frame(event.request, version, event.correlation_id) == frame


@pytest.mark.parametrize("vector", FILE["responses"], ids=lambda v: v["name"])
def test_response_vectors_are_read_and_written(vector: dict[str, Any]) -> None:
    """Both directions, byte for byte."""
    frame = bytes.fromhex(vector["frame"])
    client = ClientConnection()
    for example in EXAMPLES[: vector["correlation_id"] + 1]:
        client.send(example.request, example.version)
    (event,) = client.receive(frame)

    assert event.leader_epoch == vector["leader_epoch"]
    assert event.throttle_time_ms == vector["throttle_time_ms"]
    key = ApiKey(vector["api_key"])
    content = vectors.response_content(event.response, key, vector["api_version"])
    assert content == vector["content"]
    dialect = DIALECTS[key, vector["api_version"]]
    assert frame == encode_response(
        dialect, event.correlation_id, event.response, event.leader_epoch
    )


@pytest.mark.parametrize("vector", FILE["errors_that_stand_alone"], ids=lambda v: v["content"])
def test_a_bare_error_is_an_array_of_one(vector: dict[str, Any]) -> None:
    """A client in another language recognises it by that."""
    (code,) = vector["content"]

    assert encode_error(vector["correlation_id"], code).hex() == vector["frame"]


@pytest.mark.parametrize("bad", INVALID_REQUESTS, ids=lambda bad: bad.name)
def test_invalid_requests_get_their_verdict(bad: Any) -> None:
    """Content that does not fit keeps the connection; bytes that are no msgpack end it."""
    connection = ServerConnection(RequestEvent)
    if bad.verdict == CLOSE:
        with pytest.raises(FrameTooLarge):
            connection.receive(bad.frame)
        return
    (event,) = connection.receive(bad.frame)

    assert isinstance(event, BadRequest), event
    assert event.correlation_id == 7
    assert (event.error, event.close) == {
        KEEP_42: (ErrorCode.INVALID_REQUEST, False),
        CLOSE_42: (ErrorCode.INVALID_REQUEST, True),
        KEEP_35: (ErrorCode.UNSUPPORTED_VERSION, False),
    }[bad.verdict]


def test_shortened_frames_come_back_whole() -> None:
    """Whoever reads the file has to build them."""
    for bad, written in zip(INVALID_REQUESTS, FILE["invalid_requests"], strict=True):
        assert vectors.frame_from(written["frame"]) == bad.frame


@pytest.mark.parametrize("vector", FILE["offsets_partitions"], ids=lambda v: v["group_id"])
def test_groups_live_where_kafka_would_put_them(vector: dict[str, Any]) -> None:
    """The partition is part of the data folder's format: it must never change."""
    group_id = vector["group_id"]

    assert java_string_hash(group_id) == vector["java_hash"]
    assert offsets_partition(group_id, 50) == vector["of_50"]
    assert offsets_partition(group_id, 8) == vector["of_8"]


def test_the_hashes_are_those_of_java() -> None:
    """Computed by a JVM once; the file's other numbers follow from the same function."""
    assert {v["group_id"]: (v["java_hash"], v["of_50"], v["of_8"]) for v in _hashes()} == {
        "": (0, 0, 0),
        "a": (97, 47, 1),
        "group-id": (506313513, 13, 1),
        "my-group": (-1906497762, 12, 2),
        "test": (3556498, 48, 2),
        "polygenelubricants": (-2147483648, 0, 0),
        "Aa": (2112, 12, 0),
        "BB": (2112, 12, 0),
        "группа": (1749938458, 8, 2),
        "grp-😀": (-1235730613, 13, 5),
    }


def _hashes() -> list[dict[str, Any]]:
    hashes: list[dict[str, Any]] = FILE["offsets_partitions"]
    return hashes


def test_consumer_protocol_vectors_are_read_and_written() -> None:
    """Kafka's clients read these bytes."""
    written = FILE["consumer_protocol"]
    for vector, (version, subscription) in zip(
        written["subscriptions"], vectors.SUBSCRIPTIONS, strict=True
    ):
        assert encode_subscription(subscription, version).hex() == vector["bytes"]
        assert decode_subscription(bytes.fromhex(vector["bytes"])) == subscription
    for vector, (version, assignment) in zip(
        written["assignments"], vectors.ASSIGNMENTS, strict=True
    ):
        assert encode_assignment(assignment, version).hex() == vector["bytes"]
        assert decode_assignment(bytes.fromhex(vector["bytes"])) == assignment


@pytest.mark.parametrize("hexed", vectors.UNREADABLE)
def test_unreadable_consumer_protocol_bytes_are_opaque(hexed: str) -> None:
    """Any bytes may be in there; a member with odd ones must not end the group."""
    assert decode_subscription(bytes.fromhex(hexed)) is None


def test_a_subscription_lies_as_kafka_lays_it() -> None:
    """Written by hand from ConsumerProtocolSubscription.json, versions 0 to 3."""
    topics = "00000001" + "0007" + b"flights".hex()
    user_data = "00000002" + "0102"
    owned = "00000001" + "0007" + b"flights".hex() + "00000001" + "00000007"
    by_hand = {
        0: "0000" + topics + user_data,
        1: "0001" + topics + user_data + owned,
        2: "0002" + topics + user_data + owned + "00000005",
        3: "0003" + topics + user_data + owned + "00000005" + "0006" + b"rack-a".hex(),
    }
    full = Subscription(("flights",), b"\x01\x02", (TopicPartition("flights", 7),), 5)

    for version, hexed in by_hand.items():
        wanted = full._replace(rack_id="rack-a")
        assert encode_subscription(wanted, version).hex() == hexed
        read = decode_subscription(bytes.fromhex(hexed))
        assert read is not None
        assert read.topics == ("flights",)
        assert read.user_data == b"\x01\x02"
        assert bool(read.owned_partitions) == (version >= 1)
        assert read.generation_id == (5 if version >= 2 else -1)
        assert read.rack_id == ("rack-a" if version >= 3 else None)


def test_a_newer_subscription_is_read_as_far_as_it_is_known() -> None:
    """A client of a later Kafka may be in the same group."""
    known = encode_subscription(Subscription(("flights",)))
    newer = b"\x00\x09" + known[2:] + b"something new"

    assert decode_subscription(newer) == Subscription(("flights",))


def test_an_assignment_lies_as_kafka_lays_it() -> None:
    """Written by hand from ConsumerProtocolAssignment.json; the same in all versions."""
    by_hand = "0001" + "00000001" + "0007" + b"flights".hex() + "00000002" + "00000000" + "00000001"
    assignment = vectors.ASSIGNMENTS[1][1]

    assert encode_assignment(assignment, 1).hex() == by_hand + "00000000"


def test_empty_assignment_bytes_own_nothing() -> None:
    """A member that the leader left out gets them."""
    read = decode_assignment(b"")

    assert read is not None
    assert read.partitions == ()


def test_the_oldest_bytes_are_read_by_hand() -> None:
    """One frame written without any of this code, so that all of it can't be wrong together."""
    frame = bytes.fromhex(
        "0000000f" + "000c" + "0000" + "00000007" + "94" + "a167" + "01" + "a16d" + "c0"
    )

    event = received(frame)
    assert event.request == HeartbeatRequest("g", 1, "m", None)
    answer = encode_error(7, -1)
    assert answer.hex() == "0000000e" + "00000007" + "00000000" + "ffffffff" + "91ff"
    assert RESPONSE_HEADER.unpack_from(answer) == (14, 7, 0, -1)
