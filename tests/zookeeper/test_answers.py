"""How soon kazoo's loop notices a dead connection, with what the client adds to it."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest

from client.zookeeper.ensemble import Answers

SESSION_S = 6.0
SERVER, REQUESTS = "server", "requests"


class Loop:
    """kazoo's loop over one connection, with the times of requests, and of the link's end.

    The loop sends a ping a third of the timeout after the last thing sent, takes each request for
    a ping, and ends where nothing happens while a ping is outstanding.
    """

    def __init__(self, requests_s: Sequence[float], dead_s: float, answer_s: float) -> None:
        self.now_s = 0.0
        self.heard_s = 0.0  # By the server.
        self.is_ping_outstanding = False
        self._requests_s = list(requests_s)
        self._answers_s: list[float] = []
        self._dead_s = dead_s
        self._answer_s = answer_s

    def clock(self) -> float:
        """Return the time."""
        return self.now_s

    def select(self, reads: Sequence[str], _w: object, _x: object, timeout_s: float) -> Any:
        """Wait for an answer, a request, or the end of the time."""
        at_s = min([*self._answers_s[:1], *self._requests_s[:1], self.now_s + timeout_s])
        self.now_s = max(self.now_s, at_s)
        ready = [
            one
            for one, due_s in ((SERVER, self._answers_s), (REQUESTS, self._requests_s))
            if due_s and due_s[0] <= self.now_s
        ]
        return ready, [], []

    def run(self, select: Callable[..., Any], end_s: float) -> float:
        """Return when the connection ends; *end_s* if it doesn't."""
        sent_s = 0.0
        while self.now_s < end_s:
            deadline_s = sent_s + SESSION_S / 3
            try:
                ready = select([SERVER, REQUESTS], [], [], max(deadline_s - self.now_s, 0.01))[0]
            except OSError:
                return self.now_s
            if not ready and self.is_ping_outstanding:
                return self.now_s
            if SERVER in ready:
                self._answers_s.pop(0)
                self.is_ping_outstanding = False
            if REQUESTS in ready:
                self._requests_s.pop(0)
                sent_s = self._send()
            elif self.now_s >= deadline_s:
                self.is_ping_outstanding = True
                sent_s = self._send()
        return end_s

    def _send(self) -> float:
        if self.now_s < self._dead_s:
            self.heard_s = self.now_s
            if self.now_s + self._answer_s < self._dead_s:
                self._answers_s.append(self.now_s + self._answer_s)
        return self.now_s


def lateness_s(seed: int, *, attended: bool) -> float:
    """Return how long after the last thing that the server has heard the connection ends."""
    random = Random(seed)
    gap_s = random.choice([0.05, 0.5, 1.0, 1.9, 5.0])
    requests_s, at_s = [], 0.0
    while at_s < 60:
        at_s += random.uniform(0, 2 * gap_s)
        requests_s.append(at_s)
    loop = Loop(requests_s, random.uniform(1, 20), random.uniform(0.001, 0.5))
    answers = Answers(loop.select, lambda: loop.is_ping_outstanding, loop.clock)
    answers.connected(SESSION_S)
    return loop.run(answers.select if attended else loop.select, 60) - loop.heard_s


def test_a_dead_connection_is_noticed_within_two_thirds_of_the_session() -> None:
    """However often a program asks: partitions count as lost a sixth after that."""
    for seed in range(3_000):
        assert lateness_s(seed, attended=True) <= SESSION_S * 2 / 3 + 0.02, seed


def test_kazoo_alone_may_notice_it_after_the_end_of_the_session() -> None:
    """A model that finds nothing proves nothing."""
    assert max(lateness_s(seed, attended=False) for seed in range(300)) > SESSION_S


def test_an_overdue_answer_ends_only_the_connection_that_it_is_of() -> None:
    """The next one begins with nothing outstanding, and with what its server grants."""
    now_s = 0.0
    ready: list[str] = [REQUESTS]
    waited_s: list[float] = []

    def select(_r: object, _w: object, _x: object, timeout_s: float) -> Any:
        waited_s.append(timeout_s)
        return ready, [], []

    def wait() -> object:
        return answers.select([SERVER, REQUESTS], [], [], 1.5)

    answers = Answers(select, lambda: False, lambda: now_s)
    answers.connected(6.0)
    wait()
    now_s = 1.0
    wait()
    now_s = 2.0
    with pytest.raises(OSError, match="overdue"):
        wait()
    answers.connected(3.0)
    wait()
    now_s = 2.9
    wait()
    assert waited_s == pytest.approx([1.5, 1.0, 0.0, 1.5, 0.1])
    answers.select([SERVER], [], [], 9.0)  # In the middle of a message kazoo looks itself.
    assert waited_s[-1] == 9.0


def test_an_answer_that_has_come_is_read_however_late_it_is_looked_for() -> None:
    """A program that was frozen, or had no processor, looks late; its server has answered."""
    now_s = 0.0
    ready: list[str] = [REQUESTS]

    def select(_r: object, _w: object, _x: object, _timeout_s: float) -> Any:
        return ready, [], []

    answers = Answers(select, lambda: False, lambda: now_s)
    answers.connected(6.0)
    answers.select([SERVER, REQUESTS], [], [], 1.5)
    now_s = 5.0
    ready = [SERVER]
    assert answers.select([SERVER, REQUESTS], [], [], 1.5) == ([SERVER], [], [])
    ready = []
    answers.select([SERVER, REQUESTS], [], [], 1.5)  # Nothing is asked now.
