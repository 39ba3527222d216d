"""Calls and their shares get exactly one answer."""

from typing import Any

from coordinator.runtime.calls import Call, Gather
from protocol.errors import ErrorCode
from protocol.messages import Answer, HeartbeatRequest, error_response


class Answers:
    """What came out."""

    def __init__(self) -> None:
        self.got: list[tuple[Any, int]] = []

    def __call__(self, answer: Any, leader_epoch: int) -> None:
        """Take an answer."""
        self.got.append((answer, leader_epoch))


def test_a_call_fails_in_the_shape_of_its_request() -> None:
    """Whoever refuses it need not know what was asked."""
    answers = Answers()

    class RecordedCall(Call):
        def resolve(self, answer: Answer, leader_epoch: int) -> None:
            answers(answer, leader_epoch)

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
    first.resolve("one", 3)

    assert answers.got == [(["one", "failed 14"], -1)]


def test_a_call_of_one_share_keeps_its_epoch() -> None:
    """The header's epoch speaks for one group only."""
    answers = Answers()
    gather = Gather(answers)
    part = gather.part(lambda error: error)
    part.resolve("one", 7)
    assert answers.got == []
    gather.seal()

    assert answers.got == [(["one"], 7)]


def test_shares_that_come_at_once_wait_for_the_others() -> None:
    """A share may be answered before the next one is handed out."""
    answers = Answers()
    gather = Gather(answers)
    gather.part(lambda error: error).fail(24, -1)
    gather.part(lambda error: error).resolve("two", 3)
    assert answers.got == []
    gather.seal()

    assert answers.got == [([24, "two"], -1)]


def test_no_shares_are_an_empty_answer() -> None:
    """A request may name no group at all."""
    answers = Answers()
    Gather(answers).seal()

    assert answers.got == [([], -1)]
