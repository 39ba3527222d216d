"""The group as the coordinator describes it, put into the demo's terms. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from client.offsets import OffsetAndMetadata
from demo.names import FLIGHTS, NUM_PARTITIONS, TOPIC
from demo.processes import Line
from demo.view import Driver, Partition, Snapshot
from protocol.consumer import decode_assignment
from protocol.messages import DescribedGroup
from protocol.partition import TopicPartition

LEFT = "left"


class Eviction(NamedTuple):
    """A member that the coordinator removed, and which driver it was."""

    driver: str
    reason: str


class DriverState(NamedTuple):
    """What a driver's own events have told so far."""

    status: str = "starting"
    batches: int = 0
    rows: int = 0
    left_out: int = 0  # Rows that came again, and were in the table.

    def after(self, line: Line) -> "DriverState":
        """Return the state after one more event."""
        match line.event:
            case "started":
                return self._replace(status="working")
            case "batch.written":
                return self._replace(
                    batches=self.batches + 1, rows=self.rows + int(line.fields["rows"])
                )
            case "range.left_out":
                return self._replace(left_out=self.left_out + int(line.fields["rows"]))
            case "drained" | "failed":
                return self._replace(status=line.event)
        return self


def driver_of(client_id: str, drivers: Iterable[str]) -> str:
    """Return the driver whose reader is called so, after its application; else the client id."""
    return next((name for name in drivers if client_id.startswith(f"spark-{name}-")), client_id)


def owners(group: DescribedGroup, drivers: Mapping[str, DriverState]) -> dict[int, str]:
    """Return the driver that owns each owned partition, by its member's assignment."""
    owned = {}
    for member in group.members:
        assignment = decode_assignment(member.assignment)
        for tp in assignment.partitions if assignment else ():
            if tp.topic == TOPIC:
                owned[tp.partition] = driver_of(member.client_id, drivers)
    return owned


def snapshot(
    group: DescribedGroup,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    ends: Sequence[int],
    drivers: Mapping[str, DriverState],
) -> Snapshot:
    """Put together what is shown."""
    owned = owners(group, drivers)
    partitions = []
    for partition in range(NUM_PARTITIONS):
        stored = offsets.get(TopicPartition(TOPIC, partition))
        partitions.append(
            Partition(
                partition, owned.get(partition, ""), stored.offset if stored else 0, ends[partition]
            )
        )
    return Snapshot(
        group.state,
        group.generation_id,
        tuple(
            Driver(name, state.status, state.batches, state.rows) for name, state in drivers.items()
        ),
        tuple(partitions),
        FLIGHTS,
    )


def evictions(events: Iterable[Line], drivers: Mapping[str, DriverState]) -> tuple[Eviction, ...]:
    """Return the members that the coordinator removed although they had not left."""
    return tuple(
        Eviction(
            driver_of(str(line.fields.get("client_id")), drivers),
            str(line.fields.get("reason")),
        )
        for line in events
        if line.event == "group.member_removed" and line.fields.get("reason") != LEFT
    )
