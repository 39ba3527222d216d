"""Commits through one of the client's forms, as a process: ``python -m bench.client_load PLAN``."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import trio
import uvloop

from bench.measures import NS_PER_S, latency_of
from bench.processes import run_plan
from client import aio, api
from protocol.partition import TopicPartition

TRIO, ASYNCIO, UVLOOP = "trio", "asyncio", "uvloop"
_T0: Final = TopicPartition("bench", 0)


@dataclass(frozen=True)
class ClientPlan:
    """So many tasks share a client; each commits one partition of a group of its own."""

    host: str
    port: int
    form: str
    tasks: int
    warmup_s: float
    duration_s: float


@dataclass
class Load:
    """The tasks of one plan, and what they measured; knows nothing of event loops."""

    plan: ClientPlan
    client: api.Client | aio.Client

    def __post_init__(self) -> None:
        """Nothing was committed yet."""
        self.committed = [0] * self.plan.tasks
        self.latencies_ns: list[int] = []

    async def commit_until(self, end_ns: int, number: int) -> None:
        """Commit one offset after the other, as task *number*."""
        group = f"{self.plan.form}-{self.plan.tasks}-{number}"
        while (began_ns := time.perf_counter_ns()) < end_ns:
            offset = self.committed[number] + 1
            await self.client.commit(group, {_T0: offset})
            self.committed[number] = offset
            self.latencies_ns.append(time.perf_counter_ns() - began_ns)

    async def wrong(self) -> int:
        """Return how many groups are somewhere else than where the last answer said."""
        count = 0
        for number, offset in enumerate(self.committed):
            group = f"{self.plan.form}-{self.plan.tasks}-{number}"
            found = await self.client.fetch_offsets(group, [_T0])
            count += found[_T0].offset != offset
        return count

    async def measure(
        self, all_of: Callable[[Callable[[int], Awaitable[None]]], Awaitable[None]]
    ) -> dict[str, Any]:
        """Warm up, measure, check. *all_of* runs a function for the number of each task."""
        for seconds in (self.plan.warmup_s, self.plan.duration_s):
            self.latencies_ns.clear()
            began_ns, began_cpu_ns = time.perf_counter_ns(), time.process_time_ns()
            end_ns = began_ns + int(seconds * NS_PER_S)
            await all_of(partial(self.commit_until, end_ns))
            wall_ns = time.perf_counter_ns() - began_ns
            cpu_ns = time.process_time_ns() - began_cpu_ns
        count = len(self.latencies_ns)
        return {
            "rate_per_s": count * NS_PER_S / wall_ns,
            "cpu_us": cpu_ns / count / 1_000,
            **latency_of(self.latencies_ns)._asdict(),
            "wrong": await self.wrong(),
        }


async def _under_trio(plan: ClientPlan) -> dict[str, Any]:
    async def all_of(work: Callable[[int], Awaitable[None]]) -> None:
        async with trio.open_nursery() as nursery:
            for number in range(plan.tasks):
                nursery.start_soon(work, number)

    async with api.connect(f"{plan.host}:{plan.port}") as client:
        return await Load(plan, client).measure(all_of)


async def _under_asyncio(plan: ClientPlan) -> dict[str, Any]:
    async def all_of(work: Callable[[int], Awaitable[None]]) -> None:
        works: Sequence[Awaitable[None]] = [work(number) for number in range(plan.tasks)]
        await asyncio.gather(*works)

    async with aio.connect(f"{plan.host}:{plan.port}") as client:
        return await Load(plan, client).measure(all_of)


def run(plan: ClientPlan) -> dict[str, Any]:
    """Return rate, CPU of this process for a commit, latencies, and the wrong answers."""
    match plan.form:
        case "trio":
            return trio.run(_under_trio, plan)
        case "asyncio":
            return asyncio.run(_under_asyncio(plan))
        case "uvloop":
            return uvloop.run(_under_asyncio(plan))
        case _:
            raise ValueError(f"no form of the client: {plan.form}")


if __name__ == "__main__":
    run_plan("bench.client_load", ClientPlan, run)
