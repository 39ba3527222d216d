"""What the dispatcher remembers of groups that were asked for."""

import pytest
from trio.testing import MockClock

from coordinator.server import dispatch
from protocol.group_ids import offsets_partition
from protocol.messages import GroupFetch, OffsetFetchRequest, OffsetFetchResponse
from tests.server.world import commit, world


async def test_what_is_known_of_groups_is_bounded_and_right(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """Anybody can ask for any number of groups; each is found again all the same."""
    monkeypatch.setattr(dispatch, "GROUPS_KNOWN_MAX", 3)
    async with world() as w:
        client = w.connect()
        for number in range(10):
            await client.ask(commit(number, group_id=f"g{number}"))
            known = w.server.dispatcher.known_shards
            assert len(known) <= 3
            assert known == {
                g: w.node.shards[offsets_partition(g, w.node.num_partitions)] for g in known
            }
        groups = tuple(GroupFetch(f"g{number}", None) for number in range(10))
        answer = await client.ask(OffsetFetchRequest(groups, require_stable=False))

    assert isinstance(answer, OffsetFetchResponse)
    assert [g.topics[0].partitions[0].offset for g in answer.groups] == list(range(10))


async def test_an_illegal_group_id_is_refused_every_time(autojump_clock: MockClock) -> None:
    """And nothing of it is kept."""
    async with world() as w:
        client = w.connect()
        for _ in range(2):
            assert await client.error(commit(5, group_id="")) == 24
            fetch = OffsetFetchRequest((GroupFetch("a\nb", None),), require_stable=False)
            answer = await client.ask(fetch)
            assert isinstance(answer, OffsetFetchResponse)
            assert [group.error for group in answer.groups] == [24]
        assert w.server.dispatcher.known_shards == {}
