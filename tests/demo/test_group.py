"""How the demo reads the group's state and the coordinator's events."""

from msgspec import structs

from client.offsets import OffsetAndMetadata
from demo.group import DriverState, Eviction, evictions, owners, snapshot
from demo.names import TOPIC
from demo.processes import Line
from protocol.consumer import Assignment, encode_assignment
from protocol.messages import DescribedGroup, DescribedMember
from protocol.partition import TopicPartition

DRIVERS = {
    "one": DriverState("working"),
    "two": DriverState("starting"),
}


def member(client_id: str, *partitions: int, topic: str = TOPIC) -> DescribedMember:
    """Return a member as the coordinator describes it."""
    owned = tuple(TopicPartition(topic, partition) for partition in partitions)
    return DescribedMember(
        f"{client_id}-x", None, client_id, "127.0.0.1", b"", encode_assignment(Assignment(owned))
    )


def group(*members: DescribedMember) -> DescribedGroup:
    """Return a stable group of *members* in generation 4."""
    return DescribedGroup(0, None, "g", "Stable", "consumer", "range", 4, members)


def removed(client_id: str, reason: str) -> Line:
    """Return the coordinator's event of a removed member."""
    return Line("coordinator", "group.member_removed", {"client_id": client_id, "reason": reason})


def test_a_member_is_known_by_the_name_of_its_application() -> None:
    """A reader has it in its client id."""
    assert owners(group(member("spark-one-1f", 0, 2), member("spark-on-2e", 3)), DRIVERS) == {
        0: "one",
        2: "one",
        3: "spark-on-2e",
    }


def test_other_topics_and_unreadable_assignments_are_left_out() -> None:
    """The group may be in any state at any moment."""
    unreadable = structs.replace(member("spark-one-1f"), assignment=b"?")
    assert owners(group(unreadable, member("spark-one-1f", 1, topic="other")), DRIVERS) == {}


def test_a_snapshot_knows_lag_and_progress() -> None:
    """No offset is an offset of zero here, and nothing else."""
    offsets = {TopicPartition(TOPIC, 0): OffsetAndMetadata(30)}
    now = snapshot(group(member("spark-one-1f", 0)), offsets, [40, 7, 0, 0, 0, 0], DRIVERS)

    assert (now.state, now.generation) == ("Stable", 4)
    assert (now.committed, now.lag, now.owned_by("one")) == (30, 17, (0,))


def test_a_driver_state_follows_its_events() -> None:
    """The table shows what each driver has done."""
    state = DriverState()
    for event, fields in (
        ("starting", {"pid": 1}),
        ("started", {}),
        ("batch.begun", {"batch": 0}),
        ("range.left_out", {"partition": 1, "rows": 12}),
        ("batch.written", {"batch": 0, "rows": 30}),
        ("drained", {}),
    ):
        state = state.after(Line("one", event, fields))

    assert state == DriverState("drained", 1, 30, 12)


def test_who_left_was_not_evicted() -> None:
    """Only an eviction shows that the kill was noticed."""
    events = [
        removed("spark-one-1f", "left"),
        Line("coordinator", "group.generation", {"generation": 2}),
        removed("spark-one-1f", "session expired"),
        removed("spark-7", "rebalance timeout"),
    ]

    assert evictions(events, DRIVERS) == (
        Eviction("one", "session expired"),
        Eviction("spark-7", "rebalance timeout"),
    )
