"""Where a fresh checkpoint begins, without a coordinator or Kafka."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, strategies as st

from client.spark.source.starting_offsets import (
    EARLIEST,
    Default,
    StartingOffsetsError,
    Where,
    check_default,
    check_topics,
    checked,
    choose,
    offsets_json,
)
from protocol.partition import TopicPartition

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def tp(partition: int) -> TopicPartition:
    """Return a partition of the one topic."""
    return TopicPartition("t", partition)


def test_committed_offsets_win_and_the_rest_begins_at_the_default() -> None:
    """Spark wants every partition to be named."""
    default: Mapping[Any, Any] = {tp(1): 5, "t": "latest"}
    found = choose("g", {tp(0): 7}, {"t": range(3)}, default)

    assert json.loads(offsets_json(found)) == {"t": {"0": 7, "1": 5, "2": -1}}


@given(
    st.dictionaries(st.integers(0, 9), st.integers(0, 2**62)),
    st.sampled_from(["earliest", "latest", 3]),
)
def test_each_partition_is_named_once_whatever_is_committed(
    committed: dict[int, int], default: str | int
) -> None:
    """A missing one makes Spark fail, and a wrong one loses rows."""
    offsets = {tp(p): offset for p, offset in committed.items()}
    found = json.loads(offsets_json(choose("g", offsets, {"t": range(10)}, default)))["t"]

    number = {"earliest": -2, "latest": -1}.get(str(default), default)
    assert found == {str(p): committed.get(p, number) for p in range(10)}


@pytest.mark.parametrize(
    ("committed", "known", "default", "words"),
    [
        ({3: 1}, {"t": range(2)}, "earliest", "has offsets of t-3"),
        ({}, {"t": None}, "earliest", "nobody knows the partitions"),
        ({}, {"t": range(1)}, {"other": 1}, "names neither t-0"),
        ({}, {"t": range(1)}, NOON, "only Kafka can turn"),
    ],
)
def test_what_does_not_fit_is_told(
    committed: dict[int, int], known: dict[str, range | None], default: Default, words: str
) -> None:
    """Silence would be a gap."""
    with pytest.raises(StartingOffsetsError, match=words):
        offsets_json(choose("g", {tp(p): o for p, o in committed.items()}, known, default))


def test_without_any_source_the_partitions_of_the_group_are_taken() -> None:
    """The listener commits all of them with each batch."""
    assert choose("g", {tp(0): 1, tp(1): 2}, {"t": None}, 0) == {tp(0): 1, tp(1): 2}


def test_offsets_that_kafka_does_not_hold_are_an_error_or_replaced_as_told() -> None:
    """The end itself is held: nothing comes next yet."""

    def offsets_of(wanted: Mapping[TopicPartition, Where]) -> dict[TopicPartition, int]:
        return {tp: 0 if where == EARLIEST else 10 for tp, where in wanted.items()}

    committed = {tp(0): 10, tp(1): 11}
    with pytest.raises(StartingOffsetsError, match="offset 11 of t-1"):
        checked("g", committed, committed, "error", offsets_of)

    found = checked("g", committed, committed, "latest", offsets_of)
    assert found == {tp(0): 10, tp(1): "latest"}


@pytest.mark.parametrize("default", ["first", -1, True, datetime(2026, 1, 1), {"t": 1.5}])  # noqa: DTZ001 - what is refused.
def test_a_default_that_is_no_place_is_refused_by_name(default: Default) -> None:
    """A time without a zone would mean another one on each machine."""
    with pytest.raises(ValueError, match="default is"):
        check_default(default)


@pytest.mark.parametrize("topics", ["orders", [], [""]])
def test_topics_that_are_no_list_of_names_are_refused(topics: list[str]) -> None:
    """A single text is a list of letters to Python."""
    with pytest.raises(ValueError, match="list of topic names"):
        check_topics(topics)
