"""What goes wrong, and when."""

import errno
from collections.abc import Sequence

import trio

from coordinator.runtime.calls import Call
from protocol.messages import CompactLogRequest, Response
from tests.sim.workload import Driver
from tests.sim.world import World


class Unheard(Call):
    """A request whose sender doesn't wait for the answer."""

    def prepare(self, answer: Response, leader_epoch: int, error: int | None = None) -> None:
        """Pack nothing."""

    def send(self, prepared: None) -> None:
        """Drop the answer."""


class Nemesis:
    """Breaks things at random until it heals everything."""

    def __init__(self, world: World, drivers: list[Driver], only: Sequence[str]) -> None:
        self.world = world
        self._drivers = drivers
        self._rng = world.rng("nemesis")
        self._faults = [
            self._kill,
            self._power_cut,
            self._crash_in_disk_operation,
            self._fail_disk_operation,
            self._stop_cleanly,
            self._reset_client,
            self._reset_all,
            self._cut_off_client,
            self._crash_driver,
            self._slow_disk,
            self._stall,
            self._shift_wall_clock,
            self._worse_weather,
            self._compact,
            self._crash_in_compaction,
            self._move_partition,
        ]
        self._only = only

    async def run(self, duration_s: float) -> None:
        """Break things for *duration_s*, then heal."""
        world, rng = self.world, self._rng
        # A run with a few kinds of faults goes deeper into each than one with all of them.
        chosen = rng.sample(self._faults, rng.randint(2, 5))
        if self._only:
            chosen = [fault for fault in self._faults if fault.__name__ in self._only]
        end_s = trio.current_time() + duration_s
        while trio.current_time() < end_s:
            await trio.sleep(rng.expovariate(1 / 3))
            fault = rng.choice(chosen)
            world.history.note("fault", fault.__name__)
            await fault()
        await self.heal()

    async def heal(self) -> None:
        """Undo everything and bring the server up."""
        world = self.world
        world.history.note("healed")
        world.healed = True
        world.disk.plan()
        world.disk_delay_s = 0.001
        world.network.calm()
        for driver in self._drivers:
            world.network.reconnect(driver.name)
        await world.ensure_server()

    async def _down_for_a_while(self) -> None:
        await trio.sleep(self._rng.choice((0, 0.1, 1, 4)))
        await self.world.start_until_up()

    async def _gather_unwritten(self) -> None:
        """Let much wait for the disk: that is what an end without warning is about."""
        if self._rng.random() < 0.6:
            self.world.disk_delay_s = 4.0
            await trio.sleep(self._rng.uniform(0, 2))
            self.world.disk_delay_s = self.world.usual_disk_delay_s

    async def _kill(self) -> None:
        await self._gather_unwritten()
        self.world.kill(self.world.process, power=False)
        await self._down_for_a_while()

    async def _power_cut(self) -> None:
        await self._gather_unwritten()
        self.world.kill(self.world.process, power=True)
        await self._down_for_a_while()

    async def _crash_in_disk_operation(self) -> None:
        world = self.world
        world.disk.plan(crash_at=self._rng.randint(0, 8))
        await trio.sleep(self._rng.uniform(0.5, 3))
        world.kill(world.process, power=True)  # If it had nothing to write.
        await self._down_for_a_while()

    async def _compact(self) -> None:
        process = self.world.process
        if process is not None:
            process.node.compact(Unheard(CompactLogRequest()))

    async def _crash_in_compaction(self) -> None:
        """In the work itself, or in the swap, or just behind it."""
        await self._compact()
        self.world.disk.plan(crash_at=self._rng.randint(0, 60))
        await trio.sleep(self._rng.uniform(0.5, 3))
        self.world.kill(self.world.process, power=True)
        await self._down_for_a_while()

    async def _fail_disk_operation(self) -> None:
        world, rng = self.world, self._rng
        error = rng.choice((errno.EIO, errno.ENOSPC))
        world.disk.plan(fail_at=rng.randint(0, 8), error=error)
        await trio.sleep(rng.uniform(0.5, 3))
        world.kill(world.process, power=rng.random() < 0.5)
        await self._down_for_a_while()

    async def _stop_cleanly(self) -> None:
        await self.world.stop_cleanly()
        await self._down_for_a_while()

    async def _reset_client(self) -> None:
        self.world.network.reset_some(self._rng.choice(self._drivers).name)

    async def _reset_all(self) -> None:
        self.world.network.reset_some(None)

    async def _cut_off_client(self) -> None:
        driver = self._rng.choice(self._drivers)
        self.world.network.cut_off(driver.name)
        await trio.sleep(self._rng.uniform(0, 12))
        self.world.network.reconnect(driver.name)

    async def _crash_driver(self) -> None:
        self._rng.choice(self._drivers).crash()

    async def _slow_disk(self) -> None:
        self.world.disk_delay_s = self._rng.choice((0.1, 0.5, 3.0))
        await trio.sleep(self._rng.uniform(0, 6))
        self.world.disk_delay_s = self.world.usual_disk_delay_s

    async def _stall(self) -> None:
        """The whole machine stands still: everybody's deadlines pass at once."""
        self.world.clock.jump(self._rng.uniform(0.3, 20))

    async def _shift_wall_clock(self) -> None:
        self.world.wall_shift_ms += self._rng.randint(-3_600_000, 3_600_000)

    async def _move_partition(self) -> None:
        """An election takes a partition away and gives it back, perhaps twice in a row."""
        world, rng = self.world, self._rng
        process = world.process
        if process is None or not process.node.started:
            return
        partition = rng.randrange(len(process.node.shards))
        for _ in range(rng.randint(1, 2)):
            if world.process is not process or process.node.draining:
                return
            process.node.unload(partition)
            await trio.sleep(rng.choice((0, 0.1, 1)))
            if world.process is not process or process.node.draining:
                return
            process.load_partition(partition)
            await trio.sleep(rng.choice((0, 0.01, 0.5)))

    async def _worse_weather(self) -> None:
        weather, rng = self.world.network.weather, self._rng
        weather.slow_chance = rng.choice((0.0, 0.02, 0.2))
        weather.slow_s = rng.choice((0.2, 2.0, 8.0))
        weather.split_chance = rng.choice((0.0, 0.3, 1.0))
        weather.partial_send_chance = rng.choice((0.0, 0.3, 0.9))
