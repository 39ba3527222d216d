"""Which address a peer has, and as which it counts wherever each address has a share.

Where a socket takes IPv4, too, an address of IPv4 comes as one of IPv6 (``::ffff:192.0.2.1``). Here
it is the one of IPv4, as rules name it. Logs, groups and rules have the peer's own address; but a
host has a /64 of IPv6 for itself, which is 2^64 addresses, so all of these count as one.
"""

import ipaddress

from protocol.acls import canonical_address


def named(peer: str) -> str:
    """Return the address of a *peer* as everybody names it, rules of access, too."""
    return canonical_address(peer) or peer


def counted_as(peer: str) -> str:
    """Return the address that *peer*, by its name, counts as: of IPv6 the first one of its /64."""
    if ":" not in peer:
        return peer
    try:
        found = ipaddress.IPv6Address(peer)
    except ValueError:
        return peer
    return str(ipaddress.IPv6Address(int(found) >> 64 << 64))
