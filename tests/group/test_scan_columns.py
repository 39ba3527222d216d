"""Scans show what is committed, of all or of some groups and topics, and hold up nobody."""

import pytest
from hypothesis import given, strategies as st

from client.operators import NO_EXPIRY
from coordinator.group import scans
from protocol.messages import OffsetColumns, ScannedOffset, ScanOffsetsRequest, ScanOffsetsResponse
from tests.group.context import Context
from tests.spark.tables.pages import page_of

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
    return context.shard.scan(request, len(context.records))


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
