"""As which address a peer counts, wherever each address has a share.

A host has a /64 of IPv6 for itself, which is 2^64 addresses, so all of these count as one. Where a
socket takes IPv4, too, an address of IPv4 comes as one of IPv6 (``::ffff:192.0.2.1``). Logs, groups
and rules name the peer's own.
"""

import ipaddress


def counted_as(peer: str) -> str:
    """Return the address that *peer* counts as: of IPv6 the first one of its /64."""
    if ":" not in peer:
        return peer
    try:
        found = ipaddress.IPv6Address(peer)
    except ValueError:
        return peer
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Address(int(found) >> 64 << 64))
