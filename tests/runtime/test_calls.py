"""Calls and their shares get exactly one answer."""

from itertools import count
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from coordinator.runtime.calls import REST, REST_MAX_S, Call, Gather, Part, Share
from protocol.errors import ErrorCode
from protocol.messages import HeartbeatRequest, Response, error_response


class Answers:
    """What came out."""

    def __init__(self) -> None:
        self.got: list[tuple[Any, int]] = []

    def __call__(self, answer: Any, leader_epoch: int) -> None:
        """Take an answer."""
        self.got.append((answer, leader_epoch))


def answer(part: Part, share: Any, leader_epoch: int) -> None:
    """Answer *part* at once."""
    part.send(part.prepare(share, leader_epoch))


def test_a_call_fails_in_the_shape_of_its_request() -> None:
    """Whoever refuses it need not know what was asked."""
    answers = Answers()

    class RecordedCall(Call):
        def prepare(
            self, answer: Response, leader_epoch: int, error: int | None = None
        ) -> tuple[Response, int]:
            return answer, leader_epoch

        def send(self, prepared: tuple[Response, int]) -> None:
            answers(*prepared)

    request = HeartbeatRequest("g", 1, "m", None)
    RecordedCall(request).fail(ErrorCode.NOT_COORDINATOR, 4)

    assert answers.got == [(error_response(request, 16), 4)]


def test_shares_are_put_together_in_the_order_asked() -> None:
    """They come back in any order."""
    answers = Answers()
    gather = Gather(answers)
    first = gather.part(lambda error: f"failed {error}")
    second = gather.part(lambda error: f"failed {error}")
    gather.seal()
    second.fail(14, 3)
    assert answers.got == []
    answer(first, "one", 3)

    assert answers.got == [(["one", "failed 14"], -1)]


def test_a_share_that_waits_is_not_in_its_place_yet() -> None:
    """It is made when it is decided, and told when the log has it."""
    answers = Answers()
    gather = Gather(answers)
    part = gather.part(lambda error: error)
    gather.seal()
    prepared = part.prepare("one", 3)
    assert answers.got == []
    part.send(prepared)

    assert answers.got == [(["one"], 3)]


def test_a_call_of_one_share_keeps_its_epoch() -> None:
    """The header's epoch speaks for one group only."""
    answers = Answers()
    gather = Gather(answers)
    part = gather.part(lambda error: error)
    answer(part, "one", 7)
    assert answers.got == []
    gather.seal()

    assert answers.got == [(["one"], 7)]


def test_shares_that_come_at_once_wait_for_the_others() -> None:
    """A share may be answered before the next one is handed out."""
    answers = Answers()
    gather = Gather(answers)
    gather.part(lambda error: error).fail(24, -1)
    answer(gather.part(lambda error: error), "two", 3)
    assert answers.got == []
    gather.seal()

    assert answers.got == [([24, "two"], -1)]


def test_no_shares_are_an_empty_answer() -> None:
    """A request may name no group at all."""
    answers = Answers()
    Gather(answers).seal()

    assert answers.got == [([], -1)]


@pytest.mark.parametrize(("took_s", "rest_s"), [(0.002, REST * 0.002), (60.0, REST_MAX_S)])
async def test_a_rest_is_bounded_however_long_a_slice_took(
    autojump_clock: MockClock, took_s: float, rest_s: float
) -> None:
    """A process that was stopped in a slice would rest for minutes, and sessions would end."""
    asked = count()
    share = Share(lambda: next(asked), trio.current_time)
    share.begin()
    autojump_clock.jump(took_s)
    began_s = trio.current_time()

    await share.pause()

    assert trio.current_time() - began_s == pytest.approx(rest_s)
