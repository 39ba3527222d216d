"""All faults at once, for a short time; `python -m tests.soak` is the long version."""

import random
import shutil
from functools import partial
from pathlib import Path

import pytest
import trio

from client import OffsetAndMetadata, TopicPartition
from tests.fakes.tls import authority
from tests.sim.checker import check
from tests.sim.history import History
from tests.soak.accounts import Accounts
from tests.soak.identities import OnIdentities
from tests.soak.node import KILLED, Node
from tests.soak.run import connect_by, soak
from tests.soak.wires import Wires

pytestmark = pytest.mark.integration


def test_no_promise_is_broken_whatever_happens(tmp_path: Path) -> None:
    """Each fault comes at least once, to a daemon and clients that are real processes."""
    some = partial(soak, tmp_path, seconds=8, seed=1)
    report = trio.run(some)

    assert report.violations == []
    assert set(report.faults) | report.left_out == {
        *("kill -9", "SIGTERM", "pause of the daemon", "clock jump", "reload", "bad reload"),
        *("churn of connections", "hostile connection"),
        *("slow disk", "hanging disk", "write error", "full disk", "no room at all"),
        *("certificate change", "bad certificate", "stranger's certificate"),
        *("wrong credentials", "password change"),
        *("kill -9 of a client", "pause of a client", "cut connection"),
    }
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
        accounts = Accounts(tmp_path, random.Random(0))
        wires = Wires(history, accounts, nursery)
        node = Node(tmp_path, tmp_path, accounts, wires, random.Random(0))
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


async def test_who_gets_in_and_should_not_is_seen(tmp_path: Path) -> None:
    """Here a stranger's authority is trusted, and what is written down of passwords is wrong."""
    accounts = Accounts(tmp_path, random.Random(0))
    trusted = authority().cert_pem.bytes() + authority("theirs").cert_pem.bytes()
    accounts.trust_store.write_bytes(trusted)
    async with trio.open_nursery() as nursery:
        wires = Wires(History(), accounts, nursery)
        node = Node(tmp_path, tmp_path, accounts, wires, random.Random(0))
        nursery.start_soon(node.run)
        identities = OnIdentities(node, accounts, random.Random(0), 0.05)
        await identities.enroll(["alice", "bob"])
        for fault in identities.all().values():
            await fault.do()
        accounts.past.append(("alice", accounts.passwords["alice"]))
        accounts.passwords["bob"] = "another"
        await identities.check()
        await node.stop(for_good=True)
        nursery.cancel_scope.cancel()

    assert [str(one.text) for one in node.violations] == [
        "a stranger's was taken",
        "a right password was refused: that of bob",
        "a wrong password was taken: that of alice",
    ]
