"""Random histories of a whole cluster, with drivers; each must keep every promise."""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest

from coordinator.cluster.engine import Announce
from coordinator.cluster.node import ClusterNode
from coordinator.group.core import Now
from coordinator.runtime.replication import _Journal
from coordinator.runtime.shard import FencedGate, ShardRunner, Status
from protocol.errors import ErrorCode
from tests.sim.cluster_simulation import run_seed
from tests.sim.seeds import in_chunks, keep_every_promise

SEEDS: Final = int(os.environ.get("CLUSTER_SEEDS", "300"))
# More than each of the bugs takes: the rarest shows in one seed of seventy.
BUG_SEEDS_MAX: Final = 400


@in_chunks(SEEDS, 5)
def test_every_promise_holds_whatever_breaks(seeds: range) -> None:
    """Nodes and the ensemble come and go, in any mix, and nobody who is there loses anything."""
    keep_every_promise(run_seed, seeds)


def test_a_seed_replays_exactly() -> None:
    """A failure that can't be repeated can't be understood."""
    for seed in (1, 2):
        assert run_seed(seed).trace_hash == run_seed(seed).trace_hash


# --- planted bugs ---------------------------------------------------------------------------


def _answer_from_memory_at_once(patch: pytest.MonkeyPatch) -> None:
    """Another node may lead by now."""

    def park(gate: FencedGate, until: int, _deadline: int, token: Any, *rest: Any) -> None:
        gate._release((until, 0, token, *rest))

    patch.setattr(FencedGate, "park", park)


def _keep_what_is_ahead_of_the_log(patch: pytest.MonkeyPatch) -> None:
    """Who is deposed goes on with what it had decided, and replays the log on top of it."""

    def drop(runner: ShardRunner[Any], now: Now, _doubtful_offset: int = 0) -> None:
        runner.status = Status.CLOSED
        runner.unloads += 1
        runner._fail(runner.gate.give_up(), ErrorCode.OUTCOME_UNKNOWN, now)
        for outcomes in runner.core.rest(lambda: now):
            runner._leave(outcomes, now)

    patch.setattr(ShardRunner, "drop", drop)


def _let_sessions_run_while_nobody_is_heard(patch: pytest.MonkeyPatch) -> None:
    """A member has said that it is there, and nothing came of that."""

    def resume(runner: ShardRunner[Any], _after_ms: int) -> None:
        if runner.status in {Status.SUSPENDED, Status.CUT_OFF}:
            runner.status = Status.ACTIVE
            runner._services.deadline_may_be_earlier(runner.core.next_deadline_ms())

    patch.setattr(ShardRunner, "resume", resume)


def _believe_what_is_registered(patch: pytest.MonkeyPatch) -> None:
    """What a former life asked for arrives late: nobody can lead any more in its name."""

    def announce(node: ClusterNode) -> None:
        is_ready = node.is_ready and not node._is_draining
        if node._registered is not None and node._registered.is_ready != is_ready:
            node._registered = replace(node._registered, is_ready=is_ready)
            node._send(Announce(node._registered))

    patch.setattr(ClusterNode, "_announce", announce)
    register = ClusterNode._register

    def register_once(node: ClusterNode) -> None:
        """Don't mend it either, where the registration ends with the former life's session."""
        if node._me is None:
            register(node)

    patch.setattr(ClusterNode, "_register", register_once)


def _miss_a_batch(patch: pytest.MonkeyPatch) -> None:
    """One that follows skips something."""
    replay = _Journal._replay

    async def skipping(journal: _Journal, batches: Any) -> int:
        taken = [batch for batch in batches if batch.base_offset % 5 != 3]
        return await replay(journal, taken)

    patch.setattr(_Journal, "_replay", skipping)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("plant", "only", "noticed"),
    [
        (_answer_from_memory_at_once, ("_freeze", "_cut_off"), ("I1", "I3", "I5", "I7")),
        (_keep_what_is_ahead_of_the_log, ("_deafen",), ("I11",)),
        (_let_sessions_run_while_nobody_is_heard, ("_take_ensemble_away",), ("evicted",)),
        (_believe_what_is_registered, ("_stop",), ("the run failed",)),
        (_miss_a_batch, ("_kill",), ("I",)),
    ],
    ids=lambda value: getattr(value, "__name__", None) and value.__name__.strip("_"),
)
def test_the_simulation_notices(
    plant: Callable[[pytest.MonkeyPatch], None],
    only: tuple[str, ...],
    noticed: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A simulation that doesn't notice what breaks a promise proves nothing."""
    plant(monkeypatch)
    for seed in range(1, BUG_SEEDS_MAX + 1):
        if any(v.invariant.startswith(noticed) for v in run_seed(seed, only=only).violations):
            return
    pytest.fail(f"{BUG_SEEDS_MAX} seeds did not notice")
