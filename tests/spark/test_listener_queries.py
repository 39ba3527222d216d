"""What a listener makes of the offsets of all kinds of sources, and of events in any order."""

import json
import pickle
from typing import Any

import pytest
from hypothesis import given, strategies as st

from client.spark.listener.checkpoint import FinishedBatch
from client.spark.listener.queries import (
    DecodeFailed,
    Event,
    QueryState,
    Reached,
    Rules,
    batch_offsets,
    merged,
    source_reached,
)
from protocol.partition import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
NAMES = {"a": A, "b": B}


def event(batch: int, run: str = "r1", **finished: int) -> Event:
    """Return an event; ``a=5`` is partition 0."""
    return Event("q", run, "orders", batch, _reached(finished))


def started() -> QueryState:
    """Return a query that has started."""
    state = QueryState("q", "orders", 0.0)
    state.started("r1", 0.0)
    return state


def test_an_event_is_news() -> None:
    """All of it: what was refused gets another chance with each batch."""
    state = started()

    assert state.progress(event(0, a=5), 1).news == {A: 5}
    assert state.progress(event(1, a=5, b=1), 2).news == {A: 5, B: 1}


def test_a_gap_in_the_batches_is_a_dropped_event() -> None:
    """Spark drops events when its queue is full; the checkpoint has the batches."""
    state = started()
    assert state.progress(event(3, a=1), 1).missed_after is None

    step = state.progress(event(6, a=9), 2)

    assert step.missed_after == 3
    assert state.metrics(2).dropped_events == 2
    assert state.progress(event(7, a=10), 2).missed_after is None


def test_a_late_event_does_not_turn_an_offset_back() -> None:
    """The lag would jump up and stay there until the next batch."""
    state = started()
    state.progress(event(4, a=9), 1)

    assert state.progress(event(3, a=5), 2).news == {}
    assert state.metrics(2).late_events == 1
    assert state.metrics(2).partitions[A].finished == 9


def test_the_same_batch_may_be_reported_again() -> None:
    """Some versions do so while they are idle."""
    state = started()
    state.progress(event(4, a=9), 1)

    assert state.progress(event(4, a=9), 2).missed_after is None
    told = state.metrics(2)
    assert (told.late_events, told.dropped_events, told.batches) == (0, 0, 1)


def test_a_new_run_may_begin_at_an_older_batch() -> None:
    """A checkpoint that was restored from a backup: the query really is behind again."""
    state = started()
    state.progress(event(40, a=90), 1)

    step = state.progress(event(7, run="r2", a=20), 2)

    assert step.news == {A: 20}
    assert (state.metrics(2).late_events, state.metrics(2).dropped_events) == (0, 0)
    assert state.progress(event(41, run="r1", a=95), 3).news == {}
    assert state.metrics(3).late_events == 1


def test_batches_between_two_runs_are_no_dropped_events() -> None:
    """Nobody listened; the start of a run looks into the checkpoint anyway."""
    state = started()
    state.progress(event(40, a=90), 1)

    assert state.progress(event(45, run="r2", a=95), 2).missed_after is None
    assert state.metrics(2).dropped_events == 0


def test_the_checkpoint_heals_what_no_event_told() -> None:
    """But never what an event told later."""
    state = started()
    state.progress(event(3, a=5), 1)
    state.progress(event(6, a=9), 2)

    assert state.read({A: (7, 5), B: (4, 4)}, state.run, 3) == {B: 4}
    assert state.metrics(3).healed == 1
    assert state.metrics(3).partitions[A].finished == 9


def test_what_an_earlier_run_read_does_not_count_against_a_new_one() -> None:
    """Reading takes a while; a restart may overtake it."""
    state = started()
    run = state.run
    state.progress(event(2, run="r2", a=20), 1)

    assert state.read({A: (90, 40)}, run, 2) == {}


def test_lag_is_known_only_where_the_end_is() -> None:
    """Never 0 by guessing, and not where more is finished than the end that is known."""
    state = started()
    reached = Reached({A: 5, B: 7}, {A: 9})
    state.progress(Event("q", "r1", None, 0, reached), 1)
    partitions = state.metrics(1).partitions.values()
    assert [(p.end, p.lag) for p in partitions] == [(9, 4), (None, None)]
    state.progress(Event("q", "r1", None, 1, Reached({A: 12}, {A: 9})), 2)

    assert state.metrics(2).partitions[A].lag is None
    state.progress(Event("q", "r1", None, 2, Reached({A: 12}, {A: 12})), 3)

    assert state.metrics(3).partitions[A].lag == 0


def test_a_partition_that_stands_still_gets_quiet() -> None:
    """An alert on a stuck partition is made of it."""
    state = started()
    state.progress(event(0, a=5, b=5), 10)
    state.progress(event(1, a=5, b=6), 20)

    quiet = {tp: one.quiet_s for tp, one in state.metrics(30).partitions.items()}

    assert quiet == {A: 20, B: 10}


batches = st.lists(
    st.dictionaries(st.sampled_from("ab"), st.integers(0, 99)), min_size=1, max_size=12
)


@given(batches, st.data())
def test_dropped_and_late_events_heal(told: list[dict[str, int]], data: st.DataObject) -> None:
    """Whatever comes, in whatever order: with the checkpoint the end is the truth."""
    numbers = list(range(len(told)))
    arriving = data.draw(st.permutations(numbers))[: data.draw(st.integers(1, len(told)))]
    state = started()
    for number in arriving:
        state.progress(Event("q", "r1", "orders", number, _reached(told[number])), 1)
    finished = [
        FinishedBatch(n, {"0": f'{{"t":{{{_json(some)}}}}}'}) for n, some in enumerate(told)
    ]
    state.read(batch_offsets(finished, Rules()), state.run, 2)

    truth = {NAMES[name]: offset for some in told for name, offset in some.items()}
    assert {tp: one.finished for tp, one in state.metrics(2).partitions.items()} == truth


def _json(some: dict[str, int]) -> str:
    return ",".join(f'"{"ab".index(name)}":{offset}' for name, offset in some.items())


def _reached(some: dict[str, int]) -> Reached:
    return Reached({NAMES[name]: offset for name, offset in some.items()}, {})


def test_a_query_that_is_started_each_minute_for_months_needs_no_more_room() -> None:
    """Each run has an id; late events come only from the last few."""
    state = started()
    for number in range(2, 2000):
        state.progress(event(number, f"r{number}", a=number), number)

    assert state.run == 1999
    assert len(pickle.dumps(state)) < 2_000
    assert state.progress(event(5000, "r1998", a=1), 1).news == {}
    assert state.metrics(1).late_events == 1


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
