"""The commits of a member: at once, of what was stored, and through a rebalance."""

import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack

import trio

from client.actions import Action, State
from client.exceptions import (
    ClientClosed,
    CommitRefused,
    CoordinatorError,
    CoordinatorUnavailable,
    FatalError,
    MemberLost,
    Rebalanced,
)
from client.membership import Membership
from client.offset_calls import OffsetCalls
from client.offsets import commit_request
from client.stored import StoredOffsets
from client.turns import Turns
from client.types import Offsets
from protocol.types import TopicPartition

logger = logging.getLogger(__name__)


class Commits:
    """What `client.member.Member` needs to commit.

    Args:
        machine: The member's machine.
        offset_calls: Sends them.
        request_timeout_ms: How long a commit tries without a word about it.
        do: Does what the machine asks for.
        wait_changed: Returns when something has happened to the machine.
        auto: Whether stored offsets are committed without being asked for it.

    """

    def __init__(
        self,
        machine: Membership,
        offset_calls: OffsetCalls,
        *,
        request_timeout_ms: int,
        do: Callable[[list[Action]], None],
        wait_changed: Callable[[], Awaitable[None]],
        auto: bool,
    ) -> None:
        self._machine = machine
        self._offset_calls = offset_calls
        self._request_timeout_ms = request_timeout_ms
        self._do = do
        self._wait_changed = wait_changed
        self._auto = auto
        self._stored = StoredOffsets()
        self._turns = Turns()

    def store(self, offsets: Offsets) -> None:
        """See `client.member.Member.store`."""
        machine = self._machine
        if machine.lost:
            raise why_lost(machine)
        if strangers := offsets.keys() - frozenset(machine.usable):
            listed = ", ".join(map(str, sorted(strangers)))
            raise Rebalanced(f"not this member's (any more), and not stored: {listed}")
        self._stored.store(offsets)

    async def commit(
        self,
        offsets: Offsets,
        expected: Mapping[TopicPartition, int] | None,
        timeout_ms: int | None,
    ) -> None:
        """Commit *offsets*; they stand for what was stored of these partitions before."""
        if self._machine.lost:
            raise why_lost(self._machine)
        self._stored.forget(offsets)
        await self._commit(offsets, expected, timeout_ms)

    async def commit_stored(
        self, partitions: tuple[TopicPartition, ...], timeout_ms: int | None
    ) -> None:
        """Commit what is stored of *partitions*."""
        if self._machine.lost:
            raise why_lost(self._machine)
        offsets = self._stored.pending(partitions)
        if not offsets:
            return
        try:
            await self._commit(offsets, None, timeout_ms)
        except CommitRefused as exc:
            self._stored.refused(offsets, exc)
            raise
        self._stored.committed(offsets)

    async def give_up(
        self, partitions: tuple[TopicPartition, ...], timeout_ms: int | None = None
    ) -> None:
        """Commit what is stored of *partitions*, if auto-commit is on, before they go.

        Raises:
            CoordinatorError: It may well succeed a little later.
        """
        if not self._auto or self._machine.lost:
            return
        try:
            await self.commit_stored(partitions, timeout_ms)
        except Rebalanced:
            pass  # They are gone already.
        except (CommitRefused, FatalError) as exc:
            logger.warning("before partitions were given up: %s", exc)

    def forget(self, partitions: tuple[TopicPartition, ...]) -> None:
        """Drop what was stored of partitions that are no longer this member's."""
        self._stored.forget(partitions)

    async def run_auto_commit(self, interval_ms: int) -> None:
        """Commit what is stored every *interval_ms*, for ever."""
        while True:
            await trio.sleep(interval_ms / 1000)
            if self._machine.lost:
                continue
            try:
                await self.commit_stored(self._machine.usable, None)
            except Rebalanced:
                pass  # The next `assignment` tells the caller.
            except CoordinatorError as exc:
                logger.warning("auto-commit in group %r: %s", self._machine.config.group_id, exc)

    async def _commit(
        self,
        offsets: Offsets,
        expected: Mapping[TopicPartition, int] | None,
        timeout_ms: int | None,
    ) -> None:
        if self._machine.config.cooperative:
            timeout_ms = self._request_timeout_ms if timeout_ms is None else timeout_ms
            await self._commit_through(offsets, expected, trio.current_time() + timeout_ms / 1000)
        else:
            await self._send(offsets, expected, timeout_ms)

    async def _commit_through(
        self,
        offsets: Offsets,
        expected: Mapping[TopicPartition, int] | None,
        deadline_s: float,
    ) -> None:
        """Commit also while the group rebalances, repeated in the new generation if need be."""
        machine = self._machine
        usable = machine.usable
        refusal: Rebalanced | None = None
        refused_in: int | None = None
        async with AsyncExitStack() as turn:
            # The repetition of an older commit must not overtake a newer one.
            with trio.move_on_at(deadline_s) as waiting:
                await turn.enter_async_context(self._turns.turn(offsets))
            if waiting.cancelled_caught:
                raise CoordinatorUnavailable("an earlier commit of the same partitions goes on")
            while True:
                await self._wait_for_generation(refused_in, deadline_s)
                if machine.lost:
                    raise why_lost(machine)
                if refusal and machine.generation == refused_in:
                    raise refusal
                if gone := _not_kept(offsets, usable, machine.usable):
                    listed = ", ".join(map(str, sorted(gone)))
                    raise refusal or Rebalanced(f"given up meanwhile; nothing was stored: {listed}")
                refused_in = machine.generation
                try:
                    left_ms = math.ceil((deadline_s - trio.current_time()) * 1000)
                    await self._send(offsets, expected, left_ms)
                except MemberLost:
                    raise
                except Rebalanced as exc:
                    refusal = exc
                else:
                    return

    async def _wait_for_generation(self, refused_in: int | None, deadline_s: float) -> None:
        """Wait while no generation can be committed in, the one that was refused included."""
        machine = self._machine
        with trio.move_on_at(deadline_s) as scope:
            while machine.state is State.SYNCING or (
                machine.state is State.JOINING and machine.generation == refused_in
            ):
                await self._wait_changed()
        if scope.cancelled_caught:
            raise CoordinatorUnavailable("the group's rebalance goes on; nothing was stored")

    async def _send(
        self,
        offsets: Offsets,
        expected: Mapping[TopicPartition, int] | None,
        timeout_ms: int | None,
    ) -> None:
        machine = self._machine
        config, generation, member_id = machine.config, machine.generation, machine.member_id
        request = commit_request(
            config.group_id, generation, member_id, config.group_instance_id, offsets, expected
        )
        try:
            await self._offset_calls.commit(request, timeout_ms)
        except CoordinatorError as exc:
            if exc.group_code is not None:
                self._do(machine.observe(exc.group_code, generation, member_id, exc.group_message))
            raise


def _not_kept(
    offsets: Offsets, before: tuple[TopicPartition, ...], now: tuple[TopicPartition, ...]
) -> set[TopicPartition]:
    """Return which partitions of *offsets* are of those *before*, and not of those *now*."""
    return set() if now == before else offsets.keys() & frozenset(before).difference(now)


def why_lost(machine: Membership) -> CoordinatorError:
    """Return what to raise where *machine* has nothing to commit."""
    because = f": {machine.gone_because}" if machine.gone_because else ""
    match machine.state:
        case State.LEFT:
            return ClientClosed("this member has left the group")
        case State.FAILED:
            assert machine.failure is not None
            return machine.failure
        case State.STABLE if not machine.member_id:
            return MemberLost(f"the group removed this member; nothing was stored{because}")
        case _:
            return Rebalanced(f"this member has no assignment now; nothing was stored{because}")
