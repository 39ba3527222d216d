"""Resource usage of all groups and topics of a node, in total and by principal. Pure.

Theory of operation
===================

Limits of a single group or request don't bound the number of groups. These totals bound the memory
and the log as a whole. They are counted where the state changes, so that they are right after a
load, too. State over a limit stays, but no more is accepted.

Each resource belongs to a principal: a group and its offsets to the one that created the group, a
topic to the one that registered it, a member to the one that joined with it. Resources of
unauthenticated clients belong to the anonymous principal. The shares of all principals therefore
add up to the totals.

Counted is the amount that is *left*, so that checking for room reads one number. Quotas limit a
share, settings the node. Without authentication there is one share, without limits.

The log usage of a principal is approximately the size of its entries after a compaction
(`LogSize`). Topics are counted when they change. Groups are measured periodically (`maintenance`),
because otherwise every commit would have to read the texts that it replaces. A principal over its
log quota can't create anything: no group, topic, member or offset, and no longer texts.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from protocol.acls import ANONYMOUS

NO_LIMIT: Final = 2**62
LOG_BYTES: Final = "log_bytes"
# Maximum number of remembered principals; unused ones are removed beyond it.
_KEPT: Final = 10_000


class LogSize:
    """Bytes of each item in a compacted log, in addition to its texts."""

    GROUP: Final = 96
    TOPIC: Final = 48  # A registered one, or one that a group has committed.
    PARTITION: Final = 10  # Of either kind of topic.
    MEMBER: Final = 48
    REBALANCE: Final = 96


def utf8_bytes(texts: Iterable[str]) -> int:
    """Return the total length of *texts* in UTF-8, in bytes."""
    return sum([len(text) if text.isascii() else len(text.encode()) for text in texts])


class Account:
    """Usage and limit of each resource.

    Attributes:
        left: By resource, the remaining amount; negative if usage is over the limit.
    """

    __slots__ = ("_limits", "left")

    def __init__(self, limits: Mapping[str, int]) -> None:
        self._limits = limits
        self.left = dict(limits)

    @property
    def limits(self) -> Mapping[str, int]:
        """Limits by resource; may be replaced."""
        return self._limits

    @limits.setter
    def limits(self, limits: Mapping[str, int]) -> None:
        used = {resource: self.used(resource) for resource in limits}
        self._limits = limits
        self.left = {resource: limit - used[resource] for resource, limit in limits.items()}

    def used(self, resource: str) -> int:
        return self._limits[resource] - self.left[resource]


class Totals(Account):
    """Usage of one node, by resource.

    groups: in memory; members: of all groups, including ids given out; offsets: committed ones;
    topics: registered ones, and deleted ones that are not forgotten; topic_partitions and
    topic_host_bytes: the partitions of these topics, and the bytes of their host names.

    Attributes:
        quota: Returns a principal's quota of a resource, None if unlimited.
        has_principals: Whether clients are authenticated.
    """

    __slots__ = ("_shares", "has_principals", "quota")

    RESOURCES: Final = (
        "groups",
        "members",
        "offsets",
        "topics",
        "topic_partitions",
        "topic_host_bytes",
    )

    def __init__(
        self, limits: Mapping[str, int] | None = None, *, has_principals: bool = False
    ) -> None:
        super().__init__(limits or dict.fromkeys(self.RESOURCES, NO_LIMIT))
        self.has_principals = has_principals
        self.quota: Callable[[str, str], int | None] = lambda _principal, _resource: None
        self._shares: dict[str, Share] = {}

    def share(self, principal: str | None) -> "Share":
        """Return the share of *principal*; None: of the anonymous principal."""
        whose = principal or ANONYMOUS
        share = self._shares.get(whose)
        if share is None:
            if len(self._shares) >= _KEPT:
                self._shares = {name: one for name, one in self._shares.items() if one.is_used}
            share = self._shares[whose] = Share(self, whose)
        return share

    def shares(self) -> "list[Share]":
        """Return the shares of all principals with any usage."""
        return [share for share in self._shares.values() if share.is_used]

    def quotas_changed(self, principal: str | None) -> None:
        """Apply changed quotas, of *principal* or of all."""
        if principal is None:
            for share in self._shares.values():
                share.renew()
        elif principal in self._shares:
            self._shares[principal].renew()

    def refusal(self, resource: str, more: int = 1) -> str | None:
        """Return in words why *more* of a resource would exceed the limit, None if it fits."""
        if more <= self.left[resource]:
            return None
        setting = "max." + resource.replace("_", ".")
        return f"there are {self.used(resource)} already, {setting} is {self.limits[resource]}"


class Share(Account):
    """Usage of one principal. The code that adds or removes something counts it here.

    Attributes:
        principal: The owner of the resources.
        is_over: Whether its log usage is over its quota, so that it can't create anything.
    """

    __slots__ = ("_totals", "is_over", "principal")

    RESOURCES: Final = (*Totals.RESOURCES, LOG_BYTES)

    def __init__(self, totals: Totals, principal: str) -> None:
        """Create a share; only `Totals.share` calls this."""
        super().__init__(dict.fromkeys(self.RESOURCES, NO_LIMIT))
        self._totals = totals
        self.principal = principal
        self.is_over = False
        self.renew()

    @property
    def is_used(self) -> bool:
        """Whether any usage is counted."""
        return self.left != self.limits

    def quota(self, resource: str) -> int | None:
        """Return the quota of a resource, None if unlimited."""
        totals = self._totals
        return totals.quota(self.principal, resource) if totals.has_principals else None

    def quota_ratio(self) -> float:
        """Return the usage of the most used quota as a ratio; -1 without quotas."""
        quotas = {name: self.quota(name) for name in self.RESOURCES}
        return max((self.used(name) / most for name, most in quotas.items() if most), default=-1)

    def renew(self) -> None:
        """Apply the current quotas."""
        quota = self.quota(LOG_BYTES)
        self.is_over = quota is not None and self.used(LOG_BYTES) > quota
        if not self.is_over:
            self.limits = {name: self.quota(name) or NO_LIMIT for name in self.RESOURCES}
        else:
            self.limits = {**dict.fromkeys(self.RESOURCES, 0), LOG_BYTES: quota or 0}

    def count(self, resource: str, more: int) -> None:
        """Add *more* (may be negative) to this usage and to the total."""
        self.left[resource] -= more
        self._totals.left[resource] -= more

    def count_log(self, more_bytes: int) -> None:
        """Add *more_bytes* (may be negative) to the log usage."""
        self.left[LOG_BYTES] -= more_bytes
        if self.is_over != (self.left[LOG_BYTES] < 0):
            self.renew()

    def refusal(self, resource: str, more: int = 1) -> str | None:
        """Return in words why *more* would exceed a quota or a limit, None if it fits."""
        return self.own_refusal(resource, more) or self._totals.refusal(resource, more)

    def has_room_for(self, **more: int) -> bool:
        """Return whether this principal's quotas leave these amounts of each resource."""
        return all(count <= self.left[resource] for resource, count in more.items())

    def own_refusal(self, resource: str, more: int = 1) -> str | None:
        """Return in words why *more* would exceed this principal's quotas, None if it fits."""
        if more <= self.left[resource]:
            return None
        told = LOG_BYTES if self.is_over else resource
        return (
            f"{self.principal} has {self.used(told)} already, "
            f"its quota {told} is {self.limits[told]}"
        )
