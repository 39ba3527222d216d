"""`/livez` and `/readyz`: what is wrong, since when, and who is told so."""

from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from coordinator.http import health
from coordinator.runtime.health import Check, Load, status_of
from tests.fakes.disk import Disk
from tests.http.asking import Asking, body
from tests.server.world import World, commit, world

PARTS = ["loading", "disk", "storage", "compaction", "stopping"]


async def readiness(w: World, query: str = "") -> tuple[int, str, dict[str, dict[str, Any]]]:
    """Return the status of the answer, the word in it, and the checks by part."""
    answer = await Asking(health.operations(w.node)).answer("/readyz" + query)
    told = body(answer)
    assert [check["part"] for check in told["checks"]] == PARTS
    return answer.status, told["status"], {check["part"]: check for check in told["checks"]}


async def test_a_node_that_serves_everything_is_ready(autojump_clock: MockClock) -> None:
    """The only answer by which a balancer sends requests."""
    async with world() as w:
        status, word, checks = await readiness(w)

        assert (200, "ready") == (status, word)
        assert checks["disk"] == {"part": "disk", "ok": True, "reason": None, "since": None}


async def test_a_node_that_loads_says_how_far_it_is(autojump_clock: MockClock) -> None:
    """Whoever waits for it wants to know for how long."""
    async with world(load=False) as w:
        await trio.sleep(60)
        w.wall_ms += 60_000
        status, word, checks = await readiness(w)
        w.wall_ms += 60_000
        _, _, later = await readiness(w)

        assert (503, "loading") == (status, word)
        assert checks["loading"]["done"] == 0
        assert "0 % of the log: 0 of 5 partitions, 0 entries" == checks["loading"]["reason"]
        assert "2023-11-14T22:13:20Z" == later["loading"]["since"]


def test_a_load_is_told_in_words() -> None:
    """Of millions of entries nobody counts the digits."""
    assert "41 % of the log: 20 of 51 partitions, 3,120,000 entries" == str(
        Load(41, 100, 3_120_000, 51, 20, 0)
    )


async def test_a_partition_that_could_not_be_loaded_is_no_load(autojump_clock: MockClock) -> None:
    """Waiting does not help there; a person has to look."""
    async with world() as w:
        w.node.unload(2)
        _, unloaded, _ = await readiness(w)
        w.node.health.report("loading", "partition 2 can't be loaded: damaged")
        status, word, checks = await readiness(w)

        assert "loading" == unloaded
        assert (503, "unhealthy") == (status, word)
        assert "done" not in checks["loading"]


async def test_a_disk_that_hangs_is_told_once_commits_are_given_up(
    autojump_clock: MockClock,
) -> None:
    """Its clients get "unknown" from then on."""
    async with world() as w:
        w.slow_disk.hold()
        w.connect().send(commit(1))
        await trio.sleep(4.9)
        w.wall_ms += 4_900
        before, _, _ = await readiness(w)
        await trio.sleep(0.3)
        w.wall_ms += 300
        status, word, checks = await readiness(w)
        w.slow_disk.let_go()
        await trio.testing.wait_all_tasks_blocked()
        after, _, _ = await readiness(w)

        assert (200, 503, 200) == (before, status, after)
        assert "unhealthy" == word
        assert "2023-11-14T22:13:20Z" == checks["disk"]["since"]
        assert str(checks["disk"]["reason"]).startswith("a flush has been on its way for 5.2 s")


async def test_a_full_disk_is_told_within_a_second_and_over_when_it_has_room(
    autojump_clock: MockClock,
) -> None:
    """New offsets are refused meanwhile."""
    disk = Disk()
    async with world("storage.reserve.bytes=1000", disk=disk) as w:
        disk.free_bytes = 999
        await trio.sleep(1)
        status, word, checks = await readiness(w)
        w.wall_ms += 60_000
        await trio.sleep(1)
        _, _, later = await readiness(w)
        disk.free_bytes = 1_000_000_000
        await trio.sleep(1)
        after, _, _ = await readiness(w)

        assert (503, "unhealthy", 200) == (status, word, after)
        assert str(checks["storage"]["reason"]).startswith(
            "the disk's reserve is reached: 0 MB of its 1099511 MB are to stay free "
            "(storage.reserve.bytes is 1000): new offsets are refused"
        )
        assert checks["storage"]["since"] == later["storage"]["since"]


async def test_a_volume_that_is_too_small_names_the_number_and_the_settings(
    autojump_clock: MockClock,
) -> None:
    """A new daemon on it refuses everything, and its owner has set nothing."""
    disk = Disk(total_bytes=100_000_000)
    async with world("storage.reserve.bytes=-1", disk=disk) as w:
        await trio.sleep(1)
        _, _, checks = await readiness(w)

        assert checks["storage"]["reason"] == (
            "the disk's reserve is reached: 209 MB of its 100 MB are to stay free "
            "(storage.reserve.bytes is -1: 5 % of the disk, or the log and two segments of "
            "offsets.topic.segment.bytes): new offsets are refused; generations and assignments, "
            "too, as half of what was left is used up"
        )


async def test_a_failed_compaction_is_told(autojump_clock: MockClock) -> None:
    """The log grows until somebody looks."""
    async with world() as w:
        w.node.health.report("compaction", "the compaction process was killed by signal 9")
        status, word, checks = await readiness(w)

        assert (503, "unhealthy") == (status, word)
        assert "the compaction process was killed by signal 9" == checks["compaction"]["reason"]


async def test_a_node_that_stops_says_nothing_else(autojump_clock: MockClock) -> None:
    """Its partitions are closed, but nothing is being loaded."""
    async with world() as w:
        await w.node.drain()
        status, word, checks = await readiness(w)

        assert (503, "stopping") == (status, word)
        assert checks["loading"]["ok"]


async def test_a_part_that_is_left_out_is_listed_all_the_same(autojump_clock: MockClock) -> None:
    """A reader can do without new offsets, and its operator still wants to see."""
    async with world() as w:
        w.node.health.report("storage", "full")
        w.node.health.report("compaction", "died")

        one, _, _ = await readiness(w, "?exclude=storage")
        both, word, checks = await readiness(w, "?exclude=storage&exclude=compaction")

        assert (503, 200, "ready") == (one, both, word)
        assert not checks["storage"]["ok"]


async def test_a_part_that_there_is_not_is_refused(autojump_clock: MockClock) -> None:
    """A slip of the pen in a probe would else hide nothing, for ever."""
    async with world() as w:
        refused = await Asking(health.operations(w.node)).refused("/readyz?exclude=storag")

        assert 400 == refused.status
        assert "storage" in refused.detail


@pytest.mark.parametrize("query", ["", "?verbose"])
async def test_a_node_is_alive_whatever_is_wrong_with_it(
    query: str, autojump_clock: MockClock
) -> None:
    """Starting it anew would make a load, or a full disk, only worse."""
    async with world(load=False) as w:
        w.node.health.report("storage", "full")
        answer = await Asking(health.operations(w.node)).answer("/livez" + query)

        assert 200 == answer.status
        assert {"status": "alive"} == body(answer)
        assert {"Cache-Control": "no-store"} == answer.headers


@pytest.mark.parametrize(
    ("wrong", "status"),
    [
        ({}, "ready"),
        ({"loading": 0.4}, "loading"),
        ({"loading": 0.4, "disk": None}, "unhealthy"),
        ({"loading": None}, "unhealthy"),
        ({"storage": None}, "unhealthy"),
        ({"storage": None, "stopping": None}, "stopping"),
    ],
)
def test_all_checks_in_one_word(wrong: dict[str, float | None], status: str) -> None:
    """What a person must look at comes before what passes by itself."""
    checks = tuple(Check(part, part not in wrong, done=wrong.get(part)) for part in PARTS)

    assert status == status_of(checks)
