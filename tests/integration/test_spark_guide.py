"""Every snippet of docs/spark.md runs, as it stands there, but for addresses and paths.

What stands in for them: ``127.0.0.1:9310`` is a daemon, ``127.0.0.1:9092`` a Kafka broker with a
topic ``orders``, ``sc://spark-connect:15002`` a Connect server on this machine, ``/data/`` a folder
in which ``/data/log`` is a folder log with a topic ``flights`` and ``/data/out`` what two drivers
wrote, and ``spark`` a session to which the formats are registered. The snippets of a section run
one after the other and see each other's names. A block that begins with ``# mypkg/logs.py`` is
written to that file instead, where readers and executors find it; ``sh`` blocks run in the folder
of those files.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQuery, StreamingQueryManager

from client.spark import FolderLogWriter
from client.spark.source import drain
from tests.guide import Section, Snippet, sections
from tests.integration.kafka_support import Broker
from tests.integration.spark_support import ROOT, Daemon, modules_folder, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.spark]

COORDINATOR: Final = "127.0.0.1:9310"
CONNECT: Final = "sc://spark-connect:15002"
KAFKA: Final = "127.0.0.1:9092"
FLIGHTS: Final = pa.schema([("carrier", pa.string()), ("delay", pa.int32())])
ORDERS_PARTITIONS: Final = 3
# What every run of the tests does; the others are for the long version.
SHORT: Final = ("A first driver",)
# These need a network or a cluster; their blocks are checked in tests/spark/test_guide.py.
_NOT_RUN: Final = re.compile(r"^(pip install|docker|kubectl) ")
_SHELL_S: Final = 400


def cases() -> list[Any]:
    """Return a case a section, most of them for the long version."""
    return [
        pytest.param(
            section,
            id=section.name,
            marks=[] if section.title in SHORT else [pytest.mark.nightly],
        )
        for section in sections()
        if any(snippet.language in {"python", "sh"} for snippet in section.snippets)
    ]


@pytest.fixture
def listeners(monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> Iterator[None]:
    """Take off what a snippet listens with, and end its queries, before the next section."""
    added: list[StreamingQueryListener] = []
    add = StreamingQueryManager.addListener

    def noting(self: StreamingQueryManager, listener: StreamingQueryListener) -> None:
        added.append(listener)
        add(self, listener)

    monkeypatch.setattr(StreamingQueryManager, "addListener", noting)
    yield
    for query in spark.streams.active:
        query.stop()
    for listener in added:
        spark.streams.removeListener(listener)
        if callable(close := getattr(listener, "close", None)):
            close()


@pytest.fixture
def control_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """Press it when a query that waits for it has made progress."""
    run_until_stopped = drain.run_until_stopped
    before = signal.getsignal(signal.SIGINT)

    def pressed(query: StreamingQuery, timeout: float = 60.0) -> None:
        def press() -> None:
            wait_until(
                "a query that waits for Control-C",
                lambda: signal.getsignal(signal.SIGINT) is not before and bool(query.lastProgress),
            )
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=press, daemon=True).start()
        run_until_stopped(query, timeout)

    monkeypatch.setattr(drain, "run_until_stopped", pressed)


class World:
    """What the words of the guide stand for."""

    def __init__(self, folder: Path, words: dict[str, str]) -> None:
        self.folder = folder
        self._words = words

    def real(self, text: str) -> str:
        """Return *text* with the addresses and paths of this run."""
        for word, meant in self._words.items():
            text = text.replace(word, meant)
        return text

    def run(self, snippet: Snippet, names: dict[str, Any]) -> None:
        """Run a snippet, or write it where it belongs."""
        text = self.real(snippet.text)
        if snippet.language == "yaml":
            # Spark brings a parser of its own, for Kubernetes.
            yaml = names["spark"]._jvm.org.yaml.snakeyaml.Yaml()
            assert yaml.load(text)["kind"], snippet.place
        elif snippet.file is not None:
            path = self.folder / snippet.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        elif snippet.language == "python":
            # As many lines before it as in the page, so that a traceback shows the right one.
            code = compile("\n" * (snippet.line - 1) + text, snippet.page, "exec")
            exec(code, names)
        elif snippet.language == "sh":
            self._shell(snippet, text)

    def _shell(self, snippet: Snippet, text: str) -> None:
        lines = text.replace("\\\n", " ").splitlines()
        script = "\n".join(line for line in lines if not _NOT_RUN.match(line))
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        with subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.folder,
            env={
                **os.environ,
                "PATH": path,
                "PYTHONPATH": os.pathsep.join([str(ROOT), str(self.folder)]),
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as ran:
            try:
                output, _ = ran.communicate(timeout=_SHELL_S)
            except subprocess.TimeoutExpired:
                os.killpg(ran.pid, signal.SIGKILL)  # With its JVM.
                raise
        assert ran.returncode == 0, f"{snippet.place}: {output[-4000:]}"


@pytest.fixture
def world(
    request: pytest.FixtureRequest, section: Section, coordinator: Daemon, tmp_path: Path
) -> World:
    """A log, a daemon, and a broker if the section speaks of one."""
    data = tmp_path / "data"
    rows = pa.table({"carrier": ["UA", "AA"] * 50, "delay": list(range(100))}, schema=FLIGHTS)
    with FolderLogWriter.create(data / "log", "flights", FLIGHTS, 6, fsync=False) as writer:
        for partition in range(6):
            writer.append(partition, rows)
    for driver in ("driver-a", "driver-b"):
        out = data / "out" / driver / "batch=0"
        out.mkdir(parents=True)
        keys = pa.table({"topic": ["flights"], "partition": [0], "offset": [0]})
        parquet.write_table(keys, out / "part-0.parquet")
    words = {COORDINATOR: coordinator.address, "/data/": f"{data}/", CONNECT: "local[2]"}
    if KAFKA in section.text:
        broker: Broker = request.getfixturevalue("kafka")
        words[KAFKA] = broker.address
        _orders(broker)
    return World(modules_folder(), words)


def _orders(broker: Broker) -> None:
    if "orders" not in broker.admin.list_topics(timeout=10).topics:
        broker.create("orders", ORDERS_PARTITIONS)
    values = [json.dumps({"id": number, "amount": number % 7}) for number in range(30)]
    broker.produce("orders", dict.fromkeys(range(ORDERS_PARTITIONS), values))


@pytest.mark.parametrize("section", cases())
@pytest.mark.usefixtures("listeners", "control_c")
def test_the_snippets_of_a_section_run(spark: SparkSession, section: Section, world: World) -> None:
    """Who copies one must not be the first to try it."""
    names: dict[str, Any] = {"__name__": "guide", "spark": spark}

    for snippet in section.snippets:
        world.run(snippet, names)
        for query in spark.streams.active:
            assert query.exception() is None, snippet.place
