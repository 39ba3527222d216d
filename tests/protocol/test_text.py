"""Sentences that name some of many things."""

from protocol.text import some_of


def test_a_few_things_are_named_and_the_others_counted() -> None:
    """An error about 100,000 partitions must still be one that somebody reads."""
    assert some_of(["a", "b"], 2) == "a, b"
    assert some_of(range(7)) == "0, 1, 2, 3, 4 and 2 more"
    assert some_of(iter("abc"), 1, between="; ") == "a and 2 more"
    assert some_of(iter("abc"), 2, count=100_000) == "a, b and 99998 more"
    assert some_of([]) == ""
