"""Reading committed offsets while they change: a state that was there at one moment."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, strategies as st

from coordinator.cli.common import AskFailed, Coordinator, Unreachable
from coordinator.cli.offset_log import SCANS_MAX, Feed, read_all
from coordinator.config import Address
from coordinator.log import format as log_format
from protocol import group_ids, messages as m
from protocol.offset_feed import OffsetEvent
from tests.fakes.offsets_log import Key, OffsetsLog

Step = tuple[str, str, str, int, int]

STEPS = st.lists(
    st.tuples(
        st.sampled_from(("commit", "commit", "remove", "delete", "compact", "nothing")),
        st.sampled_from("gh"),
        st.sampled_from("tu"),
        st.integers(0, 2),
        st.integers(0, 99),
    ),
    max_size=30,
)


class Asking(Coordinator):
    """A coordinator with a log, or nobody."""

    def __init__(self, log: OffsetsLog) -> None:
        super().__init__([Address("127.0.0.1", 1)], timeout_s=1)
        self.log = log
        self.is_away = False

    def ask_all(self, requests: Sequence[m.Request]) -> list[Any]:
        """Have the log answer."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: m.Request) -> Any:
        if self.is_away:
            raise Unreachable("No coordinator answers at 127.0.0.1:1: gone")
        if request == m.FindCoordinatorRequest(m.KEY_TYPE_PARTITION, ()):
            return m.FindCoordinatorResponse(())
        answer = self.log.answers[type(request)](request)
        error = getattr(answer, "error", 0)
        return AskFailed("refused", error) if error else answer


def play(log: OffsetsLog, steps: Iterator[Step]) -> None:
    """Let the next thing happen, if there is one."""
    what, group, topic, partition, offset = next(steps, ("nothing", "", "", 0, 0))
    if what == "commit":
        log.commit(group, topic, partition, offset)
    elif what == "remove" and (group, topic, partition) in log.state:
        log.remove(group, topic, partition)
    elif what == "delete":
        log.delete(group)
    elif what == "compact":
        log.floor = log.end


def offsets_of(state: dict[Key, m.ScannedOffset]) -> dict[Key, int]:
    """Return the offsets of a state by group, topic and partition."""
    return {key: one.offset for key, one in state.items()}


@given(meanwhile=STEPS, page_size=st.integers(1, 4))
def test_what_is_read_was_there_at_one_moment(meanwhile: list[Step], page_size: int) -> None:
    """However many commits, deletions and compactions come between two pages."""
    log = OffsetsLog()
    for key in itertools.product("gh", "tu", range(3)):
        log.commit(*key, 1_000)
    log.page_size = page_size
    first = log.end
    others = iter(meanwhile)

    def between() -> None:
        play(log, others)
        play(log, others)

    log.between = between
    if sum(step[0] == "compact" for step in meanwhile) >= SCANS_MAX:
        return  # It may have to be given up.
    rows = read_all(Asking(log), 0, None, None)

    found = {(one.group_id, one.topic, one.partition): one.offset for one in rows}
    assert list(found) == sorted(found)
    assert found in [offsets_of(state) for state in log.states[first:]]


def test_a_log_that_is_compacted_all_the_time_is_given_up() -> None:
    """Rather than read for ever."""
    log = OffsetsLog()
    log.page_size = 1
    for partition in range(2):
        log.commit("g", "t", partition, 1)

    def between() -> None:
        log.commit("g", "t", 0, 2)
        log.floor = log.end

    log.between = between
    with pytest.raises(AskFailed, match="compacted 5 times"):
        read_all(Asking(log), 0, None, None)


def test_only_some_groups_and_topics_are_read() -> None:
    """The changes that come meanwhile are of all of them."""
    log = OffsetsLog()
    for group in "gh":
        for topic in "tu":
            for partition in range(3):
                log.commit(group, topic, partition, 1)
    log.page_size = 2
    others = iter([("commit", g, t, 0, 9) for g in "gh" for t in "tu"])
    log.between = lambda: play(log, others)
    rows = read_all(Asking(log), 0, ["g"], {"t"})

    assert {(one.group_id, one.topic) for one in rows} == {("g", "t")}
    assert len(rows) == 3


class Follower:
    """What somebody knows who believes every event of a feed."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self.events: list[OffsetEvent] = []
        self.known: dict[Key, tuple[int, int]] = {}  # The offset, and which partition's it is.

    def round(self, coordinator: Coordinator) -> None:
        """Take what is new."""
        self._feed.connect(coordinator)
        for event in self._feed.events(coordinator):
            self.events.append(event)
            self._apply(event)

    def _apply(self, event: OffsetEvent) -> None:
        if event.kind == "scan":
            where = event.offsets_partition
            self.known = {key: one for key, one in self.known.items() if one[1] != where}
            return
        assert event.group_id is not None
        if event.kind == "group deleted":
            self.known = {k: one for k, one in self.known.items() if k[0] != event.group_id}
            return
        assert event.topic is not None
        assert event.partition is not None
        key = (event.group_id, event.topic, event.partition)
        if event.kind == "removed":
            self.known.pop(key, None)
        else:
            assert event.offset is not None
            self.known[key] = event.offset, event.offsets_partition

    @property
    def offsets(self) -> dict[Key, int]:
        """What it believes is committed."""
        return {key: offset for key, (offset, _) in self.known.items()}


@given(
    before=STEPS,
    rounds=st.lists(st.tuples(STEPS, st.booleans()), max_size=5),
    page_size=st.integers(1, 4),
)
def test_whoever_follows_from_the_beginning_knows_everything(
    before: list[Step], rounds: list[tuple[list[Step], bool]], page_size: int
) -> None:
    """Through compactions, and through times in which nobody answers, at any request."""
    log = OffsetsLog("gh".index, 2)
    for step in before:
        play(log, iter([step]))
    log.page_size = page_size
    coordinator = Asking(log)
    follower = Follower(Feed(None, None, from_beginning=True, tell=lambda _: None))
    for steps, is_away in rounds:
        others = iter(steps)

        def between(others: Iterator[Step] = others, is_away: bool = is_away) -> None:
            play(log, others)
            coordinator.is_away = is_away

        log.between = between
        try:
            follower.round(coordinator)
        except Unreachable:
            assert is_away
        coordinator.is_away = False
    log.between = lambda: None
    follower.round(coordinator)
    follower.round(coordinator)

    assert follower.offsets == offsets_of(log.state)


def told(texts: list[str]) -> Feed:
    """Return a feed of everything from now on that notes what it tells."""
    return Feed(None, None, from_beginning=False, tell=texts.append)


def test_from_now_on_only_what_is_new_comes() -> None:
    """And each change once, with where it is."""
    log = OffsetsLog()
    log.commit("g", "t", 0, 1)
    follower = Follower(told([]))
    follower.round(Asking(log))
    assert follower.events == []
    log.commit("g", "t", 0, 2, "m")
    log.remove("g", "t", 0)
    log.delete("g")
    follower.round(Asking(log))
    follower.round(Asking(log))

    assert follower.events == [
        OffsetEvent(1_001, "committed", "g", "t", 0, 2, -1, "m", 0, 1),
        OffsetEvent(1_002, "removed", "g", "t", 0, None, None, None, 0, 2),
        OffsetEvent(1_003, "group deleted", "g", None, None, None, None, None, 0, 3),
    ]


def test_a_position_that_is_gone_is_followed_by_a_scan() -> None:
    """It says so: what was removed meanwhile can't be told any more."""
    log = OffsetsLog()
    texts: list[str] = []
    follower = Follower(told(texts))
    follower.round(Asking(log))
    log.commit("g", "t", 0, 1)
    log.floor = log.end
    log.commit("g", "t", 1, 2)
    follower.round(Asking(log))
    follower.round(Asking(log))

    assert [event.kind for event in follower.events] == ["scan", "found", "found"]
    (text,) = texts
    assert text == (
        "The log of offsets partition 0 no longer has the changes from 0 on: what is committed "
        "is scanned anew."
    )


def test_another_coordinator_is_noticed() -> None:
    """Its positions are of another log."""
    texts: list[str] = []
    follower = Follower(told(texts))
    follower.round(Asking(OffsetsLog()))
    other = OffsetsLog()
    other.cluster_id = "other"
    other.commit("h", "t", 0, 1)
    follower.round(Asking(other))

    assert [event.kind for event in follower.events] == ["scan", "found"]
    assert texts == [
        "Another coordinator answers, of the cluster other: what it has is scanned anew."
    ]


def test_only_the_partitions_of_the_groups_are_followed() -> None:
    """One group's changes needn't be looked for in fifty logs."""
    log = OffsetsLog("gh".index, 2)
    follower = Follower(Feed(["h"], {"t"}, from_beginning=False, tell=lambda _: None))
    coordinator = Asking(log)
    follower.round(coordinator)
    for group in "gh":
        for topic in "tu":
            log.commit(group, topic, 0, 1)
    log.delete("h")
    follower.round(coordinator)

    assert [(event.kind, event.group_id, event.topic) for event in follower.events] == [
        ("committed", "h", "t"),
        ("group deleted", "h", None),
    ]


@pytest.mark.parametrize("page_size", [1, 20_000])
def test_a_broken_page_is_an_error(page_size: int) -> None:
    """Rather than offsets that nobody committed."""
    log = OffsetsLog()
    log.page_size = page_size
    log.commit("g", "t", 0, 1)
    scan = log.answers[m.ScanOffsetsRequest]

    def broken(request: m.ScanOffsetsRequest) -> m.ScanOffsetsResponse:
        answer = scan(request)
        (columns,) = answer.columns
        return m.ScanOffsetsResponse(
            0, answer.position, (), b"", (m.OffsetColumns(columns.group_ids, columns.topics),)
        )

    log.answers[m.ScanOffsetsRequest] = broken
    with pytest.raises(AskFailed, match="can't be read"):
        read_all(Asking(log), 0, None, None)


def test_the_nodes_own_partition_has_one_number() -> None:
    """The log, which knows no protocol, and its readers, which know no log, each write it down."""
    assert group_ids.NODE_PARTITION == log_format.NODE_PARTITION
