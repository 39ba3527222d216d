"""A request about many things is decided a few at a time, and answered as if it were one."""

from collections.abc import Iterator
from typing import Any, Final

import pytest
import trio
from hypothesis import given, strategies as st
from msgspec import structs
from trio.testing import MockClock

from coordinator.server.portions import Portion, portions, whole
from protocol import messages as m
from protocol.errors import ErrorCode
from protocol.scram import ITERATIONS
from tests.group.node_context import NodeContext
from tests.server.world import commit, world

MOST: Final = 100
PASSWORDS: Final = tuple(
    m.ScramUpsertion(f"u{n}", 1, ITERATIONS, bytes(24), bytes(32), bytes(32)) for n in range(1_000)
)
QUOTAS: Final = tuple(
    m.AlteredPrincipal(f"User:u{n}", (m.QuotaChange("connections", 5),)) for n in range(1_000)
)
PARTITIONS = st.lists(st.integers(0, 400), unique=True, max_size=350).map(tuple)
TOPICS = st.lists(st.tuples(st.sampled_from("abc"), PARTITIONS), max_size=4)


def answer_to(request: m.ReportEndOffsetsRequest) -> m.ReportEndOffsetsResponse:
    """Return an answer in which each partition has an error of its own."""
    return m.ReportEndOffsetsResponse(
        0,
        tuple(
            m.TopicResult(
                ends.topic,
                tuple(m.PartitionResult(p.partition, p.partition) for p in ends.partitions),
            )
            for ends in request.topics
        ),
    )


@given(TOPICS)
def test_the_portions_of_a_request_give_the_answer_to_it(
    topics: list[tuple[str, tuple[int, ...]]],
) -> None:
    """Whatever its topics have of partitions, and also if one is named again."""
    request = m.ReportEndOffsetsRequest(
        tuple(m.TopicEnds(t, tuple(m.PartitionEnd(p, 1) for p in ps)) for t, ps in topics)
    )
    cut = list(portions(request))

    assert all(
        sum(1 + len(ends.partitions) for ends in portion.request.topics) <= MOST for portion in cut
    )
    answers = [(portion, answer_to(portion.request)) for portion in cut]
    assert whole(request, answers) == answer_to(request)


def test_what_is_short_is_one_portion() -> None:
    """Nearly every request is: it is decided as it is."""
    for request in (
        m.DeleteTopicsRequest(tuple(f"t{n}" for n in range(50))),
        m.ReportEndOffsetsRequest(()),
        m.AlterClientQuotasRequest(()),
        m.AlterUserScramCredentialsRequest((), ()),
        commit(1, *range(1_000)),
    ):
        assert [Portion(request, goes_on=False)] == list(portions(request))


USERS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 3)), max_size=80)


@given(USERS, USERS)
def test_users_are_altered_in_portions_as_they_are_at_once(
    removed: list[tuple[int, int]], added: list[tuple[int, int]]
) -> None:
    """Whoever is named twice, far apart too: all of his changes are made, or none."""
    request = m.AlterUserScramCredentialsRequest(
        tuple(m.ScramDeletion(f"u{user}", mechanism) for user, mechanism in removed),
        tuple(structs.replace(PASSWORDS[user], mechanism=mechanism) for user, mechanism in added),
    )
    before = m.AlterUserScramCredentialsRequest((), PASSWORDS[:30])
    at_once, in_portions = NodeContext(), NodeContext()
    at_once.ask(before)
    in_portions.ask(before)
    cut = list(portions(request))
    answers = [(portion, in_portions.ask(portion.request)) for portion in cut]

    assert at_once.ask(request) == whole(request, answers)
    assert at_once.shard.hard_state() == in_portions.shard.hard_state()


def test_quotas_of_a_principal_that_is_named_twice_are_altered_in_order() -> None:
    """Also where the two are far apart: the second one is in force."""
    again = (m.AlteredPrincipal("User:u0", (m.QuotaChange("connections", 6),)),)
    request = m.AlterClientQuotasRequest(QUOTAS[:100] + again)
    cut = list(portions(request))
    context = NodeContext()
    answer: Any = whole(request, [(portion, context.ask(portion.request)) for portion in cut])

    assert 7 == len(cut)
    assert [entry.principal for entry in request.entries] == [r.principal for r in answer.results]
    assert 6 == context.shard.quotas.limit("User:u0", "connections")


def test_a_topic_that_is_deleted_twice_is_answered_once() -> None:
    """Also where the two are far apart."""
    (one, two) = portions(m.DeleteTopicsRequest((*(f"t{n}" for n in range(100)), "t0", "t100")))

    assert ("t100",) == two.request.topics
    assert 100 == len(one.request.topics)


@pytest.mark.parametrize("error", [ErrorCode.NOT_COORDINATOR.value, m.OffsetDeleteResponse(69, ())])
def test_an_error_of_a_portion_is_the_answer_to_all(error: Any) -> None:
    """The partition may be lost, or the group deleted, between two of them."""
    request = m.OffsetDeleteRequest("g", (m.TopicPartitions("t", tuple(range(900))),))
    first, second = portions(request)
    fine = m.OffsetDeleteResponse(0, (m.TopicResult("t", ()),))
    found = whole(request, [(first, fine), (second, error)])

    assert m.OffsetDeleteResponse(getattr(error, "error", error), ()) == found


NAMES: Final = tuple(f"t{n}" for n in range(1_000))
GROUPS: Final = tuple(f"g{n}" for n in range(1_000))
ENDS: Final = tuple(m.PartitionEnd(p, 5) for p in range(1_000))
ALL: Final = m.GroupFetch("g", None)
RULES: Final = tuple(m.Acl(2, name, 3, "User:a", "*", 3, 3) for name in NAMES)
LONG: Final[tuple[tuple[m.Request, int], ...]] = (
    (m.RegisterTopicsRequest(tuple(m.TopicRegistration(name, 1, None) for name in NAMES)), 10),
    (m.DescribeTopicsRequest(NAMES, None, False, "", 0), 1_000),
    (m.DescribeTopicsRequest(None, None, False, "", 1_000), 1_000),
    (m.ReportEndOffsetsRequest((m.TopicEnds("many", ENDS),)), 11),
    (m.DescribeTopicsRequest(("many",), None, True, "", 0), 2),
    (m.DeleteTopicsRequest(NAMES), 10),
    (m.OffsetFetchRequest((ALL,) * 100, False), 200),
    (m.ScanOffsetsRequest(0, b"", 1_000, True, None, None), 2),
    (m.OffsetDeleteRequest("g", (m.TopicPartitions("t", tuple(range(1_000))),)), 3),
    (m.FindCoordinatorRequest(0, GROUPS), 1_000),
    (m.DeleteGroupsRequest(GROUPS), 1_000),
    (m.LeaveGroupRequest("g", tuple(m.LeavingMember(n, None, None) for n in NAMES)), 20),
    (m.CreateAclsRequest(RULES), 10),
    (m.DescribeAclsRequest(1, None, 1, None, None, 1, 1), 20),
    (m.AlterUserScramCredentialsRequest((), PASSWORDS), 50),
    (m.DescribeUserScramCredentialsRequest(None, "", 1_000), 20),
    (m.DescribeUserScramCredentialsRequest(NAMES, "", 0), 20),
    (m.AlterClientQuotasRequest(QUOTAS), 60),
    (m.DescribeClientQuotasRequest(None), 20),
)


async def test_everybody_has_a_turn_within_what_takes_long(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10,000 ends that were reported at once held up everybody for a tenth of a second."""
    async with world("offsets.topic.num.partitions=1") as w:
        client = w.connect()
        await client.ask(m.RegisterTopicsRequest((m.TopicRegistration("many", 1_000, None),)))
        await client.ask(commit(1, *range(1_000)))
        slices = 0

        def slow_step(steps: Iterator[None]) -> bool:
            """Let each step take a slice."""
            nonlocal slices
            slices += 1
            return next(steps, steps) is steps

        monkeypatch.setattr(w.node.slices, "_is_done", slow_step)
        for request, least in LONG:
            slices = 0
            answer: Any = await client.ask(request)
            assert not getattr(answer, "error", 0)
            assert slices >= least, request


async def test_where_a_group_is_and_a_few_ends_wait_for_nothing_long(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver asks the one as it starts, and reports the others with each batch."""
    async with world() as w:
        greedy, driver = w.connect(), w.connect()
        await driver.ask(m.RegisterTopicsRequest((m.TopicRegistration("many", 1_000, None),)))
        monkeypatch.setattr(w.node.slices, "_is_done", lambda _steps: False)  # For ever.
        greedy.send(m.ListGroupsRequest((), ()))

        for request in (
            m.FindCoordinatorRequest(0, ("g",)),
            m.ReportEndOffsetsRequest((m.TopicEnds("many", ENDS[:99]),)),
            m.RegisterTopicsRequest((m.TopicRegistration("t", 1, None),)),
            m.DescribeTopicsRequest(("t",), None, True, "", 0),
            m.DeleteGroupsRequest(("g",)),
        ):
            sent = driver.send(request)
            for _ in range(100):
                await trio.lowlevel.checkpoint()
            assert sent in driver.answers()
        w.nursery.cancel_scope.cancel()
