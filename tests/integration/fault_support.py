"""One query of a test with faults: started, watched and judged."""

import re
import threading
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.integration.spark_support import AppendingSink, Written, stream, wait_until

END_S = 90

# Spark gives a Python process 10 s to start, which a busy machine may need for other things.
STARTS_MAX = 5


class GatedSink(AppendingSink):
    """Stops within a batch, before or after it is written, until the test lets it go."""

    def __init__(self, path: Path, *, after: bool = False) -> None:
        super().__init__(path)
        self.reached = threading.Event()
        self.gate = threading.Event()
        self._after = after

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Append the batch; wait where asked."""
        if self._after:
            super().__call__(batch, batch_id)
        self.reached.set()
        assert self.gate.wait(END_S)
        if not self._after:
            super().__call__(batch, batch_id)


class Scene:
    """A sink and a checkpoint, and any number of runs with them."""

    def __init__(self, spark: SparkSession, folder: Path, log: Path) -> None:
        self.sink = folder / "sink.jsonl"
        self.checkpoint = folder / "checkpoint"
        self._spark = spark
        self._log = log

    def start(
        self,
        address: str,
        *,
        available_now: bool = False,
        gate: AppendingSink | None = None,
        **given: str,
    ) -> StreamingQuery:
        """Start a run, with another sink if one is given."""
        writer = (
            stream(self._spark, address, self._log, **given)
            .writeStream.foreachBatch(gate or AppendingSink(self.sink))
            .option("checkpointLocation", str(self.checkpoint))
        )
        if available_now:
            writer = writer.trigger(availableNow=True)
        for _ in range(STARTS_MAX):
            query = writer.start()
            wait_until("the reader's start", lambda: _is_underway(query), END_S)  # noqa: B023 - called here only.
            if query.isActive or "failed to connect back" not in str(query.exception()):
                break
        return query

    def run(self, address: str, **given: str) -> None:
        """Read all that is there, to the end."""
        assert self.start(address, available_now=True, gate=None, **given).awaitTermination(END_S)

    def failure(self, query: StreamingQuery) -> str:
        """Wait until the query fails; return all that the user gets to see."""
        try:
            query.awaitTermination(END_S + 40)
        except Exception as error:  # noqa: BLE001 - of py4j or Connect, the text counts.
            return str(error)
        finally:
            query.stop()
        raise AssertionError("the query ended without an error, or not at all")

    def edit_last_offset(self, old: str, new: str) -> None:
        """Change what matches in the last batch of the checkpoint, past its checksum."""
        offsets = self.checkpoint / "offsets"
        last = max((file for file in offsets.iterdir() if file.name.isdecimal()), key=_number)
        text = last.read_text()
        changed = re.sub(old, new, text)
        assert changed != text, text
        last.write_text(changed)
        (offsets / f".{last.name}.crc").unlink(missing_ok=True)

    def written(self) -> Written:
        """Return what was written."""
        return Written(self.sink)


def _is_underway(query: StreamingQuery) -> bool:
    return not query.isActive or query.status["message"] != "Initializing sources"


def _number(file: Path) -> int:
    return int(file.name)
