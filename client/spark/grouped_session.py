"""The coordinator's side of a grouped query: a member of the blocking client."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

from client.assignors import Assignor
from client.blocking import connect_blocking
from client.exceptions import RetriableError
from client.spark.grouped_types import Hooks
from client.spark.source.session import JoinedSession
from protocol.errors import ErrorCode


class MemberSettings(NamedTuple):
    """How a driver is a member of its group; see `GroupedKafkaQuery`."""

    coordinator: str
    group: str
    topics: tuple[str, ...]
    client_id: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    request_timeout_ms: int
    assignors: Sequence[Assignor]
    group_instance_id: str | None
    host: str | None


class MemberSession(JoinedSession):
    """Owns a connection of its own and one membership; see `GroupedSession`."""

    leave_reason = "the grouped Spark query stops"

    def __init__(self, settings: MemberSettings, hooks: Hooks) -> None:
        self._group = settings.group
        with ExitStack() as stack:
            client = stack.enter_context(
                connect_blocking(
                    settings.coordinator.split(","),
                    client_id=settings.client_id,
                    request_timeout_ms=settings.request_timeout_ms,
                )
            )
            member = stack.enter_context(
                client.join(
                    settings.group,
                    topics=settings.topics,
                    partitions=hooks.partitions_of,
                    session_timeout_ms=settings.session_timeout_ms,
                    rebalance_timeout_ms=settings.rebalance_timeout_ms,
                    assignors=settings.assignors,
                    group_instance_id=settings.group_instance_id,
                    host=settings.host,
                    reason="a grouped Spark query starts",
                    on_revoked=hooks.on_revoked,
                    on_lost=hooks.on_lost,
                )
            )
            super().__init__(client, member, stack.pop_all())

    def request_rejoin(self, reason: str) -> None:
        """Ask for a rebalance."""
        self._member.request_rejoin(reason)

    def alive_clients(self) -> set[str]:
        """Return the client ids of all members of the group.

        Raises:
            RetriableError: the coordinator doesn't tell.

        """
        (group,) = self._client.describe_groups([self._group])
        if group.error != ErrorCode.NONE:
            raise RetriableError(f"group {self._group!r} can't be described: error {group.error}")
        return {member.client_id for member in group.members}
