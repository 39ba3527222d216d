"""Conditions on groups and topics narrow down what is read; all others are left to Spark."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import given, strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    In,
    IsNotNull,
    IsNull,
    Not,
    StringStartsWith,
)

from client.spark.tables.options import Wanted, name_parts, push

NEVER_NULL = ("group", "topic")


class Row(NamedTuple):
    """One row."""

    group: str
    topic: str


_value = st.sampled_from(["a", "b", "c", None])
_column = st.sampled_from(["group", "topic"])
_plain: st.SearchStrategy[Filter] = st.one_of(
    st.builds(lambda c, v: EqualTo((c,), v), _column, _value),
    st.builds(lambda c, v: EqualNullSafe((c,), v), _column, _value),
    st.builds(lambda c, v: In((c,), tuple(v)), _column, st.lists(_value, max_size=3)),
    st.builds(lambda c: IsNotNull((c,)), _column),
    st.builds(lambda c, v: GreaterThan((c,), v), _column, st.sampled_from("abc")),
    st.builds(lambda c, v: StringStartsWith((c,), v), _column, st.sampled_from("abc")),
)
FILTERS = st.lists(_plain | st.builds(Not, _plain), max_size=4)

_HOLDS: dict[type, Callable[[str, object], bool]] = {
    EqualTo: lambda value, other: value == other,
    EqualNullSafe: lambda value, other: value == other,
    GreaterThan: lambda value, other: value > str(other),
    StringStartsWith: lambda value, other: value.startswith(str(other)),
}


def holds(one: Filter, row: Row) -> bool:
    """Say whether *row* passes, as Spark would; null is false."""
    match one:
        case Not(child):
            has_null = getattr(child, "value", "") is None and not isinstance(child, EqualNullSafe)
            return not has_null and not holds(child, row)
        case IsNotNull(_):
            return True
        case In((column,), values):
            return getattr(row, column) in values
    (column,) = vars(one)["attribute"]  # All others compare a column.
    return _HOLDS[type(one)](getattr(row, column), vars(one)["value"])


@given(FILTERS)
def test_what_is_pushed_and_what_is_left_say_the_same_as_all(filters: list[Filter]) -> None:
    """A filter that is taken and not applied shows rows that were not asked for."""
    wanted, rest = push(filters, Wanted(), NEVER_NULL)

    for row in (Row(group, topic) for group in "abc" for topic in "abc"):
        shown = (
            (wanted.groups is None or row.group in wanted.groups)
            and (wanted.topics is None or row.topic in wanted.topics)
            and all(holds(one, row) for one in rest)
        )
        assert shown == all(holds(one, row) for one in filters)


def test_filters_add_to_the_options() -> None:
    """Both must hold; a contradiction wants nothing."""
    pushed = push([In(("group",), ("a", "b"))], Wanted(frozenset("bc")), NEVER_NULL)
    wanted, _ = push([EqualTo(("group",), "x")], Wanted(frozenset("bc")), NEVER_NULL)

    assert pushed == (Wanted(frozenset("b")), [])
    assert wanted.is_nothing


@pytest.mark.parametrize(
    "one",
    [IsNull(("group",)), IsNotNull(("expires_at",)), EqualTo(("partition",), 3)],
)
def test_what_can_not_be_applied_is_left_to_spark(one: Filter) -> None:
    """Whatever the reader keeps silent about, Spark no longer checks."""
    assert push([one], Wanted(), NEVER_NULL) == (Wanted(), [one])


def test_a_table_without_a_topic_leaves_topics_alone() -> None:
    """Its column of that name is another one."""
    one = EqualTo(("topic",), "t")

    assert push([one], Wanted(), ("group",)) == (Wanted(), [one])


@given(
    st.none() | st.frozensets(st.sampled_from("abcdef"), min_size=1),
    st.none() | st.frozensets(st.sampled_from("tuvw"), min_size=1),
)
def test_requests_in_parts_ask_for_all_of_it_once(
    groups: frozenset[str] | None, topics: frozenset[str] | None
) -> None:
    """A part that is asked for twice would show its rows twice."""
    asked = [
        (group, topic)
        for some, others in name_parts(Wanted(groups, topics), size=2)
        for group in some or "*"
        for topic in others or "*"
    ]

    assert sorted(asked) == sorted((g, t) for g in groups or "*" for t in topics or "*")
