"""What a rule of access (an ACL) is made of: Kafka's names and numbers, as on the wire.

The meaning is Kafka's, see `org.apache.kafka.common.acl` and KIP-290. Numbers that a rule can't
have are for filters, which say with them that it doesn't matter.
"""

import ipaddress
from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from protocol.group_ids import NAME_BYTES_MAX, name_error

# Principal of an unauthenticated client.
ANONYMOUS: Final = "User:ANONYMOUS"
# In a filter: any number.
ANY: Final = 1


class Operation(IntEnum):
    """What somebody does. Each is a bit of its own in a mask."""

    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11

    __hash__ = int.__hash__  # Enum's own is written in Python.

    @property
    def bit(self) -> int:
        """The place in a mask."""
        return 1 << self


class ResourceType(IntEnum):
    """With what."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4

    __hash__ = int.__hash__  # As above.


class PatternType(IntEnum):
    """Whether a rule's name is a resource's whole name or what it begins with."""

    LITERAL = 3
    PREFIXED = 4

    __hash__ = int.__hash__  # As above.


class Permission(IntEnum):
    """What a rule says: a denial outweighs everything that is allowed."""

    DENY = 2
    ALLOW = 3

    __hash__ = int.__hash__  # As above.


# In a filter, as a pattern type: the rules that concern the resource of this name.
MATCH: Final = 2
# A literal name that means every resource of its type.
EVERY_NAME: Final = "*"
EVERY_HOST: Final = "*"
PRINCIPAL_PREFIX: Final = "User:"
EVERYBODY: Final = "User:*"
# The only resource of its type.
CLUSTER: Final = "kafka-cluster"
_RESERVED: Final = frozenset({ANONYMOUS, EVERYBODY})

# What can be done with a resource of each type; a rule about anything else would say nothing.
OPERATIONS: Final[Mapping[ResourceType, frozenset[Operation]]] = {
    ResourceType.TOPIC: frozenset(
        {
            Operation.ALL,
            Operation.READ,
            Operation.WRITE,
            Operation.CREATE,
            Operation.DELETE,
            Operation.ALTER,
            Operation.DESCRIBE,
        }
    ),
    ResourceType.GROUP: frozenset(
        {
            Operation.ALL,
            Operation.READ,
            Operation.DELETE,
            Operation.ALTER,
            Operation.DESCRIBE,
        }
    ),
    ResourceType.CLUSTER: frozenset(
        {
            Operation.ALL,
            Operation.CREATE,
            Operation.ALTER,
            Operation.DESCRIBE,
            Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS,
        }
    ),
}


def principal_problem(principal: str) -> str | None:
    """Return why *principal* names nobody, None if it does."""
    if principal.startswith(PRINCIPAL_PREFIX) and principal != PRINCIPAL_PREFIX:
        return None
    return f"a principal is {PRINCIPAL_PREFIX}<name>"


def user_name_error(name: str) -> str | None:
    """Return why nobody who says who he is can be called *name*, None if somebody can.

    Two principals are not anybody's in particular, and rules about them would be about him.
    """
    if f"{PRINCIPAL_PREFIX}{name}" in _RESERVED:
        return f"{PRINCIPAL_PREFIX}{name} is nobody in particular"
    return name_error(name, NAME_BYTES_MAX)


def canonical_address(text: str) -> str | None:
    """Return the one way in which an address is written, None if *text* is none.

    A socket that takes IPv4, too, shows 192.0.2.1 as ``::ffff:192.0.2.1``: it is the same.
    """
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    return str(getattr(found, "ipv4_mapped", None) or found)


def host_problem(host: str) -> str | None:
    """Return why no connection can come from *host*, None if one can.

    There is one way to write each: a rule that is found by another one couldn't be removed by it.
    """
    if host == EVERY_HOST:
        return None
    canonical = canonical_address(host)
    if canonical is None:
        return f"a host is one address, such as 192.0.2.1, or {EVERY_HOST} for all"
    return None if host == canonical else f"a rule has this host as {canonical}"
