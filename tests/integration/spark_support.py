"""A daemon, a folder log and Spark drivers, as real processes, for the tests with Spark."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from bench.peer_jars import spark_jars
from client.blocking import BlockingClient, connect_blocking
from client.spark import FolderLogWriter

ROOT = Path(__file__).parent.parent.parent
TOPIC = "events"
GROUP = "g"
NUM_PARTITIONS = 4
DEADLINE_S = 180.0  # A slow machine needs most of a minute for the first query.

# A driver's first rows: a query is compiled and Python workers start, beside other drivers' JVMs.
ROWS_S = 180.0
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])

# Long enough that a busy test machine's heartbeats come in time.
SESSION_TIMEOUT_MS = 4_000


def wait_until(what: str, condition: Callable[[], bool], deadline_s: float = DEADLINE_S) -> None:
    """Poll until *condition* is true. Real processes tell us nothing by themselves."""
    end_s = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end_s:
            raise AssertionError(f"not within {deadline_s} s: {what}")
        time.sleep(0.05)


class Lines:
    """The JSON lines that a child prints, read by a thread."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.events: list[dict[str, Any]] = []
        self._stdout = process.stdout
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._stdout is not None
        for line in self._stdout:
            if line.startswith("{"):
                self.events.append(json.loads(line))

    def wait(self, event: str, **fields: object) -> dict[str, Any]:
        """Wait for the first event of this name (and fields)."""
        found: list[dict[str, Any]] = []

        def seen() -> bool:
            found.extend(self.named(event, **fields))
            return bool(found)

        wait_until(f"event {event} {fields}", seen)
        return found[0]

    def named(self, event: str, **fields: object) -> list[dict[str, Any]]:
        """Return the events of this name so far."""
        return [
            e for e in list(self.events) if e.get("event") == event and fields.items() <= e.items()
        ]

    def close(self) -> None:
        """Wait for the end of the output."""
        self._thread.join(DEADLINE_S)
        # Closing a file that is being read would wait for its end, which may never come.
        assert not self._thread.is_alive(), "another process has the child's standard output"
        assert self._stdout is not None
        self._stdout.close()


class Daemon:
    """A coordinator in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[str]
        self.port = 0
        self.lines: Lines
        self.start()

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, on the same port after the first time."""
        command = [sys.executable, "-m", "coordinator", "serve"]
        command += ["--listen", f"127.0.0.1:{self.port}", "--data-dir", str(self._folder)]
        for setting in (
            "group.min.session.timeout.ms=500",
            "group.initial.rebalance.delay.ms=0",
            "offsets.topic.num.partitions=4",
        ):
            command += ["--set", setting]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self.lines = Lines(self._process)
        self.port = self.lines.wait("listening")["port"]
        self.lines.wait("ready")

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait()
        self.lines.close()

    def lose(self) -> None:
        """SIGKILL, and the loss of all that it kept."""
        self.kill()
        shutil.rmtree(self._folder)

    def evictions(self) -> int:
        """Return how many members were removed because they were not heard from."""
        removed = self.lines.named("group.member_removed")
        return sum(event.get("reason") != "left" for event in removed)


@contextmanager
def daemon(folder: Path) -> Iterator[Daemon]:
    """Run a daemon."""
    running = Daemon(folder)
    try:
        yield running
    finally:
        running.kill()


class Group:
    """What a test sees of the group, through a client of its own."""

    def __init__(self, client: BlockingClient, name: str = GROUP) -> None:
        self.client = client
        self.name = name

    def offsets(self) -> dict[int, int]:
        """Return the committed offset per partition."""
        stored = self.client.fetch_offsets(self.name)
        return {tp.partition: value.offset for tp, value in stored.items()}

    def member_ids(self) -> list[str]:
        """Return the members, once the group is stable."""
        (group,) = self.client.describe_groups([self.name])
        if group.state.lower() != "stable":
            return []
        return [m.member_id for m in group.members if len(m.assignment) > 0]

    def state(self) -> str:
        """Return the group's state."""
        (group,) = self.client.describe_groups([self.name])
        return group.state.lower()

    def wait_members(self, count: int) -> None:
        """Wait for a stable group of so many."""
        wait_until(f"{count} members", lambda: len(self.member_ids()) == count)


@contextmanager
def group_of(running: Daemon, name: str = GROUP) -> Iterator[Group]:
    """Look at a group."""
    with connect_blocking(running.address, client_id="test") as client:
        yield Group(client, name)


def rows(first_id: int, count: int) -> pa.Table:
    """Return rows with consecutive ids."""
    ids = range(first_id, first_id + count)
    return pa.table({"id": list(ids), "name": [f"n{i}" for i in ids]}, schema=SCHEMA)


class Feeder:
    """Appends to all partitions; ids are dense per partition: id = partition * 10^6 + offset."""

    def __init__(self, root: Path, num_partitions: int = NUM_PARTITIONS) -> None:
        self.root = root
        self.num_partitions = num_partitions
        self._writer = FolderLogWriter.create(root, TOPIC, SCHEMA, num_partitions, fsync=False)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def append(self, rows_per_partition: int) -> None:
        """Append so many rows to each partition."""
        for partition in range(self.num_partitions):
            self.append_to(partition, rows_per_partition)

    def append_to(self, partition: int, count: int) -> None:
        """Append so many rows to one partition."""
        first = partition * 1_000_000 + self._writer.end(partition)
        self._writer.append(partition, rows(first, count))

    def feed(self, rows_per_partition: int, period_s: float = 0.2) -> None:
        """Go on appending in a thread until `stop`."""

        def go_on() -> None:
            while not self._stop.wait(period_s):
                self.append(rows_per_partition)

        self._thread = threading.Thread(target=go_on, daemon=True)
        self._thread.start()

    def stop(self) -> dict[int, int]:
        """Stop appending; return the end of each partition."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        return self.ends()

    def ends(self) -> dict[int, int]:
        """Return the end of each partition."""
        return {p: self._writer.end(p) for p in range(self.num_partitions)}

    def close(self) -> None:
        """Release the topic."""
        self.stop()
        self._writer.close()


def local_spark(
    scratch: Path, cores: int = 2, *, log_level: str = "ERROR", **more: str
) -> SparkSession:
    """Return a session that starts fast and listens on loopback only.

    *more* are settings, with underscores for dots.
    """
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    (scratch / "modules").mkdir(parents=True, exist_ok=True)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(scratch / "modules")])
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "768m",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.local.dir": str(scratch),
        # Compiling a plan costs more than running it on so few rows.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **{name.replace("_", "."): value for name, value in more.items()},
    }
    if (jars := spark_jars("spark-kafka", "spark-jdbc")) is not None:
        settings["spark.jars"] = jars
    builder = SparkSession.builder.master(f"local[{cores}]").appName("tests")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel(log_level)
    return session


def modules_folder() -> Path:
    """Return where Spark's Python processes find modules that a test writes."""
    return Path(os.environ["PYTHONPATH"].split(os.pathsep)[-1])


def stream(spark: SparkSession, address: str, log: Path, /, **given: str) -> DataFrame:
    """Return the stream that all tests read, with a few options changed."""
    options = {
        "coordinator": address,
        "group": GROUP,
        "topics": TOPIC,
        "path": str(log),
        "sessionTimeout": f"{SESSION_TIMEOUT_MS}ms",
        "rebalanceTimeout": "30s",
        "coordinatorTimeout": "50s",
        "requestTimeout": "5s",
        **given,
    }
    return spark.readStream.format("coordinated").options(**options).load()


class AppendingSink:
    """Writes each batch's rows as lines to one file, twice if a batch runs twice."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Append a line for each range, with the ids that it held."""
        ranges: dict[tuple[int, int, int], list[int]] = {}
        for row in batch.select("partition", "range_start", "range_end", "id").collect():
            ranges.setdefault(row[:3], []).append(row[3])
        with self.path.open("a") as file:
            for key, ids in sorted(ranges.items()):
                file.write(json.dumps({"batch": batch_id, "range": key, "ids": ids}) + "\n")


class Written:
    """What some sinks hold together."""

    def __init__(self, *paths: Path) -> None:
        self.ranges: Counter[tuple[int, int, int]] = Counter()
        self.ids: Counter[int] = Counter()
        for path in paths:
            for line in path.read_text().splitlines() if path.exists() else ():
                record = json.loads(line)
                partition, start, end = record["range"]
                self.ranges[partition, start, end] += 1
                self.ids.update(record["ids"])
                first = partition * 1_000_000
                assert sorted(record["ids"]) == list(range(first + start, first + end))

    def expect_all(self, ends: dict[int, int]) -> None:
        """Check that there is no gap, and that ranges are equal or apart."""
        for partition, end in ends.items():
            at = 0
            for _, start, stop in sorted(r for r in self.ranges if r[0] == partition):
                assert start == at, f"partition {partition}: gap or overlap at {at}"
                at = stop
            assert at == end

    @property
    def repeated(self) -> list[tuple[int, int, int]]:
        """The ranges that were written more than once."""
        return sorted(key for key, count in self.ranges.items() if count > 1)


class Driver:
    """A Spark driver in a process group of its own: see spark_driver.py."""

    def __init__(
        self,
        name: str,
        folder: Path,
        log: Path,
        address: str,
        script: str = "spark_driver.py",
        **given: str,
    ) -> None:
        self.name = name
        self.sink = folder / f"{name}.jsonl"
        folder.mkdir(exist_ok=True)
        with (folder / f"{name}.err").open("ab") as err:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    str(Path(__file__).parent / script),
                    json.dumps(
                        {
                            "address": address,
                            "log": str(log),
                            "sink": str(self.sink),
                            "scratch": str(folder / f"{name}-scratch-{uuid4().hex}"),
                            "checkpoint": str(folder / f"{name}-checkpoint"),
                            **given,
                        }
                    ),
                ],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
                start_new_session=True,
            )
        self.lines = Lines(self._process)

    def signal(self, number: int) -> None:
        """Signal the driver, its JVM and all its Python workers."""
        os.killpg(self._process.pid, number)

    def tell(self, command: str) -> None:
        """Send a command line."""
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()

    def go(self) -> None:
        """Start the query, as soon as Spark is up."""
        self.lines.wait("prepared")
        self.tell("go")

    def hold(self) -> None:
        """Have its batches not end, until `release`."""
        self.sink.with_suffix(".hold").touch()

    def release(self) -> None:
        """Let batches end."""
        self.sink.with_suffix(".hold").unlink()

    def kill_jvm(self) -> None:
        """SIGKILL the JVM alone, as the kernel does when memory runs out."""
        self.signal_jvm(signal.SIGKILL)

    def signal_jvm(self, number: int) -> None:
        """Signal the JVM alone."""
        for status in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                pid, name, _, _, pgid = status.read_text().split()[:5]
                if name == "(java)" and int(pgid) == self._process.pid:
                    os.kill(int(pid), number)

    def wait_rows(self) -> None:
        """Wait until it wrote something new."""
        before = self.size()
        try:
            wait_until(f"rows of {self.name}", lambda: self.size() > before, ROWS_S)
        except AssertionError as error:
            error.add_note(self.errors()[-4_000:])
            raise

    def size(self) -> int:
        """Return how much it wrote."""
        return self.sink.stat().st_size if self.sink.exists() else 0

    def errors(self) -> str:
        """Return what it wrote to its standard error."""
        return self.sink.with_suffix(".err").read_text()

    def ended(self) -> bool:
        """Say whether the process is gone."""
        return self._process.poll() is not None

    def kill(self) -> None:
        """SIGKILL the whole process group."""
        if self._process.returncode is None:
            self.signal(signal.SIGKILL)
            self._process.wait()
        self.lines.close()
        assert self._process.stdin is not None
        self._process.stdin.close()
