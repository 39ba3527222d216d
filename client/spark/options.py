"""What the options of all formats, logs and sinks have in common: errors, addresses, secrets.

Spark shows options in plans, logs and its UI. So an option of a log may say where a secret is
instead of the secret: ``{env:NAME}`` or ``{file:/path}``, once or within other text. It is looked
up by each process that makes the log, the reader and the executors, and is never part of a message.
"""

import re
from collections.abc import Mapping
from functools import partial
from typing import Final

from client.security import (
    PREFIXES as SECURITY_PREFIXES,
    REFERENCE,
    Security,
    looked_up,
    without_literals,
)

# Options of a log are told apart by a prefix.
LOG_PREFIXES: Final = ("log.", "kafka.")

_DURATION: Final = re.compile(r"([0-9]{1,9})\s*(ms|s|m|h)?", re.ASCII)
_UNIT_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, None: 1}
_ADDRESS: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:,\[\]]+):([0-9]{1,5})")


class OptionError(ValueError):
    """An option is missing, unknown or impossible; the message names it."""


def read_addresses(name: str, value: str) -> tuple[str, ...]:
    """Return one or more of ``host:port``, the value of the option *name*.

    Raises:
        OptionError: it is something else.

    """
    addresses = tuple(address.strip() for address in value.split(","))
    for address in addresses:
        match = _ADDRESS.fullmatch(address)
        if not match or not 0 < int(match[2]) < 65_536:
            raise OptionError(
                f"option '{name}' is {value!r}: it must be host:port, or several of them "
                "separated by commas"
            )
    return addresses


def parse_duration_ms(value: str) -> int | None:
    """Return the ms of a duration such as ``500ms``, ``45s``, ``5m``, ``1h``; None of another text.

    A bare number is milliseconds.
    """
    match = _DURATION.fullmatch(value)
    duration_ms = int(match[1]) * _UNIT_MS[match[2]] if match else -1
    return duration_ms if 0 <= duration_ms < 2**31 else None


def read_duration_ms(name: str, value: str) -> int:
    """Return the duration in ms, more than none, that is the value of the option *name*.

    Raises:
        OptionError: it is something else.

    """
    duration_ms = parse_duration_ms(value)
    if not duration_ms:
        raise OptionError(
            f"option '{name}' is {value!r}: it must be a duration such as '500ms', '45s', '5m' "
            "(a bare number is milliseconds)"
        )
    return duration_ms


def read_security(options: Mapping[str, str]) -> Security:
    """Return how to connect to the coordinator: the options by Kafka's names for it.

    Secrets are looked up by each process that connects, so a file has to be there for it.

    Args:
        options: names in lower case; those of other things are passed over.

    Raises:
        OptionError: one is unknown or impossible, or is a secret itself: Spark shows options.

    """
    given = {name: value for name, value in options.items() if name.startswith(SECURITY_PREFIXES)}
    try:
        without_literals(given)
        return Security.of(given)
    except ValueError as error:
        raise OptionError(f"options of security: {error}") from None


def with_secrets(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options with the references in those of the log replaced.

    A file's last line break is not part of the secret.

    Args:
        options: names in lower case; only ``log.*`` and ``kafka.*`` may have references.

    Raises:
        OptionError: there is no such variable or file here; the message names the option.

    """
    return {
        name: REFERENCE.sub(partial(_secret, name), value)
        if name.startswith(LOG_PREFIXES)
        else value
        for name, value in options.items()
    }


def _secret(name: str, reference: re.Match[str]) -> str:
    try:
        return looked_up(reference)
    except LookupError as error:
        raise OptionError(
            f"option {name!r} {error}; the driver and all executors need it"
        ) from error
