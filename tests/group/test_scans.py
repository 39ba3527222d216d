"""Scans and the changes after them: they show what is committed, and hold up nobody."""

import pytest
from hypothesis import given, strategies as st
from msgspec import structs

from client.operators import offsets_of_page
from coordinator.group import lag, scans
from coordinator.group.admin import offset_change
from coordinator.group.records import GroupGeneration
from coordinator.group.scans import Cursor, decode_cursor
from protocol.codec import NO_EXPIRY
from protocol.messages import (
    OffsetChange,
    OffsetColumns,
    OffsetDeleteRequest,
    ScannedOffset,
    ScanOffsetsRequest,
    ScanOffsetsResponse,
    TopicPartitions,
)
from tests.fakes.scan_pages import page_of
from tests.group.context import Context, returned

Names = tuple[str, ...] | None


def page(
    context: Context,
    cursor: bytes = b"",
    size: int = 3,
    *,
    groups: Names = None,
    topics: Names = None,
) -> ScanOffsetsResponse:
    """Return one page."""
    request = ScanOffsetsRequest(0, cursor, size, True, groups, topics)
    return returned(context.shard.scan(request, lambda: len(context.records)))


def committed(context: Context, group: str, name: str, metadata: str = "") -> ScannedOffset:
    """Commit, in each partition its number of records so far, and return what a scan must show."""
    topic, partition = name.rsplit("-", 1)
    offset = len(context.records)
    context.commit("", -1, name, offset, group=group, metadata=metadata)
    return ScannedOffset(
        group, topic, int(partition), offset, -1, metadata, context.wall_ms, NO_EXPIRY
    )


def pages(
    context: Context, size: int, groups: Names = None, topics: Names = None
) -> list[OffsetColumns]:
    """Return the columns of all pages that aren't empty."""
    found: list[OffsetColumns] = []
    cursor = b""
    while True:
        response = page(context, cursor, size, groups=groups, topics=topics)
        assert (response.error, response.offsets) == (0, ())
        (columns,) = response.columns
        if columns != OffsetColumns():
            found.append(columns)
        cursor = response.cursor
        if not cursor:
            return found


COMMIT = st.tuples(
    st.sampled_from("abc"), st.sampled_from("tu"), st.integers(0, 3), st.sampled_from(["", "mä"])
)
NAMES = st.none() | st.lists(st.sampled_from(["a", "b", "t", "zz"]), max_size=3).map(tuple)


@given(
    st.lists(COMMIT, max_size=25),
    st.integers(1, 30),
    NAMES,
    st.none() | st.lists(st.sampled_from(["t", "u", "v"]), max_size=3).map(tuple),
)
def test_a_scan_shows_the_newest_commit_of_each_partition(
    commits: list[tuple[str, str, int, str]], size: int, groups: Names, topics: Names
) -> None:
    """By group, topic and partition, page by page, and each offset once."""
    context = Context()
    everything: dict[tuple[str, str, int], ScannedOffset] = {}
    for group, topic, partition, metadata in commits:
        context.advance(1)
        everything[group, topic, partition] = committed(
            context, group, f"{topic}-{partition}", metadata
        )
    wanted = [
        offset
        for _, offset in sorted(everything.items())
        if (groups is None or offset.group_id in groups)
        and (topics is None or offset.topic in topics)
    ]

    assert pages(context, size, groups, topics) == [
        page_of(wanted[at : at + size]) for at in range(0, len(wanted), size)
    ]


def test_a_page_is_bounded_in_number_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is asked for; it always has at least one."""
    monkeypatch.setattr(scans, "SCAN_PAGE_MAX", 3)
    context = Context()
    for n in range(8):
        context.commit("", -1, f"t-{n}", metadata="x" * 100)

    assert [len(found.sizes) // 2 for found in pages(context, 2**31 - 1)] == [3, 3, 2]

    monkeypatch.setattr(scans, "SCAN_PAGE_BYTES", 400)  # Room for two, and the names.

    assert [len(found.sizes) // 2 for found in pages(context, 9)] == [2, 2, 2, 2]

    monkeypatch.setattr(scans, "SCAN_PAGE_BYTES", 10)

    assert len(pages(context, 9)) == 8


def test_a_page_looks_at_so_many_groups_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of which nothing is wanted hold everybody up, too."""
    monkeypatch.setattr(scans, "SCAN_LOOKS_MAX", 2)
    context = Context()
    a, b, c, d, e = (committed(context, group, "t-0") for group in "abcde")
    wanted = committed(context, "d", "u-0")
    first = page(context, topics=("u",))

    assert (first.columns, bool(first.cursor)) == ((OffsetColumns(),), True)
    assert pages(context, 9, topics=("u",)) == [page_of([wanted])]
    assert pages(context, 9) == [page_of(found) for found in ([a, b], [c, d, wanted], [e])]


def test_times_of_each_offset_are_its_own() -> None:
    """A topic whose partitions were committed at different times keeps them apart."""
    context = Context()
    first = committed(context, "g", "t-0")
    context.advance(1_000)
    second = committed(context, "g", "t-1")
    (found,) = pages(context, 9)

    assert found == page_of([first, second])
    assert first.commit_timestamp_ms != second.commit_timestamp_ms


def test_nothing_is_asked_for_and_the_position_told() -> None:
    """Whoever follows the changes asks for no group, to learn where the log ends."""
    context = Context()
    context.commit("", -1, "t-0")

    assert page(context, groups=()) == (
        ScanOffsetsResponse(0, len(context.records), (), b"", (OffsetColumns(),))
    )


def test_a_page_looks_at_so_many_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of many groups, asked for many topics that they don't have, holds up everybody."""
    context = Context()
    for group in "abcde":
        for topic in "tuvw":
            context.commit("", -1, f"{topic}-0", 1, group=group)
    monkeypatch.setattr(scans, "SCAN_LOOKS_MAX", 6)
    absent = tuple(f"absent-{n}" for n in range(100))
    cursors = []
    response = page(context, topics=absent)
    while response.cursor:
        cursors.append(scans.decode_cursor(response.cursor).group_id)
        response = page(context, response.cursor, topics=absent)

    assert cursors == ["c", "e"]


def test_a_page_of_many_short_topics_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic takes as long as ten offsets, so fewer of them fit in the time of a page."""
    context = Context()
    for partition in range(20):
        context.commit("", -1, f"one-{partition}", 1, group="a")
    for topic in "tuvwxyz":
        context.commit("", -1, f"{topic}-0", 1, group="b")
    monkeypatch.setattr(scans, "SCAN_PAGE_MAX", 32)
    counts = [len(columns.sizes) // 2 for columns in pages(context, size=1_000)]

    assert counts == [21, 3, 3]


# --- lag ------------------------------------------------------------------------------------


def offsets_on(page: ScanOffsetsResponse) -> list[ScannedOffset]:
    """Return the offsets of a page."""
    (columns,) = page.columns
    return offsets_of_page(columns)


def scan(context: Context, size: int = 2) -> list[ScannedOffset]:
    """Return all pages in one."""
    found: list[ScannedOffset] = []
    cursor = b""
    while True:
        response = page(context, cursor, size)
        assert response.error == 0
        assert len(offsets_on(response)) <= size
        found += offsets_on(response)
        cursor = response.cursor
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


def test_the_last_page_says_so_returned() -> None:
    """Also if it is full, or empty."""
    context = Context()

    assert page(context) == ScanOffsetsResponse(0, 0, (), b"", (OffsetColumns(),))

    context.commit("", -1, "t-0")
    context.commit("", -1, "t-1")
    last = page(context, size=2)

    assert (last.position, len(offsets_on(last)), last.cursor) == (2, 2, b"")


@pytest.mark.parametrize(
    "cursor",
    [b"x", b"\x00" * 7, b"\x00\x01\x00\x00\x00\x00\x00\x00", b"\x00\x01" + b"\x00" * 6 + b"\xff"],
)
def test_a_cursor_that_is_none_of_ours_is_refused(cursor: bytes) -> None:
    """Nothing is guessed; neither is a page of nothing."""
    context = Context()
    context.commit("", -1)

    assert page(context, cursor) == ScanOffsetsResponse(42, -1, (), b"")
    assert page(context, size=0).error == 42


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
    first = page(context, size=1)
    context.crash()
    second = page(context, first.cursor, 1)

    assert [offset.group_id for offset in offsets_on(second)] == ["b"]


def test_a_scan_does_not_use_the_order_that_an_older_one_made() -> None:
    """It would miss the groups that came between the two."""
    context = Context()
    for group in "ac":
        context.commit("", -1, group=group)
    page(context, size=1)
    context.commit("", -1, group="b")

    assert [offset.group_id for offset in scan(context)] == ["a", "b", "c"]


def test_an_order_that_was_being_made_as_the_shard_stopped_is_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A scan that began at another node would miss the groups that came meanwhile."""
    monkeypatch.setattr(lag, "TURN_NAMES", 1)
    context = Context()
    committed(context, "a", "t-0")
    committed(context, "c", "t-0")
    request = ScanOffsetsRequest(0, b"", 1, True, None, None)
    late = context.shard.scan(request, lambda: 0)
    next(late)
    context.hand_over_and_back()
    added = committed(context, "b", "t-0")
    returned(late)
    begun_elsewhere = Cursor("a", "t", 0).encode()

    assert offsets_on(page(context, begun_elsewhere, 1)) == [added]


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


class Reader:
    """Who reads all pages, as far as the shard has made them.

    Attributes:
        first: The position of the first page.
        state: What the pages have shown.
        is_done: Whether there are no more.
    """

    def __init__(self, context: Context, size: int) -> None:
        self.first: int | None = None
        self.state: dict[Key, int] = {}
        self.is_done = False
        self._context = context
        self._size = size
        self._cursor = b""
        self.begin_page()

    def begin_page(self) -> None:
        """Ask for the page anew; of the one that was begun there was no answer."""
        request = ScanOffsetsRequest(0, self._cursor, self._size, True, None, None)
        self._page = self._context.shard.scan(request, lambda: len(self._context.records))

    def read_on(self) -> None:
        """Have a slice more made of the page."""
        try:
            next(self._page)
        except StopIteration as end:
            response: ScanOffsetsResponse = end.value
        else:
            return
        self.first = response.position if self.first is None else self.first
        for offset in offsets_on(response):
            self.state[offset.group_id, offset.topic, offset.partition] = offset.offset
        self._cursor = response.cursor
        self.is_done = not self._cursor
        self.begin_page()


STEP = st.tuples(
    st.sampled_from(["commit", "commit", "remove", "delete", "read", "read", "crash", "other"]),
    st.sampled_from("abcd"),
    st.sampled_from("tu"),
    st.integers(0, 2),
)


@given(st.lists(STEP, max_size=60), st.integers(1, 3))
def test_a_scan_and_its_changes_give_the_state_at_the_end(
    steps: list[tuple[str, str, str, int]], size: int
) -> None:
    """Though a page is made in slices, and groups come and go between these."""
    context = Context()
    reader = Reader(context, size)
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
            reader.begin_page()
        elif what == "other":
            page(context, size=1)
        elif not reader.is_done:
            reader.read_on()
    while not reader.is_done:
        reader.read_on()
    first, state = reader.first, reader.state
    assert first is not None

    expected = {
        (offset.group_id, offset.topic, offset.partition): offset.offset for offset in scan(context)
    }
    assert expected == apply(state, changes_since(context, first))
