"""What all groups and topics of a node take together, and how much they may.

Each limit of a group or of a request leaves open how many of them there are. These numbers bound
the memory and the log as a whole. They are counted where the state changes, so that they are right
after a load, too; what is over a limit then stays, and no more is taken.

Shares of a principal belong here as well: `refusal` is asked before anything is added.
"""

from collections.abc import Mapping
from typing import Final

NO_LIMIT: Final = 2**62


class Totals:
    """The numbers of one node, by resource. Whoever adds or removes something counts it here.

    Attributes:
        groups: In memory.
        members: Of all groups, ids given out included.
        offsets: Committed ones.
        topics: Registered ones, and deleted ones that are not forgotten.
        topic_partitions: Of these.
        topic_host_bytes: The names of hosts of these.
        limits: By resource; may be replaced.
    """

    RESOURCES: Final = (
        "groups",
        "members",
        "offsets",
        "topics",
        "topic_partitions",
        "topic_host_bytes",
    )

    def __init__(self, limits: Mapping[str, int] | None = None) -> None:
        self.groups = 0
        self.members = 0
        self.offsets = 0
        self.topics = 0
        self.topic_partitions = 0
        self.topic_host_bytes = 0
        self.limits: Mapping[str, int] = limits or dict.fromkeys(self.RESOURCES, NO_LIMIT)

    def left(self, resource: str) -> int:
        """Return how much more there may be, negative if it is over the limit."""
        used: int = getattr(self, resource)
        return self.limits[resource] - used

    def refusal(self, resource: str, more: int = 1) -> str | None:
        """Return in words why there can't be so many more, None if there can."""
        if more <= self.left(resource):
            return None
        setting = "max." + resource.replace("_", ".")
        return f"there are {getattr(self, resource)} already, {setting} is {self.limits[resource]}"
