"""Lag, and the scan of all offsets with its stream of changes."""

import pytest
from hypothesis import given, strategies as st
from msgspec import structs

from client.operators import offsets_of_page
from coordinator.group.admin import offset_change
from coordinator.group.records import GroupGeneration
from coordinator.group.scans import Cursor, decode_cursor
from protocol.messages import (
    OffsetChange,
    OffsetColumns,
    OffsetDeleteRequest,
    PartitionLag,
    ScannedOffset,
    ScanOffsetsRequest,
    ScanOffsetsResponse,
    TopicPartitions,
)
from tests.group.context import GROUP, Context
from tests.group.topics_context import TopicsContext

# --- lag ------------------------------------------------------------------------------------


def lag_of(context: Context, name: str) -> PartitionLag:
    """Return the lag of a partition written as ``topic-3``."""
    topic, partition = name.rsplit("-", 1)
    response = context.shard.describe_lag(GROUP)
    assert (response.error, response.message, response.group_id) == (0, None, GROUP)
    (found,) = [
        lag
        for shown in response.topics
        if shown.topic == topic
        for lag in shown.partitions
        if lag.partition == int(partition)
    ]
    return found


def test_lag_is_how_far_the_end_is_ahead_of_the_commit() -> None:
    """With both times, to judge how fresh it is, and the owner, to know whom to ask."""
    context = TopicsContext()
    context.register({"flights": 2})
    (member,) = context.stable_group(1)
    context.commit(member, 1, "flights-0", 40)
    committed_ms = context.wall_ms
    context.advance(5)
    context.report("flights", {0: 100})

    assert lag_of(context, "flights-0") == (
        PartitionLag(0, 40, 100, 60, committed_ms, committed_ms + 5, member)
    )


def test_what_is_not_known_is_never_zero() -> None:
    """Zero would say that all is well."""
    context = TopicsContext()
    context.register({"flights": 9, "gone": 1})
    (member,) = context.stable_group(1)  # Owns flights-0.
    context.report("flights", {0: 100})
    context.report("gone", {0: 100})

    assert structs.astuple(lag_of(context, "flights-0"))[1:4] == (-1, 100, -1)

    context.leave(member)
    for name in ("flights-1", "other-0", "gone-0"):
        context.commit("", -1, name, 5)
    context.delete_topics("gone")

    assert lag_of(context, "flights-1") == PartitionLag(1, 5, -1, -1, context.wall_ms, -1, "")
    assert structs.astuple(lag_of(context, "other-0"))[1:4] == (5, -1, -1)
    assert structs.astuple(lag_of(context, "gone-0"))[1:4] == (5, -1, -1)


def test_a_commit_ahead_of_the_last_report_has_no_negative_lag() -> None:
    """The report is older than the commit."""
    context = TopicsContext()
    context.register({"t": 1})
    context.commit("", -1, "t-0", 9)
    context.report("t", {0: 5})

    assert structs.astuple(lag_of(context, "t-0"))[1:4] == (9, 5, 0)


def test_lag_is_listed_in_order_and_of_an_unknown_group_refused() -> None:
    """The same before and after a restart."""
    context = Context()
    for name in ("b-1", "a-10", "a-9"):
        context.commit("", -1, name)
    topics = context.shard.describe_lag(GROUP).topics

    assert [(t.topic, [p.partition for p in t.partitions]) for t in topics] == [
        ("a", [9, 10]),
        ("b", [1]),
    ]

    unknown = context.shard.describe_lag("nope")

    assert (unknown.error, unknown.message) == (69, "Group nope not found.")


# --- scan and changes -----------------------------------------------------------------------


def scan_page(context: Context, cursor: bytes = b"", size: int = 2) -> ScanOffsetsResponse:
    """Return one page, at the position where the log is."""
    request = ScanOffsetsRequest(0, cursor, size, in_columns=True)
    return context.shard.scan(request, len(context.records))


def offsets_on(page: ScanOffsetsResponse) -> list[ScannedOffset]:
    """Return the offsets of a page."""
    (columns,) = page.columns
    return offsets_of_page(columns)


def scan(context: Context, size: int = 2) -> list[ScannedOffset]:
    """Return all pages in one."""
    found: list[ScannedOffset] = []
    cursor = b""
    while True:
        page = scan_page(context, cursor, size)
        assert page.error == 0
        assert len(offsets_on(page)) <= size
        found += offsets_on(page)
        cursor = page.cursor
        if not cursor:
            return found


def test_a_scan_shows_every_offset_once_in_order() -> None:
    """By group, topic, partition, each with all that was committed."""
    context = Context()
    for group, name in (("b", "t-0"), ("a", "u-0"), ("a", "t-10"), ("a", "t-9"), ("ä", "t-0")):
        context.commit("", -1, name, 5, group=group, metadata="m")
    keys = [("a", "t", 9), ("a", "t", 10), ("a", "u", 0), ("b", "t", 0), ("ä", "t", 0)]

    for size in range(1, 7):
        found = scan(context, size)
        assert [structs.astuple(offset)[:3] for offset in found] == keys
    assert found[0] == ScannedOffset("a", "t", 9, 5, -1, "m", context.wall_ms, -1)


def test_the_last_page_says_so_at_once() -> None:
    """Also if it is full, or empty."""
    context = Context()

    assert scan_page(context) == ScanOffsetsResponse(0, 0, (), b"", (OffsetColumns(),))

    context.commit("", -1, "t-0")
    context.commit("", -1, "t-1")
    page = scan_page(context, size=2)

    assert (page.position, len(offsets_on(page)), page.cursor) == (2, 2, b"")


@pytest.mark.parametrize(
    "cursor",
    [b"x", b"\x00" * 7, b"\x00\x01\x00\x00\x00\x00\x00\x00", b"\x00\x01" + b"\x00" * 6 + b"\xff"],
)
def test_a_cursor_that_is_none_of_ours_is_refused(cursor: bytes) -> None:
    """Nothing is guessed; neither is a page of nothing."""
    context = Context()
    context.commit("", -1)

    assert scan_page(context, cursor) == ScanOffsetsResponse(42, -1, (), b"")
    assert scan_page(context, size=0).error == 42


@given(st.text(max_size=255), st.text(max_size=249), st.integers(0, 2**31 - 1))
def test_a_cursor_comes_back_as_it_was(group_id: str, topic: str, partition: int) -> None:
    """Whatever the names are."""
    cursor = Cursor(group_id, topic, partition)

    assert cursor == decode_cursor(cursor.encode())


def test_a_scan_goes_on_after_a_restart() -> None:
    """The cursor is all that it needs."""
    context = Context()
    for group in "cab":
        context.commit("", -1, group=group)
    page = scan_page(context, size=1)
    context.crash()
    page = scan_page(context, page.cursor, 1)

    assert [offset.group_id for offset in offsets_on(page)] == ["b"]


def test_a_scan_does_not_use_the_order_that_an_older_one_made() -> None:
    """It would miss the groups that came between the two."""
    context = Context()
    for group in "ac":
        context.commit("", -1, group=group)
    scan_page(context, size=1)
    context.commit("", -1, group="b")

    assert [offset.group_id for offset in scan(context)] == ["a", "b", "c"]


def test_only_offsets_are_changes() -> None:
    """Generations and assignments are nobody's business here."""
    assert offset_change(3, 9, GroupGeneration("g", 1, 2)) is None


def changes_since(context: Context, position: int) -> list[OffsetChange]:
    """Return the changes of the log from *position* on."""
    found = (
        offset_change(at, context.wall_ms, record)
        for at, record in enumerate(context.records)
        if at >= position
    )
    return [change for change in found if change is not None]


Key = tuple[str, str, int]


def apply(state: dict[Key, int], changes: list[OffsetChange]) -> dict[Key, int]:
    """Return *state* as a reader makes it of the changes."""
    for change in changes:
        key = (change.group_id, change.topic, change.partition)
        if change.kind == "committed":
            state[key] = change.offset
        elif change.kind == "removed":
            assert structs.astuple(change)[5:8] == (-1, -1, "")
            state.pop(key, None)
        else:
            assert change.kind == "group deleted"
            assert structs.astuple(change)[3:8] == ("", -1, -1, -1, "")
            state = {k: v for k, v in state.items() if k[0] != change.group_id}
    return state


STEP = st.tuples(
    st.sampled_from(["commit", "commit", "remove", "delete", "page", "crash", "other scan"]),
    st.sampled_from("abcd"),
    st.sampled_from("tu"),
    st.integers(0, 2),
)


@given(st.lists(STEP, max_size=60), st.integers(1, 3))
def test_a_scan_and_its_changes_give_the_state_at_the_end(
    steps: list[tuple[str, str, str, int]], size: int
) -> None:
    """Though the pages are of different moments, and groups come and go between them."""
    context = Context()
    state: dict[Key, int] = {}
    first: int | None = None
    cursor = b""

    def page() -> bool:
        nonlocal first, cursor
        response = scan_page(context, cursor, size)
        first = response.position if first is None else first
        state.update(
            {
                (offset.group_id, offset.topic, offset.partition): offset.offset
                for offset in offsets_on(response)
            }
        )
        cursor = response.cursor
        return bool(cursor)

    is_open = True
    for n, (what, group, topic, partition) in enumerate(steps):
        if what == "commit":
            context.commit("", -1, f"{topic}-{partition}", n, group=group)
        elif what == "remove":
            named = (TopicPartitions(topic, (partition,)),)
            context.send(OffsetDeleteRequest(group, named))
        elif what == "delete":
            context.take(context.shard.delete_group(group, context.now)[0])
        elif what == "crash":
            context.crash()
        elif what == "other scan":
            scan_page(context, size=1)
        elif is_open:
            is_open = page()
    while is_open:
        is_open = page()
    assert first is not None

    expected = {
        (offset.group_id, offset.topic, offset.partition): offset.offset for offset in scan(context)
    }
    assert expected == apply(state, changes_since(context, first))
