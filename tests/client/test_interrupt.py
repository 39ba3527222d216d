"""Press Ctrl-C at every line of the client. The group is left, and nothing is said or leaks."""

import gc
import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import client
from protocol import messages as m
from tests.client.conftest import World
from tests.client.test_cancel import a_life, script_trouble, settle
from tests.fakes.scripted_server import ScriptedServer

PACKAGE = str(Path(client.__file__).parent)


class InterruptAtLine:
    """Send SIGINT to this process when the client is at its *line*-th line."""

    def __init__(self, line: int) -> None:
        self.left = line

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Count in the block."""
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(before)

    def _trace(self, frame: FrameType, event: str, _arg: object) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                signal.raise_signal(signal.SIGINT)
        return self._trace


async def live(interrupt: InterruptAtLine, seen: list[ScriptedServer], *, troubled: bool) -> None:
    """Lead a client's life, and leave the server that saw it in *seen*."""
    async with trio.open_nursery() as nursery:
        world = World(nursery)
        seen.append(world.server)
        if troubled:
            script_trouble(world.server)
        try:
            with interrupt.tracing():
                async with world.connect() as one:
                    await a_life(one)
        finally:
            await settle()
            nursery.cancel_scope.cancel()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("troubled", [False, True], ids=["smooth", "troubled"])
@pytest.mark.parametrize("stride", [97, pytest.param(1, marks=pytest.mark.nightly)])
def test_ctrl_c_anywhere_leaves_the_group_without_a_word(
    caplog: pytest.LogCaptureFixture, *, troubled: bool, stride: int
) -> None:
    """It comes when it wants: also while a task of the client's own runs."""
    caplog.set_level(logging.ERROR if troubled else logging.WARNING)
    for line in count(stride, stride):
        interrupt = InterruptAtLine(line)
        seen: list[ScriptedServer] = []
        life = partial(live, interrupt, seen, troubled=troubled)
        try:
            trio.run(life, clock=MockClock(autojump_threshold=0))
        except* KeyboardInterrupt:
            assert interrupt.left <= 0
        gc.collect()

        [server] = seen
        joins = server.requests(m.SyncGroupRequest)
        assert server.open_connections == 0, line
        assert not joins or len(server.requests(m.LeaveGroupRequest)) == 1, line
        assert caplog.messages == [], line
        if interrupt.left > 0:  # The life was shorter.
            break
