"""What a query of a table asks for: its options, and the conditions that are pushed down."""

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

from client.spark.options import OptionError
from client.spark.tables import bulk, offset_log, offset_table
from client.spark.tables.groups import GroupMembersSource
from client.spark.tables.options import (
    SPARK_SCOPES_FILTERS,
    TableOptions,
    Target,
    Wanted,
    name_parts,
    push,
)

HOST = {"coordinator": "h:1"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "option 'coordinator' is missing"),
        ({"coordinator": "h"}, "option 'coordinator' is 'h': it must be host:port"),
        ({"coordinator": "h:99999"}, "option 'coordinator' is 'h:99999'"),
        (HOST | {"group": "g"}, "option 'group' is unknown; did you mean 'groups'?"),
        (HOST | {"xyz": "1"}, "option 'xyz' is unknown (there are coordinator,"),
        (HOST | {"groups": "a,,b"}, "option 'groups' is 'a,,b': it must be names"),
        (HOST | {"maxTasks": "0"}, "option 'maxTasks' is '0': it must be a whole number from 1"),
        (HOST | {"maxTasks": "\u00b2"}, "option 'maxTasks' is"),
        (HOST | {"coordinatorTimeout": "1 day"}, "option 'coordinatorTimeout' is '1 day'"),
        (HOST | {"pushFilters": "yes"}, "option 'pushFilters' is 'yes': it must be 'auto' or"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], message: str) -> None:
    """A misspelt one that is ignored reads the wrong groups."""
    source = offset_table.GroupOffsetsSource(options)
    with pytest.raises(OptionError) as caught:
        source.reader(offset_table.SCHEMA)

    assert str(caught.value).startswith(message)


def test_names_of_options_come_in_any_case() -> None:
    """Spark lowers them at times."""
    given = TableOptions({"MAXTASKS": " 3 ", "groups": "a, b"}, ("maxTasks", "groups"))

    assert given.number("maxTasks", 4) == 3
    assert given.names("groups") == frozenset("ab")


def test_every_table_has_its_defaults() -> None:
    """Only the coordinator must be given."""
    reader = offset_table.GroupOffsetsSource(dict(HOST)).reader(offset_table.SCHEMA)
    log = offset_log.parse_options(HOST)

    assert isinstance(reader, offset_table.PushingReader) == SPARK_SCOPES_FILTERS
    assert (reader.target, reader.wanted) == (Target(("h:1",), 60_000), Wanted())
    assert (log.starts_with_snapshot, log.rescans) == (True, False)
    assert bulk.parse_options(HOST).how == (False, False, False)
    assert GroupMembersSource(dict(HOST)).schema().names[0] == "group"


def test_a_reader_without_push_down_has_no_such_method_of_its_own() -> None:
    """Spark refuses one that has it while its setting is off."""
    reader = offset_table.GroupOffsetsSource(HOST | {"pushFilters": "false"}).reader(
        offset_table.SCHEMA
    )

    assert "pushFilters" not in vars(type(reader))
    assert type(reader) is offset_table.GroupOffsetsReader


def test_a_dry_run_needs_a_place_for_its_report() -> None:
    """Without one it would do nothing that anybody sees."""
    with pytest.raises(OptionError, match="option 'report' is missing"):
        bulk.parse_options(HOST | {"dryRun": "true"})


def test_to_overwrite_is_refused() -> None:
    """It would say that all other offsets are to be forgotten."""
    with pytest.raises(OptionError, match="mode 'overwrite' is not supported"):
        offset_table.GroupOffsetsSource(dict(HOST)).writer(offset_table.SCHEMA, overwrite=True)


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
