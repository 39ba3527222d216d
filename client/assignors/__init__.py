"""Who gets which partition: computed by the group's leader, for everybody.

Names and results are Kafka's, so that Kafka's own consumers could be in the same group. They
are pure functions of the members, the partitions and their hosts; the order in which members
came plays no part, so every leader computes the same.
"""

from client.assignors.base import (
    Assigned,
    AssignmentWarning,
    Assignor,
    BaseAssignor,
    InvalidAssignment,
    MemberSubscription,
    check_assignment,
    in_order,
    read_subscriptions,
    run_assignor,
    write_assignments,
)
from client.assignors.range_round_robin import RangeAssignor, RoundRobinAssignor
from client.assignors.sticky import CooperativeStickyAssignor, StickyAssignor

__all__ = [
    "Assigned",
    "AssignmentWarning",
    "Assignor",
    "BaseAssignor",
    "CooperativeStickyAssignor",
    "InvalidAssignment",
    "MemberSubscription",
    "RangeAssignor",
    "RoundRobinAssignor",
    "StickyAssignor",
    "check_assignment",
    "in_order",
    "read_subscriptions",
    "run_assignor",
    "write_assignments",
]
