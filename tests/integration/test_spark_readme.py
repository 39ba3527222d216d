"""The README's first screens run as they stand there, but for the port and the folders.

The daemon's command is that of "Run the daemon", the driver that of "A Spark driver", beside the
program that it names. `pip install` is left to tests/integration/test_packages.py.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from client.spark import register
from tests.guide import ROOT, sections
from tests.integration.spark_support import Lines, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.spark]

COORDINATOR: Final = "127.0.0.1:9310"
BIN: Final = Path(sys.executable).parent
BLOCKS: Final = {
    (section.title, snippet.language): snippet.text
    for section in sections(ROOT / "README.md")
    for snippet in section.snippets
}


@contextmanager
def running(command: list[str], folder: Path) -> Iterator[Lines]:
    """Run a program in *folder*; read what it prints."""
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        lines = Lines(process)
        yield lines
        process.kill()
        process.wait()
        lines.close()


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Where the README's daemon listens, on a port that is free."""
    *_, serve = BLOCKS["Run the daemon", "bash"].splitlines()
    program, *arguments = shlex.split(serve.replace(COORDINATOR, "127.0.0.1:0"))
    with running([str(BIN / program), *arguments], tmp_path) as lines:
        port = lines.wait("listening")["port"]
        lines.wait("ready")
        yield f"127.0.0.1:{port}"


@pytest.fixture
def application(spark: SparkSession) -> Iterator[None]:
    """Give the session of all tests its name back, and its readers theirs."""
    name = spark.conf.get("spark.app.name")
    assert name is not None
    yield
    register(SparkSession.builder.appName(name).getOrCreate())


def describe(address: str) -> list[str]:
    """Return what the README's look at the group prints."""
    command, *_ = BLOCKS["A Spark driver", "console"].splitlines()
    program, *arguments = shlex.split(command.removeprefix("$ "))
    asked = [str(BIN / program), *arguments, "--at", address]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return done.stdout.splitlines()


def numbers(line: str) -> list[str]:
    """Return the offset, the end and the lag of a partition, as far as they are known."""
    return [one for one in line.split()[3:6] if one.isdecimal()]


@pytest.mark.usefixtures("application")
def test_the_readmes_daemon_driver_and_look_at_the_group_work(
    spark: SparkSession, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the first that anybody tries; two batches, then Control-C."""
    before = signal.getsignal(signal.SIGINT)
    seen: list[str] = []

    def look_and_press() -> None:
        batches = tmp_path / "out" / "one"
        wait_until("two batches", (batches / "batch=1" / "_SUCCESS").exists)
        wait_until("numbers", lambda: all(len(numbers(one)) == 3 for one in describe(address)[1:]))
        seen.extend(describe(address))
        wait_until("the wait", lambda: signal.getsignal(signal.SIGINT) is not before)
        os.kill(os.getpid(), signal.SIGINT)

    driver = BLOCKS["A Spark driver", "python"].replace(COORDINATOR, address)
    for folder in ("logs", "out/", "checkpoints/"):
        driver, count = re.subn(rf"\"{folder}", f'"{tmp_path}/{folder}', driver)
        assert count == 1, folder
    monkeypatch.setattr(sys, "argv", ["spark_driver.py", "one"])
    with running([sys.executable, str(ROOT / "examples/write_orders.py")], tmp_path):
        wait_until("the log", (tmp_path / "logs" / "order-files" / "0").exists)
        looking = threading.Thread(target=look_and_press, daemon=True)
        looking.start()
        exec(compile(driver, "README.md", "exec"), {"__name__": "readme"})
        looking.join()

    shown = BLOCKS["A Spark driver", "console"].splitlines()[1]
    assert seen[0].split() == shown.split()
    assert [line.split()[:3] for line in seen[1:]] == [
        ["etl-orders", "order-files", n] for n in "0123"
    ]
    assert seen[1].split()[6].startswith("spark-one-")
    assert spark.read.parquet(f"{tmp_path}/out/one/*").count() > 0
    assert not spark.streams.active
