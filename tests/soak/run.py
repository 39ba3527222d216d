"""One run from its first client to the verdict."""

import json
import random
import statistics
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import trio

from client import Client, CoordinatorError, TopicPartition, connect
from protocol.consumer import decode_assignment
from protocol.messages import DescribedGroup
from tests import logged
from tests.integration.daemon import ROOT, run_cli
from tests.sim.checker import check
from tests.sim.history import History, Outcome
from tests.sim.registers import Violation
from tests.sim.workload import NUM_PARTITIONS, TOPIC
from tests.soak.accounts import LISTENERS, SASL_SSL, SSL, Accounts
from tests.soak.faults import Deck, OnClients, OnTheDaemon, impossible
from tests.soak.identities import OnIdentities
from tests.soak.node import Node, Sample
from tests.soak.one_client import Loopback, Plan
from tests.soak.report import Report, listed
from tests.soak.wires import Wires

Connected = Callable[[], AbstractAsyncContextManager[Client]]

GROUPS: Final = ("alpha", "beta")
DRIVERS: Final = 3  # A group; so there is one by each protocol.
COMMITTERS: Final = 3
DISK_BYTES: Final = 64 * 1024 * 1024
# The share of a run in which the daemon's lives are short.
_LETHAL_SHARE: Final = 0.4
# A process grows until it has met everything once; what counts is what it does then.
_WARM_UP_SHARE: Final = 0.25
# A shorter run has shorter faults.
_USUAL_PACE_S: Final = 300
# Clients need some time to start, and to do something before they die.
_CLIENT_PACE_MIN: Final = 0.3
_RECOVERY_S: Final = 120
_END_S: Final = 60
_AGAIN_S: Final = (0.2, 3.0)


@dataclass(slots=True)
class DaemonReport(Report):
    """What came of a run.

    Attributes:
        left_out: The faults that this machine can't do.
    """

    left_out: frozenset[str] = frozenset()
    client_lives: int = 0
    samples: list[Sample] = field(default_factory=list)

    def last_life(self) -> list[Sample]:
        """Return the samples of the longest undisturbed life, without its warm-up."""
        longest = max(
            {sample.life for sample in self.samples},
            key=lambda life: sum(sample.life == life for sample in self.samples),
        )
        samples = [sample for sample in self.samples if sample.life == longest]
        return samples[int(len(samples) * _WARM_UP_SHARE) :]

    def lines(self) -> Iterator[str]:
        """Say it in words."""
        yield f"seed {self.seed}, {self.seconds:.0f} s, {self.lives} lives of the daemon"
        yield "faults: " + listed(self.faults)
        if self.left_out:
            yield "this machine can't do: " + ", ".join(sorted(self.left_out))
        yield "logged: " + listed(self.events)
        yield (
            f"{self.requests} requests of {self.client_lives} client processes, {self.answered} "
            f"answered; {self.commits} commits, {self.acknowledged} acknowledged; "
            f"{self.claims} statements of the client library held to the wire"
        )
        yield "minute  life  memory MB  descriptors  threads"
        for one in self.samples:
            yield (
                f"{one.minute:6.2f}  {one.life:4d}  {one.memory_mb:9.1f}  {one.descriptors:11d}  "
                f"{one.threads:7d}"
            )
        for what in ("memory_mb", "descriptors", "threads"):
            first, last, slope = _trend(self.last_life(), what)
            yield f"{what} over that life: from {first:.1f} to {last:.1f}, {slope:+.2f} an hour"
        yield from self.verdict()


def _trend(samples: list[Sample], what: str) -> tuple[float, float, float]:
    """Return the first and the last value, and the slope of the line through all, per hour."""
    values = [float(getattr(sample, what)) for sample in samples]
    minutes = [sample.minute for sample in samples]
    if len(set(minutes)) < 2:
        return values[0], values[-1], 0.0
    return values[0], values[-1], statistics.linear_regression(minutes, values).slope * 60


class Clients:
    """The processes of all clients; whoever dies is replaced."""

    def __init__(
        self,
        report: DaemonReport,
        history: History,
        accounts: Accounts,
        wires: Wires,
        rng: random.Random,
    ) -> None:
        self.running: dict[str, trio.Process] = {}
        self._report = report
        self._history = history
        self._wires = wires
        self._rng = rng
        self._plans = _plans(report.seed, accounts)
        self._healed = False
        self._stopping = False

    def users(self) -> list[str]:
        """Return those who log in."""
        return [plan.name for plan in self._plans if plan.protocol == SASL_SSL]

    async def run(self) -> None:
        """Keep all of them running until `stop`."""
        async with trio.open_nursery() as nursery:
            for plan in self._plans:
                port = await self._wires.port_for(plan.name, plan.protocol)
                nursery.start_soon(self._keep, plan, port)

    async def there(self) -> None:
        """Wait until each of them was started."""
        while len(self.running) < len(self._plans):  # noqa: ASYNC110 - Once, for a moment.
            await trio.sleep(0.01)

    async def heal(self) -> None:
        """Tell them that there are no more faults."""
        self._healed = True
        await self._tell(b"healed\n")

    async def stop(self) -> None:
        """Tell them to come to an end."""
        self._stopping = True
        await self._tell(b"stop\n")

    async def _tell(self, words: bytes) -> None:
        for process in list(self.running.values()):
            try:
                assert process.stdin is not None
                await process.stdin.send_all(words)
            except trio.BrokenResourceError:
                pass  # It was killed.

    async def _keep(self, plan: Plan, port: int) -> None:
        while not self._stopping:
            self._report.client_lives += 1
            given = asdict(plan) | {"port": port, "number": self._report.client_lives}
            process = await trio.lowlevel.open_process(
                [sys.executable, "-m", "tests.soak.one_client", json.dumps(given)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            self.running[plan.name] = process
            try:
                await self._live(plan.name, process)
            finally:
                process.kill()
                with trio.CancelScope(shield=True):
                    await process.wait()
            if not self._stopping:
                await trio.sleep(self._rng.uniform(*_AGAIN_S))

    async def _live(self, name: str, process: trio.Process) -> None:
        if self._healed:
            await self._tell(b"healed\n")
        errors: list[bytes] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_collect, process.stderr, errors)
            await self._listen(process)
        status = await process.wait()
        if status not in {0, -9} or errors:
            text = f"{name} ended with {status}: {b''.join(errors).decode()[-2_000:]}"
            self._report.violations.append(Violation("client process", text))

    async def _listen(self, process: trio.Process) -> None:
        assert process.stdout is not None
        buffered = b""
        async for data in process.stdout:
            *lines, buffered = (buffered + data).split(b"\n")
            for line in lines:
                self._heard(json.loads(line))

    def _heard(self, said: dict[str, list[object]]) -> None:
        match said:
            case {"claim": [[str(group), str(topic), int(partition)], str(metadata), str(outcome)]}:
                self._history.claim((group, topic, partition), metadata, Outcome(outcome))
            case {"violation": [str(invariant), str(text)]}:
                self._report.violations.append(Violation(invariant, text))
            case _:
                raise AssertionError(f"a client said {said}")


def _plans(seed: int, accounts: Accounts) -> list[Plan]:
    """Return who there is; port and number are filled in later."""
    who = [
        ("driver", f"{group}-{number}", [group], LISTENERS[number % len(LISTENERS)])
        for group in GROUPS
        for number in range(DRIVERS)
    ]
    who += [("operator", "operator", list(GROUPS), SSL)]
    who += [
        ("committer", f"committer-{n}", [f"fast-{n}"], LISTENERS[n % len(LISTENERS)])
        for n in range(COMMITTERS)
    ]
    return [
        Plan(kind, name, groups, accounts.properties(name, protocol), 0, 0, seed)
        for kind, name, groups, protocol in who
    ]


async def _collect(stream: trio.abc.ReceiveStream | None, into: list[bytes]) -> None:
    assert stream is not None
    into.extend([bytes(data) async for data in stream])


async def soak(
    folder: Path, *, seconds: float, seed: int, without: frozenset[str] = frozenset()
) -> DaemonReport:
    """Run that long, and at least until each fault has come; then let all recover, and judge.

    *without* names faults that are left out.
    """
    report = DaemonReport(seed, seconds)
    history = History()
    disk = folder / "disk"
    with small_disk(disk) as is_small:
        async with trio.open_nursery() as nursery:
            run = _Run(report, history, folder, nursery)
            report.left_out = impossible(small_disk=is_small)
            await run.suffer(_faults_of(run, disk, without=without | report.left_out))
            await run.recover()
            nursery.cancel_scope.cancel()
        verify = partial(run_cli, "log", "verify", "--data-dir", str(run.node.data))
        verified = await trio.to_thread.run_sync(verify)
    if verified.returncode:
        report.violations.append(Violation("log verify", verified.stdout + verified.stderr))
    report.lives, report.events = run.node.lives, run.node.events
    report.violations += [*run.node.violations, *run.wires.violations]
    report.violations += [*await trio.to_thread.run_sync(check, history)]
    report.violations += [Violation("events", text) for text in logged.PROBLEMS]
    report.count(history)
    return report


class _Run:
    """All that runs, and its two parts."""

    def __init__(
        self, report: DaemonReport, history: History, folder: Path, nursery: trio.Nursery
    ) -> None:
        seed = report.seed
        self.report = report
        self.pace = min(1.0, report.seconds / _USUAL_PACE_S)
        accounts = Accounts(folder, _rng(seed, "accounts"))
        self.wires = Wires(history, accounts, nursery)
        self.node = Node(folder, folder / "disk", accounts, self.wires, _rng(seed, "node"))
        self.clients = Clients(report, history, accounts, self.wires, _rng(seed, "clients"))
        rng = _rng(seed, "identities")
        self.identities = OnIdentities(self.node, accounts, rng, self.pace)
        self._nursery = nursery
        self._clients_done = trio.Event()

    async def suffer(self, decks: tuple[Deck, Deck]) -> None:
        """Start everything, and have one fault after the other; then no more."""
        self._nursery.start_soon(self.node.run)
        await self.identities.enroll(self.clients.users())
        self._nursery.start_soon(_then, self.clients.run, self._clients_done)
        await self.clients.there()
        begun_s = trio.current_time()
        seconds = self.report.seconds
        self._nursery.start_soon(_sample, self.report, self.node, begun_s, seconds)
        of_daemon, of_clients = decks

        def over_at(share: float) -> bool:
            return trio.current_time() >= begun_s + seconds * share

        async with trio.open_nursery() as players:
            done = trio.Event()
            pace = max(self.pace, _CLIENT_PACE_MIN)
            players.start_soon(partial(of_clients.play, pace, done.is_set, lethal=True))
            await of_daemon.play(self.pace, lambda: over_at(_LETHAL_SHARE), lethal=True)
            await of_daemon.play(self.pace, lambda: over_at(1), lethal=False)
            done.set()
        self.report.seconds = trio.current_time() - begun_s

    async def recover(self) -> None:
        """Have everybody recover and come to an end; read all that is kept, and after a restart."""
        self.node.clock.set_ns(0)
        await self.clients.heal()
        checking = partial(connect_by, await self.wires.port_for("checking"), "checking")
        await _recovered(self.report, checking)
        await self.clients.stop()
        with trio.move_on_after(_END_S) as scope:
            await self._clients_done.wait()
        if scope.cancelled_caught:
            self.report.violations.append(Violation("L liveness", "clients did not stop"))
        await _read_all(checking)
        await self.identities.check()
        await self.node.stop(for_good=False)
        await _read_all(checking)
        await self.identities.check()
        await self.node.stop(for_good=True)


def _faults_of(run: _Run, disk: Path, *, without: frozenset[str]) -> tuple[Deck, Deck]:
    """Return those of the daemon, and those of clients."""
    seed, counts = run.report.seed, run.report.faults
    on_daemon = OnTheDaemon(run.node, disk, _rng(seed, "faults"), run.pace)
    on_clients = OnClients(
        run.clients.running,
        run.wires.cut,
        _rng(seed, "client faults"),
        max(run.pace, _CLIENT_PACE_MIN),
    )
    of_daemon = on_daemon.all() | run.identities.all()
    chosen = {name: fault for name, fault in of_daemon.items() if name not in without}
    return (
        Deck(chosen, _rng(seed, "deck"), counts),
        Deck(on_clients.all(), _rng(seed, "client deck"), counts),
    )


def connect_by(port: int, name: str) -> AbstractAsyncContextManager[Client]:
    """Connect by a wire, whatever address the coordinator gives itself."""
    return connect(f"127.0.0.1:{port}", client_id=name, open_stream=Loopback(port).opener(name))


def _rng(seed: int, purpose: str) -> random.Random:
    return random.Random(f"{seed} {purpose}")


async def _then(run: Callable[[], Awaitable[None]], done: trio.Event) -> None:
    await run()
    done.set()


async def _sample(report: DaemonReport, node: Node, begun_s: float, seconds: float) -> None:
    """Look each minute, or thirty times in a shorter run."""
    while True:
        sample = node.sample((trio.current_time() - begun_s) / 60)
        if sample is not None:
            report.samples.append(sample)
        await trio.sleep(min(60, seconds / 30))


async def _recovered(report: DaemonReport, connected: Connected) -> None:
    """Wait until each group is stable, and each of its partitions somebody's."""
    wanting = set(GROUPS)
    seen: object = None
    with trio.move_on_after(_RECOVERY_S):
        async with connected() as client:
            while wanting:
                await trio.sleep(0.2)
                seen = await _described(client)
                wanting = {group for group, owned in seen.items() if owned != _ALL}
    if wanting:
        text = f"not recovered {_RECOVERY_S} s after the last fault: {seen}"
        report.violations.append(Violation("L liveness", text))


_ALL: Final = [TopicPartition(TOPIC, number) for number in range(NUM_PARTITIONS)]


async def _described(client: Client) -> dict[str, list[TopicPartition]]:
    """Return what the members of each stable group own together."""
    try:
        described = await client.describe_groups(GROUPS)
    except CoordinatorError:
        return {group: [] for group in GROUPS}
    return {group.group_id: _owned(group) for group in described}


def _owned(group: DescribedGroup) -> list[TopicPartition]:
    shares = [decode_assignment(member.assignment) for member in group.members]
    if group.state != "Stable":
        return []
    return sorted(tp for share in shares if share is not None for tp in share.partitions)


async def _read_all(connected: Connected) -> None:
    """Read what each group has, which the history is then held to."""
    groups = [*GROUPS, "plain", *(f"fast-{number}" for number in range(COMMITTERS))]
    async with connected() as client:
        for group in groups:
            await client.fetch_offsets(group)
        await client.describe_groups(groups)


@contextmanager
def small_disk(path: Path) -> Iterator[bool]:
    """Mount a small file system, if that can be; say whether it could."""
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", path],
        capture_output=True,
        check=False,
    )
    try:
        yield mounted.returncode == 0
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", "--lazy", path], check=True)
