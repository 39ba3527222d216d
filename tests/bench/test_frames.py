"""Counting answers in a byte stream."""

import struct

import pytest
from hypothesis import given, strategies as st

from bench.frames import AnswerReader, OrderedReader, split_frames

BODIES = [b"zero", b"", b"second answer", b"\x00" * 300]


def answer(slot: int, body: bytes) -> bytes:
    """A frame as our own protocol has it: size, correlation id, throttle, epoch, body."""
    return struct.pack(">Iiii", 12 + len(body), slot, 0, 7) + body


def reader() -> AnswerReader:
    """A reader that expects `BODIES` by slot."""
    return AnswerReader(slot_at=4, answer_from=16, answers=BODIES)


def test_every_split_of_the_stream_gives_the_same_slots() -> None:
    """TCP may cut anywhere, also inside the length prefix."""
    stream = b"".join(answer(slot, BODIES[slot]) for slot in (2, 0, 1, 3, 0))
    for cut in range(len(stream) + 1):
        under_test = reader()
        slots = under_test.feed(stream[:cut]) + under_test.feed(stream[cut:])
        assert slots == [2, 0, 1, 3, 0]
        assert under_test.wrong == 0


def test_a_stream_that_comes_byte_by_byte_is_read_too() -> None:
    """The smallest reads that there are."""
    under_test = reader()
    stream = answer(3, BODIES[3]) + answer(1, BODIES[1])
    slots = [slot for byte in stream for slot in under_test.feed(bytes([byte]))]
    assert slots == [3, 1]


@given(
    st.lists(st.integers(0, len(BODIES) - 1), max_size=30),
    st.lists(st.integers(1, 400), max_size=30),
)
def test_many_cuts_lose_and_invent_nothing(order: list[int], sizes: list[int]) -> None:
    """Each request sent is answered once: the count is the benchmark's result."""
    stream = b"".join(answer(slot, BODIES[slot]) for slot in order)
    under_test = reader()
    slots, at = [], 0
    for size in [*sizes, len(stream)]:
        slots += under_test.feed(stream[at : at + size])
        at += size
    assert slots == order


def test_a_different_answer_counts_as_wrong_and_is_kept_for_the_message() -> None:
    """A server that answers errors quickly must not win."""
    under_test = reader()
    bad = answer(0, b"oops")
    assert under_test.feed(answer(0, b"zero") + bad + answer(2, b"")) == [0, 0, 2]
    assert (under_test.wrong, under_test.wrong_example) == (2, bad)


def test_the_header_before_the_compared_part_may_differ() -> None:
    """Throttle time and leader epoch are not part of the judged answer."""
    under_test = reader()
    under_test.feed(struct.pack(">Iiii", 16, 0, 99, -1) + b"zero")
    assert under_test.wrong == 0


def test_what_is_expected_may_change_under_way() -> None:
    """An echo's answer is the request, whose offset moves."""
    request = bytearray(answer(0, b"first"))
    under_test = AnswerReader(slot_at=4, answer_from=0, answers=[request])
    under_test.feed(bytes(request))
    request[-5:] = b"other"
    under_test.feed(bytes(request))
    assert under_test.wrong == 0


@pytest.mark.parametrize("slot", [-1, len(BODIES), 2**31 - 1])
def test_an_answer_to_nothing_is_refused(slot: int) -> None:
    """The stream is out of step: all counts from here on would be wrong."""
    with pytest.raises(ValueError, match="not sent"):
        reader().feed(answer(slot, b""))


def test_a_frame_without_room_for_a_slot_is_refused() -> None:
    """Such a stream is not our protocol."""
    with pytest.raises(ValueError, match="only 7 bytes"):
        reader().feed(struct.pack(">I", 3) + b"abc")


def test_split_frames_keeps_the_incomplete_rest() -> None:
    """What comes before the load is read by the same framing."""
    first, second = answer(0, b"zero"), answer(2, b"second answer")
    assert split_frames(first + second[:-1]) == ([first], second[:-1])
    assert split_frames(b"\x00\x00") == ([], b"\x00\x00")


def test_only_the_named_part_of_an_answer_is_compared() -> None:
    """What the server changes with every answer can't be known beforehand."""
    under_test = AnswerReader(slot_at=4, answer_from=16, answer_until=19, answers=[b"abc"])
    assert under_test.feed(answer(0, b"abc-1") + answer(0, b"abc-2")) == [0, 0]
    assert under_test.wrong == 0
    assert under_test.feed(answer(0, b"abd-2")) == [0]
    assert under_test.wrong == 1


def test_answers_in_order_are_their_slots_in_turn_over_any_split() -> None:
    """Redis says not to what it answers."""
    answers = [b":0\r\n", b"$2\r\nhi\r\n", b"+OK\r\n"]
    stream = b"".join(answers[n % 3] for n in range(7))
    for cut in range(len(stream) + 1):
        under_test = OrderedReader(answers)
        assert under_test.feed(stream[:cut]) + under_test.feed(stream[cut:]) == [
            0,
            1,
            2,
            0,
            1,
            2,
            0,
        ]
        assert under_test.wrong == 0


def test_another_answer_in_order_counts_as_wrong() -> None:
    """The first one is kept for the message."""
    under_test = OrderedReader([b":0\r\n", b":0\r\n"])
    assert under_test.feed(b":0\r\n:1\r\n:2\r\n") == [0, 1, 0]
    assert (under_test.wrong, under_test.wrong_example) == (2, b":1\r\n")
