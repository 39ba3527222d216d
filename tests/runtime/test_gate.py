"""The gate lets answers go as the log catches up."""

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from coordinator.runtime.calls import Token
from coordinator.runtime.shard import FencedGate, ReplyGate

LATER_MS = 10_000


class Named:
    """Who waits for an answer."""

    def __init__(self, name: object, released: list[object]) -> None:
        self.name = name
        self._released = released

    def prepare(self, answer: Any, leader_epoch: int, error: int | None = None) -> Any:
        """Nobody asks for that: what is parked was prepared."""
        raise AssertionError

    def renew(self, prepared: Any, leader_epoch: int) -> Any:
        """Say in which epoch it leaves."""
        self.name = f"{self.name} in epoch {leader_epoch}"
        return f"answer to {self.name}"

    def send(self, prepared: Any) -> None:
        """Note that it left, behind the word to its member."""
        assert self._released[-1] == f"member of {self.name}"
        assert prepared == f"answer to {self.name}"
        self._released[-1] = self.name

    def fail(self, error: int, leader_epoch: int) -> None:
        """Nobody asks for that either."""
        raise AssertionError


class Gate:
    """A gate and what left it."""

    def __init__(self) -> None:
        self.released: list[object] = []
        self.gate = ReplyGate(self.released.append)

    def park(self, name: object, until: int, deadline_ms: int = LATER_MS) -> None:
        """Park an answer that can be told from others."""
        self.gate.park(until, deadline_ms, *self._waiting(name))

    def park_last(self, name: object, until: int, deadline_ms: int) -> None:
        """Park one that waits for what was just appended."""
        self.gate.park_last((until, deadline_ms, *self._waiting(name)))

    def _waiting(self, name: object) -> tuple[Token, str, str]:
        return Named(name, self.released), f"answer to {name}", f"member of {name}"

    def give_up(self, now_ms: int | None = None) -> list[object]:
        """Return the names of those that are given up."""
        names: list[object] = []
        for _, _, token, _, member in self.gate.give_up(now_ms):
            assert isinstance(token, Named)
            assert member == f"member of {token.name}"
            names.append(token.name)
        return names


def test_what_is_committed_already_leaves_at_once() -> None:
    """A read of an old group waits for nothing."""
    gate = Gate()
    gate.park("a", 0)
    gate.gate.advance(5)
    gate.park("b", 5)

    assert gate.released == ["a", "b"]
    assert len(gate.gate) == 0


def test_answers_wait_for_their_offset() -> None:
    """Not for the end of the log: one group's slow write is not another's."""
    gate = Gate()
    gate.park("late", 7)
    gate.park("early", 3)
    gate.gate.advance(2)
    assert gate.released == []
    gate.gate.advance(6)
    assert gate.released == ["early"]
    assert len(gate.gate) == 1
    gate.gate.advance(7)

    assert gate.released == ["early", "late"]


def test_answers_of_one_offset_leave_in_the_order_of_decision() -> None:
    """A client that pipelines sees its answers in order."""
    gate = Gate()
    for number in range(20):
        gate.park(number, 4)
    gate.gate.advance(4)

    assert gate.released == list(range(20))


def test_what_waited_too_long_is_given_up() -> None:
    """It gets OUTCOME_UNKNOWN, and not another answer when the disk is back."""
    gate = Gate()
    gate.park("old", 5, deadline_ms=100)
    gate.park("young", 4, deadline_ms=101)

    assert gate.give_up(99) == []
    assert gate.give_up(100) == ["old"]
    gate.gate.advance(9)
    assert gate.released == ["young"]


def test_everything_is_given_up_at_the_end() -> None:
    """In the order in which it would have left."""
    gate = Gate()
    gate.park("b", 5)
    gate.park("a", 4)

    assert gate.give_up() == ["a", "b"]
    assert len(gate.gate) == 0


def test_the_log_never_goes_back() -> None:
    """An acknowledged answer can't be taken back."""
    gate = Gate()
    gate.gate.advance(5)
    with pytest.raises(AssertionError):
        gate.gate.advance(4)


@settings(max_examples=100)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("park"), st.integers(0, 20), st.integers(0, 50)),
            st.tuples(st.just("park last"), st.integers(1, 3), st.integers(0, 50)),
            st.tuples(st.just("advance"), st.integers(0, 5), st.just(0)),
            st.tuples(st.just("give up"), st.integers(0, 60), st.just(0)),
        ),
        max_size=40,
    )
)
def test_every_reply_leaves_exactly_once(steps: list[tuple[str, int, int]]) -> None:
    """Each request gets exactly one answer, whatever the disk does; and never too early."""
    gate = Gate()
    committed = 0
    wanted: dict[object, int] = {}
    given_up: list[object] = []
    for number, (what, argument, deadline_ms) in enumerate(steps):
        if what == "park":
            wanted[number] = argument
            gate.park(number, argument, deadline_ms)
        elif what == "park last":
            wanted[number] = max([committed, *wanted.values()]) + argument
            gate.park_last(number, wanted[number], deadline_ms)
        elif what == "advance":
            committed += argument
            gate.gate.advance(committed)
        else:
            given_up += gate.give_up(argument)
        assert all(wanted[name] <= committed for name in gate.released)
    assert len(gate.gate) == len(wanted) - len(gate.released) - len(given_up)
    gate.gate.advance(1_000)

    assert sorted(map(str, [*gate.released, *given_up])) == sorted(map(str, wanted))


def test_what_is_confirmed_waits_for_what_it_shows() -> None:
    """The check of the fence is quicker than the flush that it overtakes."""
    released: list[object] = []
    gate = FencedGate(released.append, iter(range(1, 9)).__next__)

    def park(name: str, until: int, deadline_ms: int = LATER_MS) -> None:
        gate.park(
            until, deadline_ms, Named(name, released), f"answer to {name}", f"member of {name}"
        )

    park("past", 3)
    park("future", 7)
    park("later", 9, deadline_ms=10)
    gate.advance(5)
    assert released == []
    gate.confirm(3)
    assert released == ["past"]
    assert len(gate) == 2
    assert [parked[2].name for parked in gate.give_up(10)] == ["later"]  # type: ignore[attr-defined]  # of a `Named`
    gate.advance(6)
    gate.advance(7)

    assert released == ["past", "future"]
    assert not len(gate)
