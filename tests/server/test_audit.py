"""What is taken from groups and topics leaves a line, also where nobody says who they are."""

from typing import Final

import pytest
import trio
from hypothesis import given, strategies as st
from trio.testing import MockClock

from coordinator.server.audit import AUDIT_PERIOD_MS, DIFFERENT_MAX, TAKES_AWAY, Audit
from protocol import messages as m
from tests.server.test_log_ins import told
from tests.server.world import Client, commit, world

WORKER: Final = "worker"
ASKED: Final[dict[m.Request, str]] = {
    m.AlterOffsetsRequest(
        "g", (m.AlteredTopic("t", (m.AlteredOffset(0, 5, -1, "", None),)),), False, None
    ): "group_id: g; topics: t",
    m.AlterGroupRetentionRequest("g", 1): "group_id: g",
    m.OffsetDeleteRequest("g", (m.TopicPartitions("t", (0,)),)): "group_id: g; topics: t",
    m.DeleteGroupsRequest(("g", "h")): "group_ids: g, h",
    m.DeleteTopicsRequest(("t",)): "topics: t",
    m.DrainMemberRequest("members", WORKER): f"group_id: members; client_id: {WORKER}",
}


async def named(client: Client, client_id: str) -> Client:
    """Return *client* once it has said how it is called."""
    await client.ask(m.ApiVersionsRequest(client_id, "test", "1"))
    return client


def test_each_kind_that_takes_away_is_tried() -> None:
    """Else one more could be left out."""
    assert {type(request) for request in ASKED} == TAKES_AWAY


async def test_an_open_daemon_tells_who_took_what_away(autojump_clock: MockClock) -> None:
    """An offset that was reset is asked for in the morning; each line has host and client."""
    async with world() as here:
        await (await named(here.connect(), WORKER)).join_alone("members")
        operator = await named(here.connect("192.0.2.7"), "operator")
        await operator.ask(commit())
        for request in ASKED:
            assert m.first_error(await operator.ask(request)) in {0, 3, 69}
        lines = told(here, "access.used")

        assert [line["what"] for line in lines] == list(ASKED.values())
        assert [f"{line['api']}Request" for line in lines] == [type(one).__name__ for one in ASKED]
        assert {(line["principal"], line["peer"], line["client_id"]) for line in lines} == {
            ("User:ANONYMOUS", "192.0.2.7", "operator")
        }


async def test_work_that_takes_nothing_away_is_not_told(autojump_clock: MockClock) -> None:
    """Commits by the thousand would fill the log; there is nobody to drain in the last one."""
    async with world() as here:
        client = here.connect()
        member = await client.join_alone()
        await client.ask(m.HeartbeatRequest("g", 1, member, None))
        await client.ask(commit(group_id="other"))
        await client.ask(m.LeaveGroupRequest("g", (m.LeavingMember(member, None, None),)))
        await client.ask(m.DrainMemberRequest("g", "nobody"))

        assert told(here, "access.used") == []


async def test_a_drain_that_is_waited_for_is_told_once(autojump_clock: MockClock) -> None:
    """A command asks again each second until the member has nothing left."""
    async with world() as here:
        await (await named(here.connect(), WORKER)).join_alone()
        operator = here.connect()
        for _ in range(5):
            await operator.ask(m.DrainMemberRequest("g", WORKER))
            await trio.sleep(2)

        assert [line["left_out"] for line in told(here, "access.used")] == [0]


@pytest.mark.parametrize("count", [3, DIFFERENT_MAX, DIFFERENT_MAX + 5])
async def test_a_script_that_deletes_one_group_after_the_other_leaves_a_line_for_each(
    count: int, autojump_clock: MockClock
) -> None:
    """They come faster than one a second; more than ten are counted."""
    async with world() as here:
        client = here.connect()
        for number in range(count):
            for _ in range(2):
                await client.ask(m.DeleteGroupsRequest((f"g{number}",)))

        shown = min(count, DIFFERENT_MAX)
        assert [line["what"] for line in told(here, "access.used")] == [
            f"group_ids: g{number}" for number in range(shown)
        ]


@given(st.lists(st.tuples(st.integers(0, 400), st.sampled_from("abcdefghijklmno")), max_size=60))
def test_nothing_is_lost_and_no_second_has_more_than_ten(steps: list[tuple[int, str]]) -> None:
    """Each request is told, or counted by the next line of that client."""
    lines: list[tuple[int, str, int]] = []
    now_ms = 0
    audit = Audit(lambda _event, fields: lines.append((now_ms, fields["what"], fields["left_out"])))
    for pause_ms, what in steps:
        now_ms += pause_ms
        audit.tell("access.used", "User:a", "192.0.2.1", now_ms, about=what, what=what)
    last_ms = now_ms + AUDIT_PERIOD_MS
    audit.tell("access.used", "User:a", "192.0.2.1", last_ms, about="end", what="end")

    assert len(lines) + sum(left_out for *_, left_out in lines) == len(steps) + 1
    for at_ms, what, _ in lines:
        within = [one for one in lines if at_ms <= one[0] < at_ms + AUDIT_PERIOD_MS]
        assert len(within) <= 2 * DIFFERENT_MAX
        assert sum(one[1] == what for one in within) <= 2
