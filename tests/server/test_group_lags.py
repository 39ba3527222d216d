"""SummarizeGroups through the whole server: pages, turns, what is durable, and the minutes."""

from collections.abc import Sequence
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given, settings, strategies as st
from msgspec import structs
from trio.testing import MockClock

from coordinator.group import lag
from coordinator.runtime import group_lags
from protocol import messages as m
from protocol.errors import ErrorCode
from tests.server.world import Client, commit, world

EVERYTHING = m.SummarizeGroupsRequest(None, (), b"", 100, 0)
TOPICS = m.RegisterTopicsRequest((m.TopicRegistration("t", 10, None),))


async def ask(client: Client, **changes: Any) -> m.SummarizeGroupsResponse:
    """Ask for a page, which must come."""
    answer = await client.ask(structs.replace(EVERYTHING, **changes))
    assert isinstance(answer, m.SummarizeGroupsResponse)
    assert answer.error == 0
    return answer


async def pages(client: Client, **changes: Any) -> list[list[m.GroupSummary]]:
    """Ask for all pages."""
    found = []
    cursor, is_first = b"", True
    while cursor or is_first:
        answer = await ask(client, cursor=cursor, **changes)
        found.append(list(answer.groups))
        cursor, is_first = answer.cursor, False
    return found


async def report(client: Client, *ends: int) -> None:
    """Report how far the first partitions of the topic reach."""
    named = tuple(m.PartitionEnd(n, end) for n, end in enumerate(ends))
    await client.ask(TOPICS)
    await client.ask(m.ReportEndOffsetsRequest((m.TopicEnds("t", named),)))


async def test_all_groups_come_with_their_lag(autojump_clock: MockClock) -> None:
    """One that is known, one that is not, and one with a member."""
    async with world() as w:
        client = w.connect()
        await report(client, 50)
        await client.ask(commit(42, 0, group_id="known"))
        await client.ask(commit(42, 1, group_id="unknown"))
        await client.join_alone("g")
        ((*found,),) = await pages(client)

        assert {
            "known": ("Empty", 0, 1, 0, 8),
            "unknown": ("Empty", 0, 1, 1, -1),
            "g": ("Stable", 1, 1, 1, -1),
        } == {g.group_id: (g.state, g.members, g.partitions, g.unknown, g.lag) for g in found}


@settings(max_examples=20, deadline=None)
@given(
    names=st.sets(st.text("abé", min_size=1, max_size=3), max_size=9),
    size=st.integers(1, 4),
    room=st.sampled_from([100, 200, 8 << 20]),
    pattern=st.sampled_from([None, "a.*", "nobody"]),
)
def test_every_group_is_on_one_page(
    names: set[str], size: int, room: int, pattern: str | None
) -> None:
    """Whatever the pages hold, in groups or in bytes."""

    async def run() -> None:
        async with world() as w:
            w.node.group_lags._page_bytes = room
            client = w.connect()
            for name in names:
                await client.ask(commit(1, group_id=name))
            found = await pages(client, max_groups=size, pattern=pattern)

            asked = [name for name in names if pattern is None or name.startswith(pattern[0])]
            assert sorted(asked) == sorted(g.group_id for page in found for g in page)
            assert all(len(page) <= size for page in found)

    trio.run(run, clock=MockClock(autojump_threshold=0))


async def test_a_page_is_bounded_whatever_was_asked_for(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packing a page holds up everybody else."""
    monkeypatch.setattr(group_lags, "PAGE_GROUPS_MAX", 3)
    async with world() as w:
        client = w.connect()
        for number in range(7):
            await client.ask(commit(1, group_id=f"g{number}"))
        found = await pages(client, max_groups=2**31 - 1, max_samples=2**31 - 1)

        assert max(map(len, found)) == 3
        assert sum(map(len, found)) == 7


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"cursor": b"nonsense"}, ErrorCode.INVALID_REQUEST),
        ({"cursor": b"\0\1\0\0\0\0\0\0\xff"}, ErrorCode.INVALID_REQUEST),
        ({"max_groups": 0}, ErrorCode.INVALID_REQUEST),
        ({"pattern": "(a"}, ErrorCode.INVALID_REGULAR_EXPRESSION),
    ],
    ids=str,
)
async def test_what_makes_no_sense_is_refused(
    changes: dict[str, Any], code: ErrorCode, autojump_clock: MockClock
) -> None:
    """And said so, with the words of RE2 where a pattern is wrong."""
    async with world() as w:
        answer: Any = await w.connect().ask(structs.replace(EVERYTHING, **changes))

        assert code == answer.error
        assert ("missing )" in (answer.message or "")) == ("pattern" in changes)


@pytest.mark.parametrize("group", ["g", ""], ids=["after a group", "from the first"])
async def test_a_cursor_beyond_the_last_partition_is_the_end(
    group: str, autojump_clock: MockClock
) -> None:
    """A client may have kept it for long, or made it up."""
    async with world() as w:
        client = w.connect()
        await client.ask(commit(1))
        cursor = len(group).to_bytes(2) + bytes(2) + (4_000).to_bytes(4) + group.encode()

        assert await ask(client, cursor=cursor) == m.SummarizeGroupsResponse(0, None, (), b"")


async def test_what_is_told_of_a_group_is_durable(autojump_clock: MockClock) -> None:
    """A crash could take it back."""
    async with world() as w:
        client, reader = w.connect(), w.connect()
        await report(client, 50)
        w.slow_disk.hold()
        client.send(commit(42))
        asked = reader.send(EVERYTHING)
        await trio.testing.wait_all_tasks_blocked()
        assert reader.answers() == {}
        w.slow_disk.let_go()

        answer: Any = (await reader.answer(asked)).response
        assert [8] == [group.lag for group in answer.groups]


@pytest.mark.parametrize("is_served_again", [False, True])
async def test_a_partition_that_is_taken_away_meanwhile_is_said_so(
    is_served_again: bool, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of its groups would look like all of them, or like what the next load has found."""
    async with world("offsets.topic.num.partitions=1") as w, trio.open_nursery() as nursery:
        client = w.connect()
        for number in range(20):
            await client.ask(commit(1, group_id=f"g{number}"))
        looks: list[int] = []

        def is_over_after(_turn: lag.Turn, number: int) -> bool:
            looks.append(number)
            if len(looks) == 10:
                w.node.unload(0)
                if is_served_again:
                    nursery.start_soon(w.node.load_partition, 0)
            return True

        monkeypatch.setattr(lag.Turn, "is_over_after", is_over_after)

        assert ErrorCode.NOT_COORDINATOR == await client.error(EVERYTHING)
        assert 10 <= len(looks) < 40
        assert w.node.shards[0].is_whole == is_served_again


async def test_commits_are_answered_while_all_groups_are_looked_at(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator's question may take long, and must not hold up anybody's commit."""
    monkeypatch.setattr(lag, "TURN_LOOKS", 1)
    async with world("offsets.topic.num.partitions=1") as w:
        client, other = w.connect(), w.connect()
        for number in range(50):
            await client.ask(commit(1, group_id=f"g{number:02}"))
        asked = client.send(EVERYTHING)
        sent = other.send(commit(2, group_id="g49"))
        order: list[int] = []
        while len(order) < 2:
            await trio.lowlevel.checkpoint()
            order += [asked] * (asked in client.answers() and asked not in order)
            order += [-sent] * (sent in other.answers() and -sent not in order)

        assert order == [-sent, asked]


async def test_too_many_who_ask_are_told_so(autojump_clock: MockClock) -> None:
    """What waits is bounded: each holds a request in memory."""
    async with world() as w:
        clients = [w.connect() for _ in range(6)]
        for client in clients:
            for _ in range(50):
                client.send(EVERYTHING)
        await trio.testing.wait_all_tasks_blocked()
        errors = [
            event.response.error  # type: ignore[attr-defined]  # of both answers
            for client in clients
            for event in client.answers().values()
        ]

        assert len(errors) == 300
        assert set(errors) <= {0, ErrorCode.TOO_MANY_REQUESTS}


async def test_how_the_lag_changes_is_known_after_some_minutes(autojump_clock: MockClock) -> None:
    """By the virtual clock: a sample as each minute begins."""
    async with world() as w:
        client = w.connect()
        await client.ask(commit(0))
        await trio.sleep(30)
        for end in (10, 20, 30):
            await report(client, end)
            await trio.sleep(60)
        (group,) = (await ask(client, max_samples=60)).groups

        assert (group.lag, group.samples) == (30, (10, 20, 30))
        assert (group.earlier_lag, group.earlier_ms // 60_000) == (10, 2)
        assert w.event_names().count("stalled") == 0


async def test_the_lag_in_seconds_is_known_after_two_reports(autojump_clock: MockClock) -> None:
    """By the virtual clock: the node notes ends, and the lag of each partition, every minute."""
    async with world() as w:
        client = w.connect()
        await client.ask(commit(15))
        start_ms = w.node.now().mono_ms
        await trio.sleep(30)
        for end in (10, 20, 30):
            await report(client, end)
            await trio.sleep(60)
        shard = w.node.shard_of("g").core
        now_ms = w.node.now().mono_ms
        (group,) = [one for one in shard.facts(now_ms, lag.Turn()) if one is not None]
        passed_ms = now_ms - start_ms - 60_000  # Between the first report and the second.

        assert group.lag == 15
        assert group.lag_seconds == pytest.approx(passed_ms / 1000, abs=0.1)
        # At first the commit is beyond the end.
        assert shard.curve("g", "t", 0, now_ms // 60_000) == (5, 15)


async def test_a_stop_answers_who_waits(autojump_clock: MockClock) -> None:
    """Not served here any more, which sends the client to look for who does."""
    async with world() as w:
        client = w.connect()
        await client.ask(commit(1))
        sent = [client.send(EVERYTHING) for _ in range(3)]
        await w.node.drain()
        await trio.testing.wait_all_tasks_blocked()
        answers: Sequence[Any] = [client.answers()[one].response for one in sent]

        assert {answer.error for answer in answers} <= {0, ErrorCode.NOT_COORDINATOR}
