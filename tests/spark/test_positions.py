"""What the reader takes for stored after its own commit."""

import pytest
from hypothesis import given, strategies as st

from client.offsets import OffsetAndMetadata
from client.spark.source.planning import (
    Finished,
    Limits,
    Position,
    Seen,
    Step,
    commit_for,
    is_stored,
    plan_partition,
)
from client.spark.source.stream_offsets import IDENTITY, Range
from protocol.partition import TopicPartition

positions = st.builds(
    Position.pinned,
    st.none() | st.integers(0, 2**62),
    st.integers(0, 2**62),
    st.integers(0, 10**18),
    st.just("") | st.from_regex(IDENTITY, fullmatch=True),
)


@given(
    before=st.dictionaries(st.integers(0, 9), st.just(Position(None)) | positions),
    needs=st.lists(positions, min_size=10, max_size=10),
)
def test_what_a_commit_has_stored_is_known_as_a_fetch_would_tell_it(
    before: dict[int, Position], needs: list[Position]
) -> None:
    """The reader doesn't read its own pins: after a commit it goes on with what it planned."""
    known = {TopicPartition("flights", partition): stored for partition, stored in before.items()}
    steps = {tp: Step(0, 0, needs[tp.partition]) for tp in known}

    commit = commit_for(steps, known)

    assert commit.positions == {
        tp: step.needs
        for tp, step in steps.items()
        if step.needs.offset is not None and step.needs != known[tp]
    }
    assert commit.positions == {tp: Position.of(stored) for tp, stored in commit.offsets.items()}
    assert commit.offsets == {
        tp: OffsetAndMetadata(stored.offset, stored.metadata)
        for tp, stored in commit.positions.items()
        if stored.offset is not None
    }
    assert commit.expected == {
        tp: -1 if known[tp].offset is None else known[tp].offset for tp in commit.offsets
    }


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (None, False),
        (Position(None), False),
        (Position.pinned(4, 9, 0, ""), False),
        (Position.pinned(5, 9, 0, ""), True),
    ],
)
def test_a_range_is_stored_once_its_end_is(stored: Position | None, expected: bool) -> None:
    """What is kept for longer could be committed over somebody's reset."""
    assert is_stored(Finished(Range(0, 5, 1), 0), stored) == expected


def test_metadata_of_somebody_else_is_no_pin() -> None:
    """Another client may have committed; its offset counts, and no range is planned."""
    position = Position.of(OffsetAndMetadata(7, "mine"))

    assert position == Position(7, "mine")
    assert position.pinned_end is None


def test_which_log_an_offset_is_of_is_not_forgotten_while_the_log_can_not_tell() -> None:
    """Else one that is made anew meanwhile would be read as if it went on."""
    position = Position.pinned(5, 5, 0, "first")

    step = plan_partition(
        TopicPartition("flights", 0), position, None, Seen(0, 9), Limits(None, None, (), "error")
    )

    assert step.needs == Position.pinned(5, 9, 0, "first")


@pytest.mark.parametrize("metadata", ["", "gk1:orders-1.4:ok", "by hand"])
def test_what_others_have_committed_is_where_a_reader_begins(metadata: str) -> None:
    """A group moves to the source with nothing but its offsets, whoever committed them."""
    tp = TopicPartition("flights", 0)
    limits = Limits(10, None, frozenset(), "error")

    step = plan_partition(
        tp, Position.of(OffsetAndMetadata(30, metadata)), None, Seen(0, 100), limits
    )

    assert (step.at, step.stop) == (30, 40)
