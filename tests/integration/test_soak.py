"""All faults at once, for a short time; `python -m tests.soak` is the long version."""

import random
import shutil
from functools import partial
from pathlib import Path

import pytest
import trio

from client import OffsetAndMetadata, TopicPartition
from tests.sim.checker import check
from tests.sim.history import History
from tests.soak.node import KILLED, Node
from tests.soak.run import connect_by, soak
from tests.soak.wires import Wires

pytestmark = pytest.mark.integration


def test_no_promise_is_broken_whatever_happens(tmp_path: Path) -> None:
    """Each fault comes at least once, to a daemon and clients that are real processes."""
    some = partial(soak, tmp_path, seconds=8, seed=1)
    report = trio.run(some)

    assert report.violations == []
    assert report.faults["kill -9"] >= 1
    assert report.faults["kill -9 of a client"] >= 1
    assert report.acknowledged >= 10
    assert report.claims >= 10
    assert list(report.lines())


@pytest.mark.parametrize("may_end", [True, False])
async def test_a_lost_commit_and_an_end_without_a_reason_are_seen(
    tmp_path: Path, *, may_end: bool
) -> None:
    """A soak that would not notice is half an hour of heat: here the folder goes with a kill."""
    history = History()
    async with trio.open_nursery() as nursery:
        wires = Wires(history, nursery)
        node = Node(tmp_path, tmp_path, wires, random.Random(0))
        nursery.start_soon(node.run)
        daemon = await node.serving()
        connected = partial(connect_by, await wires.port_for("one"), "one")
        async with connected() as client:
            await client.commit("g", {TopicPartition("t", 0): OffsetAndMetadata(7)})
        with node.may_end(*[KILLED][: 1 if may_end else 0]):
            shutil.rmtree(node.data)
            daemon.process.kill()
            await node.ended(node.lives)
        await node.serving()
        async with connected() as client:
            assert await client.fetch_offsets("g") == {}
        await node.stop(for_good=True)
        nursery.cancel_scope.cancel()

    assert [one.invariant for one in check(history)] == ["I1/I2 lost"]
    assert [one.invariant for one in node.violations] == [] if may_end else ["end"]
