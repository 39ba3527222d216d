"""How often an address may fail."""

import pytest

from coordinator.server.attempts import (
    ADDRESSES_MAX,
    ATTEMPTS,
    EVERY_S,
    Attempts,
    TooManyAttempts,
)


def used_up(address: str) -> Attempts:
    """Return attempts of which *address* has none left at 0."""
    attempts = Attempts()
    for _ in range(ATTEMPTS):
        attempts.begin(address, 0)
    return attempts


def test_who_guesses_has_ten_attempts_and_then_one_in_six_seconds() -> None:
    """A password of six letters would otherwise be found within a day."""
    attempts = used_up("192.0.2.1")

    with pytest.raises(TooManyAttempts) as refused:
        attempts.begin("192.0.2.1", 0)
    assert refused.value.wait_ms == EVERY_S * 1_000

    attempts.begin("192.0.2.1", EVERY_S * 1_000)
    with pytest.raises(TooManyAttempts):
        attempts.begin("192.0.2.1", EVERY_S * 1_000 + 1)


def test_who_is_right_pays_nothing() -> None:
    """A monitor that shows its token with each request asks as often as it likes."""
    attempts = Attempts()
    for _ in range(10 * ATTEMPTS):
        attempts.begin("192.0.2.1", 0)
        attempts.succeeded("192.0.2.1")


def test_others_are_not_kept_out() -> None:
    """Somebody who guesses must not lock anybody else out."""
    used_up("192.0.2.1").begin("192.0.2.2", 0)


def test_all_addresses_of_one_host_are_one() -> None:
    """A host has 2^64 of IPv6, and each would have ten attempts."""
    with pytest.raises(TooManyAttempts):
        used_up("2001:db8::1").begin("2001:db8::ffff:2", 0)


def test_only_so_many_addresses_are_kept() -> None:
    """Whoever can choose his address would fill the memory with them."""
    attempts = Attempts()
    for number in range(ADDRESSES_MAX + 10):
        attempts.begin(f"10.0.{number // 256}.{number % 256}", 0)

    assert len(attempts) == ADDRESSES_MAX
