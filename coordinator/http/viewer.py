"""Who asks over HTTP, and what he may see: by the rules of access that clients have, too.

What somebody may not see isn't there for him: it is in no list, no count and no event, and asked
for by its name it is not found, whether it exists or not. Who sees the whole list, by DESCRIBE of
the cluster, is told that he may not, as he knows already that it is there.
"""

from collections.abc import Awaitable, Callable, Hashable
from typing import Final, Protocol

from coordinator.server.authorization import Access


class Connection(Protocol):
    """What a connection tells of its peer."""

    peer: str
    principal: str
    is_tls: bool
    ends_wall_ms: int | None


class Viewer:
    """Somebody who asks. Without authentication, everybody is `EVERYBODY`.

    Attributes:
        principal: Such as "User:alice"; None if nobody is asked who he is.
        way: How he has shown who he is, such as "token".
    """

    def __init__(
        self,
        principal: str | None = None,
        way: str = "",
        access: Access | None = None,
        is_known: Callable[[], bool] = lambda: True,
        are_rules_loaded: Callable[[], bool] = lambda: True,
    ) -> None:
        """Make it.

        Args:
            principal: Who it is.
            way: How he has shown it.
            access: What he may do; None is everything.
            is_known: Says whether his credential is still in force.
            are_rules_loaded: Says whether the rules of access are.
        """
        self.principal = principal
        self.way = way
        self.is_known = is_known
        self._access = access
        self._are_rules_loaded = are_rules_loaded

    @property
    def knows_rules(self) -> bool:
        """Whether it is known what may be shown; each load is a change of rules."""
        return self._access is None or self._access.is_free or self._are_rules_loaded()

    @property
    def sees_all(self) -> bool:
        """Whether nothing at all is hidden."""
        return self._access is None or self._access.is_free

    @property
    def sees_cluster(self) -> bool:
        """Whether the node, and every group's line in the list, is shown."""
        return self._access is None or self._access.sees_cluster()

    def sees_group(self, group_id: str) -> bool:
        """Say whether everything about a group is shown."""
        return self._access is None or self._access.sees_group(group_id)

    def sees_topic(self, topic: str) -> bool:
        """Say whether a topic is shown."""
        return self._access is None or self._access.sees_topic(topic)

    def lists_group(self, group_id: str) -> bool:
        """Say whether a group is in the list of all."""
        return self.sees_cluster or self.sees_group(group_id)

    @property
    def sight(self) -> Hashable:
        """Another one whenever something else may be shown; of two who see the same, mostly one."""
        if self._access is None or self._access.is_free:
            return None
        return self._access.sight


EVERYBODY: Final = Viewer()
# Says who asks, where that takes a while.
FindOut = Callable[[], Awaitable[Viewer]]
