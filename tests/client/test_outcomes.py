"""What a commit or fetch came to, and what nobody knows. The clock is virtual."""

import pytest
from trio.testing import MockClock

from client import (
    CommitRefused,
    CoordinatorUnavailable,
    ErrorCode,
    FatalError,
    OffsetAndMetadata,
    OutcomeUnknown,
    RetriableError,
    TopicPartition,
)
from protocol import messages as m
from tests.client.conftest import World
from tests.fakes.scripted_server import Answer, Drop, Hang

T0 = TopicPartition("t", 0)
COMMITTED = m.OffsetCommitResponse(0, (m.TopicResult("t", (m.PartitionResult(0, 0),)),))


async def test_a_full_disk_is_retriable_and_named(autojump_clock: MockClock, world: World) -> None:
    """An operator has to make room; the commit was surely not stored."""
    world.server.script(m.OffsetCommitRequest, *[ErrorCode.STORAGE_FULL] * 100)
    async with world.connect(request_timeout_ms=2_000) as client:
        with pytest.raises(RetriableError, match="STORAGE_FULL") as caught:
            await client.commit("g", {T0: 1})

        assert not isinstance(caught.value, CoordinatorUnavailable)


@pytest.mark.parametrize("applied", [True, False])
async def test_a_commit_without_an_answer_is_repeated_word_for_word(
    autojump_clock: MockClock, world: World, *, applied: bool
) -> None:
    """Whether it was applied is unknown, and the same commit twice does no harm."""
    world.server.script(m.OffsetCommitRequest, Drop(applied=applied))
    async with world.connect() as client:
        await client.commit("g", {T0: OffsetAndMetadata(5, "pin", 3)}, expected={T0: 4})

    first, second = world.server.requests(m.OffsetCommitRequest)
    assert first == second
    assert {5} == {entry.offset for entry in world.server.offsets.values()}


async def test_a_commit_that_is_never_answered_has_an_unknown_outcome(
    autojump_clock: MockClock, world: World
) -> None:
    """Neither "stored" nor "not stored" would be true."""
    world.server.script(m.OffsetCommitRequest, *[Hang()] * 10)
    async with world.connect(request_timeout_ms=25_000) as client:
        with pytest.raises(OutcomeUnknown, match="did not answer"):
            await client.commit("g", {T0: 5})

    assert 1 < len(world.server.requests(m.OffsetCommitRequest)) <= 5


@pytest.mark.parametrize("code", [ErrorCode.OUTCOME_UNKNOWN, ErrorCode.UNKNOWN_SERVER_ERROR])
async def test_an_unknown_outcome_is_repeated_until_it_is_known(
    autojump_clock: MockClock, world: World, code: ErrorCode
) -> None:
    """The server says itself that it doesn't know."""
    world.server.script(m.OffsetCommitRequest, code, Answer(m.BareError(code)))
    async with world.connect() as client:
        await client.commit("g", {T0: 5})

    assert len(world.server.requests(m.OffsetCommitRequest)) == 3


async def test_an_unknown_outcome_then_nobody_there_stays_unknown(
    autojump_clock: MockClock, world: World
) -> None:
    """That the last attempts reached nobody says nothing about the first."""
    world.server.script(m.OffsetCommitRequest, Drop())
    async with world.connect(request_timeout_ms=3_000) as client:
        world.server.script(
            m.FindCoordinatorRequest,
            Answer(world.server.find(m.FindCoordinatorRequest(0, ("g",)))),
            *[15] * 100,
        )
        with pytest.raises(OutcomeUnknown):
            await client.commit("g", {T0: 5})


async def test_a_read_that_is_never_answered_is_just_unavailable(
    autojump_clock: MockClock, world: World
) -> None:
    """A read changes nothing, so nothing is in doubt."""
    world.server.script(m.OffsetFetchRequest, *[Hang()] * 10)
    async with world.connect() as client:
        with pytest.raises(CoordinatorUnavailable):
            await client.fetch_offsets("g")


async def test_a_refusal_after_a_lost_answer_does_not_say_that_nothing_was_stored(
    autojump_clock: MockClock,
    world: World,
) -> None:
    """The first attempt may have been stored before the group moved on."""
    world.server.script(m.OffsetCommitRequest, Drop(), ErrorCode.UNKNOWN_MEMBER_ID)
    async with world.connect() as client:
        with pytest.raises(OutcomeUnknown) as caught:
            await client.commit("g", {T0: 5})

    assert isinstance(caught.value.__cause__, FatalError)


async def test_a_conflict_after_a_lost_answer_may_be_the_commits_own_doing(
    autojump_clock: MockClock, world: World
) -> None:
    """The repeated commit finds what its first attempt stored."""
    conflict = m.TopicResult("t", (m.PartitionResult(0, ErrorCode.OFFSET_CONFLICT),))
    answer = Answer(m.OffsetCommitResponse(0, (conflict,)))
    world.server.script(m.OffsetCommitRequest, Drop(), answer, answer)
    async with world.connect() as client:
        with pytest.raises(CommitRefused) as caught:
            await client.commit("g", {T0: 5}, expected={T0: 4})

        assert caught.value.maybe_stored

        with pytest.raises(CommitRefused, match="OFFSET_CONFLICT") as caught:
            await client.commit("g", {T0: 5}, expected={T0: 4})

        assert not caught.value.maybe_stored
        assert caught.value.errors == {T0: ErrorCode.OFFSET_CONFLICT}


async def test_a_code_from_the_future_is_never_success(
    autojump_clock: MockClock, world: World
) -> None:
    """For the whole group as for one partition."""
    future = m.OffsetCommitResponse(0, (m.TopicResult("t", (m.PartitionResult(0, 4711),)),))
    world.server.script(m.OffsetCommitRequest, 4711, Answer(future))
    async with world.connect() as client:
        with pytest.raises(FatalError, match="unknown error code 4711"):
            await client.commit("g", {T0: 5})
        with pytest.raises(CommitRefused) as caught:
            await client.commit("g", {T0: 5})

    assert caught.value.errors == {T0: 4711}


async def test_a_negative_code_is_no_success(autojump_clock: MockClock, world: World) -> None:
    """Kafka's code of an error without a name is -1."""
    answer = m.OffsetCommitResponse(0, (m.TopicResult("t", (m.PartitionResult(0, -1),)),))
    world.server.script(m.OffsetCommitRequest, Answer(answer))
    async with world.connect() as client:
        with pytest.raises((CommitRefused, OutcomeUnknown)):
            await client.commit("g", {T0: 5})


async def test_a_commit_answered_for_other_partitions_is_no_success(
    autojump_clock: MockClock, world: World
) -> None:
    """An empty answer must not pass for "no errors"."""
    answers = [
        m.OffsetCommitResponse(0, topics)
        for topics in (
            (),
            (m.TopicResult("t", (m.PartitionResult(1, 0),)),),
            (m.TopicResult("t", (m.PartitionResult(0, 0), m.PartitionResult(1, 0))),),
        )
    ]
    world.server.script(m.OffsetCommitRequest, *map(Answer, answers))
    async with world.connect() as client:
        for _ in answers:
            with pytest.raises(FatalError, match="other partitions"):
                await client.commit("g", {T0: 1})


async def test_a_commit_answered_in_another_order_is_the_same(
    autojump_clock: MockClock, world: World
) -> None:
    """Nothing says that the partitions of an answer are sorted."""
    results = (m.PartitionResult(1, ErrorCode.NONE), m.PartitionResult(0, 4711))
    answer = m.OffsetCommitResponse(0, (m.TopicResult("t", results),))
    world.server.script(m.OffsetCommitRequest, Answer(answer))
    async with world.connect() as client:
        with pytest.raises(CommitRefused) as caught:
            await client.commit("g", {T0: 1, TopicPartition("t", 1): 1})

    assert caught.value.errors == {T0: 4711}


@pytest.mark.parametrize("offset", [-1, 2**63, True])
async def test_nonsense_offsets_are_refused_here(
    autojump_clock: MockClock, world: World, offset: int
) -> None:
    """A ValueError names the partition; the server would only say 42."""
    async with world.connect() as client:
        with pytest.raises(ValueError, match="of t-0"):
            await client.commit("g", {T0: offset})
        with pytest.raises(ValueError, match="not committed: t-0"):
            await client.commit("g", {}, expected={T0: 1})


async def test_an_empty_commit_asks_nobody(autojump_clock: MockClock, world: World) -> None:
    """There is nothing to store."""
    async with world.connect() as client:
        await client.commit("g", {})

    assert world.server.requests(m.OffsetCommitRequest) == []


async def test_no_offset_is_left_out_and_never_zero(
    autojump_clock: MockClock, world: World
) -> None:
    """Zero where nothing was committed would be an invention."""
    async with world.connect() as client:
        await client.commit("g", {T0: 0})

        assert {T0: OffsetAndMetadata(0)} == await client.fetch_offsets(
            "g", [T0, TopicPartition("t", 1), T0]
        )


async def test_a_partition_that_cannot_be_read_is_an_error(
    autojump_clock: MockClock, world: World
) -> None:
    """Leaving it out would say that nothing was committed."""
    entry = m.PartitionOffset(0, -1, -1, "", 29)
    answer = m.OffsetFetchResponse((m.GroupOffsets("g", 0, (m.TopicOffsets("t", (entry,)),)),))
    world.server.script(m.OffsetFetchRequest, Answer(answer), 24)
    async with world.connect() as client:
        with pytest.raises(FatalError, match="no offset of t-0"):
            await client.fetch_offsets("g", [T0])
        with pytest.raises(FatalError, match="INVALID_GROUP_ID"):
            await client.fetch_offsets("g", [T0])
