"""Every request in every state, as one table: who asks, and what the answer is."""

from collections.abc import Callable

import pytest

from protocol.messages import JoinGroupResponse, SyncGroupResponse
from tests.group.context import Context, subscription

STATES = ("missing", "Empty", "PreparingRebalance", "CompletingRebalance", "Stable")

Members = list[str]


def missing() -> tuple[Context, Members]:
    """Nobody ever named the group."""
    return Context(), ["gone-1", "gone-2"]


def empty() -> tuple[Context, Members]:
    """Its members have left."""
    context, members = stable()
    context.leave(*members)
    return context, members


def preparing() -> tuple[Context, Members]:
    """The last member asked for a rebalance, the others don't know yet."""
    context, members = stable()
    context.join(members[-1], protocols={"range": subscription("flights", "trains")})
    return context, members


def completing() -> tuple[Context, Members]:
    """Nobody has synced."""
    context = Context()
    return context, context.completing_group(3)


def stable() -> tuple[Context, Members]:
    """Three members, each with a partition; the first leads."""
    context = Context()
    return context, context.stable_group(3)


SETUPS: dict[str, Callable[[], tuple[Context, Members]]] = {
    "missing": missing,
    "Empty": empty,
    "PreparingRebalance": preparing,
    "CompletingRebalance": completing,
    "Stable": stable,
}

PARKED = "parked"


def heartbeat(context: Context, member_id: str, generation: int) -> int | str:
    """Send a heartbeat."""
    return context.beat(member_id, generation)


def sync(context: Context, member_id: str, generation: int) -> int | str:
    """Send a SyncGroup."""
    token = context.sync(member_id, generation)
    return PARKED if context.is_parked(token) else context.synced(token).error


def commit(context: Context, member_id: str, generation: int) -> int | str:
    """Commit the follower's partition."""
    return context.commit(member_id, generation, "flights-1")


def join(context: Context, member_id: str, generation: int) -> int | str:
    """Send a JoinGroup."""
    token = context.join(member_id)
    return PARKED if context.is_parked(token) else context.joined(token).error


def leave(context: Context, member_id: str, generation: int) -> int | str:
    """Leave."""
    return context.leave(member_id)[0]


Ask = Callable[[Context, str, int], int | str]

# (request, member, generation): the answers in the order of STATES. The member is a follower
# that owns flights-1; the generation is relative to the group's, None is -1.
TABLE: dict[tuple[Ask, str, int | None], tuple[int | str, ...]] = {
    (heartbeat, "unknown", 0): (25, 25, 25, 25, 25),
    (heartbeat, "follower", -1): (25, 25, 22, 22, 22),
    (heartbeat, "follower", 1): (25, 25, 22, 22, 22),
    (heartbeat, "follower", 0): (25, 25, 27, 0, 0),
    (heartbeat, "leader", 0): (25, 25, 27, 0, 0),
    (sync, "unknown", 0): (25, 25, 25, 25, 25),
    (sync, "follower", -1): (25, 25, 22, 22, 22),
    (sync, "follower", 1): (25, 25, 22, 22, 22),
    (sync, "follower", 0): (25, 25, 27, PARKED, 0),
    (sync, "leader", 0): (25, 25, 27, 0, 0),
    (commit, "unknown", 0): (69, 25, 25, 25, 25),
    (commit, "follower", -1): (69, 25, 22, 22, 22),
    (commit, "follower", 1): (69, 25, 22, 22, 22),
    (commit, "follower", 0): (69, 25, 0, 27, 0),
    (commit, "follower", None): (0, 0, 22, 22, 22),
    (commit, "leader", 0): (69, 25, 1002, 27, 1002),
    (commit, "nobody", 0): (69, 25, 25, 25, 25),
    (commit, "nobody", None): (0, 0, 25, 25, 25),
    (join, "nobody", 0): (79, 79, 79, 79, 79),
    (join, "unknown", 0): (25, 25, 25, 25, 25),
    (join, "follower", 0): (25, 25, PARKED, 0, 0),
    (join, "leader", 0): (25, 25, PARKED, 0, PARKED),
    (leave, "unknown", 0): (25, 25, 25, 25, 25),
    (leave, "follower", 0): (25, 25, 0, 0, 0),
    (leave, "nobody", 0): (25, 25, 25, 25, 25),
}

CASES = [
    pytest.param(ask, who, relative, state, expected, id=f"{ask.__name__}-{who}-{relative}-{state}")
    for (ask, who, relative), row in TABLE.items()
    for state, expected in zip(STATES, row, strict=True)
]


@pytest.mark.parametrize(("ask", "who", "relative", "state", "expected"), CASES)
def test_each_request_in_each_state_is_answered_by_the_table(
    ask: Ask, who: str, relative: int | None, state: str, expected: int | str
) -> None:
    """The exact code decides what a client does next."""
    context, members = SETUPS[state]()
    member_id = {
        "unknown": "spark-ffff",
        "nobody": "",
        "leader": members[0],
        "follower": members[1],
    }[who]
    generation = context.generation if state != "missing" else 5

    actual = ask(context, member_id, -1 if relative is None else generation + relative)

    assert expected == actual
    context.check()


@pytest.mark.parametrize("state", STATES)
def test_a_fetch_is_answered_in_every_state(state: str) -> None:
    """Readers of offsets don't depend on the members."""
    context, _ = SETUPS[state]()

    actual = context.offset("flights-5")

    assert actual == (5, -1, -1, "", 0)


@pytest.mark.parametrize("state", STATES)
def test_a_commit_without_topics_is_no_error_and_no_group(state: str) -> None:
    """As in Kafka, whoever sends it."""
    context, _ = SETUPS[state]()
    before = context.shard.hard_state()

    actual = context.commit_raw("spark-ffff", 77, [])

    assert actual == (0, ())
    assert before == context.shard.hard_state()


@pytest.mark.parametrize("state", STATES)
def test_only_an_empty_group_is_deleted(state: str) -> None:
    """Members would find their group gone under their feet."""
    context, _ = SETUPS[state]()

    outcome, error = context.shard.delete_group("etl", context.now)
    context.take(outcome)
    context.check()

    assert {"missing": 69, "Empty": 0}.get(state, 68) == error
    assert ("Dead" if state in {"missing", "Empty"} else state) == context.state


@pytest.mark.parametrize("state", STATES[2:])
def test_errors_keep_the_full_shape_of_their_answer(state: str) -> None:
    """A client decodes one layout, whatever the error is."""
    context, members = SETUPS[state]()

    joined = context.joined(context.join("spark-ffff"))
    synced = context.synced(context.sync(members[1], 99))

    assert JoinGroupResponse(25, -1, None, None, "", False, "spark-ffff", ()) == joined
    assert SyncGroupResponse(22, None, None, b"") == synced
