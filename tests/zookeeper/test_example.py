"""The example of a consumer beside those of old, over one that meets all that may happen."""

import runpy
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from client.exceptions import CoordinatorUnavailable, OutcomeUnknown, Rebalanced
from client.zookeeper import forms
from client.zookeeper.membership import Assignment
from protocol.partition import TopicPartition

EXAMPLE = Path(__file__).parents[2] / "examples" / "beside_old_consumers.py"
T0 = TopicPartition("t", 0)


class Consumer:
    """A consumer whose calls fail as they are told to; then the user presses Ctrl-C."""

    def __init__(
        self, fetches: Iterable[Exception | None], commits: Iterable[Exception | None]
    ) -> None:
        self.committed: list[int] = []
        self._fetches = iter(fetches)
        self._commits = iter(commits)

    def assignment(self) -> Assignment:
        """Return the one partition."""
        return Assignment(1, "c", (T0,), {T0: "c-0"}, ())

    def fetch(self, _: object) -> dict[TopicPartition, int]:
        """Return what was committed last."""
        if (error := next(self._fetches, None)) is not None:
            raise error
        return dict.fromkeys([T0], self.committed[-1]) if self.committed else {}

    def commit(self, offsets: dict[TopicPartition, int]) -> None:
        """Store it, or don't."""
        if (error := next(self._commits, KeyboardInterrupt())) is not None:
            raise error
        self.committed.append(offsets[T0])

    def wait_rebalance_needed(self, timeout_s: float) -> None:
        """Return at once."""


@pytest.mark.parametrize(
    ("fetches", "commits"),
    [
        ([], [Rebalanced("not this consumer's now: t-0")]),
        ([], [OutcomeUnknown("an earlier attempt was not answered")]),
        ([], [CoordinatorUnavailable("can't be reached")]),
        ([CoordinatorUnavailable("didn't answer in time")], []),
    ],
)
def test_the_example_goes_on_where_the_group_is_after_what_may_happen(
    fetches: list[Exception],
    commits: list[Exception],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A frozen process, an outage, a rebalance: none of them ends a program that people copy."""
    consumer = Consumer([None, *fetches], [None, *commits, None, None])

    @contextmanager
    def join(*_: object) -> Iterator[Consumer]:
        yield consumer

    monkeypatch.setattr(forms, "join_blocking", join)
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "zk", "g", "t"])
    runpy.run_path(str(EXAMPLE), run_name="__main__")

    assert consumer.committed == [10, 20, 30]
    assert capsys.readouterr().out.endswith("left the group\n")
