"""The client in Spark, in one run: ``python -m bench.spark [--quick] [--only cost,pauses]``.

What coordination costs a batch, rows a second beside Spark's own sources, offsets as a table, and
how long partitions stand still when drivers come and go. Spark and the daemon share all cores.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import cached_property, partial
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from bench import spark_cost, spark_rates, spark_rows, spark_session
from bench.command import Benchmark, Choice, command
from bench.fill import FillPlan
from bench.peer_jars import spark_jars
from bench.peers import KAFKA, missing, peer_serving
from bench.processes import Server, run_json, serving
from bench.spark_pauses import DAEMON_SETTINGS, JOIN, KILL, LEAVE, pair
from bench.spark_rates import Folders
from bench.spark_rows import COST, LOGS, PARTS, PAUSES, TABLES
from bench.spark_sources import PlainSource
from client.spark import register

# Of each event, in a repetition: with three of them, a few more than twenty.
PAUSE_CYCLES: Final = 7
_SETTINGS: Final = ("group.initial.rebalance.delay.ms=0", "storage.reserve.bytes=0")
_FILL_S: Final = 300
_CORES: Final = 2

Sample = Mapping[str, float | None]


class SparkBench:
    """One run; collects samples by row. What a part needs is started when it is needed first."""

    def __init__(self, folder: Path, choice: Choice, stack: ExitStack) -> None:
        self._folder = folder
        self._choice = choice
        self._stack = stack
        self._amount = spark_rates.QUICK if choice.quick else spark_rates.FULL
        self._warm: set[str] = set()
        self.samples: dict[str, list[Sample]] = {}
        self.about: dict[str, str] = spark_session.about()

    def repetition(self, number: int) -> None:
        """Measure all rows once.

        Raises:
            ProcessError: A process or a query failed.
        """
        parts: Mapping[str, Callable[[], None]] = {
            COST: self._cost,
            LOGS: self._logs,
            TABLES: self._tables,
            PAUSES: lambda: self._pauses(number),
        }
        for name in PARTS:
            if name in self._choice.only:
                print(f"  {name}", flush=True)
                parts[name]()

    def stop_spark(self) -> None:
        """Stop the session, before anything that its processes are connected to."""
        if (spark := self.__dict__.get("_spark")) is not None:
            spark.stop()

    def _keep(self, name: str, sample: Sample) -> None:
        self.samples.setdefault(name, []).append(sample)

    def _cost(self) -> None:
        sizes = spark_cost.QUICK_SIZES if self._choice.quick else spark_cost.SIZES
        for size, batches in sizes.items():
            for source in spark_cost.FORMATS:
                measured = spark_cost.measure(
                    self._spark, source, size, batches, self._folder, _address(self._daemon)
                )
                self._keep(spark_cost.row_name(source, size), measured)

    def _logs(self) -> None:
        spark, address, folders = self._spark, _address(self._daemon), self._folders
        for form, (ours, theirs) in spark_rows.FILES_LOG.items():
            self._read(theirs, partial(spark_rates.spark_files, spark, folders, form))
            self._read(ours, partial(spark_rates.files_log, spark, folders, address, form))
        self._read(spark_rows.FOLDER_LOG, lambda: spark_rates.folder_log(spark, folders, address))
        if (kafka := self._kafka) is None:
            return
        self._read(spark_rows.SPARK_KAFKA, lambda: spark_rates.spark_kafka(spark, kafka))
        self._read(spark_rows.KAFKA_LOG, lambda: spark_rates.kafka_log(spark, kafka, address))

    def _read(self, name: str, rows: Callable[[], DataFrame]) -> None:
        for _ in range(self._times(name)):
            sample = spark_rates.read_all(rows(), self._folder, self._amount.rows)
        self._keep(name, sample)

    def _tables(self) -> None:
        amount, spark = self._amount, self._spark
        tables = {
            spark_rows.MADE_UP_TABLE: spark.read.format("made-up-table")
            .option("groups", str(amount.groups))
            .option("partitions", str(amount.partitions_per_group)),
            spark_rows.GROUP_OFFSETS: spark.read.format("group_offsets").option(
                "coordinator", _address(self._filled)
            ),
        }
        for name, table in tables.items():
            for _ in range(self._times(name)):
                sample = spark_rates.read_table(table.load(), amount.offsets)
            self._keep(name, sample)

    def _times(self, name: str) -> int:
        """Return how often to do it, so that the last time is a warm one."""
        if name in self._warm or self._choice.quick:
            return 1
        self._warm.add(name)
        return 3

    def _pauses(self, number: int) -> None:
        with pair(self._folder / f"pair-{number}", self._daemon) as drivers:
            cold = drivers.event(JOIN)
            self._keep(spark_rows.COLD_JOIN, cold)
            drivers.event(LEAVE)
            for _ in range(1 if self._choice.quick else PAUSE_CYCLES):
                self._keep(JOIN, drivers.event(JOIN))
                self._keep(LEAVE, drivers.event(LEAVE))
                drivers.event(JOIN)
                self._keep(KILL, drivers.event(KILL))

    @cached_property
    def _spark(self) -> SparkSession:
        made = spark_session.session(self._folder / "scratch", _CORES)
        register(made)
        for source in (PlainSource, spark_rates.MadeUpTable):
            made.dataSource.register(source)
        return made

    @cached_property
    def _daemon(self) -> Server:
        return self._serve("data", (*_SETTINGS, *DAEMON_SETTINGS))

    @cached_property
    def _filled(self) -> Server:
        server = self._serve("filled", _SETTINGS)
        plan = FillPlan(
            server.host,
            server.port,
            "coordinator",
            groups=self._amount.groups,
            partitions=self._amount.partitions_per_group,
        )
        run_json(["bench.fill", json.dumps(asdict(plan))], core=None, timeout_s=_FILL_S)
        return server

    @cached_property
    def _folders(self) -> Folders:
        return spark_rates.write_files(self._folder / "rows", self._amount)

    @cached_property
    def _kafka(self) -> str | None:
        """Where a broker with the rows listens; None if there can't be one."""
        why = "not in a smoke run" if self._choice.quick else missing("kafka")
        if why is None and spark_jars("spark-kafka") is None:
            why = "Spark's connector isn't in build/peers: python -m bench.peer_jars fetch"
        if why is not None:
            self.about["Kafka"] = f"skipped: {why}"
            return None
        server = self._stack.enter_context(peer_serving(KAFKA, self._folder / "kafka", core=None))
        spark_rates.fill_kafka(_address(server), self._amount)
        return _address(server)

    def _serve(self, name: str, settings: tuple[str, ...]) -> Server:
        arguments = ["serve", "--listen", "127.0.0.1:0", "--data-dir", str(self._folder / name)]
        for setting in settings:
            arguments += ["--set", setting]
        return self._stack.enter_context(
            serving(
                ["coordinator", *arguments],
                output=self._folder / f"{name}.log",
                core=None,
                graceful=True,
            )
        )


def _address(server: Server) -> str:
    return f"{server.host}:{server.port}"


@contextmanager
def _bench(folder: Path, choice: Choice) -> Iterator[SparkBench]:
    with ExitStack() as stack:
        # Spark's own processes have other working folders.
        bench = SparkBench(folder.resolve(), choice, stack)
        try:
            yield bench
        finally:
            bench.stop_spark()


def _settings(quick: bool) -> Mapping[str, str | float]:
    amount = spark_rates.QUICK if quick else spark_rates.FULL
    return {
        "cores": f"Spark local[{_CORES}] and the daemon share them; not pinned",
        "daemon": "defaults, " + ", ".join(_SETTINGS),
        "rows in the logs": f"{amount.rows:,}, {spark_rates.PARTITIONS} partitions",
        "offsets in the table": f"{amount.offsets:,}",
    }


main = command(
    Benchmark(
        module="bench.spark",
        help="Measure the client in Spark, and write the results.\n\n"
        "Exit status 1: something failed, or rows were wrong. A missed aim is no failure.",
        name="spark",
        quick_name="spark-quick",
        repetitions=3,
        make=_bench,
        settings=_settings,
        document=spark_rows.document,
        markdown=spark_rows.markdown,
        tables=spark_rows.tables,
        failures=spark_rows.failures,
        parts=PARTS,
    )
)


if __name__ == "__main__":
    main()
