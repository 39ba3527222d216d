"""What the offsets of all kinds of sources mean."""

import json
from typing import Any

import pytest

from client.spark.listener.checkpoint import FinishedBatch
from client.spark.listener.queries import (
    DecodeFailed,
    Reached,
    Rules,
    batch_offsets,
    merged,
    source_reached,
)
from protocol.partition import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
IN = TopicPartition("in", 0)
NO_RULES = Rules()


def coordinated(generation: int, **ranges: int) -> str:
    """Return an end offset; ``t0=9`` is partition 0 up to 9."""
    end: dict[str, Any] = {
        f"t-{name[1:]}": {"s": 0, "e": stop, "g": generation} for name, stop in ranges.items()
    }
    end["@"] = {"v": 1, "coordinator": "h:1", "group": "g", "client_id": "c"}
    return json.dumps(end)


@pytest.mark.parametrize(
    ("end", "latest", "reached"),
    [
        ('{"t":{"0":5,"1":7}}', '{"t":{"0":9,"1":7}}', Reached({A: 5, B: 7}, {A: 9, B: 7})),
        (coordinated(1, t0=5), '{"t-0": 25, "t-1": 25}', Reached({A: 5}, {A: 25, B: 25})),
        ('{"t":{"0":5}}', None, Reached({A: 5}, {})),
        ('{"t":{"0":5}}', "None", Reached({A: 5}, {})),
        ("None", '{"t":{"0":9}}', Reached({}, {})),
        (None, None, Reached({}, {})),
        ('{"logOffset":3}', None, Reached({}, {})),
        ('{"count":3}', '{"count":4}', Reached({}, {})),
        ("17", None, Reached({}, {})),
    ],
)
def test_known_forms_are_read_and_others_left(
    end: str | None, latest: str | None, reached: Reached
) -> None:
    """A guess would be a wrong lag."""
    assert source_reached(end, latest, "whatever", NO_RULES) == reached


@pytest.mark.parametrize(
    ("given", "described"),
    [
        ("/in", "FileStreamSource[file:/in]"),
        ("/in/", "FileStreamSource[file:/in]"),
        ("file:///in", "FileStreamSource[file:/in]"),
        ("s3a://b/in", "FileStreamSource[s3a://b/in/]"),
        ("/a folder", "FileStreamSource[file:/a folder]"),
    ],
)
def test_a_file_source_is_known_by_its_folder(given: str, described: str) -> None:
    """However it is written; its offset has no name. The number is the next group of files."""
    rules = Rules(file_topics={"/other": "other", given: "in"})

    assert source_reached('{"logOffset":3}', None, described, rules) == Reached({IN: 4}, {})


def test_a_file_source_without_a_topic_is_not_shown() -> None:
    """Nobody said under which name."""
    rules = Rules(file_topics={"/other": "other"})

    assert source_reached('{"logOffset":3}', None, "FileStreamSource[file:/in]", rules)[0] == {}
    assert source_reached('{"logOffset":3}', None, None, rules)[0] == {}


def test_a_users_function_reads_what_nobody_else_does() -> None:
    """It isn't asked about sources that are understood."""
    asked = []

    def decode(offset: Any) -> dict[tuple[str, int], int] | None:
        asked.append(offset)
        return {("t", 0): offset["count"]} if isinstance(offset, dict) else None

    rules = Rules(decode=decode)
    assert source_reached('{"count":3}', '{"count":4}', "p", rules) == Reached({A: 3}, {A: 4})
    assert source_reached("17", None, "p", rules) == Reached({}, {})
    source_reached('{"t":{"0":5}}', None, "KafkaV2[…]", rules)
    source_reached(coordinated(1), None, "p", rules)

    assert asked == [{"count": 3}, {"count": 4}, 17]


@pytest.mark.parametrize(
    "returned",
    [
        {"t": 5},
        {("t", 0): "5"},
        {("t", 0): -1},
        {("t", "0"): 5},
        {("t", 0, 1): 5},
        {("t", -1): 5},
        5,
    ],
)
def test_a_users_function_that_returns_nonsense_is_found_out(returned: Any) -> None:
    """Rather than in the thread that commits."""
    with pytest.raises(DecodeFailed, match=r"decode\({'count': 3}\)"):
        source_reached('{"count":3}', None, "p", Rules(decode=lambda _: returned))


def test_a_users_function_that_raises_is_named() -> None:
    """The query goes on, and its author learns of it."""
    with pytest.raises(DecodeFailed, match=r"raised KeyError\('n'\)"):
        source_reached('{"count":3}', None, "p", Rules(decode=lambda offset: offset["n"]))


def test_only_the_topics_asked_for_are_shown() -> None:
    """A join reads a second topic that nobody watches."""
    rules = Rules(topics=frozenset({"u"}))

    reached = source_reached('{"t":{"0":5},"u":{"0":6}}', '{"t":{"0":5}}', None, rules)

    assert reached == Reached({TopicPartition("u", 0): 6}, {})


def test_where_two_sources_read_the_same_the_one_behind_counts() -> None:
    """The query has finished a row when both are past it."""
    assert merged([Reached({A: 5, B: 1}, {A: 9}), Reached({A: 3}, {A: 8})]) == Reached(
        {A: 3, B: 1}, {A: 9}
    )


def test_older_batches_count_for_a_coordinated_source_within_a_generation() -> None:
    """Each of its offsets tells of one batch; earlier generations' partitions may be others'."""
    batches = [
        FinishedBatch(1, {"0": coordinated(3, t0=1, t1=1)}),
        FinishedBatch(2, {"0": coordinated(4, t1=2)}),
        FinishedBatch(3, {"0": coordinated(4, t2=3)}),
        FinishedBatch(4, {"0": coordinated(4)}),
    ]

    found = batch_offsets(batches, NO_RULES)

    assert found == {B: (2, 2), TopicPartition("t", 2): (3, 3)}


def test_the_one_file_source_of_a_checkpoint_needs_no_description() -> None:
    """A checkpoint has none; with two sources, or two topics, nobody could tell."""
    batch = FinishedBatch(1, {"0": '{"logOffset":3}', "1": '{"t":{"0":5}}'})
    two = FinishedBatch(1, {"0": '{"logOffset":3}', "1": '{"logOffset":5}'})
    one_topic = Rules(file_topics={"/in": "in"})
    two_topics = Rules(file_topics={"/in": "in", "/u": "u"})

    assert batch_offsets([batch], one_topic) == {IN: (4, 1), A: (5, 1)}
    assert batch_offsets([two], one_topic) == {}
    assert batch_offsets([batch], two_topics) == {A: (5, 1)}
