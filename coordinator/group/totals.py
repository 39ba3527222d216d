"""What all groups and topics of a node take together, and how much of that is whose. Pure.

Theory of operation
===================

Each limit of a group or of a request leaves open how many of them there are. These numbers bound
the memory and the log as a whole. They are counted where the state changes, so that they are right
after a load, too; what is over a limit then stays, and no more is taken.

Everything belongs to a principal: a group and its offsets to who made the group, a topic to who
registered it, a member to who joined with it. What belongs to nobody in particular, as nobody said
who he is, belongs to the anonymous principal. So the shares of all principals add up to the totals.

Counted is what is *left*: to ask whether there is room for more is a look at one number. Quotas
limit a share, settings the node. Where nobody has to say who he is, there is one share, which
nothing limits.

What somebody takes of the log is what a compaction would leave of it, about (`LogSize`). Topics are
counted as they change. Of a group it is looked up now and then (`maintenance`), as every commit
would have to look at the texts that it replaces. Whoever is over that quota gets nothing new at
all: no group, topic, member or offset, and no longer texts.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from protocol.acls import ANONYMOUS

NO_LIMIT: Final = 2**62
LOG_BYTES: Final = "log_bytes"
# So many principals are remembered who may have nothing any more.
_KEPT: Final = 10_000


class LogSize:
    """What things take in a compacted log: texts as they are, and this much around them."""

    GROUP: Final = 96
    TOPIC: Final = 48  # One that is registered, or that a group has committed.
    PARTITION: Final = 10  # Of either.
    MEMBER: Final = 48
    REBALANCE: Final = 96


def utf8_bytes(texts: Iterable[str]) -> int:
    """Return how long *texts* are, all together."""
    return sum([len(text) if text.isascii() else len(text.encode()) for text in texts])


class Account:
    """How much of each resource there is, and may be.

    Attributes:
        left: By resource, how much more there may be; negative if it is over the limit.
    """

    __slots__ = ("_limits", "left")

    def __init__(self, limits: Mapping[str, int]) -> None:
        self._limits = limits
        self.left = dict(limits)

    @property
    def limits(self) -> Mapping[str, int]:
        """By resource; may be replaced."""
        return self._limits

    @limits.setter
    def limits(self, limits: Mapping[str, int]) -> None:
        used = {resource: self.used(resource) for resource in limits}
        self._limits = limits
        self.left = {resource: limit - used[resource] for resource, limit in limits.items()}

    def used(self, resource: str) -> int:
        """Return how much there is."""
        return self._limits[resource] - self.left[resource]


class Totals(Account):
    """The numbers of one node, by resource.

    groups: in memory; members: of all groups, ids given out included; offsets: committed ones;
    topics: registered ones, and deleted ones that are not forgotten; topic_partitions and
    topic_host_bytes: the partitions of these, and the names of their hosts.

    Attributes:
        quota: Says how much a principal may have of a resource, None for any number.
        has_principals: Whether anybody says who he is.
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
        """Return what is of *principal*; None: of nobody in particular."""
        whose = principal or ANONYMOUS
        share = self._shares.get(whose)
        if share is None:
            if len(self._shares) >= _KEPT:
                self._shares = {name: one for name, one in self._shares.items() if one.is_used}
            share = self._shares[whose] = Share(self, whose)
        return share

    def shares(self) -> "list[Share]":
        """Return those of all principals who have something."""
        return [share for share in self._shares.values() if share.is_used]

    def quotas_changed(self, principal: str | None) -> None:
        """Put other quotas in force: of *principal*, or of all."""
        if principal is None:
            for share in self._shares.values():
                share.renew()
        elif principal in self._shares:
            self._shares[principal].renew()

    def refusal(self, resource: str, more: int = 1) -> str | None:
        """Return in words why there can't be so many more, None if there can."""
        if more <= self.left[resource]:
            return None
        setting = "max." + resource.replace("_", ".")
        return f"there are {self.used(resource)} already, {setting} is {self.limits[resource]}"


class Share(Account):
    """What one principal has of the totals. Whoever adds or removes something counts it here.

    Attributes:
        principal: Whose it is.
        is_over: Whether it takes more of the log than its quota, and gets nothing new.
    """

    __slots__ = ("_totals", "is_over", "principal")

    RESOURCES: Final = (*Totals.RESOURCES, LOG_BYTES)

    def __init__(self, totals: Totals, principal: str) -> None:
        """Use `Totals.share` instead."""
        super().__init__(dict.fromkeys(self.RESOURCES, NO_LIMIT))
        self._totals = totals
        self.principal = principal
        self.is_over = False
        self.renew()

    @property
    def is_used(self) -> bool:
        """Whether there is anything."""
        return self.left != self.limits

    def quota(self, resource: str) -> int | None:
        """Return how much there may be, None for any number."""
        totals = self._totals
        return totals.quota(self.principal, resource) if totals.has_principals else None

    def quota_ratio(self) -> float:
        """Return how much of the quota is taken that is nearest; -1 if there is none."""
        quotas = {name: self.quota(name) for name in self.RESOURCES}
        return max((self.used(name) / most for name, most in quotas.items() if most), default=-1)

    def renew(self) -> None:
        """Be limited by the quotas of now."""
        quota = self.quota(LOG_BYTES)
        self.is_over = quota is not None and self.used(LOG_BYTES) > quota
        if not self.is_over:
            self.limits = {name: self.quota(name) or NO_LIMIT for name in self.RESOURCES}
        else:
            self.limits = {**dict.fromkeys(self.RESOURCES, 0), LOG_BYTES: quota or 0}

    def count(self, resource: str, more: int) -> None:
        """There is so much more, here and in all; less, if it is negative."""
        self.left[resource] -= more
        self._totals.left[resource] -= more

    def count_log(self, more_bytes: int) -> None:
        """So much more of the log is taken; less, if it is negative."""
        self.left[LOG_BYTES] -= more_bytes
        if self.is_over != (self.left[LOG_BYTES] < 0):
            self.renew()

    def refusal(self, resource: str, more: int = 1) -> str | None:
        """Return in words why there can't be so many more, None if there can."""
        return self.own_refusal(resource, more) or self._totals.refusal(resource, more)

    def has_room_for(self, **more: int) -> bool:
        """Say whether this principal's quotas leave room for so much of each resource."""
        return all(count <= self.left[resource] for resource, count in more.items())

    def own_refusal(self, resource: str, more: int = 1) -> str | None:
        """Return the same, as far as this principal's quotas go."""
        if more <= self.left[resource]:
            return None
        told = LOG_BYTES if self.is_over else resource
        return (
            f"{self.principal} has {self.used(told)} already, "
            f"its quota {told} is {self.limits[told]}"
        )
