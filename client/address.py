"""Addresses as people write them."""

from collections.abc import Sequence


def parse_addresses(address: str | Sequence[str]) -> list[tuple[str, int]]:
    """Return host and port of "host:port", "[v6]:port", or of each of several.

    Raises:
        ValueError: One of them is neither, or there is none.
    """
    texts = [address] if isinstance(address, str) else list(address)
    if not texts:
        raise ValueError("at least one address is needed")
    return [_parse(text) for text in texts]


def _parse(text: str) -> tuple[str, int]:
    host, colon, port = text.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port) <= 65535):
        raise ValueError(f"{text!r} is not of the form host:port")
    return host, int(port)
