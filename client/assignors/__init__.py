"""Assignors: the group's leader computes with them the partitions of all members.

Names and results are Kafka's, so that Kafka's own consumers could be in the same group. A result
depends only on the members, the partitions and their hosts, not on the order in which members
joined, so every leader computes the same.
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
