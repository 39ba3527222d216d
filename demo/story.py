"""What happens in the demo, in order, and what must be true after each step."""

import queue
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Final

from bench.peers import missing
from client.blocking import BlockingClient, connect_blocking
from client.exceptions import CoordinatorError
from client.spark.logs.folder import FolderLogWriter
from coordinator.cluster.layout import Layout
from coordinator.config import Settings
from demo.dataset import ARCHIVE, check_complete, extract_csv, parse
from demo.driver import SESSION_TIMEOUT_MS
from demo.feeder import Feed, Feeder
from demo.group import DriverState, Eviction, evictions, snapshot
from demo.names import FLIGHTS, GROUP, NUM_PARTITIONS, TOPIC, Folders
from demo.picture import History, draw
from demo.processes import Child, Children, Line
from demo.view import NOTHING, Snapshot, View
from protocol.group_ids import offsets_partition

# While Spark starts, so slow that flights are left for all that follows; at the end faster than
# two drivers work.
SLOW_ROWS_PER_S: Final = 1_200
FAST_ROWS_PER_S: Final = 12_000
STEP_DEADLINE_S: Final = 600.0
_POLL_S: Final = 0.25

# A killed driver is noticed after its session timeout; by default the least is six seconds.
_SETTINGS: Final = ("group.min.session.timeout.ms=1000", "http.listeners=127.0.0.1:0")
NODES: Final = (1, 2, 3)
# The nodes have the defaults.
_LAYOUT: Final = Layout(Settings().offsets_topic_num_partitions, Settings().cluster_journals)
ZOOKEEPER: Final = "zookeeper"


class DemoError(RuntimeError):
    """The demo did not go as it must; the message says where."""


class Stage:
    """The processes, what they have told so far, and how to wait for more.

    Args:
        view: where the group is shown.
        children: where processes are started.
        folders: where everything is kept.

    """

    def __init__(self, view: View, children: Children, folders: Folders) -> None:
        self.view = view
        self.folders = folders
        self.now: Snapshot = NOTHING
        self.drivers: dict[str, DriverState] = {}
        self.events: list[Line] = []  # Of the coordinators.
        self.coordinators: list[str] = []
        self.facts: Line | None = None
        self.feeder: Feeder | None = None
        self.client: BlockingClient | None = None
        self.address = ""
        self.page = ""
        self.ensemble = ""  # Of the cluster's, where its servers are.
        self.history = History()
        self._started_s = time.monotonic()
        self._children = children
        self._running: dict[str, Child] = {}
        self._may_die: set[str] = set()

    # --- Starting and ending ---------------------------------------------------------------

    def start_coordinator(self) -> None:
        """Start the daemon, and wait until it has loaded its log."""
        self._serve("coordinator", "--data-dir", str(self.folders.coordinator))
        self._wait_until_ready()

    def start_cluster(self) -> None:
        """Start three servers of ZooKeeper and three nodes over them."""
        if why := missing("zookeeper"):
            raise DemoError(f"there is no ZooKeeper: {why}")
        self._start(ZOOKEEPER, ["-m", "demo.zookeeper", str(self.folders.zookeeper)])
        self.wait("ZooKeeper serves", lambda: self.ensemble != "")
        for number in NODES:
            where = f"cluster.zookeeper={self.ensemble}/group-coordinator"
            self._serve(f"node-{number}", "--set", where, "--set", "cluster.create=true")
        self._wait_until_ready()
        self.wait("each journal is led", lambda: len(self._leaders()) == _LAYOUT.journals)

    def _serve(self, name: str, *options: str) -> None:
        self.coordinators.append(name)
        settings = (*_SETTINGS, f"node.id={len(self.coordinators)}")
        sets = [part for setting in settings for part in ("--set", setting)]
        serve = ["-m", "demo.guarded", "coordinator", "serve", "--listen", "127.0.0.1:0"]
        self._start(name, [*serve, *options, *sets])

    def _wait_until_ready(self) -> None:
        """Wait for all coordinators, and take note of where they are."""
        names = self.coordinators
        what = f"{' and '.join(names)} can be used"
        self.wait(what, lambda: len(self._heard("ready")) == len(names))
        self.address = ",".join(map(_place, self._heard("listening")))
        self.page = f"http://{_place(self._heard('http.listening')[0])}/"

    def start_driver(self, name: str, on_line: Callable[[Line], None] | None = None) -> None:
        """Start a Spark driver."""
        self.drivers[name] = DriverState()
        home = str(self.folders.run.parent)
        arguments = ["-m", "demo.driver", name, "--coordinator", self.address, "--home", home]
        self._start(name, arguments, on_line)

    def start_verifier(self) -> None:
        """Start the check with Spark."""
        self._start("verify", ["-m", "demo.verify", "--home", str(self.folders.run.parent)])

    def kill(self, name: str) -> None:
        """SIGKILL the process group of a driver. May be called in any thread."""
        self._may_die.add(name)
        self._running[name].kill_group()

    def killed(self, name: str) -> None:
        """Take note that a driver was killed."""
        self._running.pop(name).close()
        self._listen_to_all()
        self.drivers[name] = self.drivers[name]._replace(status="killed")

    def drain(self, name: str) -> None:
        """Have a driver finish and stop, and wait until it has."""
        self._running[name].tell("drain")
        self._wait_for_exit(name, "has drained and stopped")
        if self.drivers[name].status != "drained":
            raise DemoError(f"{name} stopped without having drained")

    def kill_leader(self) -> str:
        """SIGKILL the node that leads the group; return its name."""
        journal = _LAYOUT.journal_of(offsets_partition(GROUP, _LAYOUT.num_partitions))
        leader = self._leaders()[journal]
        self.kill(leader)
        self._running.pop(leader).close()
        self.coordinators.remove(leader)
        self._listen_to_all()
        return leader

    def _leaders(self) -> dict[int, str]:
        """Return by journal who has come to lead it last."""
        return {led.fields["journal"]: led.child for led in self._heard("journal.led")}

    def stop_coordinators(self) -> None:
        """End the daemons with SIGTERM, one after the other, and wait until each has drained."""
        self.client = None
        for name in self.coordinators:
            self._running[name].terminate()
            self._wait_for_exit(name, "has stopped")
        if ZOOKEEPER in self._running:
            self._running.pop(ZOOKEEPER).close()

    def verified(self) -> Line:
        """Wait for the check with Spark and return what it found."""
        self._wait_for_exit("verify", "has checked the output")
        if self.facts is None:
            raise DemoError("the check with Spark ended without a result")
        return self.facts

    def mark(self, text: str) -> None:
        """Note for the picture what happened just now."""
        self.history.mark(time.monotonic() - self._started_s, text)

    def draw(self) -> None:
        """Draw the picture, where that is possible."""
        try:
            draw(self.history, self.folders.picture)
        except ImportError:
            self.view.tell("no picture: matplotlib isn't installed")
        else:
            self.view.tell(f"lag and owners over time are in {self.folders.picture}")

    # --- Waiting ---------------------------------------------------------------------------

    def wait(
        self, what: str, until: Callable[[], bool], deadline_s: float = STEP_DEADLINE_S
    ) -> float:
        """Go on showing the group until *until* is true; return the seconds that it took.

        Raises:
            DemoError: it took too long, or a process ended that should not.

        """
        started_s = time.monotonic()
        while not until():
            if time.monotonic() - started_s > deadline_s:
                raise DemoError(f"after {deadline_s:.0f} s it is still not so that {what}")
            self._listen()
            self._look()
            self._check_alive()
        return time.monotonic() - started_s

    def _start(
        self, name: str, arguments: list[str], on_line: Callable[[Line], None] | None = None
    ) -> None:
        self._running[name] = self._children.start(name, arguments, on_line=on_line)

    def _wait_for_exit(self, name: str, what: str) -> None:
        child = self._running.pop(name)
        self.wait(f"{name} {what}", lambda: child.exit_status() is not None)
        child.close()  # All that it printed is in the queue now.
        self._listen_to_all()
        if status := child.exit_status():
            raise DemoError(f"{name} ended with status {status}:\n{child.error_tail()}")

    def _heard(self, event: str) -> list[Line]:
        return [line for line in self.events if line.event == event]

    def _listen(self) -> None:
        """Take note of what the children tell; wait a moment for it."""
        try:
            self._note(self._children.lines.get(timeout=_POLL_S))
        except queue.Empty:
            return
        self._listen_to_all()

    def _listen_to_all(self) -> None:
        while not self._children.lines.empty():
            self._note(self._children.lines.get())

    def _note(self, line: Line) -> None:
        if line.child in self.coordinators:
            self.events.append(line)
        elif line.event == "serving":
            self.ensemble = line.fields["hosts"]
        elif line.event == "verified":
            self.facts = line
        elif line.child in self.drivers:
            self.drivers[line.child] = self.drivers[line.child].after(line)

    def _look(self) -> None:
        """Ask the coordinator how the group is doing, and show it."""
        if self.client is None or self.feeder is None:
            return
        ends = self.feeder.ends
        try:
            group = self.client.describe_groups([GROUP])[0]
            offsets = self.client.fetch_offsets(GROUP)
        except CoordinatorError:
            return  # The next look will tell; a coordinator that is gone is found below.
        self.now = snapshot(group, offsets, ends, self.drivers)
        self.history.look(time.monotonic() - self._started_s, self.now)
        self.view.show(self.now)

    def _check_alive(self) -> None:
        for name, child in self._running.items():
            if (status := child.exit_status()) is not None and name not in self._may_die:
                raise DemoError(f"{name} ended with status {status}:\n{child.error_tail()}")
        if self.feeder is not None and self.feeder.error is not None:
            raise DemoError("the feeder failed") from self.feeder.error


def _place(line: Line) -> str:
    return f"{line.fields['host']}:{line.fields['port']}"


class KillMidBatch:
    """Kills a driver's whole process group in the moment in which it has just written a batch.

    That is the worst one: the rows are in the table, and nobody has told the coordinator yet.
    It happens in the thread that reads the driver's output, to lose no time.
    """

    def __init__(self, kill: Callable[[], None]) -> None:
        self.armed = False
        self.batch: Line | None = None
        self._kill = kill

    def __call__(self, line: Line) -> None:
        """Look at one event of the driver."""
        if self.armed and line.event == "batch.written" and line.fields["rows"] > 0:
            self.armed = False
            self._kill()
            self.batch = line


def prepare(view: View, folders: Folders) -> Feeder:
    """Clean up after the last run, take out the flights, and make the empty log."""
    shutil.rmtree(folders.run, ignore_errors=True)
    folders.logs.mkdir(parents=True)
    text = extract_csv(folders.sdist / ARCHIVE)
    folders.csv.write_bytes(text)
    table = parse(text)
    check_complete(table)
    feed = Feed(table)
    view.tell(
        f"{table.num_rows:,} flights of 2013 in {NUM_PARTITIONS} partitions by carrier: "
        + ", ".join(f"{end:,}" for end in feed.ends(table.num_rows))
    )
    writer = FolderLogWriter.create(folders.log, TOPIC, table.schema, NUM_PARTITIONS)
    return Feeder(feed, writer)


def play(stage: Stage) -> None:
    """Run the story up to the moment in which every flight is committed and all are drained."""
    tell, drivers = stage.view.tell, stage.drivers
    assert stage.feeder is not None
    both, third = ("driver-1", "driver-2"), "driver-3"

    def shared_by(*names: str) -> bool:
        owned = [stage.now.owned_by(name) for name in names]
        fair = NUM_PARTITIONS // len(names)
        return all(len(mine) == fair for mine in owned) and all(drivers[n].rows for n in names)

    def committed(share: float) -> bool:
        return stage.now.committed >= FLIGHTS * share

    stage.feeder.feed(SLOW_ROWS_PER_S, share=0.25)
    stage.feeder.start()
    killers = {name: KillMidBatch(partial(stage.kill, name)) for name in both}
    for name, killer in killers.items():
        stage.start_driver(name, killer)
    tell(f"{' and '.join(both)} start, and join the group {GROUP} while flights are appended")
    took_s = stage.wait("both drivers write their shares", lambda: shared_by(*both))
    stage.mark("both share")
    tell(f"{' and '.join(both)} share the partitions, after {took_s:.1f} s of starting Spark")

    stage.feeder.feed(FAST_ROWS_PER_S, share=0.5)
    stage.wait("a fifth is committed", lambda: committed(0.20))
    if stage.ensemble:
        lose_a_node(stage)
    # The one with the most to do; the other one is the survivor.
    survivor, victim = sorted(both, key=lambda name: NUM_PARTITIONS - 1 in stage.now.owned_by(name))
    killer = killers[victim]
    killer.armed = True
    stage.wait(f"{victim} writes a batch", lambda: killer.batch is not None)
    stage.killed(victim)
    stage.mark(f"{victim} killed")
    assert killer.batch is not None
    batch, rows = killer.batch.fields["batch"], killer.batch.fields["rows"]
    tell(
        f"SIGKILL for the process group of {victim}, which has written batch {batch} of {rows:,} "
        "flights to the table and not told the coordinator; its session timeout is "
        f"{SESSION_TIMEOUT_MS / 1000} s"
    )
    took_s = stage.wait(f"{survivor} has taken over", lambda: shared_by(survivor))
    stage.mark(f"{survivor} took over")
    tell(f"{survivor} owns all partitions, {took_s:.1f} s after the kill")

    stage.feeder.feed(SLOW_ROWS_PER_S, share=0.85)
    stage.start_driver(third)
    stage.mark(f"{third} starts")
    tell(f"{third} starts, while {survivor} goes on")
    took_s = stage.wait("the new driver has its share", lambda: shared_by(survivor, third))
    stage.mark(f"{third} joined")
    tell(f"{survivor} and {third} share the partitions, after {took_s:.1f} s")

    stage.feeder.feed(FAST_ROWS_PER_S, share=1.0)
    stage.wait("all flights are appended and committed", lambda: committed(1.0))
    tell("every flight is appended, processed and committed; now both drivers are drained")
    stage.mark("drains begin")
    stage.drain(survivor)
    tell(f"{survivor} has drained and stopped; its partitions go to {third}")
    stage.drain(third)
    tell(f"{third} has drained and stopped; the group is empty")


def lose_a_node(stage: Stage) -> None:
    """Kill the node that leads the group, while flights are read and committed.

    Raises:
        DemoError: The group noticed more than a pause.

    """
    tell = stage.view.tell
    before, left_out = stage.now, [state.left_out for state in stage.drivers.values()]
    began_s = time.monotonic()
    node = stage.kill_leader()
    stage.mark(f"{node} killed")
    tell(f"SIGKILL for {node}, which leads the group; it had no folder, and ZooKeeper has its log")
    stage.wait("another node answers", lambda: stage.now is not before)
    seen, served_s = stage.now, time.monotonic() - began_s
    stage.wait("flights are committed again", lambda: stage.now.committed > seen.committed)
    pause_s = time.monotonic() - began_s
    if stage.now.generation != before.generation:
        raise DemoError(f"generation {before.generation} became {stage.now.generation}")
    if left_out != [state.left_out for state in stage.drivers.values()]:
        raise DemoError("flights came twice after the kill of a node")
    tell(
        f"another node leads the group {served_s:.1f} s after the kill, and the next flights are "
        f"committed after {pause_s:.1f} s; the generation is {before.generation} as before, and no "
        "flight came twice"
    )


def check(stage: Stage) -> bool:
    """Check the table with Spark, tell what was found, and return whether all is well."""
    tell = stage.view.tell
    tell("the table is checked with Spark")
    stage.start_verifier()
    facts = stage.verified().fields
    evicted = evictions(stage.events, stage.drivers)
    generations = sum(line.event == "group.generation" for line in stage.events)
    reasons = [f"{eviction.driver} ({eviction.reason})" for eviction in evicted]
    tell(f"generations: {generations}; evictions: {len(evicted)}, {', '.join(reasons)}")
    for name, state in stage.drivers.items():
        again = f", {state.left_out:,} of them there already and left out" if state.left_out else ""
        tell(f"{name}: {state.status}, {state.batches} batches, {state.rows:,} rows{again}")
    tell(
        f"the table has {facts['rows']:,} rows, {facts['different']:,} different ones, after "
        f"{facts['versions']} commits"
    )
    problems = wrong(facts, evicted)
    for problem in problems:
        tell(f"WRONG: {problem}")
    return not problems


def wrong(facts: Mapping[str, int], evicted: Collection[Eviction]) -> list[str]:
    """Return what is not as it must be: each flight is in the table, and none twice."""
    problems = [
        f"{facts[count]:,} {said}"
        for count, said in (
            ("missing", "flights are missing in the table"),
            ("foreign", "rows of the table are too many, or no flights of the data set"),
        )
        if facts[count]
    ]
    problems += [
        f"{count}: {facts[count]:,} in place of {FLIGHTS:,}"
        for count in ("flights", "rows", "different")
        if facts[count] != FLIGHTS
    ]
    if not evicted:
        problems.append("the coordinator recorded no eviction of the killed driver")
    return problems


@contextmanager
def stopping(feeder: Feeder) -> Iterator[None]:
    """End the feeder on the way out."""
    try:
        yield
    finally:
        feeder.stop()


def run(folders: Folders, *, is_cluster: bool) -> int:
    """Run the whole demo; return its exit status."""
    with View() as view:
        try:
            feeder = prepare(view, folders)
            with Children(folders.logs) as children:
                stage = Stage(view, children, folders)
                if is_cluster:
                    stage.start_cluster()
                else:
                    stage.start_coordinator()
                whose = "nodes listen" if is_cluster else "coordinator listens"
                view.tell(f"the {whose} on {stage.address}; a page: {stage.page}")
                stage.feeder = feeder
                places = stage.address.split(",")
                with stopping(feeder), connect_blocking(places, client_id="demo") as client:
                    stage.client = client
                    play(stage)
                stage.stop_coordinators()
                stage.draw()
                passed = check(stage)
        except DemoError as error:
            view.tell(f"FAILED: {error}")
            if error.__cause__ is not None:
                view.tell(f"because of {error.__cause__!r}")
            passed = False
        view.tell(f"{'PASSED' if passed else 'FAILED'}; table and logs are in {folders.run}")
    return 0 if passed else 1
