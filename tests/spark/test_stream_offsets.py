"""Offsets and pins as text."""

import json

import pytest
from hypothesis import given, strategies as st

from client.offsets import OffsetAndMetadata
from client.spark.source.stream_offsets import (
    IDENTITY,
    EndOffset,
    Memory,
    OffsetFormatError,
    Pin,
    Range,
    ReaderIdentity,
    decode_end,
    encode_end,
    finished_offsets,
    parse_pin,
    reader_of,
)
from protocol.partition import NO_LEADER_EPOCH, TopicPartition

READER = ReaderIdentity("host:9310", "etl", "spark-1")


@given(
    ranges=st.dictionaries(
        st.builds(TopicPartition, st.text(min_size=1), st.integers(0, 2**31 - 1)),
        st.builds(
            lambda start, count, generation: Range(start, start + count, generation),
            st.integers(0, 2**60),
            st.integers(1, 2**60),
            st.integers(0, 2**31 - 1),
        ),
    ),
    topics=st.lists(st.text(min_size=1)),
    stateful=st.sampled_from(["", "fail", "warn"]),
    memory=st.builds(
        Memory,
        st.text(min_size=1),
        st.integers(0, 2**31 - 1),
        st.dictionaries(
            st.builds(TopicPartition, st.text(min_size=1), st.integers(0, 2**31 - 1)),
            st.builds(
                OffsetAndMetadata,
                st.integers(0, 2**60),
                st.sampled_from(["", "gc1:9:0"]),
                st.just(NO_LEADER_EPOCH),
            ),
        ),
        st.frozensets(st.builds(TopicPartition, st.text(min_size=1), st.integers(0, 2**31 - 1))),
    ),
)
def test_an_end_offset_survives_json(
    ranges: dict[TopicPartition, Range], topics: list[str], stateful: str, memory: Memory
) -> None:
    """Spark keeps it as JSON text; any topic name must come back as it was."""
    end = encode_end(ranges, READER, topics=topics, stateful=stateful, memory=memory)

    # What was pinned for the ranges is known, whether it is said or not.
    pinned = {
        tp: OffsetAndMetadata(one.start, Pin(one.end).to_metadata()) for tp, one in ranges.items()
    }
    assert decode_end(json.loads(json.dumps(end))) == EndOffset(
        ranges,
        READER,
        tuple(topics),
        stateful,
        memory._replace(offsets={**pinned, **memory.offsets}),
    )


def test_the_offset_of_an_older_release_still_says_where_its_ranges_began() -> None:
    """A checkpoint outlives releases; that is then all that is known of the group."""
    end = encode_end({TopicPartition("a", 1): Range(5, 9, 3)}, READER)

    assert decode_end(end).memory == Memory(
        "", 3, {TopicPartition("a", 1): OffsetAndMetadata(5, "gc1:9:0")}
    )


@pytest.mark.parametrize(
    "about",
    [
        {"cluster": 7},
        {"generation": "x"},
        {"at": []},
        {"at": {"flights": 1}},
        {"at": {"flights": {"x": [1, ""]}}},
        {"at": {"flights": {"0": [1]}}},
        {"at": {"flights": {"0": ["many", ""]}}},
        {"at": {"flights": {"0": 5}}},
        {"away": [1]},
        {"away": {"flights": 1}},
        {"away": {"flights": ["x"]}},
    ],
)
def test_a_damaged_memory_is_refused_like_any_other_damage(about: dict[str, object]) -> None:
    """Half of what a reader knew would look like a group that lost the other half."""
    end = encode_end({}, READER)
    end["@"].update(about)

    with pytest.raises(OffsetFormatError, match="did not write"):
        decode_end(end)


@given(
    pin=st.builds(
        Pin,
        st.integers(0, 10**18),
        st.integers(0, 10**18),
        st.just("") | st.from_regex(IDENTITY, fullmatch=True),
    )
)
def test_a_pin_survives_the_metadata(pin: Pin) -> None:
    """It is all that a new owner has."""
    assert parse_pin(pin.to_metadata()) == pin


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        "",
        "gc1",
        "gc1:5",
        "gc1:5:",
        "gc1:-5:0",
        "gc1:05:0",
        "gc2:5:0",
        "gc1:5:0 ",
        "gc1:5:0:",
        "gc1:5:0:a b",
        "gc1:5:0:a:b",
        "gc1:\u0665:0",
    ],
)
def test_other_metadata_is_no_pin(metadata: str | None) -> None:
    """Anybody may commit to a group, with any metadata."""
    assert parse_pin(metadata) is None


@pytest.mark.parametrize(
    "offset",
    [
        {"flights-0": 5},
        {"flights": {"s": 0, "e": 1, "g": 1}},
        {"-0": {"s": 0, "e": 1, "g": 1}},
        {"flights-0": {"s": 1, "e": 1, "g": 1}},
        {"flights-0": {"s": 0, "e": "1", "g": 1}},
        {"@": {"v": 1, "group": "g"}},
        {"@": 1},
        5,
        [1, 2],
        None,
    ],
)
def test_a_foreign_offset_is_refused(offset: object) -> None:
    """Guessing would read the wrong rows."""
    with pytest.raises(OffsetFormatError, match="did not write"):
        decode_end(offset)


def test_an_offset_of_a_later_format_is_refused_by_its_version() -> None:
    """After a downgrade the message should say so."""
    with pytest.raises(OffsetFormatError, match="version 2"):
        decode_end({"flights-0": {"from": 1}, "@": {"v": 2}})


def test_the_initial_offset_has_no_reader() -> None:
    """It is the same for every process."""
    assert decode_end({}) == EndOffset({}, None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"orders": {"0": 20, "11": 7}}', {("orders", 0): 20, ("orders", 11): 7}),
        ('{"a-b-2": {"s": 1, "e": 9, "g": 3}, "@": {"v": 1}}', {("a-b", 2): 9}),
        ('{"orders": {"0": -2, "1": true, "x": 1}}', {}),
        ('{"logOffset": 4}', {}),
        ("12", {}),
        ("None", {}),
        ("", {}),
        (None, {}),
    ],
)
def test_finished_offsets_are_read_from_any_progress(
    text: str | None, expected: dict[tuple[str, int], int]
) -> None:
    """The listener sees all sources of all queries."""
    assert finished_offsets(text) == expected


def test_the_reader_is_found_in_a_progress() -> None:
    """A drain begins here."""
    assert reader_of(json.dumps(encode_end({}, READER))) == READER
    assert reader_of('{"orders": {"0": 20}}') is None
    assert reader_of("null") is None
    assert reader_of(None) is None
