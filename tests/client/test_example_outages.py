"""The README's consumer, word for word, through outages of a whole daemon. Time is virtual."""

import re
from collections import defaultdict
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pytest
import trio
from hypothesis import given, settings, strategies as st
from trio.testing import MockClock

from client import Client
from protocol import messages as m
from tests.client.conftest import World
from tests.client.served import Restarted
from tests.fakes.scripted_server import Drop

EXAMPLE = Path(__file__).parents[2] / "examples" / "consumer.py"
END = "\n\n\ntrio.run(main)\n"
READ = re.compile(r"generation (\d+): (flights-\d) from (\d+) to \d+")
PROGRAMS = ("one", "two")


class Printed:
    """The lines of all programs, as they come."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def starts(self) -> dict[str, list[int]]:
        """Return from where each partition was read, in the order of time."""
        found: dict[str, list[int]] = defaultdict(list)
        for _, line in self.lines:
            if (match := READ.fullmatch(line)) is not None:
                found[match[2]].append(int(match[3]))
        return found

    def generations(self) -> set[int]:
        """Return in which generations something was read."""
        matches = (READ.fullmatch(line) for _, line in self.lines)
        return {int(match[1]) for match in matches if match is not None}


class Reachable(Protocol):
    """Something that a program connects to."""

    def connect(self, program: str, /) -> AbstractAsyncContextManager[Client]:
        """Connect as *program*."""


def program(name: str, here: Reachable, printed: Printed) -> dict[str, Any]:
    """Return the names of the example, which connects to *here* and prints to *printed*."""
    text = EXAMPLE.read_text()
    assert text.endswith(END)
    names: dict[str, Any] = {"__name__": name}
    exec(compile(text.removesuffix(END), str(EXAMPLE), "exec"), names)
    names["connect"] = lambda *_, **__: here.connect(name)
    names["print"] = lambda line: printed.lines.append((name, line))
    return names


async def test_the_readmes_consumers_go_on_after_ten_minutes(autojump_clock: MockClock) -> None:
    """The daemon was killed. Each goes on with what it had, without a rebalance, nothing twice."""
    printed = Printed()
    async with trio.open_nursery() as nursery:
        here = Restarted(nursery)
        await here.start()
        for name in PROGRAMS:
            nursery.start_soon(program(name, here, printed)["read"])
        await trio.sleep(30)
        last = max(printed.generations())
        await here.kill()
        await trio.sleep(1)
        before = len(printed.lines)
        await trio.sleep(600)
        assert len(printed.lines) == before
        await here.start()
        await trio.sleep(30)
        assert {name for name, _ in printed.lines[before:]} == set(PROGRAMS)
        assert max(printed.generations()) == last
        nursery.cancel_scope.cancel()

    starts = printed.starts()
    assert len(starts) == 6
    for read in starts.values():
        assert read == sorted({*read})  # Nothing twice,
        assert read == [10 * number for number in range(len(read))]  # and no gap.


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([22], "other members have these partitions by now; nothing was stored"),
        ([Drop(applied=False), 25], "other members have these partitions by now; fetch tells"),
        ([Drop(applied=True), 25], "other members have these partitions by now; fetch tells"),
    ],
)
async def test_a_consumer_that_was_removed_asks_where_the_group_is(
    autojump_clock: MockClock, world: World, steps: list[int | Drop], said: str
) -> None:
    """In doubt of its last commit, too: it may have been stored, and may not."""
    printed = Printed()
    world.server.script(m.OffsetCommitRequest, *steps)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(program("node1:9310", world, printed)["read"])
        await trio.sleep(10)
        nursery.cancel_scope.cancel()

    assert [line for _, line in printed.lines if line.startswith(said)]
    was_stored = steps == [Drop(applied=True), 25]
    read = printed.starts()["flights-0"]
    assert read[:3] == ([0, 10, 20] if was_stored else [0, 0, 10])
    assert len(printed.generations()) == 2


async def outage(here: Restarted, who: str, lasts_s: float) -> None:
    """Have the daemon killed, or one program cut off from it, for so long."""
    if who == "daemon":
        await here.kill()
        await trio.sleep(lasts_s)
        await here.start()
    else:
        here.cut(who)
        await trio.sleep(lasts_s)
        here.cut_off.discard(who)


# A moment, the end of a call's budget, of a session, and of a rebalance.
LASTS_S = st.sampled_from([0.3, 5.0, 31.0, 44.0, 46.0, 120.0])
OUTAGES = st.lists(
    st.tuples(st.sampled_from(["daemon", *PROGRAMS]), LASTS_S, st.floats(0, 12)),
    min_size=1,
    max_size=4,
)


@pytest.mark.filterwarnings("error")
@settings(max_examples=6, deadline=None)
@given(OUTAGES)
def test_no_outage_ends_a_consumer_or_has_it_skip_a_row(
    outages: list[tuple[str, float, float]],
) -> None:
    """Also where a session ended meanwhile: rows may come twice then, and none is left out."""
    printed = Printed()

    async def live() -> None:
        async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
            stack.callback(nursery.cancel_scope.cancel)
            here = Restarted(nursery)
            await here.start()
            for name in PROGRAMS:
                nursery.start_soon(program(name, here, printed)["read"])
            await trio.sleep(10)
            for who, lasts_s, pause_s in outages:
                await outage(here, who, lasts_s)
                await trio.sleep(pause_s)
            await trio.sleep(60)
            before = len(printed.lines)
            await trio.sleep(10)
            assert {name for name, _ in printed.lines[before:]} == set(PROGRAMS)

    trio.run(live, clock=MockClock(autojump_threshold=0))

    for read in printed.starts().values():
        done = 0
        for start in read:
            assert start <= done  # No gap, wherever the reader began anew.
            done = max(done, start + 10)
    if {who for who, _, _ in outages} == {"daemon"}:
        assert all(read == sorted({*read}) for read in printed.starts().values())


async def test_a_consumer_ends_in_an_outage_when_it_is_told(autojump_clock: MockClock) -> None:
    """It can't leave then, and doesn't wait for that longer than a second."""
    printed = Printed()
    async with trio.open_nursery() as nursery:
        here = Restarted(nursery)
        await here.start()
        scope = trio.CancelScope()

        async def run(read: Any) -> None:
            with scope:
                await read()

        ended = partial(run, program("one", here, printed)["read"])
        async with trio.open_nursery() as running:
            running.start_soon(ended)
            await trio.sleep(10)
            await here.kill()
            await trio.sleep(100)
            began_s = trio.current_time()
            scope.cancel()
        assert trio.current_time() - began_s < 1
        nursery.cancel_scope.cancel()
