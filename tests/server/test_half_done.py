"""A bug in a decision: what it had changed before is in the log, and nothing twice."""

from functools import partial

import pytest
import trio.testing
from trio.testing import MockClock

from coordinator.group import admin
from coordinator.group.core import Core, Now, Outcome, Step
from protocol import messages as m
from protocol.errors import ErrorCode
from protocol.group_ids import offsets_partition
from tests.fakes.disk import Disk
from tests.server.world import commit, world

PARTITION = offsets_partition("g", 4)
REGISTRATION = m.RegisterTopicsRequest(
    (m.TopicRegistration("t", 1, None), m.TopicRegistration("u", 1, None))
)


async def test_what_a_decision_that_raised_had_changed_is_logged(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory must not be ahead of the log, whoever asked for the decision."""
    disk = Disk()
    async with world(disk=disk) as w:
        client = w.connect()
        await client.ask(REGISTRATION)
        assert 0 == await client.error(commit(5))
        assert 0 == await client.error(commit(5, group_id="kept"))

        def delete_and_fail(core: Core, group_id: str, now: Now) -> tuple[Outcome, int]:
            delete(core, group_id, now)
            raise RuntimeError

        def fail(*_: object, **__: object) -> None:
            raise RuntimeError

        delete = admin.delete
        monkeypatch.setattr(admin, "delete", delete_and_fail)
        broken = w.connect()
        assert ErrorCode.UNKNOWN_SERVER_ERROR == await broken.error(m.DeleteGroupsRequest(("g",)))
        await client.ask(m.DeleteTopicsRequest(("u",)))
        monkeypatch.setattr(Step, "event", fail)
        forget = partial(w.node.registry.core.forget, ["u"])
        with pytest.raises(RuntimeError):
            w.node.registry.change(forget, w.node.now())
        # Nothing of a decision before is logged again.
        monkeypatch.setattr(admin, "delete", fail)
        end = w.journal.end_offset(PARTITION)
        await w.connect().error(m.DeleteGroupsRequest(("g",)))
        assert end == w.journal.end_offset(PARTITION)
        await trio.testing.wait_all_tasks_blocked()
        states = [shard.core.hard_state() for shard in w.node.shards]
    disk.kill()

    async with world(disk=disk) as w:
        assert states == [shard.core.hard_state() for shard in w.node.shards]
        assert ["t"] == list(w.node.registry.core.registry.topics)
